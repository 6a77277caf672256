"""A FastAPI service behind token buckets.

- every request: `RateLimitMiddleware`, one bucket per client address;
- `GET /search`: the dependency `RateLimit`, one bucket per API key;
- `POST /v1/chat/completions`: a gateway to a language model that limits requests, tokens and calls
  in flight together, holds them while the model works, and settles what the call really cost.

Run with `python app.py`; every setting is an environment variable, see `Settings`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Annotated, Any, Literal

import anyio
import httpx
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, BeforeValidator, Field, PositiveInt, ValidationError
from pydantic_settings import BaseSettings, NoDecode
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenbucket import BadArgument, Decision, Limit, TokenBucketError, client_address
from tokenbucket.asyncio import Hold, JointLimiter, Limiter, Server

log = logging.getLogger("app")

NO_USABLE_ANSWER = "the model gave no usable answer"

# Capacity and rate, as in TB.TAKE: "20 10/s".
EnvLimit = Annotated[
    Limit,
    NoDecode,
    BeforeValidator(lambda text: Limit.parse(text) if isinstance(text, str) else text),
]


class Settings(BaseSettings):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    redis_url: str = "redis://127.0.0.1:6379/0"
    model_url: str = "http://127.0.0.1:8001/v1"
    # Comma separated addresses or networks whose X-Forwarded-For is believed; nobody's by default,
    # or a forged header would be a new bucket.
    trusted_proxies: str = ""
    # While Redis is away: enforce the limits in this process, let everybody through, or nobody.
    rate_limit_on_error: Literal["local", "open", "closed"] = "local"
    rate_limit_timeout_ms: PositiveInt = 100
    ip_limit: EnvLimit = Limit(20, "10/s")
    search_limit: EnvLimit = Limit(5, "2/s")
    llm_request_limit: EnvLimit = Limit(60, "60/m")
    llm_token_limit: EnvLimit = Limit(2000, "2000/m")
    # Calls of one caller that the model works on at a time; a bucket has 10,000 holds at most.
    llm_inflight_limit: int = Field(10, ge=1, le=10_000)
    # How long after a crash of this program what its calls held comes back.
    llm_hold_ttl_ms: int = Field(30_000, ge=1_000, le=30 * 86_400_000)
    # How long a call waits its turn in Redis instead of being refused at once; 1000 is a second.
    llm_max_wait_ms: int = Field(0, ge=0, le=60_000)
    # Which key is whose, as JSON.
    api_keys: Annotated[
        dict[str, str],
        NoDecode,
        BeforeValidator(lambda text: json.loads(text) if isinstance(text, str) else text),
    ] = {"demo-key": "demo"}


# What a denied caller sees, the same from the middleware, the dependency and the gateway.


class Limited(Exception):
    def __init__(self, decision: Decision, headers: dict[str, str]) -> None:
        self.decision = decision
        self.headers = headers


def refusal(limited: Limited) -> JSONResponse:
    decision = limited.decision
    if decision.degraded and decision.reset_after_ms == 0:
        # By the policy "closed", which looks at no bucket: not the caller's fault, so not 429.
        return JSONResponse(
            {"detail": "the rate limiter is not available"}, 503, {"Retry-After": "1"}
        )
    if decision.retry_after_ms < 0:
        # Without Retry-After: there is no moment at which this call would pass.
        body = {"detail": "the call costs more than its limit holds"}
    else:
        body = {"detail": "rate limit exceeded", "retry_after_ms": decision.retry_after_ms}
    return JSONResponse(body, 429, limited.headers)


# The three ways to use a limiter.


class RateLimitMiddleware:
    """Limits every HTTP request, before routing and authentication."""

    def __init__(
        self,
        app: ASGIApp,
        limiter: Limiter,
        key: Callable[[Request], str],
        exempt: frozenset[str] = frozenset(),
    ) -> None:
        self.app = app
        self.limiter = limiter
        self.key = key
        self.exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self.exempt:
            await self.app(scope, receive, send)
            return
        decision = await self.limiter.take(self.key(Request(scope)))
        headers = self.limiter.headers(decision)
        if not decision.allowed:
            await refusal(Limited(decision, headers))(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                of_response = MutableHeaders(scope=message)
                for name, value in headers.items():
                    of_response.setdefault(name, value)  # a route's own limit is closer to the caller
            await send(message)

        await self.app(scope, receive, send_with_headers)


bearer = HTTPBearer(auto_error=False)


def caller(
    request: Request, token: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> str:
    """Who calls. Limits go by verified names: an unchecked header would be a free new bucket."""
    name = token and request.app.state.settings.api_keys.get(token.credentials)
    if not name:
        raise HTTPException(401, "unknown API key", {"WWW-Authenticate": "Bearer"})
    return name


Caller = Annotated[str, Depends(caller)]


class RateLimit:
    """A dependency: `Depends(RateLimit("search"))` takes one token of the caller's bucket."""

    def __init__(self, name: str, tokens: int = 1) -> None:
        self.name = name
        self.tokens = tokens

    async def __call__(self, request: Request, response: Response, caller: Caller) -> None:
        limiter: Limiter = request.app.state.limiters[self.name]
        decision = await limiter.take(caller, self.tokens)
        headers = limiter.headers(decision)
        if not decision.allowed:
            raise Limited(decision, headers)
        response.headers.update(headers)


class ChatMessage(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: PositiveInt = 256
    stream: bool = False


def estimate_tokens(chat: ChatRequest) -> int:
    """What the call may cost. Four characters a token is a guess; the settlement corrects it."""
    return sum(len(message.content) for message in chat.messages) // 4 + chat.max_tokens


# The gateway: what becomes of a call once it is held.


def total_tokens(answer: str | bytes) -> int:
    """What a call cost. Raises ValueError, LookupError or TypeError if the answer does not say."""
    return int(json.loads(answer)["usage"]["total_tokens"])


async def ask_model(
    model: httpx.AsyncClient, chat: ChatRequest, hold: Hold, ending: AsyncExitStack
) -> httpx.Response:
    """The model's answer, from its first byte on; closed with `ending`."""
    body = chat.model_dump()
    if chat.stream:
        body["stream_options"] = {"include_usage": True}
    # Until the model says what the call cost, all that is held counts as used: it may work in vain.
    try:
        asked = model.stream("POST", "/chat/completions", json=body)
        answer = await ending.enter_async_context(asked)
        return answer.raise_for_status()
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.HTTPStatusError) as error:
        hold.used = 0  # the model never started, or refused
        raise HTTPException(502, "the model is not available") from error
    except httpx.HTTPError as error:
        raise HTTPException(502, NO_USABLE_ANSWER) from error


async def in_one_piece(answer: httpx.Response, hold: Hold) -> bytes:
    try:
        body = await answer.aread()
        hold.used = {"requests": 1, "tokens": total_tokens(body)}
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise HTTPException(502, NO_USABLE_ANSWER) from error
    return body


class Relay(StreamingResponse):
    """Passes the model's events on as they come.

    Closes `ending` after the last one, and also when the caller hangs up before.
    """

    def __init__(self, answer: httpx.Response, hold: Hold, ending: AsyncExitStack) -> None:
        super().__init__(
            self.events(), headers=remaining_headers(hold), media_type="text/event-stream"
        )
        self.answer = answer
        self.hold = hold
        self.ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.ending:
            await super().__call__(scope, receive, send)

    async def events(self) -> AsyncIterator[bytes]:
        line = b""
        try:
            # Not aiter_lines, which also breaks lines at characters that JSON has in its strings.
            async for chunk in self.answer.aiter_bytes():
                *lines, line = (line + chunk).split(b"\n")
                self.look_for_usage(lines)
                yield chunk
        except httpx.HTTPError as error:
            log.warning("the model broke off: %r", error)
            error_event = {"error": {"message": NO_USABLE_ANSWER}}
            yield b"\n\ndata: %s\n\n" % json.dumps(error_event).encode()
        # Before the caller sees the end: whoever then calls again finds the slot free. Shielded,
        # or a caller who hangs up now would take the settlement along.
        with anyio.CancelScope(shield=True):
            await self.ending.aclose()

    def look_for_usage(self, lines: list[bytes]) -> None:
        """One of the last events says what the call cost; the others have no usage, or null."""
        for line in lines:
            with suppress(ValueError, LookupError, TypeError):
                tokens = total_tokens(line.removeprefix(b"data:"))
                self.hold.used = {"requests": 1, "tokens": tokens}


def remaining_headers(hold: Hold) -> dict[str, str]:
    return {
        f"X-RateLimit-Remaining-{which.capitalize()}": str(remaining)
        for which, remaining in hold.remaining.items()
    }


def create_app(settings: Settings) -> FastAPI:
    on_error = settings.rate_limit_on_error
    redis = Server(settings.redis_url, timeout_ms=settings.rate_limit_timeout_ms)
    per_address = Limiter(redis, settings.ip_limit, "tb:ip:", on_error=on_error)
    search = Limiter(redis, settings.search_limit, "tb:search:", on_error=on_error)
    llm = JointLimiter(
        redis,
        {
            "requests": settings.llm_request_limit,
            "tokens": settings.llm_token_limit,
            "inflight": Limit(settings.llm_inflight_limit, rate=0),
        },
        "tb:llm:",
        on_error=on_error,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # As many connections as there are calls: it is the buckets that limit. None kept as long as
        # servers do (uvicorn: 5 s), or one is closed just when a call is sent on it.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
        async with httpx.AsyncClient(
            base_url=settings.model_url, timeout=60, limits=limits
        ) as model:
            app.state.model = model
            yield
        for limiter in (per_address, search, llm):
            await limiter.aclose()

    app = FastAPI(title="tokenbucket example", lifespan=lifespan)
    app.state.settings = settings
    app.state.limiters = {"search": search}
    app.add_middleware(
        RateLimitMiddleware,
        limiter=per_address,
        key=lambda request: client_address(request.client.host if request.client else ""),
        exempt=frozenset({"/healthz"}),
    )

    @app.exception_handler(Limited)
    async def on_limited(request: Request, limited: Limited) -> Response:
        return refusal(limited)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    @app.get("/search", dependencies=[Depends(RateLimit("search"))])
    async def find(q: str = "") -> dict[str, str]:
        return {"q": q}

    @app.post("/v1/chat/completions")
    async def chat(chat: ChatRequest, caller: Caller) -> Response:
        amounts = {"requests": 1, "tokens": estimate_tokens(chat), "inflight": 1}
        hold = await llm.hold(
            caller,
            amounts,
            ttl_ms=settings.llm_hold_ttl_ms,
            max_wait_ms=settings.llm_max_wait_ms,
        )
        if not hold.allowed:
            raise Limited(hold.decision, llm.headers(hold.decision))
        async with AsyncExitStack() as ending:
            await ending.enter_async_context(hold)
            answer = await ask_model(app.state.model, chat, hold, ending)
            if chat.stream:
                return Relay(answer, hold, ending.pop_all())
            body = await in_one_piece(answer, hold)
        return Response(body, headers=remaining_headers(hold), media_type="application/json")

    return app


async def check_limits(settings: Settings) -> None:
    """Finds a limit that the server refuses now, not with the first caller."""
    redis = Server(settings.redis_url, timeout_ms=1000)
    try:
        for name in ("ip_limit", "search_limit", "llm_request_limit", "llm_token_limit"):
            await Limiter(redis, getattr(settings, name)).take("check", 0)  # takes nothing
    except BadArgument as error:
        raise SystemExit(f"{name.upper()}: {error}") from None
    except TokenBucketError as error:
        raise SystemExit(f"REDIS_URL: {error}") from None
    finally:
        await redis.aclose()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = Settings()
    except ValidationError as error:
        raise SystemExit(
            "\n".join(
                f"{'.'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in error.errors()
            )
        ) from None
    asyncio.run(check_limits(settings))
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
    )


if __name__ == "__main__":
    main()
