"""A rate and a number of tasks in flight for a Celery task, over all workers: see `docs/celery.md`.

A task that the limit denies is published again for the moment of its turn, and its worker goes on with
other tasks. It asks again when it runs, so the limit also holds after workers were late or away.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from celery import Task
from celery.exceptions import ImproperlyConfigured, Retry, SoftTimeLimitExceeded

from .api.operations import OnError, checked_ms
from .api.threads import Client, Hold, Limiter, Server
from .transport.driver import up_to_secrets
from .transport.server import LOG
from .values.decision import Decision, Denied
from .values.errors import BadArgument, TokenBucketError
from .values.limit import Limit
from .values.options import read_numbers

# In the headers of a message that was put back for its turn, rather than to ask again.
TURN_HEADER: Final = "tokenbucket_turn"
# How far ahead turns are given. Tasks that were revoked keep theirs, which the next ones wait for.
LONGEST_QUEUE_S = 300.0
# What no broker has by default: it delivers messages again that wait longer in a worker.
VISIBILITY_TIMEOUT_S = 1800.0
Ask = Callable[[float], Decision]
"""Asks the server, and waits there for so many milliseconds at most."""


class LimitedTask(Task):
    """The base of tasks that are limited: `@app.task(base=LimitedTask, limit=…, max_in_flight=…)`.

    Neither eager tasks nor those that are called as functions are limited.
    """

    limit: Limit | None = None
    """How many runs begin, over all workers."""
    max_in_flight: int | None = None
    """How many runs there are at a time, over all workers."""
    max_wait: float = 0.2
    """Seconds that a task waits in its worker rather than being put back."""
    hold_ttl: float = 30.0
    """Seconds after which the place in flight of a worker that was killed is free again."""
    server: Server | Client | str | None = None
    """Which server decides: a URL, a client, or a `tokenbucket.Server`; by default Celery's broker."""
    on_error: OnError = "local"
    """What decides while that server is away, see `tokenbucket.Limiter`."""
    prefix: str = "tb:celery:"

    _run_s = 1.0
    """About how long a run takes."""

    def limit_name(self, *args: Any, **kwargs: Any) -> str:
        """Which runs share the limit, by the arguments of the task: here all of the task."""
        return str(self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if request.called_directly or request.get("is_running"):
            return super().__call__(*args, **kwargs)  # as a function, perhaps by the task itself
        request.is_running = True
        if request.is_eager or (self.limit is None and self.max_in_flight is None):
            return self.run(*args, **kwargs)
        self._read_options()
        name = self.limit_name(*args, **kwargs)
        with self._place_in_flight(name):
            self._take_of_rate(name)
            began = time.monotonic()
            try:
                return self.run(*args, **kwargs)
            finally:
                self._run_s += (time.monotonic() - began - self._run_s) / 4

    def _read_options(self) -> None:
        """Reads numbers that are strings, as from the environment. Raises BadArgument for any mistake."""
        if not isinstance(self.limit, Limit | None):
            raise BadArgument(f"limit: {self.limit!r} is not a Limit")
        if self.limit and not self.limit.tokens_per_s:
            raise BadArgument("limit: its rate is 0; limit runs in flight by max_in_flight=")
        names = ("max_in_flight", "max_wait", "hold_ttl")
        numbers = read_numbers({name: getattr(self, name) for name in names})
        for name in names:
            setattr(self, name, numbers.get(name, getattr(LimitedTask, name)))
        if self.max_in_flight is not None and self.max_in_flight < 0:
            raise BadArgument(f"max_in_flight: {self.max_in_flight!r} is less than 0")
        checked_ms("max_wait", self.max_wait * 1000)
        checked_ms("hold_ttl", self.hold_ttl * 1000, 1)

    @cached_property
    def _limiter(self) -> Limiter:
        server = self.server or self._client_of_broker()
        return Limiter(server, self.limit or Limit(1, 0), self.prefix, on_error=self.on_error)

    def _client_of_broker(self) -> Client:
        """Returns the client that kombu makes of the broker's settings: it alone knows what they mean.

        Kombu connects for that. While the broker is away, the task waits in its worker.
        """
        with self.app.connection_for_read() as connection:
            if connection.transport.driver_type != "redis":
                raise ImproperlyConfigured(
                    f"{self.name}: the broker is no Redis, so set server= to the URL of one for the limit"
                )
            connection.ensure_connection(self._broker_is_away, interval_start=0.2)
            client: Client = connection.default_channel.client
            return client

    def _broker_is_away(self, error: Exception, interval_s: float) -> None:
        reason = up_to_secrets(repr(error))
        LOG.warning("%s waits in its worker, the broker does not answer: %s", self.name, reason)

    @contextmanager
    def _place_in_flight(self, name: str) -> Iterator[None]:
        if self.max_in_flight is None:
            yield
            return
        places = Limit(self.max_in_flight, 0)
        # The server cannot know when a task will end. So many tasks ask again that no place stays
        # free for long, and so few that asking is no load.
        every_s = min(max(self._run_s / max(4 * self.max_in_flight, 1), 0.01), 1.0)
        hold: Hold

        def ask(max_wait_ms: float) -> Decision:
            nonlocal hold
            hold = self._limiter.hold(
                f"{name}:in_flight",
                1,
                ttl_ms=int(self.hold_ttl * 1000),
                limit=places,
                max_wait_ms=max_wait_ms,
            )
            return hold.decision

        self._await_turn(name, ask, Limit(1, 1 / every_s), every_s)
        hold.__enter__()
        try:
            yield
        finally:
            try:
                hold.settle()
            except TokenBucketError:  # which is not the task's
                self._limiter.server.log.exception("a place in flight was not given back, and will expire")

    def _take_of_rate(self, name: str) -> None:
        limit = self.limit
        if limit is None:
            return
        # Tasks come back one by one, or as many as a calendar's rate gives at its boundary.
        turns = limit if limit.is_calendar else Limit(1, limit.rate)
        self._await_turn(
            name,
            lambda max_wait_ms: self._limiter.take(f"{name}:rate", limit=limit, max_wait_ms=max_wait_ms),
            turns,
        )

    def _await_turn(self, name: str, ask: Ask, turns: Limit, every_s: float | None = None) -> None:
        """Returns once the server has granted it. Puts the task back if its turn is too far off."""
        max_wait_ms = self.max_wait * 1000
        has_turn = self.request.get(TURN_HEADER) or (self.request.headers or {}).get(TURN_HEADER)
        wait_ms = max_wait_ms if has_turn else 0.0
        while not (decision := ask(wait_ms)).allowed:
            if decision.retry_after_ms < 0:
                raise Denied(decision)
            first_s = decision.retry_after_ms / 1000 if every_s is None else every_s
            turn_s, is_its_turn = self._next_turn(name, first_s, turns)
            if wait_ms or turn_s * 1000 > max_wait_ms:
                self._put_back(turn_s, is_its_turn, decision)
            wait_ms = max_wait_ms

    def _next_turn(self, name: str, first_s: float, turns: Limit) -> tuple[float, bool]:
        """Returns in how many seconds to come back, and whether with a turn of its own."""
        options = self.app.conf.broker_transport_options or {}
        longest_s = options.get("visibility_timeout", VISIBILITY_TIMEOUT_S) / 3
        queue_s = min(LONGEST_QUEUE_S, longest_s)
        if first_s <= longest_s:
            queue = self._limiter.reserve(f"{name}:turns", limit=turns, max_wait_ms=int(queue_s * 1000))
            if queue.allowed:
                return first_s + queue.retry_after_ms / 1000, True
            if queue.degraded:
                return queue.retry_after_ms / 1000 * random.uniform(1, 2), False
        return min(first_s, longest_s) + queue_s * random.uniform(0.5, 1), False

    def _put_back(self, countdown: float, is_its_turn: bool, decision: Decision) -> None:
        """Publishes this message again and ends the run, as `retry` does, but does not count it as one.

        Returns after a second at most if the broker is away: a message that is in no queue must not end.
        """
        request = self.request
        again = self.signature_from_request(
            request,
            countdown=countdown,
            eta=None,
            retries=request.retries,
            headers={**(request.headers or {}), TURN_HEADER: is_its_turn},
        )
        try:
            again.apply_async()
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:  # kombu does not wrap all errors of a connection that has ended
            reason = up_to_secrets(repr(error))
            self._limiter.server.log.warning("%s waits in its worker, not put back: %s", self.name, reason)
            time.sleep(min(countdown, 1.0))
        else:
            raise Retry(exc=Denied(decision), when=countdown, sig=again)
