"""A stand-in for a language model: OpenAI's shape, one word is one token, no intelligence.

It repeats the last message, at once or word by word, and says what that cost. A message that begins
with "fail" is refused.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PAUSE_S = 0.1


async def chat(request: Request) -> Response:
    asked = await request.json()
    words = asked["messages"][-1]["content"].split()
    if words[0] == "fail":
        return JSONResponse({"error": {"message": "no", "type": "invalid_request_error"}}, 400)
    usage = {
        "prompt_tokens": len(words),
        "completion_tokens": len(words),
        "total_tokens": 2 * len(words),
    }
    if asked.get("stream"):
        return StreamingResponse(events(asked["model"], words, usage), media_type="text/event-stream")
    message = {"role": "assistant", "content": " ".join(words)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse(head(asked["model"], "chat.completion") | {"choices": [choice], "usage": usage})


async def events(model: str, words: list[str], usage: dict[str, int]) -> AsyncIterator[str]:
    chunk = head(model, "chat.completion.chunk")
    for word in words:
        yield event(chunk | {"choices": [{"index": 0, "delta": {"content": f"{word} "}}]})
        await asyncio.sleep(PAUSE_S)
    yield event(chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    yield event(chunk | {"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def head(model: str, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-test", "object": kind, "created": 0, "model": model}


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
