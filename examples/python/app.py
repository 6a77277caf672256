"""A FastAPI service behind token buckets.

- every request: `RateLimitMiddleware`, one bucket per client address;
- `GET /search`: the dependency `RateLimit`, one bucket per API key;
- `POST /v1/chat/completions`: a gateway to a language model that limits requests and tokens
  together, and settles what the call really cost afterwards.

Run with `python app.py`; every setting is an environment variable, see `Settings`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import httpx
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, BeforeValidator, Field, PositiveInt, ValidationError
from pydantic_settings import BaseSettings, NoDecode
from redis.exceptions import ResponseError
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limiter import Decision, Limit, Limiter, MultiLimiter, check_limit, connect

log = logging.getLogger("app")

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
    # When Redis is away: let everybody through, or nobody.
    rate_limit_on_error: Literal["open", "closed"] = "open"
    rate_limit_timeout_ms: PositiveInt = 100
    ip_limit: EnvLimit = Limit(20, "10/s")
    search_limit: EnvLimit = Limit(5, "2/s")
    llm_request_limit: EnvLimit = Limit(60, "60/m")
    llm_token_limit: EnvLimit = Limit(2000, "2000/m")
    # Which key is whose, as JSON.
    api_keys: Annotated[
        dict[str, str],
        NoDecode,
        BeforeValidator(lambda text: json.loads(text) if isinstance(text, str) else text),
    ] = {"demo-key": "demo"}


# What a denied caller sees, the same from the middleware, the dependency and the gateway.


class Limited(Exception):
    def __init__(self, decision: Decision, limit: Limit | None = None) -> None:
        self.decision = decision
        self.limit = limit


def refusal(limited: Limited) -> JSONResponse:
    decision = limited.decision
    if decision.degraded:
        # Not the caller's fault, so not 429.
        return JSONResponse(
            {"detail": "the rate limiter is not available"}, 503, {"Retry-After": "1"}
        )
    headers = rate_limit_headers(decision, limited.limit)
    if decision.retry_after_ms < 0:
        # Without Retry-After: there is no moment at which this call would pass.
        return JSONResponse({"detail": "the call costs more than its limit holds"}, 429, headers)
    headers["Retry-After"] = str(decision.retry_after_s)
    body = {"detail": "rate limit exceeded", "retry_after_ms": decision.retry_after_ms}
    return JSONResponse(body, 429, headers)


def rate_limit_headers(decision: Decision, limit: Limit | None) -> dict[str, str]:
    if decision.degraded or limit is None:
        return {}
    return {
        "RateLimit-Limit": f"{float(limit.capacity):.0f}",
        "RateLimit-Remaining": str(max(decision.remaining, 0)),
        "RateLimit-Reset": str(-(-decision.reset_after_ms // 1000)),
    }


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
        if not decision.allowed:
            await refusal(Limited(decision, self.limiter.limit))(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in rate_limit_headers(decision, self.limiter.limit).items():
                    headers.setdefault(name, value)  # a route's own limit is closer to the caller
            await send(message)

        await self.app(scope, receive, send_with_headers)


def client_address(request: Request) -> str:
    """The caller's address; of IPv6 the /64, because one host has all of it to choose from."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host  # a Unix socket, or what a trusted proxy wrote instead of an address
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False).network_address)


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
        if not decision.allowed:
            raise Limited(decision, limiter.limit)
        response.headers.update(rate_limit_headers(decision, limiter.limit))


class ChatMessage(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: PositiveInt = 256


def estimate_tokens(chat: ChatRequest) -> int:
    """What the call may cost. Four characters a token is a guess; the settlement corrects it."""
    return sum(len(message.content) for message in chat.messages) // 4 + chat.max_tokens


def create_app(settings: Settings) -> FastAPI:
    policy: dict[str, Any] = {
        "on_error": settings.rate_limit_on_error,
        "timeout_ms": settings.rate_limit_timeout_ms,
    }
    redis = connect(settings.redis_url)
    per_address = Limiter(redis, "ip", settings.ip_limit, **policy)
    search = Limiter(redis, "search", settings.search_limit, **policy)
    llm = MultiLimiter(
        redis,
        "llm",
        {"requests": settings.llm_request_limit, "tokens": settings.llm_token_limit},
        **policy,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=settings.model_url, timeout=60) as model:
            app.state.model = model
            yield
        await redis.aclose()

    app = FastAPI(title="tokenbucket example", lifespan=lifespan)
    app.state.settings = settings
    app.state.limiters = {"search": search}
    app.add_middleware(
        RateLimitMiddleware,
        limiter=per_address,
        key=client_address,
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
    async def chat(chat: ChatRequest, caller: Caller, response: Response) -> dict:
        estimate = estimate_tokens(chat)
        decision = await llm.take(caller, {"requests": 1, "tokens": estimate})
        if not decision.allowed:
            raise Limited(decision)
        taken = 0 if decision.degraded else estimate
        # Until the model says what it cost, what was taken is spent: it may have worked in vain.
        spent = taken
        tokens = decision.each.get("tokens")
        try:
            answer = await app.state.model.post("/chat/completions", json=chat.model_dump())
            answer.raise_for_status()
            body = answer.json()
            spent = int(body["usage"]["total_tokens"])
        except (httpx.ConnectError, httpx.HTTPStatusError) as error:
            spent = 0  # the model never started, or refused
            raise HTTPException(502, "the model is not available") from error
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise HTTPException(502, "the model gave no usable answer") from error
        finally:
            tokens = await llm.settle(caller, "tokens", taken=taken, spent=spent) or tokens
        if not decision.degraded and tokens:
            requests = decision.each["requests"]
            response.headers["X-RateLimit-Remaining-Requests"] = str(requests.remaining)
            response.headers["X-RateLimit-Remaining-Tokens"] = str(tokens.remaining)
        return body

    return app


async def check_limits(settings: Settings) -> None:
    """Finds a limit that the server refuses now, not with the first caller."""
    redis = connect(settings.redis_url)
    try:
        for name in ("ip_limit", "search_limit", "llm_request_limit", "llm_token_limit"):
            try:
                await check_limit(redis, getattr(settings, name))
            except ResponseError as error:
                raise SystemExit(f"{name.upper()}: {error}") from None
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
