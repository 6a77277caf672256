"""A callback of LiteLLM's router: chooses a deployment by reserving its limits.

Each router that reads usage and then calls takes the deployment that looked free, and all routers
together go over its limit. Here one call to the server reserves a request, the estimated tokens and a
slot at the first deployment that has all three, so that its provider has no reason to answer 429.

LiteLLM asks `async_filter_deployments` once an attempt, and reports the end of an attempt to one hook or
several, in no certain order, or to none at all. So each attempt leaves a mark in the metadata of its
request, which all hooks get. The first hook settles the hold. If the mark is freed before, LiteLLM has
forgotten the call.
"""

from __future__ import annotations

import asyncio
import math
import random
import uuid
import weakref
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import httpx
import litellm

from ..api.joint import Limits, hash_tag
from ..asyncio import Hold
from ..values.decision import Decision
from ..values.errors import BadArgument
from ..values.limit import MOST_TOKENS, Limit
from .calls import PARALLEL, AnyServer, Callback, Data, estimate, tokens_of

Deployment = Mapping[str, Any]

_SETTINGS = {"requests": "rpm", "tokens": "tpm", PARALLEL: "max_parallel_requests"}
"""What LiteLLM calls these limits of a deployment."""
_UNLIMITED = Limit(1, 1)
"""Is not asked: the amount is 0."""
_MOST_BUCKETS = 1024
_METADATA = ("litellm_metadata", "metadata")
_KEY = "tokenbucket_attempts"
# Of attempts that have ended, in one dict that requests share as their metadata.
_MOST_MARKS = 100


@dataclass(slots=True)
class _Attempt:
    id: str
    request: str
    task: weakref.ref[Any] | None
    """That of its caller, in which a retry runs, too."""
    deployment: str
    failed: frozenset[str]
    """The deployments that failed in this request before."""
    call_id: Any = None
    is_sent: bool = False


class _Mark(str):
    """The id of an attempt. No client can write one into its metadata, and a copy is a mere `str`."""

    attempt: _Attempt

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class TokenBucketRouter(Callback):
    """`options` are those of `tokenbucket.asyncio.JointLimiter`.

    `burst_s` is how many seconds' worth of requests and tokens the provider lets a deployment use at once,
    unless it counts by minutes of the clock (`calendar`). `margin` is the share of that which stays unused,
    because a call arrives at the provider later than its hold was taken.
    """

    def __init__(
        self,
        server: AnyServer = None,
        *,
        prefix: str = "tb:litellm:deployments:",
        ttl_ms: int = 60_000,
        margin: float = 0.1,
        burst_s: float = 60,
        calendar: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(margin, int | float) or not 0 <= margin < 1:
            raise BadArgument(f"margin: {margin!r} is not from 0 to below 1")
        if not isinstance(burst_s, int | float) or not 0 < burst_s <= 3600:
            raise BadArgument(f"burst_s: {burst_s!r} is not above 0 and at most 3600")
        super().__init__(server, prefix, ttl_ms, options)
        self.margin = margin
        self.burst_s = burst_s
        self.calendar = calendar

    def estimate(self, data: Mapping[str, Any]) -> int:
        """How many tokens a call may cost; to be overridden. The settlement corrects it."""
        return estimate(data)

    def limit_of(self, which: str, number: float) -> Limit:
        """Returns the limit that a number of a deployment means; to be overridden.

        `which` is "requests", "tokens" or "parallel". 0 or less denies every call, as in LiteLLM.
        """
        number = min(number, MOST_TOKENS)
        if number <= 0:
            return Limit(0, 1)
        if which == PARALLEL:
            return Limit(int(number), 0)
        burst = number if self.calendar else number * self.burst_s / 60
        # One request has to fit.
        capacity = max(round(min(burst, MOST_TOKENS) * (1 - self.margin), 6), min(number, 1))
        return Limit(capacity, f"{capacity}@m" if self.calendar else f"{number}/m")

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[Any],
        messages: list[Any] | None,
        request_kwargs: Data | None = None,
        **_: Any,
    ) -> list[Any]:
        """Reserves what the call may cost at one of the deployments, and returns that one alone."""
        data = {} if request_kwargs is None else request_kwargs
        task = asyncio.current_task()
        # Others may share its metadata and the name of its request.
        attempts = (one for one in reversed(_attempts_of(data, None)) if one.task and one.task() is task)
        before = next(attempts, None)
        if before:
            await self._end(before)
        failed = before.failed | {before.deployment} if before else frozenset()
        each = {_id_of(one): self._limits(one) for one in healthy_deployments}
        columns = [which for which in _SETTINGS if any(which in limits for limits in each.values())]
        if not columns:
            return healthy_deployments
        ordered = _in_order(healthy_deployments, failed, data)[: _MOST_BUCKETS // len(columns)]
        if not ordered:
            return ordered
        tokens = self._estimate(model, messages, data) if "tokens" in columns else 0
        denials = []
        # In a cluster, those of one group alone share a slot.
        for together in [list(group) for _, group in groupby(ordered, _group_of)]:
            hold = await self._hold(together, each, columns, tokens)
            if hold.allowed:
                break
            denials.append(hold.decision)
        else:
            soonest = min(denials, key=lambda one: (one.retry_after_ms < 0, one.retry_after_ms))
            raise self._refusal(model, soonest)
        chosen = together[max(hold.decision.granted, 1) - 1]
        of = weakref.ref(task) if task else None
        self._begin(_Attempt(uuid.uuid4().hex, _request_of(data), of, _id_of(chosen), failed), hold, data)
        return [chosen]

    async def async_pre_call_deployment_hook(self, kwargs: Data, *_: Any, **__: Any) -> None:
        """Notes that the call is sent now, and which of LiteLLM's it is."""
        if attempt := self._attempt_of(kwargs, None):
            attempt.is_sent, attempt.call_id = True, _call_of(kwargs)

    async def async_post_call_success_deployment_hook(
        self, request_data: Data, response: Any, *_: Any, **__: Any
    ) -> None:
        """Settles a call whose answer is there, before the caller has it."""
        if (tokens := tokens_of(response)) is not None:
            await self._end_call(self._call_in(request_data), tokens)

    async def async_post_call_failure_deployment_hook(self, request_data: Data, *_: Any, **__: Any) -> None:
        """A call that failed was a request, and cost no tokens."""
        await self._end_call(self._call_in(request_data), 0)

    async def async_log_success_event(self, kwargs: Data, response_obj: Any, *_: Any, **__: Any) -> None:
        """Settles a stream, and what a cache has answered: it used nothing."""
        if attempt := self._logged(kwargs):
            await self._end_call(attempt.id, tokens_of(response_obj), was_sent=not kwargs.get("cache_hit"))

    async def async_log_failure_event(self, kwargs: Data, *_: Any, **__: Any) -> None:
        if attempt := self._logged(kwargs):
            await self._end(attempt)

    async def async_post_call_failure_hook(self, request_data: Data, *_: Any, **__: Any) -> None:
        if attempt := self._attempt_of(request_data, _call_of(request_data)):
            await self._end(attempt)

    def _limits(self, deployment: Deployment) -> dict[str, Limit]:
        numbers = {which: _number(deployment, name) for which, name in _SETTINGS.items()}
        return {which: self.limit_of(which, one) for which, one in numbers.items() if one is not None}

    def _estimate(self, model: str, messages: list[Any] | None, data: Mapping[str, Any]) -> int:
        try:
            return self.estimate({**data, "model": model, "messages": messages})
        except BadArgument as error:
            raise litellm.BadRequestError(str(error), model=model, llm_provider="") from error

    async def _hold(
        self, ordered: Sequence[Deployment], each: Mapping[str, Limits], columns: Sequence[str], tokens: int
    ) -> Hold:
        """Holds all that the call may cost at the first deployment that allows it."""
        ids = [_id_of(one) for one in ordered]
        limits = {f"{id}:{which}": each[id].get(which) or _UNLIMITED for id in ids for which in columns}
        names = dict.fromkeys(limits, hash_tag(_group_of(ordered[0])))
        wanted = {which: tokens if which == "tokens" else 1 for which in columns}
        alternatives = [
            {f"{id}:{which}": wanted[which] if each[id].get(which) else 0 for which in columns} for id in ids
        ]
        return await self.limiter.hold_any(names, alternatives, ttl_ms=self.ttl_ms, limits=limits)

    def _begin(self, attempt: _Attempt, hold: Hold, data: Data) -> None:
        """Renews the hold until a hook settles it, or LiteLLM has forgotten the call."""
        mark = _Mark(attempt.id)
        mark.attempt = attempt
        loop = asyncio.get_running_loop()
        weakref.finalize(mark, self._forgotten, attempt, loop).atexit = False
        limited = {part.which: part.amount for part in hold._parts if part.limit is not _UNLIMITED}
        self._begin_call(attempt.id, hold, limited)
        _leave_mark(data, mark, self._calls)

    def _forgotten(self, attempt: _Attempt, loop: asyncio.AbstractEventLoop) -> None:
        """Ends a call that was cancelled or a stream that was closed: no hook reports these."""
        if attempt.id in self._calls:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(lambda: self.limiter.server._detach(self._end(attempt)))

    async def _end(self, attempt: _Attempt) -> None:
        """Settles an attempt whose use is unknown: all that was held, if it was sent."""
        await self._end_call(attempt.id, None, was_sent=attempt.is_sent)

    def _attempt_of(self, data: Mapping[str, Any], call_id: Any) -> _Attempt | None:
        """Returns the attempt that a hook tells of. Those of requests that share their metadata may be alike
        in all that LiteLLM says: then one that has not ended."""

        def likeness(one: _Attempt) -> tuple[bool, bool, bool]:
            return one.deployment == _id_of(data), one.call_id == call_id, one.id in self._calls

        return max(reversed(_attempts_of(data, call_id)), key=likeness, default=None)

    def _call_in(self, data: Mapping[str, Any]) -> str:
        attempt = self._attempt_of(data, _call_of(data))
        return attempt.id if attempt else ""

    def _logged(self, kwargs: Mapping[str, Any]) -> _Attempt | None:
        """Returns the attempt that LiteLLM logs, unless it has been forgotten."""
        call_id = _call_of(kwargs)
        attempt = self._attempt_of(kwargs.get("litellm_params") or {}, call_id)
        return attempt if attempt and attempt.call_id in (None, call_id) else None

    def _refusal(self, model: str, decision: Decision) -> Any:
        """Returns an error that LiteLLM does not retry, as every retry would be denied too."""
        headers = {"retry-after": str(decision.retry_after_s)} if decision.retry_after_ms > 0 else {}
        terms: dict[str, Any] = {"llm_provider": "", "model": model, "num_retries": 0}
        terms["response"] = httpx.Response(429, headers=headers)
        if decision.degraded and self.limiter._on_error == "closed":
            # Not the caller's fault, so not 429.
            return litellm.ServiceUnavailableError("the rate limiter is not available", **terms)
        when = "the call is too large for all of them"
        if headers:
            when = f"retry after {decision.retry_after_s} s"
        return litellm.RateLimitError(
            f"every deployment is at its limit: {when}",
            category="litellm_rate_limit",
            headers=headers,
            **terms,
        )


def _in_order(
    deployments: Iterable[Deployment], failed: frozenset[str], data: Mapping[str, Any]
) -> list[Deployment]:
    """Returns the deployments to try, best first: by LiteLLM's `order`, shuffled by weight within one.

    What has failed in this request goes last. What LiteLLM would drop after this choice is left out.
    """
    excluded, target = data.get("_excluded_deployment_ids") or (), data.get("_target_order")
    orders = {_id_of(one): _number(one, "order") for one in deployments}
    left = [one for one in deployments if _id_of(one) not in excluded]
    if target is not None:
        left = [one for one in left if orders[_id_of(one)] == target]
    worst = failed | set(data.get("_retry_skipped_deployment_ids") or ())

    def place(of: tuple[Deployment, float]) -> tuple[bool, float, float]:
        id, weight = _id_of(of[0]), of[1]
        order = orders[id]
        return id in worst, float("inf") if order is None else order, -(random.random() ** (1 / weight))

    return [one for one, _ in sorted(_weighed(left), key=place)]


def _weighed(deployments: Sequence[Deployment]) -> list[tuple[Deployment, float]]:
    """Returns each deployment with its weight, its rpm or its tpm, whichever LiteLLM would shuffle by.

    A weight of 0 is left out, as LiteLLM does. One without the number that others have comes after these.
    """
    for name in ("weight", "rpm", "tpm"):
        weights = [_number(one, name) or 0 for one in deployments]
        if max(weights, default=0) > 0:
            pairs = zip(deployments, weights, strict=True)
            return [(one, max(weight, 1e-9)) for one, weight in pairs if weight > 0 or name != "weight"]
    return [(one, 1) for one in deployments]


def _number(deployment: Deployment, name: str) -> float | None:
    """Returns a number from the deployment's parameters, or as LiteLLM's interface writes it."""
    for place in (deployment.get("litellm_params"), deployment.get("model_info")):
        value = (place or {}).get(name)
        if value is not None:
            try:
                number = float(value)
                if math.isnan(number):
                    raise ValueError
            except (TypeError, ValueError) as error:
                of = f"{name} of deployment {_id_of(deployment)}"
                raise BadArgument(f"{of}: {value!r} is not a number") from error
            return int(number) if number.is_integer() else number
    return None


def _id_of(deployment: Deployment) -> str:
    return str((deployment.get("model_info") or {}).get("id"))


def _group_of(deployment: Deployment) -> str:
    return str(deployment["model_name"])


def _leave_mark(data: Data, mark: _Mark, running: Container[str]) -> None:
    """Writes into the dict that is there: LiteLLM passes on copies of what contains it, but not of itself."""
    metadata = next((data[name] for name in _METADATA if isinstance(data.get(name), dict)), None)
    if metadata is None:
        metadata = data["metadata"] = {}
    marks = metadata.get(_KEY)
    if not isinstance(marks, dict):
        marks = metadata[_KEY] = {}
    marks[str(mark)] = mark
    if len(marks) > _MOST_MARKS:
        ended = [id for id, one in marks.items() if not (isinstance(one, _Mark) and one in running)]
        for id in ended[: len(marks) - _MOST_MARKS]:
            del marks[id]


def _attempts_of(data: Mapping[str, Any], call_id: Any) -> list[_Attempt]:
    """Returns the attempts of this request; not those of another call with the same dict as metadata.

    LiteLLM logs some routes without the name of the request, or with that of a session: then the call's id
    says which.
    """
    for name in _METADATA:
        metadata = data.get(name)
        marks = metadata.get(_KEY) if isinstance(metadata, dict) else None
        if isinstance(marks, dict):
            attempts = [mark.attempt for mark in marks.values() if isinstance(mark, _Mark)]
            if of := [one for one in attempts if one.request == _request_of(data)]:
                return of
            if of := [one for one in attempts if one.is_sent and one.call_id == call_id]:
                return of
            # The proxy does not know what its router has named a request that was not sent.
            if data.get("litellm_trace_id") is None and len({one.request for one in attempts}) == 1:
                return attempts
    return []


def _request_of(data: Mapping[str, Any]) -> str:
    """Returns what all attempts of a request have in common."""
    return str(data.get("litellm_trace_id"))


def _call_of(data: Mapping[str, Any]) -> Any:
    return data.get("litellm_call_id")
