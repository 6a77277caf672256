"""Calendar rates are read as all packages and the module read them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest

from paths import REPOSITORY
from services import Service
from tokenbucket import BadArgument, Limit
from tokenbucket.testing import FakeServer

LINES = [
    line.split()
    for line in (REPOSITORY / "clients/conformance/rates.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
BOUNDARIES = [(line[0], line[1], line[2]) for line in LINES if len(line) == 3]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$",
    (REPOSITORY / "docs/how-to/daily-quota.md").read_text(),
    re.MULTILINE | re.DOTALL,
)
REFUSED = [line[0] for line in LINES if len(line) == 1]


@pytest.mark.parametrize(("rate", "since", "until"), BOUNDARIES)
def test_tokens_come_at_the_boundary(rate: str, since: str, until: str) -> None:
    emptied_at, refilled_at = datetime.fromisoformat(since), datetime.fromisoformat(until)
    server = FakeServer(emptied_at)
    reset_after_ms = (refilled_at - emptied_at) / timedelta(milliseconds=1)
    assert server.execute_command("TB.TAKE", "k", 10, rate, 10) == [1, 0, 0, reset_after_ms]
    server.advance(reset_after_ms / 1000)
    assert server.execute_command("TB.TAKE", "k", 10, rate, 10)[:2] == [1, 0]


@pytest.mark.parametrize("rate", REFUSED)
def test_what_is_no_rate_is_refused(rate: str) -> None:
    with pytest.raises(BadArgument, match="rate"):
        Limit(10, rate)


@pytest.mark.usefixtures("admin")
def test_a_customer_reads_when_the_plan_renews(server: Service, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = [block for block in BLOCKS if "billing_day" in block]
    exec(block.replace("Redis()", f"Redis(port={server.port})"), {"__name__": "page"})
    words = r"7,500 of 10,000 requests left\. Your plan renews on [A-Z][a-z]+ 15\.\n"
    assert re.fullmatch(words, capsys.readouterr().out)
