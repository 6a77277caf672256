"""A callback of the LiteLLM proxy: requests, tokens and parallel requests in one hold.

Before a call the proxy holds what the call may cost, of the key and of its team, all of it or
nothing; afterwards it settles what the call did cost. `docs/litellm.md` says where limits come from.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException
from pydantic import TypeAdapter, ValidationError

from ..values.decision import Decision
from ..values.errors import BadArgument
from ..values.limit import MOST_TOKENS, Limit
from .calls import PARALLEL, AnyServer, Callback, Data, estimate, tokens_of

_METADATA = ("metadata", "litellm_metadata")
_ID = "tokenbucket_id"
# As LiteLLM reads its own limits.
_WHOLE = TypeAdapter(int)
# Of calls whose response has not begun; LiteLLM may tell the end of a call before.
_MOST_HEADERS = 10_000


class TokenBucketCallback(Callback):
    """`options` are those of `tokenbucket.asyncio.JointLimiter`."""

    def __init__(
        self,
        server: AnyServer = None,
        *,
        prefix: str = "tb:litellm:",
        ttl_ms: int = 60_000,
        **options: Any,
    ) -> None:
        super().__init__(server, prefix, ttl_ms, options)
        self._headers: OrderedDict[str, dict[str, str]] = OrderedDict()

    def estimate(self, data: Mapping[str, Any]) -> int:
        """How many tokens a call may cost; to be overridden. The settlement corrects it."""
        try:
            return estimate(data)
        except BadArgument as error:
            raise HTTPException(400, str(error)) from error

    def limits_of(self, who: Any) -> dict[str, tuple[str, Limit]]:
        """Returns the limits of a key and its team, each with its bucket's name; to be overridden.

        Raises HTTPException 400 for invalid metadata, so that a misspelt word lets no call through.
        """
        # One hash tag, so that all of them share a slot in a cluster.
        tag = f"{{{who.team_id or who.api_key}}}"
        of_key = _limits(who.metadata, who.rpm_limit, who.tpm_limit, who.max_parallel_requests)
        limits = {f"key:{which}": (f"{tag}:{who.api_key}", limit) for which, limit in of_key.items()}
        if who.team_id:
            of_team = _limits(who.team_metadata, who.team_rpm_limit, who.team_tpm_limit, None)
            limits |= {f"team:{which}": (tag, limit) for which, limit in of_team.items()}
        return limits

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: Data, call_type: str
    ) -> Data:
        """Holds what the call may cost, or denies it."""
        whose = self.limits_of(user_api_key_dict)
        if not whose or _id_of(data) in self._calls:
            return data
        limits = {which: limit for which, (_, limit) in whose.items()}
        names = {which: name for which, (name, _) in whose.items()}
        amounts = {which: self.estimate(data) if which.endswith("tokens") else 1 for which in whose}
        try:
            hold = await self.limiter.hold(names, amounts, ttl_ms=self.ttl_ms, limits=limits)
        except BadArgument as error:
            # Some rates the server alone refuses, as it does keys that the operator has to mend.
            if str(error).startswith("ERR "):
                raise _mistake(error) from error
            raise
        if not hold.allowed:
            raise self._refusal(hold.decision, limits)
        id = _given_id(data)
        self._begin_call(id, hold, hold.amounts)
        self._headers[id] = self.limiter.headers(hold.decision, limits=limits)
        if len(self._headers) > _MOST_HEADERS:
            self._headers.popitem(last=False)
        return data

    async def async_post_call_success_hook(self, data: Data, user_api_key_dict: Any, response: Any) -> None:
        """Settles a call whose answer is there, before the caller has it."""
        if (tokens := tokens_of(response)) is not None:
            await self._settle_call(_id_of(data), tokens)

    async def async_log_success_event(self, kwargs: Data, response_obj: Any, *_: Any, **__: Any) -> None:
        """Settles a stream: by now LiteLLM has added up what it cost."""
        id = _id_of(kwargs.get("litellm_params") or {}) or _id_of(kwargs)
        await self._end_call(id, tokens_of(response_obj))

    async def async_post_call_failure_hook(self, request_data: Data, *_: Any, **__: Any) -> None:
        """A call that failed was a request, and cost no tokens."""
        await self._end_call(_id_of(request_data), 0)

    async def async_post_call_response_headers_hook(
        self, data: Data, *_: Any, **__: Any
    ) -> dict[str, str] | None:
        return self._headers.pop(_id_of(data), None)

    def _call_in(self, data: Mapping[str, Any]) -> str:
        return _id_of(data)

    def _refusal(self, decision: Decision, limits: Mapping[str, Limit]) -> HTTPException:
        headers = self.limiter.headers(decision, limits=limits)
        if decision.degraded and not decision.each:
            # By the policy "closed": not the caller's fault, so not 429.
            return HTTPException(503, "the rate limiter is not available", headers)
        denied = [which for which, one in decision.each.items() if not one.allowed]
        return HTTPException(429, f"rate limit exceeded: {', '.join(denied)}", headers)


def _given_id(data: Data) -> str:
    """Gives a call an id that no client can choose, unlike LiteLLM's, which comes from a header."""
    id = uuid.uuid4().hex
    # What LiteLLM hands on to every hook, under one of these names.
    for name in _METADATA:
        if name == _METADATA[0] or isinstance(data.get(name), dict):
            data[name] = {**(data.get(name) or {}), _ID: id}
    return id


def _id_of(data: Mapping[str, Any]) -> str:
    for name in _METADATA:
        metadata = data.get(name)
        if isinstance(metadata, dict) and isinstance(metadata.get(_ID), str):
            return str(metadata[_ID])
    return ""


def _limits(
    metadata: Mapping[str, Any] | None, rpm: int | None, tpm: int | None, parallel: int | None
) -> dict[str, Limit]:
    """Returns the limits of the metadata. Without any, LiteLLM's own, which below 0 deny every call there."""
    said = (metadata or {}).get("tokenbucket")
    if said is None or said == {}:
        own = {"requests": rpm, "tokens": tpm, PARALLEL: parallel}
        said = {which: None if one is None else min(max(one, 0), MOST_TOKENS) for which, one in own.items()}
    limits: dict[str, Limit] = {}
    try:
        if not isinstance(said, dict):
            raise BadArgument(f"{said!r} is not an object, like {{'requests': 60}}")
        for which, limit in said.items():
            if which not in ("requests", "tokens", PARALLEL):
                raise BadArgument(f"{which!r} is neither 'requests' nor 'tokens' nor 'parallel'")
            if limit is not None and which == PARALLEL:
                limits[which] = Limit(min(_number(limit), MOST_TOKENS), 0)
            elif limit is not None:
                limits[which] = _per_minute(limit)
    except BadArgument as error:
        raise _mistake(error) from error
    return limits


def _mistake(error: BadArgument) -> HTTPException:
    return HTTPException(400, f"metadata of the key or team, tokenbucket: {error}")


def _per_minute(limit: Any) -> Limit:
    """Reads `"60 60/m"`; a number, as in LiteLLM's own limits, is so many a minute."""
    if isinstance(limit, str) and " " in limit.strip():
        return Limit.parse(limit)
    count = _number(limit)
    # Below 0 is a mistake, which the limit names.
    return Limit._of_window(count, 60) if count >= 0 else Limit(count, 1)


def _number(limit: Any) -> int:
    try:
        if not isinstance(limit, bool):
            return _WHOLE.validate_python(limit)
    except ValidationError:
        pass
    raise BadArgument(f"{limit!r} is neither a whole number nor a capacity and a rate, like '60 60/m'")
