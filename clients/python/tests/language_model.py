"""A stand-in for a language model: OpenAI's shapes, one word is one token, no intelligence.

It repeats the last message, at once or word by word, and says what that cost. A message that begins
with "fail" is refused, "slow" is answered after a second, and "meet here" when somebody asks for
/meet/here. With deployments, each has a path of its own: "break a b" breaks those two, and LIMITS,
requests and tokens a minute of each, are enforced.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PAUSE_S = 0.1
SLOW_S = 1
LIMITED_S = 0.3


class Bucket:
    """A minute's worth, refilled as it is used."""

    def __init__(self, per_minute: float) -> None:
        self.capacity = self.level = per_minute
        self.at = time.monotonic()

    def has(self, cost: float) -> bool:
        now = time.monotonic()
        self.level = min(self.capacity, self.level + (now - self.at) * self.capacity / 60)
        self.at = now
        return self.level >= cost


LIMITS: dict[str, list[Bucket]] = {
    name: [Bucket(limit) for limit in limits]
    for name, limits in json.loads(os.environ.get("LIMITS", "{}")).items()
}
ANSWERED: Counter[str] = Counter()
MEETINGS: dict[str, asyncio.Barrier] = {}


async def answer(request: Request) -> Response:
    """Answers in the shape of a chat; what has an input rather than messages, as a response."""
    asked = await request.json()
    deployment = request.path_params.get("deployment", "")
    is_chat = "messages" in asked
    said = asked["messages"][-1]["content"] if is_chat else asked["input"]
    words = (said if isinstance(said, str) else said[-1]["content"][0]["text"]).split()
    if words[0] == "fail":
        return JSONResponse({"error": {"message": "no", "type": "invalid_request_error"}}, 400)
    if words[0] == "break" and deployment in words:
        ANSWERED[f"{deployment} 500"] += 1
        return JSONResponse({"error": {"message": "broken"}}, 500)
    if words[0] == "slow":
        await asyncio.sleep(SLOW_S)
    if words[0] == "meet":
        await meeting(words[1])
    count = len(words)
    usage = {"prompt_tokens": count, "completion_tokens": count, "total_tokens": 2 * count}
    if deployment in LIMITS:
        most = len(words) + asked["max_tokens"]
        requests, tokens = LIMITS[deployment]
        if not (requests.has(1) and tokens.has(most)):
            ANSWERED[f"{deployment} 429"] += 1
            return JSONResponse({"error": {"message": "slower"}}, 429, {"retry-after": "1"})
        requests.level -= 1
        tokens.level -= most
        await asyncio.sleep(LIMITED_S)
        tokens.level += most - usage["total_tokens"]
    ANSWERED[f"{deployment} 200"] += 1
    if asked.get("stream"):
        said = words[: words.index(end) + 1] if (end := f"cut-at-{deployment}") in words else words
        streamed = events if is_chat else response_events
        return StreamingResponse(streamed(asked["model"], said, usage), media_type="text/event-stream")
    if not is_chat:
        return JSONResponse(response(asked["model"], words, usage))
    message = {"role": "assistant", "content": " ".join(words)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse(head(asked["model"], "chat.completion") | {"choices": [choice], "usage": usage})


async def spoken(words: list[str]) -> AsyncIterator[str]:
    for word in words:
        if word.startswith("cut") and word == words[-1]:
            raise ConnectionError("cut")
        yield word
        await asyncio.sleep(PAUSE_S)


async def events(model: str, words: list[str], usage: dict[str, int]) -> AsyncIterator[str]:
    chunk = head(model, "chat.completion.chunk")
    async for word in spoken(words):
        yield event(chunk | {"choices": [{"index": 0, "delta": {"content": f"{word} "}}]})
    yield event(chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    yield event(chunk | {"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def response(model: str, words: list[str], usage: dict[str, int]) -> dict[str, Any]:
    content = [{"type": "output_text", "text": " ".join(words), "annotations": []}]
    message = {"type": "message", "id": "msg", "status": "completed", "role": "assistant", "content": content}
    tokens = {"input_tokens": len(words), "output_tokens": len(words), "total_tokens": usage["total_tokens"]}
    more = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    of_all = {"id": "resp_test", "object": "response", "created_at": 0, "model": model, "status": "completed"}
    return of_all | more | {"output": [message], "usage": tokens}


async def response_events(model: str, words: list[str], usage: dict[str, int]) -> AsyncIterator[str]:
    place = {"item_id": "msg", "output_index": 0, "content_index": 0}
    async for word in spoken(words):
        yield event({"type": "response.output_text.delta", "delta": f"{word} "} | place)
    yield event({"type": "response.completed", "response": response(model, words, usage)})


def head(model: str, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-test", "object": kind, "created": 0, "model": model}


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


async def answered(request: Request) -> Response:
    """How often each deployment gave each status."""
    return JSONResponse(ANSWERED)


async def meeting(which: str) -> None:
    """Lasts until two are there."""
    await MEETINGS.setdefault(which, asyncio.Barrier(2)).wait()


async def meet(request: Request) -> Response:
    await meeting(request.path_params["which"])
    return Response()


PLACES = [f"{of}/v1/{shape}" for of in ("", "/{deployment}") for shape in ("chat/completions", "responses")]
ROUTES = [Route("/answered", answered), Route("/meet/{which}", meet)]
app = Starlette(routes=[*(Route(place, answer, methods=["POST"]) for place in PLACES), *ROUTES])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
