"""An HTTP server that somebody else limits: it keeps requests in order, and answers as told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from services import wait_for


class Upstream:
    """`/slow` answers when `let_go` is called, `/stream` sends its second half then; `/broken` breaks off."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self._going = threading.Event()
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                upstream.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Clients that hang up are what some tests are about."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path = to.path.partition("?")[0]
        self.seen.append(to.path)
        if path == "/slow":
            self._going.wait()
        to.send_response(self.status)
        for name, value in self.headers.items():
            to.send_header(name, value)
        to.send_header("Content-Length", "4")
        to.end_headers()
        to.wfile.write(b"he")
        to.wfile.flush()
        if path == "/stream":
            self._going.wait()
        if path == "/broken":
            to.close_connection = True
        else:
            to.wfile.write(b"re")

    def let_go(self) -> None:
        self._going.set()

    def until_seen(self, count: int) -> None:
        wait_for(lambda: len(self.seen) == count, f"{count} requests")


@contextmanager
def upstream() -> Iterator[Upstream]:
    one = Upstream()
    thread = threading.Thread(target=one.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield one
    finally:
        one.let_go()
        one.server.shutdown()
        thread.join()
        one.server.server_close()
