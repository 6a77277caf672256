"""Runs the whole example: a Redis with the module, the stand-in model, and the app.

The tests use the same pieces.
"""

from __future__ import annotations

import sys
from pathlib import Path

from services import (
    Service,
    free_port,
    redis_server,
    until_ctrl_c,
    wait_until_over,
    wanted_port,
)

HERE = Path(__file__).resolve().parent

TRY = """\
Redis with the module on port {redis}, the app on {url}. To try it (and Ctrl-C to end it):

curl -i {url}/
curl -i {url}/search -H 'Authorization: Bearer demo-key'   # 6 times, quickly
curl -i {url}/v1/chat/completions -H 'Authorization: Bearer demo-key' \\
    --json '{{"max_tokens": 500, "messages": [{{"role": "user", "content": "say it again"}}]}}'
curl -N {url}/v1/chat/completions -H 'Authorization: Bearer demo-key' \\
    --json '{{"stream": true, "max_tokens": 500, "messages": [
        {{"role": "user", "content": "say it again, word by word, and take your time"}}]}}'
"""


def model_server(folder: Path) -> Service:
    port = free_port()
    return Service("model", [sys.executable, str(HERE / "model.py"), str(port)], port, folder)


def app_server(folder: Path, port: int | None = None, **settings: str) -> Service:
    port = port or free_port()
    env = {name.upper(): value for name, value in settings.items()} | {"PORT": str(port)}
    return Service("app", [sys.executable, str(HERE / "app.py")], port, folder, env)


def main() -> None:
    with until_ctrl_c() as (folder, keep):
        redis = keep(redis_server(folder))
        model = keep(model_server(folder))
        app = keep(
            app_server(
                folder,
                wanted_port("8000"),
                redis_url=f"redis://127.0.0.1:{redis.port}/0",
                model_url=f"http://127.0.0.1:{model.port}/v1",
            )
        )
        app.show = True
        for service in (redis, model, app):
            service.start()
        url = f"http://127.0.0.1:{app.port}"
        print(TRY.format(url=url, redis=redis.port), flush=True)
        wait_until_over(app)


if __name__ == "__main__":
    main()
