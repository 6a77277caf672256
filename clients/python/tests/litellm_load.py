"""One of two routers that call the same deployments at once, first by LiteLLM's strategies, then by ours.

As `python tests/litellm_load.py PORT_OF_MODEL PORT_OF_REDIS`; prints what each strategy's callers got.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from typing import Any

import httpx

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm import Router

from tokenbucket import asyncio as buckets
from tokenbucket.litellm import TokenBucketRouter

DEPLOYMENTS = {"a": (24, 1200), "b": (48, 2400), "c": (12, 600)}
"""Requests and tokens a minute."""
OURS = "tokenbucket"
STRATEGIES = ("usage-based-routing-v2", "simple-shuffle", OURS)
BURSTS = 3
CALLS = 30
"""Of each router in a burst: two of these use more than a minute's worth."""
PAUSE_S = 1


def limits() -> dict[str, tuple[int, int]]:
    """What the provider enforces: each strategy has deployments of its own."""
    return {f"{which}-{of}": of_it for which in STRATEGIES for of, of_it in DEPLOYMENTS.items()}


def router_of(strategy: str, model: int, redis: int) -> Router:
    deployments = []
    for name, (requests, tokens) in DEPLOYMENTS.items():
        id = f"{strategy}-{name}"
        api = {"model": "openai/echo", "api_base": f"http://127.0.0.1:{model}/{id}/v1", "api_key": "none"}
        allowed = {"rpm": requests, "tpm": tokens, "max_retries": 0}
        deployments.append({"model_name": "chat", "litellm_params": api | allowed, "model_info": {"id": id}})
    own = "simple-shuffle" if strategy == OURS else strategy
    return Router(deployments, routing_strategy=own, redis_host="127.0.0.1", redis_port=redis, num_retries=2)


async def load(router: Router) -> Counter[str]:
    """Calls in bursts; counts by what the caller got."""

    async def call() -> str:
        words = "one two three four five six seven eight nine ten"
        try:
            await router.acompletion("chat", [{"role": "user", "content": words}], max_tokens=90)
        except litellm.RateLimitError as error:
            return "denied" if "every deployment is at its limit" in str(error) else "RateLimitError"
        except Exception as error:
            return type(error).__name__
        return "passed"

    got: Counter[str] = Counter()
    for _ in range(BURSTS):
        got.update(await asyncio.gather(*(call() for _ in range(CALLS))))
        await asyncio.sleep(PAUSE_S)
    return got


async def main(model: int, redis: int) -> dict[str, Any]:
    litellm.suppress_debug_info = True
    got: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{model}", timeout=180) as provider:
        for strategy in STRATEGIES:
            if strategy == OURS:
                server = buckets.Server(f"redis://127.0.0.1:{redis}", timeout_ms=20_000)
                litellm.callbacks = [TokenBucketRouter(server, on_error="raise")]
            router = router_of(strategy, model, redis)
            await provider.get(f"/meet/{strategy}")
            got[strategy] = await load(router)
    return got


async def both(model: int, redis: int) -> tuple[dict[str, Counter[str]], dict[str, int]]:
    """Runs two of them; returns what callers got by strategy, and what the provider answered."""
    command = (sys.executable, __file__, str(model), str(redis))
    running = [await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE) for _ in range(2)]
    got: dict[str, Counter[str]] = {strategy: Counter() for strategy in STRATEGIES}
    for process in running:
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        for strategy, count in json.loads(out).items():
            got[strategy].update(count)
    async with httpx.AsyncClient() as provider:
        return got, (await provider.get(f"http://127.0.0.1:{model}/answered")).json()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*map(int, sys.argv[1:])))), flush=True)
    os._exit(0)  # LiteLLM leaves threads and connections
