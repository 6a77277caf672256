"""A stand-in for a language model: OpenAI's shape, one word is one token, no intelligence.

It repeats the last message, up to `max_tokens` words, and says what that cost.
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Message(BaseModel):
    role: str
    content: str


class Request(BaseModel):
    messages: list[Message]
    max_tokens: int


@app.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/v1/chat/completions")
async def chat(request: Request) -> dict:
    prompt_tokens = sum(len(message.content.split()) for message in request.messages)
    reply = request.messages[-1].content.split()[: request.max_tokens]
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": " ".join(reply)}}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(reply),
            "total_tokens": prompt_tokens + len(reply),
        },
    }


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
