"""What both callbacks need of a call: its estimate, its hold, and one settlement."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import litellm
from litellm.integrations.custom_logger import CustomLogger

from ..api.operations import checked_ms
from ..asyncio import Client, Hold, JointLimiter, Server
from ..values.errors import BadArgument, TokenBucketError
from ..values.limit import Number
from ..values.options import named, read_numbers

AnyServer = Server | Client | str | None
Data = dict[str, Any]
"""What LiteLLM says of a request, or logs of a call."""
PARALLEL = "parallel"
# Of a call that says neither.
_ASSUMED_OUTPUT_TOKENS = 256
# More than any model gives, and what a bucket can still count when it is multiplied.
_MOST_TOKENS = 100_000_000
# How long a call is renewed whose end LiteLLM does not report.
_LONGEST_CALL_S = 3600
# How long LiteLLM may take to tell what a caller was sent before hanging up.
_PARTIAL_USAGE_WITHIN_S = 5
_HOOKS_OF_CLASS = (
    "async_pre_call_hook",
    "async_post_call_response_headers_hook",
    "async_post_call_streaming_iterator_hook",
)


def joint_limiter(server: AnyServer, prefix: str, options: Mapping[str, Any]) -> JointLimiter:
    """Returns a limiter on the server; on that of the environment if there is None."""
    names = ("url", "timeout_ms", "on_error") if server is None else ("on_error",)
    said = {name: f"TOKENBUCKET_{name.upper()}" for name in names if name not in options}
    given = {name: os.environ[variable] for name, variable in said.items() if variable in os.environ}

    def as_written(name: str) -> str:
        of = "url" if name == "client" else name
        return said[of] if of in given else name

    with named(as_written):
        if server is None:
            timeout = read_numbers({"timeout_ms": given.get("timeout_ms")})
            server = Server(given.get("url", "redis://localhost:6379/0"), **timeout)
        of_limiter: dict[str, Any] = {"on_error": given.get("on_error", "local"), **options}
        return JointLimiter(server, {}, prefix, **of_limiter)


@dataclass(slots=True)
class _Call:
    hold: Hold
    held: Mapping[str, Number]
    patience: asyncio.TimerHandle
    is_settled: bool = False


class Callback(CustomLogger):
    """What holds and settles calls. Hooks name those of LiteLLM's arguments that they read."""

    def __init__(self, server: AnyServer, prefix: str, ttl_ms: int, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.limiter = joint_limiter(server, prefix, options)
        self.ttl_ms = int(checked_ms("ttl_ms", ttl_ms, 1))
        self._calls: dict[str, _Call] = {}
        """Those that hold something, by their ids."""

    def __init_subclass__(cls, **options: Any) -> None:
        """LiteLLM's proxy calls these hooks only if the class of a callback itself has them."""
        super().__init_subclass__(**options)
        for name in _HOOKS_OF_CLASS:
            if (hook := getattr(cls, name)) is not getattr(CustomLogger, name):
                setattr(cls, name, hook)

    def _begin_call(self, id: str, hold: Hold, held: Mapping[str, Number]) -> None:
        """Renews the hold until the call is settled or forgotten, or an hour has passed.

        `held` are the limits that the call uses, and how much of them.
        """
        hold.keep_renewing()
        patience = asyncio.get_running_loop().call_later(_LONGEST_CALL_S, self._forget_call, id)
        self._calls[id] = _Call(hold, held, patience)

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: Data
    ) -> AsyncGenerator[Any, None]:
        """Settles a stream that its caller breaks off."""
        try:
            async for chunk in response:
                yield chunk
        except (GeneratorExit, asyncio.CancelledError):
            # In a task of its own, as this one is being cancelled: with what LiteLLM has counted until then,
            # if it tells; else all that was held.
            if (id := self._call_in(request_data)) in self._calls:
                self.limiter.server._detach_in(_PARTIAL_USAGE_WITHIN_S, lambda: self._end_call(id, None))
            raise

    def _call_in(self, data: Mapping[str, Any]) -> str:
        """Returns the id of the call whose data a hook of the proxy gets, or an empty one."""
        raise NotImplementedError

    async def _settle_call(self, id: str, tokens: float | None, *, was_sent: bool = True) -> None:
        """Settles once: LiteLLM reports the end of some calls to several hooks.

        `tokens` None is an unknown number, and all that was held. A call that was not sent used nothing.
        """
        call = self._calls.get(id)
        if call is None or call.is_settled:
            return
        call.is_settled = True
        call.hold.used = {
            which: _used(which, float(amount), tokens) if was_sent else 0
            for which, amount in call.held.items()
        }
        try:
            await call.hold.__aexit__(None, None, None)
        except TokenBucketError:  # the answer is worth more than the settlement
            self.limiter.server.log.exception("a call was not settled as its answer says")

    async def _end_call(self, id: str, tokens: float | None, *, was_sent: bool = True) -> None:
        """Settles a call of which no hook will tell more."""
        try:
            await self._settle_call(id, tokens, was_sent=was_sent)
        finally:
            self._forget_call(id)

    def _forget_call(self, id: str) -> None:
        """Leaves a hold that was not settled to expire."""
        if (call := self._calls.pop(id, None)) is not None:
            call.patience.cancel()
            call.hold._stop_renewing()


def estimate(data: Mapping[str, Any]) -> int:
    """Returns how many tokens a call may cost. Raises BadArgument for a number of tokens that cannot be."""
    given = (_whole(data, name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
    output = next((one for one in given if one), _ASSUMED_OUTPUT_TOKENS) * (_whole(data, "n") or 1)
    messages = data.get("messages")
    text = None if messages else str(data.get("prompt") or data.get("input") or "")
    try:
        of_input: int = litellm.token_counter(model=str(data.get("model", "")), messages=messages, text=text)
    except Exception:  # of any kind: LiteLLM itself answers what messages those are
        of_input = len(str(messages)) // 4
    return min(output + of_input, _MOST_TOKENS)


def tokens_of(response: Any) -> float | None:
    """Returns what an answer says that it cost; None if it does not say."""
    usage = response.get("usage") if isinstance(response, dict) else getattr(response, "usage", None)
    return usage.get("total_tokens") if isinstance(usage, dict) else getattr(usage, "total_tokens", None)


def _used(which: str, held: float, tokens: float | None) -> float:
    """Returns what a call used of a limit; all held tokens if their number is unknown."""
    if which.endswith(PARALLEL):
        return 0
    return held if tokens is None or which.endswith("requests") else tokens


def _whole(data: Mapping[str, Any], name: str) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    try:
        number = -1 if isinstance(value, bool) or int(value) != float(value) else int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number <= _MOST_TOKENS:
        raise BadArgument(f"{name}: {str(value)[:32]!r} is not a whole number from 0 to {_MOST_TOKENS}")
    return number
