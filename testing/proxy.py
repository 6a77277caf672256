"""A TCP proxy in front of a server: it delays, stalls, redirects, counts commands, and cuts replies off.

It runs in a thread of its own, so that a test stays plain code. A cut happens after the server has executed
the command, so that only the reply is lost. It can speak TLS to clients, and not to the server.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

CHUNK_BYTES = 1 << 16


class Proxy:
    """Forwards connections on `port` to `target_port`, both on the loopback."""

    def __init__(self, target_port: int, delay_s: float = 0, tls: ssl.SSLContext | None = None) -> None:
        self.target_port = target_port
        self._tls = tls
        self.delay_s = delay_s
        """The one-way delay of every byte: half a round trip."""
        self.commands: Counter[str] = Counter()
        """What clients sent, by upper-case name."""
        self.cut: Counter[str] = Counter()
        """How many replies to each command are to be lost, together with their connection."""
        self.late: Counter[str] = Counter()
        """How many of each command lose their connection, and reach the server only at `release`."""
        self.in_part = ""
        """The command whose replies lose their last bytes."""
        self._links: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing, self._released = asyncio.Event(), asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"

    def count(self, prefix: str) -> int:
        """How many commands whose names begin so clients have sent."""
        return sum(count for name, count in self.commands.items() if name.startswith(prefix))

    def stall(self) -> None:
        """Lets nothing through in either direction until `resume`."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def resume(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def release(self) -> None:
        """Sends on what came late, now and from now on."""
        self._loop.call_soon_threadsafe(self._released.set)

    def redirect(self, target_port: int) -> None:
        """Sends new connections elsewhere, as an endpoint that has failed over; those that are open stay."""
        self.target_port = target_port

    def drop_connections(self) -> None:
        self._call(self._drop_connections())

    def stop(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=4096, ssl=self._tls)

    async def _drop_connections(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _stop(self) -> None:
        self._server.close()
        await self._drop_connections()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # In a task of its own: asyncio reports the cancellation of this one as an error.
        link = asyncio.create_task(self._serve(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection("127.0.0.1", self.target_port)
            try:
                await _Link(self, (reader, writer), server).run()
            finally:
                server[1].close()
        except OSError:
            pass
        finally:
            writer.close()

    async def wait_until_flowing(self) -> None:
        await self._flowing.wait()

    async def wait_until_released(self) -> None:
        await self._released.wait()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._pending: list[str] = []
        """Commands whose replies have not come."""
        self._is_late = False

    async def run(self) -> None:
        flows = [
            asyncio.create_task(self._pump(self._client[0], self._server[1], Frames(self._see_command))),
            asyncio.create_task(self._pump(self._server[0], self._client[1], Frames(self._see_reply))),
        ]
        try:
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for flow in flows:
                flow.cancel()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            while data := await reader.read(CHUNK_BYTES):
                queue.put_nowait((loop.time() + self._proxy.delay_s, data))
            queue.put_nowait((loop.time() + self._proxy.delay_s, b""))

        reading = asyncio.create_task(read())
        try:
            while True:
                due, data = await queue.get()
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                await self._proxy.wait_until_flowing()
                is_cut = writer is self._client[1] and self._proxy.in_part in self._pending[:1]
                if not data or not frames.feed(data):
                    return
                if self._is_late:
                    await self._proxy.wait_until_released()
                writer.write(data[:-3] if is_cut else data)
                await writer.drain()
        except OSError:
            return
        finally:
            reading.cancel()

    def _see_command(self, frame: list[bytes]) -> bool:
        name = frame[0].decode(errors="replace").upper()
        self._proxy.commands[name] += 1
        self._pending.append(name)
        if self._proxy.late[name] > 0:
            self._proxy.late[name] -= 1
            self._is_late = True
            self._client[1].close()
        return True

    def _see_reply(self, _frame: list[bytes]) -> bool:
        name = self._pending.pop(0) if self._pending else ""
        if self._proxy.cut[name] > 0:
            self._proxy.cut[name] -= 1
            return False
        return True


class Frames:
    """Finds where each RESP value ends, and shows its strings to `seen`; that says whether to go on."""

    def __init__(self, seen: Callable[[list[bytes]], bool]) -> None:
        self._seen = seen
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bool:
        """Whether everything may pass."""
        self._buffer += data
        while self._buffer:
            strings: list[bytes] = []
            end = _end(self._buffer, 0, strings)
            if end < 0:
                return True
            is_push = self._buffer[0:1] == b">"
            del self._buffer[:end]
            if not is_push and not self._seen(strings or [b""]):
                return False
        return True


def _end(buffer: bytearray, at: int, strings: list[bytes]) -> int:
    """Behind the value that begins at `at`, or -1 while it is not complete."""
    line_end = buffer.find(b"\r\n", at)
    if line_end < 0:
        return -1
    kind, text = bytes(buffer[at : at + 1]), bytes(buffer[at + 1 : line_end])
    after = line_end + 2
    if kind in (b"$", b"=", b"!"):
        size = int(text)
        if size < 0:
            return after
        if len(buffer) < after + size + 2:
            return -1
        strings.append(bytes(buffer[after : after + size]))
        return after + size + 2
    if kind in (b"*", b"~", b">", b"%"):
        count = max(int(text), 0) * (2 if kind == b"%" else 1)
        for _ in range(count):
            after = _end(buffer, after, strings)
            if after < 0:
                return -1
    return after
