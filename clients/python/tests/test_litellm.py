"""The callback in a LiteLLM proxy, as its own process, before a stand-in for a language model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from fastapi import HTTPException

from paths import PACKAGE
from services import Service, free_port, wait_for
from tokenbucket import BadArgument
from tokenbucket.testing import FakeServer

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

# What metadata say, and what two calls get: their statuses, or a 400 that contains a text.
METADATA: list[tuple[Any, list[int] | str]] = [
    *(({"requests": one}, [200, 429]) for one in (1, "1", " 1 ", 1.0, "1.0", "1 1/h", " 1  1/h ")),
    *(({"requests": none}, [429, 429]) for none in (0, "0", "0 1/h")),
    ({"tokens": 0}, [429, 429]),
    ({"parallel": 0}, [429, 429]),
    ({"parallel": "7"}, [200, 200]),
    ({"requests": 1, "tokens": None}, [200, 429]),
    *((none, [200, 200]) for none in ({"requests": None}, {}, None)),
    *(({"requests": no}, f"{no!r} is neither") for no in (1.5, True, "", "often", "1.5", [1], {"of": 1})),
    ({"requests": -1}, "capacity: -1 is not"),
    ({"tokens": 10**13}, [200, 200]),
    ({"parallel": 10**13}, [200, 200]),
    ({"requests": "1 often"}, "rate: 'often' must be"),
    ({"requests": "1 0/m"}, "rate: count '0' in '0/m' must be above 0"),
    ({"requests": "2 1/36500d"}, "refilling capacity"),
    ({"requests": "1 1/m 1"}, "'1 1/m 1' is not"),
    ({"parallel": "1 1/m"}, "'1 1/m' is neither"),
    ({"Requests": 1}, "'Requests' is neither"),
    ({"rpm": 1}, "'rpm' is neither"),
    *((none, f"{none!r} is not an object") for none in (["requests"], "1 1/m", 1, "", False)),
]

# Nothing flows in while a test runs.
STILL = "10/h"
ROOMY = {"requests": f"1000 {STILL}", "tokens": f"100000 {STILL}", "parallel": 1000}
# A key for each test, so that none leaves another less.
KEYS: dict[str, Any] = {
    "sk-requests": {"metadata": {"tokenbucket": ROOMY | {"requests": f"3 {STILL}"}}},
    "sk-tokens": {"metadata": {"tokenbucket": ROOMY | {"tokens": f"1000 {STILL}"}}},
    "sk-parallel": {"metadata": {"tokenbucket": ROOMY | {"parallel": 2}}},
    "sk-ids": {"metadata": {"tokenbucket": ROOMY | {"requests": f"3 {STILL}"}}},
    "sk-n": {"metadata": {"tokenbucket": ROOMY | {"tokens": f"1000 {STILL}"}}},
    "sk-ends": {"metadata": {"tokenbucket": ROOMY}},
    "sk-killed": {"metadata": {"tokenbucket": ROOMY}},
    "sk-litellm": {"rpm_limit": 2},
    "sk-none": {},
    "sk-extended": {"user_id": "extended"},
    "sk-team-misspelt": {"team_id": "t8", "team_metadata": {"tokenbucket": {"token": 5}}},
    "sk-messages": {"metadata": {"tokenbucket": ROOMY}},
    "sk-one": {
        "metadata": {"tokenbucket": {"requests": f"5 {STILL}"}},
        "team_id": "t7",
        "team_metadata": {"tokenbucket": {"requests": f"6 {STILL}"}},
    },
    "sk-other": {"team_id": "t7", "team_metadata": {"tokenbucket": {"requests": f"6 {STILL}"}}},
} | {f"sk-{said!r}": {"metadata": {"tokenbucket": said}} for said, _ in METADATA}

# LiteLLM takes half a minute to start on a slow machine, and tries to fetch prices.
STARTS_WITHIN_S = 180


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, server: Service, model: Service) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("litellm")
    of_model = {"model": "openai/echo", "api_base": f"http://127.0.0.1:{model.port}/v1", "api_key": "none"}
    routed = {"rpm": 600, "tpm": 60_000, "max_parallel_requests": 100}
    config = {
        "model_list": [
            {"model_name": "echo", "litellm_params": of_model},
            {"model_name": "routed", "litellm_params": of_model | routed, "model_info": {"id": "d1"}},
            {"model_name": "tight", "litellm_params": of_model | {"rpm": 1}, "model_info": {"id": "d2"}},
        ],
        "litellm_settings": {
            "callbacks": [
                "tokenbucket.litellm.callback",
                "litellm_callbacks.callback",
                "litellm_callbacks.router",
            ]
        },
        "general_settings": {"custom_auth": "litellm_auth.user_api_key_auth"},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    for name in ("litellm_auth.py", "litellm_callbacks.py"):
        (folder / name).write_text((PACKAGE / "tests" / name).read_text())
    port = free_port()
    command = [str(Path(sys.executable).parent / "litellm"), "--config", "config.yaml"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    env = {
        "KEYS": json.dumps(KEYS),
        "TOKENBUCKET_URL": f"redis://127.0.0.1:{server.port}/0",
        "TOKENBUCKET_TIMEOUT_MS": "5000",
        "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}",
    }
    proxy = Service("proxy", command, port, folder, env)
    proxy.start(within_s=STARTS_WITHIN_S)
    yield proxy
    proxy.stop()


@pytest.fixture
def client(proxy: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", timeout=60) as client:
        yield client


def call(content: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "echo",
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": content}],
        **more,
    }


def chat(
    client: httpx.Client, key: str, content: str = "one two three", max_tokens: int = 50, **more: Any
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return client.post("/v1/chat/completions", json=call(content, max_tokens, **more), headers=headers)


def stream(
    client: httpx.Client,
    key: str,
    content: str,
    max_tokens: int,
    route: str = "chat/completions",
    **more: Any,
) -> Any:
    body, headers = call(content, max_tokens, stream=True) | more, {"Authorization": f"Bearer {key}"}
    if route == "responses":
        body |= {"input": content, "max_output_tokens": max_tokens}
        del body["messages"], body["max_tokens"]
    return client.stream("POST", f"/v1/{route}", json=body, headers=headers)


def buckets(admin: Any) -> dict[str, tuple[int, int]]:
    """What is left of each limit of the only key that has been used, and how many are held."""
    seen, ask = {}, admin.execute_command
    for key in admin.scan_iter("*:key:*"):
        which = key.rpartition(":")[2]
        capacity, rate = (ROOMY | {"parallel": "1000 0"})[which].split()  # type: ignore[attr-defined]
        seen[which] = (ask("TB.PEEK", key, capacity, rate, 0)[1], len(ask("TB.HOLDS", key)))
    return seen


def held_of_deployments(admin: Any) -> set[str]:
    keys = [str(key) for key in admin.scan_iter("tb:litellm:deployments:*")]
    return {key.rpartition(":")[2] for key in keys if admin.execute_command("TB.HOLDS", key)}


def test_requests_are_limited_and_the_refusal_says_until_when(client: httpx.Client) -> None:
    responses = [chat(client, "sk-requests") for _ in range(4)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429]
    assert '"key:requests";r=2' in responses[0].headers["RateLimit"]
    denied = responses[-1]
    assert "key:requests" in denied.json()["error"]["message"]
    assert 300 < int(denied.headers["Retry-After"]) <= 360
    assert '"key:requests";q=3' in denied.headers["RateLimit-Policy"]


def test_tokens_are_settled_with_what_the_model_says(client: httpx.Client) -> None:
    # Held are 700 and the message; used are 6. So it fits again and again, and 2000 never do.
    assert [chat(client, "sk-tokens", max_tokens=700).status_code for _ in range(5)] == [200] * 5
    never = chat(client, "sk-tokens", max_tokens=2000)
    assert never.status_code == 429
    assert "key:tokens" in never.json()["error"]["message"]
    assert "Retry-After" not in never.headers, "above the capacity: waiting does not help"


def test_no_more_calls_are_in_flight_than_allowed(client: httpx.Client) -> None:
    words = " ".join(["word"] * 40)
    with stream(client, "sk-parallel", words, 50) as one, stream(client, "sk-parallel", words, 50) as other:
        assert (one.status_code, other.status_code) == (200, 200)
        denied = chat(client, "sk-parallel")
        assert denied.status_code == 429
        assert "key:parallel" in denied.json()["error"]["message"]
    wait_for(lambda: chat(client, "sk-parallel").status_code == 200, "a free slot")


def test_no_header_of_a_caller_switches_a_limit_off(client: httpx.Client) -> None:
    client.headers["x-litellm-call-id"] = "mine"
    metadata = {"tokenbucket_id": "mine"}

    def status(_: int) -> int:
        return chat(client, "sk-ids", "one", 5, metadata=metadata, litellm_metadata=metadata).status_code

    with ThreadPoolExecutor(15) as threads:
        assert sorted(threads.map(status, range(30))) == [200] * 3 + [429] * 27


@pytest.mark.parametrize("max_tokens", [-500, "abc", 10**15, True])
def test_a_number_of_tokens_that_cannot_be_is_the_callers_mistake(
    client: httpx.Client, max_tokens: Any
) -> None:
    denied = chat(client, "sk-tokens", max_tokens=max_tokens)
    assert denied.status_code == 400
    assert "max_tokens" in denied.text


def test_the_estimate_counts_every_choice(client: httpx.Client) -> None:
    assert [chat(client, "sk-n", "one", 300, n=count).status_code for count in (4, 2)] == [429, 200]


WORDS = " ".join(["word"] * 300)
RESPONSES: dict[str, Any] = {"route": "responses"}
MESSAGES: dict[str, Any] = {"route": "messages"}
# What a caller sends and how, whether it streams, and how many tokens it costs at least and at most.
ENDS: dict[str, tuple[str, dict[str, Any], bool, int, int]] = {
    "an answer": ("one two three", {}, False, 6, 6),
    "a stream": ("one two three", {}, True, 1, 30),
    "a stream of a response": ("one two three", RESPONSES, True, 6, 6),
    "a stream of a message": ("one two three", MESSAGES, True, 6, 6),
    "a stream of a session": ("one two three", RESPONSES | {"metadata": {"session_id": "s"}}, True, 6, 6),
    "a failure": ("fail please", {}, False, 0, 0),
    "a hang-up": (WORDS, {}, True, 301, 2000),
    "a hang-up in a response": (WORDS, RESPONSES, True, 301, 2000),
    "a hang-up in a message": (WORDS, MESSAGES, True, 301, 2000),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_the_key_and_the_router_hold_is_settled_once_the_call_ends(
    client: httpx.Client, admin: Any, end: str
) -> None:
    content, how, streams, least, most = ENDS[end]
    hangs_up = end.startswith("a hang-up")
    with stream(client, "sk-ends", content, 500, model="routed", stream=streams, **how) as response:
        chunks = response.iter_raw()
        said = next(chunks)
        assert response.status_code == (400 if end == "a failure" else 200), said
        if streams:
            held = buckets(admin)
            assert held["tokens"][0] < 100_000 - 500
            assert [holds for _, holds in held.values()] == [1, 1, 1]
            assert held_of_deployments(admin) == {"requests", "tokens", "parallel"}
        if not hangs_up:
            said += b"".join(chunks)
            ends = b"message_stop" if how.get("route") == "messages" else b"[DONE]"
            assert (ends in said) == streams
    wait_for(lambda: not any(holds for _, holds in buckets(admin).values()), "the settlement of the key's")
    wait_for(lambda: not held_of_deployments(admin), "the settlement of the router's")
    left = buckets(admin)
    assert left["requests"] == (999, 0)
    assert least <= 100_000 - left.get("tokens", (100_000, 0))[0] <= most
    tokens = admin.execute_command("TB.PEEK", "tb:litellm:deployments:{routed}:d1:tokens", 60_000, "1/h", 0)
    assert least <= 60_000 - tokens[1] <= most


def test_litellms_own_limits_are_taken_where_there_are_no_others(client: httpx.Client, admin: Any) -> None:
    assert [chat(client, "sk-litellm").status_code for _ in range(3)] == [200, 200, 429]
    [key] = admin.scan_iter()
    assert key.endswith(":key:requests")


@pytest.mark.parametrize(("said", "expected"), METADATA)
def test_what_metadata_may_say(client: httpx.Client, said: Any, expected: list[int] | str) -> None:
    responses = [chat(client, f"sk-{said!r}") for _ in range(2)]
    codes = [response.status_code for response in responses]
    if isinstance(expected, list):
        assert codes == expected
    else:
        assert codes == [400, 400]
        assert expected in responses[0].json()["error"]["message"]


def test_a_misspelt_word_of_a_team_lets_nobody_through(client: httpx.Client) -> None:
    response = chat(client, "sk-team-misspelt")
    assert response.status_code == 400
    assert "'token' is neither" in response.text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "one"), [("rpm_limit", 1), ("tpm_limit", 60), ("max_parallel_requests", 1)])
def test_litellms_limits_are_read_as_its_own_limiter_reads_them(server: Service, name: str, one: int) -> None:
    from litellm.caching.caching import DualCache
    from litellm.proxy._types import UserAPIKeyAuth
    from litellm.proxy.hooks.parallel_request_limiter_v3 import _PROXY_MaxParallelRequestsHandler_v3
    from litellm.proxy.utils import InternalUsageCache
    from pydantic import ValidationError

    from tokenbucket import asyncio as buckets
    from tokenbucket.litellm import TokenBucketCallback

    async def passed(limiter: Any, key: dict[str, Any]) -> int:
        count = 0
        for _ in range(3):
            # In a task, as each request of a proxy: LiteLLM keeps what it knows of a request in its context.
            before = limiter.async_pre_call_hook(
                UserAPIKeyAuth(**key), DualCache(), call("one", 50), "acompletion"
            )
            try:
                await asyncio.create_task(before)
            except HTTPException as error:
                assert error.status_code == 429, error.detail  # noqa: PT017
            else:
                count += 1
        return count

    async def both(value: Any) -> list[int]:
        key = {"api_key": f"sk-{name}-{value!r}", name: value}
        async with redis.asyncio.Redis(port=server.port) as connected:
            own = _PROXY_MaxParallelRequestsHandler_v3(InternalUsageCache(DualCache()))
            ours = TokenBucketCallback(buckets.Server(connected, timeout_ms=5000))
            return [await passed(limiter, key) for limiter in (own, ours)]

    rows: list[tuple[int, list[Any]]] = [
        (1, [one, str(one), f" {one} ", float(one)]),
        (0, [0, "0", -1]),
        (3, [None, 10**13, sys.maxsize]),
    ]
    for expected, values in rows:
        for value in values:
            assert asyncio.run(both(value)) == [expected, expected], value
    for value in (1.5, "1.5", "often", ""):
        with pytest.raises(ValidationError):
            UserAPIKeyAuth(api_key="sk-none", **{name: value})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("TIMEOUT_MS", "soon", "TOKENBUCKET_TIMEOUT_MS: 'soon' is not a number"),
        ("TIMEOUT_MS", "", "TOKENBUCKET_TIMEOUT_MS: '' is not a number"),
        ("TIMEOUT_MS", "0", "TOKENBUCKET_TIMEOUT_MS: 0.0 is not a number above 0"),
        ("ON_ERROR", "pass", "TOKENBUCKET_ON_ERROR: 'pass' is none of"),
        ("ON_ERROR", "", "TOKENBUCKET_ON_ERROR: '' is none of"),
        ("URL", "localhost:6379", "TOKENBUCKET_URL: 'localhost:6379': "),
        ("URL", "", "TOKENBUCKET_URL: '': "),
    ],
)
def test_a_mistake_in_the_environment_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    from tokenbucket.litellm import TokenBucketCallback

    monkeypatch.setenv(f"TOKENBUCKET_{name}", value)
    with pytest.raises(BadArgument, match=re.escape(why)):
        TokenBucketCallback()
    with pytest.raises(BadArgument, match=r"^client: 'nowhere'"):  # of which the environment says nothing
        TokenBucketCallback("nowhere", on_error="local")


@pytest.mark.parametrize(
    "messages", ["hello", [7], [{"role": 7}], [{"content": {"a": 1}}], {"a": 1}, [[]], None]
)
def test_litellm_itself_answers_messages_that_are_none(client: httpx.Client, messages: Any) -> None:
    theirs, ours = (chat(client, key, "", 5, messages=messages) for key in ("sk-none", "sk-messages"))
    assert ours.status_code == theirs.status_code


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("total", [float("nan"), -5, "many"])
def test_a_use_that_cannot_be_fails_no_call_and_is_charged_as_held(total: Any) -> None:
    from litellm.proxy._types import UserAPIKeyAuth

    from tokenbucket.litellm import TokenBucketCallback

    async def main() -> None:
        callback = TokenBucketCallback(FakeServer().asyncio)
        key = UserAPIKeyAuth(api_key="sk", metadata={"tokenbucket": {"tokens": "1000 1/h", "parallel": 1}})
        for _ in range(2):
            data = await callback.async_pre_call_hook(key, None, call("one", 50), "acompletion")
            await callback.async_post_call_success_hook(data, key, {"usage": {"total_tokens": total}})

    asyncio.run(main())


def test_an_extended_callback_limits_too_and_names_its_limits(client: httpx.Client) -> None:
    both = [chat(client, "sk-extended", "one", 5) for _ in range(2)]
    assert [response.status_code for response in both] == [200, 429]
    assert '"key:requests";r=0' in both[0].headers["RateLimit"]


def test_a_team_is_limited_together_with_its_keys(client: httpx.Client) -> None:
    assert [chat(client, "sk-one").status_code for _ in range(6)] == [200] * 5 + [429]
    assert [chat(client, "sk-other").status_code for _ in range(2)] == [200, 429]


def test_a_router_in_a_proxy_denies_when_all_deployments_are_busy(client: httpx.Client, admin: Any) -> None:
    both = [chat(client, "sk-ends", "one", 5, model="tight") for _ in range(2)]
    assert [response.status_code for response in both] == [200, 429]
    assert "every deployment is at its limit: retry after" in both[1].json()["error"]["message"]
    assert 0 < int(both[1].headers["Retry-After"]) <= 60
    wait_for(lambda: not any(holds for _, holds in buckets(admin).values()), "the settlement")
    assert buckets(admin)["requests"] == (998, 0), "what is denied was a request of the key"


def test_what_a_killed_proxy_held_comes_back(client: httpx.Client, proxy: Service, admin: Any) -> None:
    with stream(client, "sk-killed", WORDS, 500) as response:
        chunks = response.iter_raw()
        next(chunks)
        proxy.signal(signal.SIGKILL)
        for key in admin.scan_iter():
            [[_, _, expires_in_ms]] = admin.execute_command("TB.HOLDS", key)
            assert 0 < expires_in_ms <= 60_000


def test_the_readme_says_which_litellm_was_tested() -> None:
    assert f"| litellm | {version('litellm')} |" in (PACKAGE / "README.md").read_text()
