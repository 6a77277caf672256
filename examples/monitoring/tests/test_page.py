"""The page, in Debian's Chromium."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import PATIENCE_S, name, numbers_of_info
from playwright.sync_api import Browser, Page, expect, sync_playwright
from redis.exceptions import ResponseError
from test_exporter import HOSTILE_KEY, HOSTILE_KEY_SHOWN, some_calls

from run import HERE, add_user, client, load, replica_of
from services import wait_for

PICTURE = HERE.parents[1] / "docs" / "images" / "monitoring.png"
expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Root has no sandbox; what is opened here is our own page alone.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page; whatever it complains about fails the test."""
    contexts, complaints = [], []

    def open_page(url: str, **options: object) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: foreign(request.url))
        page.goto(url)
        return page

    def foreign(url: str) -> None:
        if not url.startswith("http://127.0.0.1:"):
            complaints.append(url)

    yield open_page
    for context in contexts:
        context.close()
    # What an exporter that has ended says.
    ended = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "Failed to fetch")
    assert [text for text in complaints if not any(words in text for words in ended)] == []


def card(page: Page, node):
    return page.get_by_role("article").filter(has_text=name(node))


def field(page: Page, node, of_info: str):
    return card(page, node).locator(f"[data-field={of_info}]")


def test_the_numbers_are_those_of_info_and_follow_them(start, watch, open_page):
    first, second = start(), start()
    some_calls(client(first))
    client(second).execute_command("TB.TAKE", "other", 1_000_000_000_000, "1000/s", 1_234_567_890)
    page = open_page(watch(first, second).url)

    def compare() -> None:
        for node in (first, second):
            for of_info, value in numbers_of_info(client(node)).items():
                expect(field(page, node, of_info)).to_have_text(f"{value:,}")

    compare()
    expect(page.get_by_role("status")).to_have_text("2 of 2 up")
    # Of both together, and of one that is chosen.
    total = page.locator("#buckets-now")
    expect(total).to_have_text("4")
    page.get_by_label("Show").select_option(name(second))
    expect(total).to_have_text("1")
    expect(page.locator("#top tr")).to_have_count(0)
    page.get_by_label("Show").select_option("all nodes")
    expect(page.locator("#top tr")).to_have_count(1)

    some_calls(client(second))
    compare()
    expect(total).to_have_text("7")
    expect(page.locator("#holds-now")).to_have_text(re.compile("^[234]$"))


def test_the_memory_shown_is_that_of_the_server_not_of_the_values_alone(start, watch, open_page):
    node = start()
    redis = client(node)
    pipeline = redis.pipeline(transaction=False)
    for user in range(100_000):
        pipeline.execute_command("TB.TAKE", f"user:{user}", 10, "1/d")
    pipeline.execute()
    page = open_page(watch(node).url)
    memory = page.get_by_role("slider", name="Memory over the last hour")
    expect(page.locator("#buckets-now")).to_have_text("100K")
    expect(memory).to_have_attribute("aria-valuetext", re.compile(r"values [\d.]+ MB$"))
    shown = float(page.locator("#server-now").text_content().removesuffix(" MB"))
    assert shown == pytest.approx(redis.info("memory")["used_memory"] / 1e6, rel=0.1)
    assert shown > 10


def test_calls_are_seen_as_calls_a_second(start, watch, open_page):
    node = start()
    page = open_page(watch(node, every_s="1").url)
    expect(page.locator("#allowed-now")).to_have_text("0")
    redis, allowed = client(node), set()

    def shown() -> bool:
        redis.execute_command("TB.TAKE", "modest", 1_000_000, "1/s")
        redis.execute_command("TB.TAKE", "greedy", 0, 1)
        allowed.add(page.locator("#allowed-now").text_content())
        return page.locator("#denied-share").text_content() == "50 %" and allowed != {"0"}

    wait_for(shown, "as many denied as allowed", PATIENCE_S)


def test_a_hostile_key_is_text(start, watch, open_page):
    node = start()
    redis = client(node)
    hostile = [HOSTILE_KEY, b"<script>alert(1)</script>", b"\xff" * 40, b"{{7*7}}", b""]
    for key in hostile:
        redis.execute_command("TB.TAKE", key, 0, 1)
    page = open_page(watch(node).url)
    keys = page.locator("#top .key")
    expect(keys).to_have_count(len(hostile))
    assert HOSTILE_KEY_SHOWN in keys.all_text_contents()
    assert r"\xff" * 40 in keys.all_text_contents()
    assert page.locator("#top img, #top script").count() == 0


def test_the_keys_denied_most_within_the_last_minute_come_first(start, watch, open_page):
    node = start()
    redis = client(node)
    for _ in range(30):
        redis.execute_command("TB.TAKE", "long ago", 0, 1)
    exporter = watch(node)
    exporter.wait_for("key_denied_total", 30, key="long ago")
    page = open_page(exporter.url)
    expect(page.locator("#top .key")).to_have_text(["long ago"])
    for _ in range(4):
        redis.execute_command("TB.TAKE", "now", 0, 1)
    expect(page.locator("#top .key")).to_have_text(["now", "long ago"])
    cells = page.locator("#top tr").first.locator("td")
    expect(cells.nth(2)).to_have_text("4")
    expect(cells.nth(3)).to_have_text("4")
    expect(page.locator("#top tr").nth(1).locator("td").nth(2)).to_have_text("0")


def test_a_node_that_dies_is_shown_as_such_and_comes_back(start, watch, open_page):
    dies, stays = start(), start()
    page = open_page(watch(dies, stays).url)
    expect(page.get_by_role("status")).to_have_text("2 of 2 up")

    dies.stop()
    expect(page.get_by_role("status")).to_have_text(f"1 of 2 up; {name(dies)} down")
    expect(card(page, dies)).to_have_class("down")
    expect(card(page, dies)).to_contain_text("down for")
    expect(card(page, dies)).to_contain_text("Connection refused")
    expect(field(page, dies, "buckets")).to_have_count(0)
    expect(card(page, stays)).not_to_have_class("down")
    expect(page).to_have_title(re.compile("⚠"))

    dies.start()
    add_user(dies)
    client(dies).execute_command("TB.TAKE", "again", 1, "1/h")
    expect(page.get_by_role("status")).to_have_text("2 of 2 up")
    expect(card(page, dies)).not_to_have_class("down")
    expect(card(page, dies)).to_contain_text(re.compile(r"master, version [0-9.]+, up \d+ s"))
    expect(field(page, dies, "decisions_allowed")).to_have_text("1")
    expect(page).not_to_have_title(re.compile("⚠"))


def test_errors_and_memory_near_its_limit_are_seen(start, watch, open_page):
    node = start()
    page = open_page(watch(node, every_s="1").url)
    expect(page.locator("#errors-now")).to_have_text("0")
    expect(page.locator(".tiles .bad")).to_have_count(0)
    redis = client(node)
    redis.config_set("maxmemory", int(redis.info("memory")["used_memory"] / 0.95))
    expect(page.locator("#server-label")).to_have_text(re.compile(r"^memory, 9\d % of the limit$"))
    expect(page.locator(".tiles .bad #server-now")).to_have_count(1)

    def is_seen() -> bool:
        with pytest.raises(ResponseError):
            redis.execute_command("TB.TAKE", "wrong", 1)
        return page.locator(".tiles .bad #errors-now").count() == 1

    wait_for(is_seen, "the errors", PATIENCE_S)
    expect(page.locator("#errors-now")).to_have_text("0")
    expect(page.locator(".tiles .bad #errors-now")).to_have_count(0)


def test_the_keys_of_a_node_that_is_down_are_those_last_known(start, watch, open_page):
    node = start()
    client(node).execute_command("TB.TAKE", "greedy", 0, 1)
    page = open_page(watch(node).url)
    expect(page.locator("#top .key")).to_have_text(["greedy"])
    node.stop()
    expect(page.locator("#top tr.stale .key")).to_have_text(["greedy"])
    words = rf"{name(node)} is down: its keys are as of \d+ s ago"
    expect(page.locator("#top-note")).to_contain_text(re.compile(words))


def test_up_is_since_the_server_started_not_the_exporter(start, watch, open_page):
    node = start()
    time.sleep(3)
    page = open_page(watch(node).url)
    expect(card(page, node)).to_contain_text(re.compile(r"up ([3-9]|\d\d) s"))


def test_a_node_without_the_module_and_a_refused_tb_top_are_said(start, watch, open_page):
    master = start()
    client(master).execute_command("ACL", "SETUSER", "monitoring", "-tb.top")
    bare = start(*replica_of(master), with_module=False)
    page = open_page(watch(master, bare).url)
    expect(page.get_by_role("status")).to_have_text(f"2 of 2 up; {name(bare)} without the module")
    expect(card(page, bare)).to_contain_text("replica")
    expect(page.locator("#top-note")).to_contain_text(f"refused by {name(master)}: ")


def test_an_exporter_that_ends_is_noticed_and_the_page_goes_on_with_the_next(
    start, watch, open_page
):
    exporter = watch(start())
    page = open_page(exporter.url)
    expect(page.get_by_role("status")).to_have_text("1 of 1 up")
    exporter.service.stop()
    expect(page.get_by_role("status")).to_contain_text("exporter down")
    exporter.service.start()
    expect(page.get_by_role("status")).to_have_text("1 of 1 up")


def test_the_charts_are_read_by_keyboard(start, watch, open_page):
    node = start()
    some_calls(client(node))
    page = open_page(watch(node).url)
    chart = page.get_by_role("slider", name="Buckets over the last hour", exact=True)
    expect(chart).to_have_attribute("aria-valuetext", "now: buckets 3")
    # With nothing but the keyboard: one link, the selection, and one chart are before it.
    for _ in range(4):
        page.keyboard.press("Tab")
    expect(chart).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"^\d\d:\d\d:\d\d: buckets 3$"))
    page.keyboard.press("Home")
    begins = chart.get_attribute("aria-valuemin")
    expect(chart).to_have_attribute("aria-valuenow", begins)
    # The others look at the same moment.
    calls = page.get_by_role("slider", name="Calls a second over the last hour")
    expect(calls).to_have_attribute("aria-valuenow", begins)
    page.keyboard.press("Escape")
    expect(chart).to_have_attribute("aria-valuetext", "now: buckets 3")


def test_a_chart_has_a_bearable_number_of_points(start, watch, open_page):
    page = open_page(watch(start()).url)

    def thinned(points: list[list]) -> list[list]:
        columns = [list(column) for column in zip(*points, strict=True)]
        thin = "([columns, every]) => import('./history.js').then(h => h.thinned(columns, every))"
        return page.evaluate(thin, [columns, 5])

    an_hour = [[5 * n, n] for n in range(720)]
    times, values = thinned(an_hour)
    assert (times[0], values[0]) == (10, 1), "of 0, 1 and 2"
    assert (times[-1], values[-1]) == (3595, 719), "the newest as it is"
    assert len(times) == 241 and times == sorted(set(times))
    # One that is missing is seen, wherever it is.
    an_hour[100][1] = None
    assert thinned(an_hour)[1].count(None) == 1
    assert thinned([[5, 1], [10, 2]]) == [[5, 10], [1, 2]], "few stay as they are"


PHONES = [{"width": 390, "height": 844}, {"width": 360, "height": 740}]
DESK = {"width": 1280, "height": 800}


def top(page: Page, found: str) -> float:
    """How far the first such element is from the top of the page."""
    return page.locator(found).first.evaluate("of => of.getBoundingClientRect().top + scrollY")


@pytest.mark.parametrize("size", PHONES, ids=lambda size: str(size["width"]))
def test_it_fits_a_phone(start, watch, open_page, size):
    node = start()
    redis = client(node)
    redis.execute_command("TB.TAKE", b"k" * 300, 0, 1)
    for _ in range(2):
        redis.execute_command("TB.TAKE", "ip:2001:db8:41:7:0:0:0:17/64:login:tenant", 0, 1)
    page = open_page(watch(node).url, viewport=size, has_touch=True, is_mobile=True)
    expect(page.locator("#top tr")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    boxes = [figure.bounding_box() for figure in page.locator("figure").all()]
    assert len({box["x"] for box in boxes}) == 1, "one below the other"
    # Who is limited comes before the charts, on the first screen.
    assert top(page, "#top .key") < 390
    assert top(page, "#top .key") < top(page, "figure") < top(page, "article")
    # A key that fills its line continues after a colon or the like.
    assert all(line[-1] in ":/." for line in lines_of(page.locator("#top .key").first)[:-1])


def lines_of(found) -> list[str]:
    """The text as it is broken into lines."""
    return found.evaluate("""of => {
        const lines = [], range = document.createRange();
        let bottom = -Infinity;
        for (const node of of.childNodes) for (let at = 0; at < (node.data ?? "").length; at++) {
            range.setStart(node, at);
            range.setEnd(node, at + 1);
            const box = range.getBoundingClientRect();
            if (box.top >= bottom) lines.push("");
            bottom = box.bottom;
            lines[lines.length - 1] += node.data[at];
        }
        return lines;
    }""")


@pytest.mark.parametrize("size", [DESK, *PHONES], ids=lambda size: str(size["width"]))
def test_neither_a_look_at_a_chart_nor_a_larger_number_moves_the_page(
    start, watch, open_page, size
):
    node = start()
    some_calls(client(node))
    page = open_page(watch(node).url, viewport=size)
    expect(page.locator("#top tr")).to_have_count(1)
    # A label of two lines among those of one.
    page.evaluate("document.querySelector('.tiles dt').append(' within the whole cluster')")
    tops = [page.locator(".tiles dd").nth(number).bounding_box()["y"] for number in range(8)]
    columns = 8 if size == DESK else 4
    for row in (tops[:columns], tops[columns:]):
        assert len(set(row)) <= 1, "the numbers of a row of tiles are in line"

    def places() -> list[float]:
        return [top(page, found) for found in ("#denied", "#charts", "#nodes", "footer")]

    before = places()
    for chart in page.locator(".chart").all():
        chart.hover()
        expect(page.locator(".reading").first).to_contain_text(re.compile(r"^\d\d:\d\d:\d\d"))
        assert places() == before
        page.mouse.move(0, 0)
        expect(page.locator(".reading").first).to_contain_text("now")
    # However long a reading gets; at once, before it is written anew.
    width, footer = page.evaluate("""() => {
        document.querySelectorAll(".reading").forEach(of => of.append(" 123.4K".repeat(20)));
        const footer = document.querySelector("footer").getBoundingClientRect();
        return [document.documentElement.scrollWidth, footer.top + scrollY];
    }""")
    assert width <= size["width"] and footer == before[-1]


def test_it_is_dark_where_the_system_is(start, watch, open_page):
    exporter = watch(start())

    def brightness(scheme: str) -> list[int]:
        page = open_page(exporter.url, color_scheme=scheme)
        expect(page.get_by_role("status")).to_have_text("1 of 1 up")
        style = "getComputedStyle(document.body)"
        colours = page.evaluate(f"[{style}.backgroundColor, {style}.color]")
        return [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]

    ground, text = brightness("light")
    dark_ground, light_text = brightness("dark")
    assert ground > 600 > text and dark_ground < 165 < light_text


def test_all_that_is_operated_has_a_name_and_a_role(start, watch, open_page):
    node = start()
    some_calls(client(node))
    page = open_page(watch(node).url)
    expect(card(page, node)).to_have_count(1)
    for role, names in {
        "heading": ["Token buckets", "Most limited keys", "Nodes", name(node)],
        "region": ["Now", "The last hour", "Most limited keys", "Nodes"],
        "slider": ["Calls a second over the last hour", "Holds outstanding over the last hour"],
        "combobox": ["Show"],
        "columnheader": ["key", "denied last minute"],
    }.items():
        for of in names:
            expect(page.get_by_role(role, name=of, exact=True)).to_have_count(1)


@pytest.mark.screenshot
def test_the_picture_of_the_documentation(start, watch, open_page, processes, tmp_path: Path):
    """URL: an exporter that has been watching for long, as `make run` starts one."""
    url = os.environ.get("URL")
    if not url:
        node = start()
        replica = start(*replica_of(node))
        processes.append(load(tmp_path, node))
        processes[-1].start()
        url = watch(node, replica, every_s="2").url
        time.sleep(float(os.environ["MINUTES"]) * 60)
    page = open_page(url, viewport={"width": 1200, "height": 900}, device_scale_factor=2)
    expect(page.locator("#top tr").first).to_be_visible()
    expect(page.get_by_role("status")).to_have_class("good")
    page.evaluate("document.fonts.ready")
    PICTURE.parent.mkdir(exist_ok=True)
    page.screenshot(path=PICTURE, full_page=True)
