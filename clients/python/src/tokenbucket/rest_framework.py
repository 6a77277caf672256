"""Throttles of Django REST framework on token buckets.

A rate is the framework's, "1000/day" being a bucket of 1000 that refills with 1000 a day, or a capacity
and a rate, "20 1000/d". `docs/django-rest-framework.md` has the settings.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.conf import settings
from rest_framework import throttling

from .api.threads import Limiter, Server
from .values.address import client_address
from .values.decision import Decision
from .values.errors import BadArgument
from .values.limit import Limit
from .values.options import named, read_numbers


@cache
def limiter() -> Limiter:
    """The one that all throttles of this process ask, with the settings of its first request."""
    given = getattr(settings, "TOKENBUCKET", {})
    given = {name.lower(): value for name, value in given.items() if value is not None}
    with named(lambda name: f"TOKENBUCKET: {'URL' if name == 'client' else name.upper()}"):
        options = read_numbers(given)
        names = ("timeout_ms", "retry_every_ms", "by")
        of_server = {name: options.pop(name) for name in names if name in options}
        server = Server(options.pop("url", "redis://localhost:6379/0"), **of_server)
        return Limiter(server, Limit(0, 1), options.pop("prefix", "tb:django:"), **options)


class TokenBucketThrottle(throttling.SimpleRateThrottle):
    """What a throttle of your own extends, as it would `SimpleRateThrottle`.

    Its hooks are called as there. `num_requests` and `duration` may be set or returned by a `parse_rate`
    of your own, `key` and `now` are those of the request, and `history` has an item for each token in use.
    """

    limit: Limit | None = None
    decision: Decision | None = None
    _parsed: tuple[int | None, int | None] = None, None

    def parse_rate(self, rate: str | None) -> tuple[int | None, int | None]:
        if rate is None:
            return None, None
        try:
            parsed: tuple[int, int] = super().parse_rate(rate)
            self.limit, self._parsed = Limit._of_window(*parsed), parsed
        except (ValueError, LookupError, AttributeError, TypeError):
            try:
                self.limit = Limit.parse(str(rate))
            except BadArgument as error:
                of = f"rate: {rate!r} of the scope {self.scope!r}"
                raise BadArgument(f"{of} is no rate of the framework, and {error}") from error
            self._parsed = int(self.limit._capacity), self.limit.window_s
        return self._parsed

    def get_ident(self, request: Any) -> str:
        """The framework's, as `client_address` names it."""
        return client_address(super().get_ident(request))

    def allow_request(self, request: Any, view: Any) -> bool:
        if self.rate is None:
            return True
        self.key = self.get_cache_key(request, view)
        if self.key is None or self.duration == 0 < self.num_requests:
            return True
        wanted = self.num_requests, self.duration
        limit = self.limit if self.limit and wanted == self._parsed else Limit._of_window(*wanted)
        self.decision = limiter().take(str(self.key), limit=limit)
        self.now = self.timer()
        capacity = int(limit._capacity)
        self.history = [self.now] * min(max(capacity - self.decision.remaining, 0), capacity)
        return bool(self.throttle_success() if self.decision.allowed else self.throttle_failure())

    def throttle_success(self) -> bool:
        """Called for each request that is let through. The bucket has counted it already."""
        return True

    def wait(self) -> float | None:
        """Seconds, for Retry-After, which the framework rounds up."""
        if self.decision is None or self.decision.retry_after_ms < 0:
            return None
        return self.decision.retry_after_ms / 1000


class AnonRateThrottle(throttling.AnonRateThrottle, TokenBucketThrottle):
    pass


class UserRateThrottle(throttling.UserRateThrottle, TokenBucketThrottle):
    pass


class ScopedRateThrottle(throttling.ScopedRateThrottle, TokenBucketThrottle):
    pass
