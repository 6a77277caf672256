"""The router's callback in LiteLLM's router, in this process, before a stand-in for a provider."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from conftest import language_model
from launch import Servers
from paths import PACKAGE
from services import Service, free_port
from tokenbucket import BadArgument, Limit
from tokenbucket import asyncio as buckets
from tokenbucket.testing import FakeServer

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

# LiteLLM leaves clients and tasks behind.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.anyio]

PAGE = PACKAGE / "docs/litellm.md"
WITHIN_S = 30
ROOMY: dict[str, Any] = {"rpm": 1000, "tpm": 100_000, "max_parallel_requests": 1000}


class Setting:
    """A router on deployments of the model, and what the server knows of them."""

    def __init__(self, server: Service, admin: Any, model: Service) -> None:
        self.port, self.admin, self.model = server.port, admin, model
        self.callback: Any = None

    def deployment(self, name: str, group: str = "chat", **params: Any) -> dict[str, Any]:
        base = f"http://127.0.0.1:{self.model.port}/{name}/v1"
        of_api = {"model": "openai/echo", "api_base": base, "api_key": "none", "max_retries": 0} | params
        return {"model_name": group, "litellm_params": of_api, "model_info": {"id": name}}

    @asynccontextmanager
    async def router(
        self,
        *deployments: dict[str, Any],
        client: Any = None,
        callback: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        import litellm

        from tokenbucket.litellm import TokenBucketRouter

        class Still(TokenBucketRouter):
            """Nothing flows in while a test runs."""

            def limit_of(self, which: str, number: float) -> Limit:
                return Limit(number, 0 if which == "parallel" else "1/h")

        server = buckets.Server(client or f"redis://127.0.0.1:{self.port}", timeout_ms=20_000)
        self.callback = Still(server, **({"on_error": "raise"} | (callback or {})))
        litellm.suppress_debug_info = True
        litellm.callbacks = [self.callback]
        try:
            yield litellm.Router(
                list(deployments), **({"num_retries": 0, "disable_cooldowns": True} | options)
            )
        finally:
            litellm.logging_callback_manager._reset_all_callbacks()
            await self.callback.limiter.aclose()

    def ask(self, *words: Any) -> Any:
        return self.admin.execute_command(*words)

    def holds(self) -> list[str]:
        """The buckets that something is held of."""
        return sorted(
            key.removeprefix("tb:litellm:deployments:")
            for key in self.admin.scan_iter("tb:*")
            if self.ask("TB.HOLDS", key)
        )

    def used(self, name: str, group: str = "chat", **limits: int) -> tuple[int, int]:
        """Requests and tokens that were taken from a deployment."""
        of, key = ROOMY | limits, f"tb:litellm:deployments:{{{group}}}:{name}:"
        requests = self.ask("TB.PEEK", f"{key}requests", of["rpm"], "1/h", 0)[1]
        return of["rpm"] - requests, of["tpm"] - self.ask("TB.PEEK", f"{key}tokens", of["tpm"], "1/h", 0)[1]

    def calls(self, command: str) -> int:
        """How often the server was asked this."""
        stats = {name.lower(): one for name, one in self.admin.info("commandstats").items()}
        return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


@pytest.fixture
def setting(server: Service, admin: Any, model: Service) -> Setting:
    admin.config_resetstat()
    return Setting(server, admin, model)


def chat(router: Any, content: str, group: str = "chat", **more: Any) -> Awaitable[Any]:
    messages = [{"role": "user", "content": content}]
    answer: Awaitable[Any] = router.acompletion(group, messages, **({"max_tokens": 50} | more))
    return answer


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        await asyncio.sleep(0.05)


async def until_settled(setting: Setting) -> None:
    """LiteLLM tells some ends in tasks of its own, and others by forgetting the call."""

    def settled() -> bool:
        gc.collect()
        return not setting.holds()

    await until(settled, "the settlement")


async def status(call: Awaitable[Any]) -> Any:
    try:
        await call
    except Exception as error:
        return getattr(error, "status_code", error)
    return 200


def test_closing_settles_a_stream_that_was_broken_off_at_once() -> None:
    from tokenbucket.litellm import TokenBucketCallback

    class Named(TokenBucketCallback):
        def _call_in(self, data: Any) -> str:
            return str(data["id"])

    async def chunks() -> AsyncIterator[str]:
        while True:
            yield "a part"

    async def main() -> None:
        server = buckets.Server(FakeServer().asyncio)
        callback, slots = Named(server), buckets.JointLimiter(server, {"parallel": Limit(1, 0)})
        callback._begin_call("held", await slots.hold("a", {"parallel": 1}), {"parallel": 1})
        for id in ("without limits", "held"):
            stream: Any = callback.async_post_call_streaming_iterator_hook(None, chunks(), {"id": id})
            await anext(stream)
            await stream.aclose()
        assert not (await slots.hold("a", {"parallel": 1})).allowed, "LiteLLM may tell what was sent"
        began = time.monotonic()
        await server.aclose()
        assert time.monotonic() - began < 3
        assert (await slots.hold("a", {"parallel": 1})).allowed

    asyncio.run(main())


# What a caller does, and how many requests and tokens it costs: None is all that was held.
ENDS: dict[str, tuple[str, dict[str, Any], int, int | None]] = {
    "an answer": ("one two", {}, 1, 4),
    "a stream": ("one two", {"stream": True, "stream_options": {"include_usage": True}}, 1, 4),
    "a failure": ("break a", {}, 1, 0),
    "a refusal": ("fail", {}, 1, 0),
    "a time-out": ("slow", {"timeout": 0.3}, 1, 0),
    "a stream that breaks": ("one two cut", {"stream": True}, 1, None),
    "a stream that is closed": ("one two three four five six", {"stream": True, "close": True}, 1, None),
    "a cancelled call": ("slow", {"cancel": True}, 1, None),
    "a refusal by another callback": ("one two", {"refuse": True}, 0, 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_each_end_of_a_call_is_settled_once(setting: Setting, end: str) -> None:
    import litellm
    from litellm.integrations.custom_logger import CustomLogger

    class Refusing(CustomLogger):
        async def async_pre_call_deployment_hook(self, kwargs: Any, call_type: Any) -> None:
            raise ValueError("refused")

    content, options, requests, tokens = ENDS[end]
    how = dict(options)
    closes, cancels, refuses = (how.pop(name, False) for name in ("close", "cancel", "refuse"))

    async def call(router: Any) -> None:
        answer: Any = await chat(router, content, **how)
        if how.get("stream"):
            async for _ in answer:
                if closes:
                    await answer.aclose()
                    break

    async def main() -> None:
        async with setting.router(setting.deployment("a", **ROOMY)) as router:
            if refuses:
                litellm.callbacks.insert(0, Refusing())
            calling = asyncio.create_task(call(router))
            if cancels:
                await until(setting.holds, "the hold")
                await asyncio.sleep(0.3)  # for it to be sent
                calling.cancel()
            await asyncio.wait([calling])
            del calling
            await until_settled(setting)
            used = setting.used("a")
            assert used[0] == requests
            assert used[1] == tokens if tokens is not None else used[1] > 50
            await asyncio.sleep(0.3)  # for the hooks that come later
            assert setting.used("a") == used
        assert (setting.calls("tb.holdany"), setting.calls("tb.msettle")) == (1, 1)
        assert not setting.callback._calls

    asyncio.run(main())


async def test_what_has_failed_goes_last_and_each_attempt_has_a_hold_of_its_own(setting: Setting) -> None:
    heavy = setting.deployment("a", **ROOMY, weight=10**6)
    light = [setting.deployment(name, **ROOMY, weight=1) for name in ("b", "c")]
    async with setting.router(heavy, *light, num_retries=2) as router:
        assert (await chat(router, "break a b"))["choices"]
        await until_settled(setting)
        assert setting.used("a") == (1, 0)
        assert setting.used("c") == (1, 6)
        assert setting.used("b")[0] <= 1
    assert setting.calls("tb.holdany") == setting.calls("tb.msettle")


async def test_the_order_is_litellms_and_a_full_deployment_is_passed_over(setting: Setting) -> None:
    first = setting.deployment("a", order=1, **ROOMY | {"rpm": 2})
    async with setting.router(setting.deployment("b", order=2, **ROOMY), first) as router:
        for _ in range(3):
            await chat(router, "one")
        assert setting.used("a", rpm=2)[0] == 2
        assert setting.used("b")[0] == 1


async def test_a_weight_of_0_is_never_chosen(setting: Setting) -> None:
    none = setting.deployment("a", weight=0, **ROOMY)
    async with setting.router(none, setting.deployment("b", weight=1, **ROOMY | {"rpm": 1})) as router:
        assert [await status(chat(router, "one")) for _ in range(2)] == [200, 429]


async def test_a_denial_says_until_when_and_is_not_retried(setting: Setting) -> None:
    import litellm

    limits = ROOMY | {"rpm": 1}
    both = setting.deployment("a", **limits), setting.deployment("b", **limits)
    async with setting.router(*both, num_retries=3) as router:
        assert [await status(chat(router, "one")) for _ in range(2)] == [200, 200]
        with pytest.raises(litellm.RateLimitError, match=r"at its limit: retry after 3[56]") as denied:
            await chat(router, "one")
        assert 3500 < int(denied.value.response.headers["retry-after"]) <= 3600
        assert setting.calls("tb.holdany") == 3
        with pytest.raises(litellm.RateLimitError, match="too large for all of them") as denied:
            await chat(router, "one", max_tokens=200_000)
        assert "retry-after" not in denied.value.response.headers
        assert not setting.holds()


async def test_a_denial_falls_back_to_another_group(setting: Setting) -> None:
    chats = setting.deployment("a", **ROOMY | {"rpm": 1})
    reserve = setting.deployment("b", "reserve", **ROOMY)
    async with setting.router(chats, reserve, fallbacks=[{"chat": ["reserve"]}]) as router:
        assert [await status(chat(router, "one")) for _ in range(2)] == [200, 200]
        assert await status(chat(router, "break b", "reserve")) == 500
        await until_settled(setting)
        assert setting.used("a", rpm=1)[0] == 1
        assert setting.used("b", "reserve")[0] == 2


async def test_what_a_deployment_does_not_limit_is_not_counted(setting: Setting) -> None:
    only = setting.deployment("a", rpm=1)
    async with setting.router(only, setting.deployment("b", tpm=100_000), setting.deployment("c")) as router:
        assert [await status(chat(router, "one two")) for _ in range(4)] == [200] * 4
        assert setting.used("a", rpm=1) == (1, 0)
        assert setting.used("b")[0] == 0
        assert not setting.holds()
    async with setting.router(setting.deployment("c"), setting.deployment("d")) as router:
        before = setting.calls("tb.holdany")
        assert await status(chat(router, "one")) == 200
        assert setting.calls("tb.holdany") == before


async def test_an_estimate_of_nothing_is_corrected(setting: Setting) -> None:
    async with setting.router(setting.deployment("a", **ROOMY)) as router:
        setting.callback.estimate = lambda data: 0
        await chat(router, "one two")
        await until_settled(setting)
        assert setting.used("a") == (1, 4)


@pytest.mark.parametrize(
    ("on_error", "statuses"), [("local", [200, 429]), ("open", [200, 200]), ("closed", [503, 503])]
)
async def test_an_outage_is_decided_by_on_error(setting: Setting, on_error: str, statuses: list[int]) -> None:
    setting.port = free_port()
    deployment = setting.deployment("a", **ROOMY | {"rpm": 1})
    async with setting.router(deployment, callback={"on_error": on_error}, num_retries=1) as router:
        assert [await status(chat(router, "one")) for _ in range(2)] == statuses
    assert not setting.callback._calls


@pytest.mark.parametrize("more", [{}, {"litellm_trace_id": "session"}])
async def test_no_more_calls_run_than_there_are_slots(setting: Setting, more: dict[str, Any]) -> None:
    """200 at once, with one dict as their metadata, as LiteLLM itself would mix up."""
    slots = setting.deployment("a", **ROOMY | {"max_parallel_requests": 30})
    others = setting.deployment("b", **ROOMY | {"max_parallel_requests": 20})
    shared: dict[str, Any] = {"user": "u1"}
    async with setting.router(slots, others) as router:
        for _ in range(2):
            calls = (status(chat(router, "slow two", metadata=shared, **more)) for _ in range(200))
            statuses = Counter(await asyncio.gather(*calls))
            assert statuses == {200: 50, 429: 150}
            assert not setting.holds()
        assert setting.used("a") == (60, 240)
        assert setting.used("b") == (40, 160)


async def test_a_call_keeps_its_hold_while_many_others_share_its_metadata(setting: Setting) -> None:
    shared: dict[str, Any] = {"user": "u1"}
    async with setting.router(setting.deployment("a", **ROOMY)) as router:
        answering = asyncio.ensure_future(chat(router, "meet here", metadata=shared))
        await until(setting.holds, "the hold")
        for _ in range(12):
            await asyncio.gather(*(chat(router, "one", metadata=shared) for _ in range(10)))
        assert len(setting.holds()) == 3
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{setting.model.port}") as model:
            await model.get("/meet/here")
        await answering
        await until_settled(setting)
        assert len(shared["tokenbucket_attempts"]) <= 101
        assert setting.used("a")[0] == 121


async def test_a_deployment_may_be_removed_while_it_answers(setting: Setting) -> None:
    async with setting.router(setting.deployment("a", **ROOMY)) as router:
        answering = asyncio.ensure_future(chat(router, "slow two"))
        await until(setting.holds, "the hold")
        router.delete_deployment("a")
        await answering
        assert setting.used("a") == (1, 4)
        assert not setting.holds()


async def test_groups_have_limits_of_their_own_and_a_named_deployment_none(setting: Setting) -> None:
    one = setting.deployment("a", **ROOMY | {"rpm": 1})
    async with setting.router(one, setting.deployment("b", "other", **ROOMY | {"rpm": 1})) as router:
        statuses = [await status(chat(router, "one", group)) for group in ("chat", "other", "chat")]
        assert statuses == [200, 200, 429]
        assert await status(chat(router, "one", "a")) == 200, "LiteLLM chooses nothing here"
        assert not setting.holds()


async def test_deployments_of_several_groups_are_asked_in_a_cluster(
    setting: Setting, own_nodes: Servers
) -> None:
    few = ROOMY | {"rpm": 1}
    both = setting.deployment("a", "chat", **few), setting.deployment("b", "other", **few)
    async with (
        redis.asyncio.RedisCluster(host="127.0.0.1", port=own_nodes.nodes[0].port) as client,
        setting.router(*both, client=client) as router,
    ):
        # By the name of its provider LiteLLM finds the model in both.
        statuses = [await status(chat(router, "one", "openai/echo")) for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_an_answer_from_a_cache_costs_nothing(setting: Setting) -> None:
    import litellm

    redis: dict[str, Any] = {"redis_host": "127.0.0.1", "redis_port": setting.port}
    async with setting.router(setting.deployment("a", **ROOMY), cache_responses=True, **redis) as router:
        for _ in range(3):
            await chat(router, "one two")
            await asyncio.sleep(0.5)  # LiteLLM stores it in a task of its own
        await until_settled(setting)
        assert setting.used("a") == (1, 4)
    litellm.cache = None


async def test_no_metadata_of_a_caller_ends_the_hold_of_another(setting: Setting) -> None:
    async with setting.router(setting.deployment("a", **ROOMY)) as router:
        answering = asyncio.ensure_future(chat(router, "meet here", metadata={"of": "one"}))
        await until(setting.holds, "the hold")
        [id] = setting.callback._calls
        for forged in (id, [id], {"None": id}, {id: id}):
            metadata = {"tokenbucket_attempts": forged}
            assert await status(chat(router, "one", metadata=metadata, litellm_trace_id="None")) == 200
            assert len(setting.holds()) == 3
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{setting.model.port}") as model:
            await model.get("/meet/here")
        await answering
        assert not setting.holds()


async def test_a_long_call_keeps_its_hold(setting: Setting) -> None:
    slot = setting.deployment("a", **ROOMY | {"max_parallel_requests": 1})
    async with setting.router(slot, callback={"ttl_ms": 300}) as router:
        answering = asyncio.ensure_future(chat(router, "slow two"))
        await until(setting.holds, "the hold")
        while not answering.done():
            assert await status(chat(router, "one")) == 429 or answering.done()
            await asyncio.sleep(0.05)
        # The last one may have come when the slot was free again.
        await until_settled(setting)


async def test_calls_that_are_cancelled_at_any_moment_leave_nothing_held(setting: Setting) -> None:
    async with setting.router(setting.deployment("a", **ROOMY), setting.deployment("b", **ROOMY)) as router:
        calls = [asyncio.create_task(status(chat(router, "slow two"))) for _ in range(100)]
        for call in calls[::2]:
            await asyncio.sleep(0.005)
            call.cancel()
        statuses = await asyncio.gather(*calls, return_exceptions=True)
        assert statuses[1::2] == [200] * 50
        del calls, call, statuses
        await until_settled(setting)
        await until(lambda: not setting.callback._calls, "all are forgotten")


async def test_a_stream_that_breaks_may_go_on_elsewhere(setting: Setting) -> None:
    reserve = setting.deployment("b", "reserve", **ROOMY)
    async with setting.router(
        setting.deployment("a", **ROOMY), reserve, fallbacks=[{"chat": ["reserve"]}]
    ) as router:
        answer: Any = await chat(router, "cut-at-a two three", stream=True)
        said = [chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices]
        assert "three" in "".join(said)
        del answer
        await until_settled(setting)
        assert setting.used("a")[0] == 1
        assert setting.used("b", "reserve")[0] == 1
        assert 0 < setting.used("b", "reserve")[1] < 50, "what it said, not the estimate"


async def test_a_choice_that_litellm_drops_costs_nothing(setting: Setting) -> None:
    tagged = setting.deployment("a", tags=["paid"], **ROOMY)
    async with setting.router(tagged, enable_tag_filtering=True) as router:
        assert await status(chat(router, "one", metadata={"tags": ["free"]})) != 200
        await until_settled(setting)
        assert setting.used("a") == (0, 0)


async def test_a_retry_policy_does_not_ask_for_ever(setting: Setting) -> None:
    from litellm.router import RetryPolicy

    policy = RetryPolicy(RateLimitErrorRetries=2)
    none = setting.deployment("a", **ROOMY | {"rpm": 0}), setting.deployment("b", **ROOMY | {"rpm": 0})
    async with setting.router(*none, retry_policy=policy) as router:
        assert await status(chat(router, "one")) == 429
        assert setting.calls("tb.holdany") == 3


async def test_a_wrong_limit_names_the_deployment(setting: Setting) -> None:
    wrong = setting.deployment("a")
    wrong["model_info"]["rpm"] = "many"
    async with setting.router(wrong) as router:
        with pytest.raises(BadArgument, match="rpm of deployment a: 'many' is not a number"):
            await chat(router, "one")


@pytest.mark.parametrize("max_tokens", [-500, "abc", 10**15, True])
async def test_a_number_of_tokens_that_cannot_be_is_the_callers_mistake(
    setting: Setting, max_tokens: Any
) -> None:
    async with setting.router(setting.deployment("a", **ROOMY)) as router:
        assert await status(chat(router, "one", max_tokens=max_tokens)) == 400
        assert not setting.holds()


def test_the_limits_are_those_of_the_provider_less_a_margin() -> None:
    from tokenbucket.litellm import TokenBucketRouter

    router = TokenBucketRouter()
    assert router.limit_of("requests", 60) == Limit(54.0, "60/m")
    assert router.limit_of("requests", 1) == Limit(1, "1/m"), "one request has to fit"
    assert router.limit_of("parallel", 10) == Limit(10, 0)
    assert router.limit_of("tokens", 0) == Limit(0, 1)
    assert TokenBucketRouter(burst_s=10).limit_of("tokens", 6000) == Limit(900.0, "6000/m")
    assert TokenBucketRouter(calendar=True, margin=0).limit_of("tokens", 6000) == Limit(6000, "6000@m")
    assert router.limit_of("tokens", 10**13) == router.limit_of("tokens", 10**12)
    assert TokenBucketRouter(burst_s=3600).limit_of("tokens", 10**12).capacity == 9 * 10**11
    wrong: list[dict[str, Any]] = [
        *({"margin": margin} for margin in (1, -0.1, "0.1", None)),
        *({"burst_s": burst} for burst in (0, 7200, "60", None)),
        *({"ttl_ms": ttl} for ttl in (0, "60000", None)),
        {"prefix": None},
    ]
    for options in wrong:
        with pytest.raises(BadArgument, match=next(iter(options))):
            TokenBucketRouter(**options)


def test_the_program_of_the_page_runs(
    server: Service, admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    import litellm

    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    try:
        exec(compile(block.replace(":6379", f":{server.port}"), str(PAGE), "exec"), {"__name__": "page"})
    finally:
        litellm.logging_callback_manager._reset_all_callbacks()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:-1] == ["hello", "hello"]
    assert re.fullmatch(r"retry after (60|5\d) s", lines[-1])
    assert not [key for key in admin.scan_iter("tb:*") if admin.execute_command("TB.HOLDS", key)]


def test_two_routers_get_no_429_where_litellms_own_do(server: Service, tmp_path: Path, admin: Any) -> None:
    """Three deployments, whose provider enforces requests and tokens a minute. Counts alone are compared."""
    import litellm_load as load

    with language_model(tmp_path, LIMITS=json.dumps(load.limits())) as provider:
        got, answered = asyncio.run(load.both(provider.port, server.port))
    for strategy in load.STRATEGIES:
        count = {
            code: sum(answered.get(f"{strategy}-{name} {code}", 0) for name in load.DEPLOYMENTS)
            for code in (200, 429)
        }
        print(f"{strategy}: passed {got[strategy]['passed']}, 429s of the provider {count[429]}")
        assert got[strategy]["passed"] == count[200]
        assert (count[429] == 0) == (strategy == load.OURS)
    assert got[load.OURS]["passed"] >= 35, "a minute's worth, less the margin"
    assert set(got[load.OURS]) == {"passed", "denied"}
    assert not [key for key in admin.scan_iter("tb:*") if admin.execute_command("TB.HOLDS", key)]
