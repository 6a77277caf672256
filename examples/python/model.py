"""A stand-in for a language model: OpenAI's shape, one word is one token, no intelligence.

It repeats the last message, up to `max_tokens` words, and says what that cost: at once, or as a
stream of server-sent events, word by word.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

app = FastAPI()

# Between two words of a stream.
PAUSE_S = 0.1


class Message(BaseModel):
    role: str
    content: str


class StreamOptions(BaseModel):
    include_usage: bool = False


class Request(BaseModel):
    messages: list[Message]
    max_tokens: int
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


@app.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    prompt_tokens = sum(len(message.content.split()) for message in request.messages)
    reply = request.messages[-1].content.split()[: request.max_tokens]
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(reply),
        "total_tokens": prompt_tokens + len(reply),
    }
    if request.stream:
        told = usage if request.stream_options.include_usage else None
        return StreamingResponse(events(reply, told), media_type="text/event-stream")
    message = {"role": "assistant", "content": " ".join(reply)}
    return JSONResponse({"choices": [{"index": 0, "message": message}], "usage": usage})


async def events(reply: list[str], usage: dict[str, int] | None) -> AsyncIterator[str]:
    for word in reply:
        yield event({"choices": [{"index": 0, "delta": {"content": f"{word} "}}]})
        await asyncio.sleep(PAUSE_S)
    if usage:
        yield event({"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def event(data: dict) -> str:
    return f"data: {json.dumps(data)}\n\n"


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
