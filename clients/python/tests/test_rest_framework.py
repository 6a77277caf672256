"""Django REST framework with our throttles, as an application that is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import django
import httpx
import pytest
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path

from services import Service
from serving import wsgi

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="test",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"],
    REST_FRAMEWORK={
        "DEFAULT_THROTTLE_RATES": {
            "anon": "3/day",
            "user": "5 10/h",
            "uploads": "2/day",
            "none": None,
            "hooked": "1/s",
        },
        "DEFAULT_THROTTLE_CLASSES": ["tokenbucket.rest_framework.UserRateThrottle"],
        "DEFAULT_AUTHENTICATION_CLASSES": [],
    },
)
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.cache import cache  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from rest_framework import throttling  # noqa: E402
from rest_framework.authentication import BaseAuthentication  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.test import APIRequestFactory  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from tokenbucket import BadArgument, rest_framework  # noqa: E402
from tokenbucket.testing import FakeServer  # noqa: E402


class ByHeader(BaseAuthentication):  # type: ignore[misc]
    def authenticate(self, request: Any) -> tuple[Any, None] | None:
        id = request.headers.get("X-User")
        return (User(pk=int(id)), None) if id else None


class Scopeless(rest_framework.UserRateThrottle):
    scope = "none"


class Hooked(rest_framework.AnonRateThrottle):
    """As one written for `SimpleRateThrottle`."""

    seen: ClassVar[list[Any]] = []
    scope = "hooked"

    def parse_rate(self, rate: Any) -> Any:
        return 2, 86_400

    def throttle_success(self) -> Any:
        self.seen.append((self.num_requests, len(self.history)))
        return super().throttle_success()

    def throttle_failure(self) -> Any:
        self.seen.append(self.key)
        return super().throttle_failure()


class View(APIView):  # type: ignore[misc]
    authentication_classes = (ByHeader,)

    def get(self, request: Any) -> Any:
        return Response({"hello": "world"})


def view(*throttles: type[Any], **more: Any) -> Any:
    limited: Any = type("Limited", (View,), {"throttle_classes": throttles, **more})
    return limited.as_view()


urlpatterns = [
    path("anon", view(rest_framework.AnonRateThrottle)),
    path("user", View.as_view()),
    path("uploads", view(rest_framework.ScopedRateThrottle, throttle_scope="uploads")),
    path("hooked", view(Hooked)),
    path("scopeless", view(rest_framework.ScopedRateThrottle, Scopeless)),
]


@pytest.fixture
def client(server: Service, admin: Any) -> Iterator[httpx.Client]:
    settings.TOKENBUCKET = {"URL": f"redis://127.0.0.1:{server.port}/0", "TIMEOUT_MS": 5000}
    rest_framework.limiter.cache_clear()
    with wsgi(get_wsgi_application()) as url, httpx.Client(base_url=url) as client:
        yield client
    rest_framework.limiter().close()
    rest_framework.limiter.cache_clear()


@pytest.fixture
def fake() -> Iterator[None]:
    settings.TOKENBUCKET = {"URL": FakeServer()}
    rest_framework.limiter.cache_clear()
    yield
    rest_framework.limiter.cache_clear()


def codes(client: httpx.Client, path: str, times: int, **headers: str) -> list[int]:
    return [client.get(path, headers=headers).status_code for _ in range(times)]


ADA, BOB = {"X-User": "1"}, {"X-User": "2"}
# Of each throttle, by path and caller.
CODES: list[tuple[str, dict[str, str], list[int]]] = [
    ("/uploads", {}, [200, 200, 429]),
    ("/anon", {}, [200] * 3 + [429]),
    ("/anon", ADA, [200] * 9),
    ("/user", ADA, [200] * 5 + [429]),
    ("/user", BOB, [200]),
    ("/scopeless", {}, [200] * 20),
]


def test_each_user_address_and_scope_has_buckets_of_its_own(client: httpx.Client) -> None:
    for where, caller, expected in CODES:
        assert codes(client, where, len(expected), **caller) == expected
    denied = client.get("/user", headers=ADA)
    # Ten an hour; in the framework's own throttles it would be when the oldest request is an hour old.
    assert 300 < int(denied.headers["Retry-After"]) <= 360


def test_callers_from_one_network_of_ipv6_share_a_bucket(client: httpx.Client) -> None:
    callers = [f"2001:db8::{host}" for host in range(9)]
    told = [codes(client, "/anon", 1, **{"X-Forwarded-For": caller})[0] for caller in callers]
    assert told == [200] * 3 + [429] * 6
    assert codes(client, "/anon", 1, **{"X-Forwarded-For": "2001:db8:0:1::"}) == [200]
    assert codes(client, "/anon", 4, **{"X-Forwarded-For": "::ffff:192.0.2.1"}) == [200] * 3 + [429]
    assert codes(client, "/anon", 1, **{"X-Forwarded-For": "192.0.2.1"}) == [429]
    assert codes(client, "/anon", 1, **{"X-Forwarded-For": "192.0.2.2"}) == [200]


def test_the_hooks_of_a_throttle_are_called(client: httpx.Client) -> None:
    Hooked.seen.clear()
    assert codes(client, "/hooked", 3) == [200, 200, 429]
    assert Hooked.seen == [(2, 1), (2, 2), "throttle_hooked_127.0.0.1"]


@pytest.mark.parametrize(("on_error", "code"), [("open", 200), ("closed", 429)])
def test_the_settings_say_what_happens_without_a_server(
    client: httpx.Client, own_server: Service, on_error: str, code: int
) -> None:
    rest_framework.limiter.cache_clear()
    settings.TOKENBUCKET = {"URL": f"redis://127.0.0.1:{own_server.port}/0", "ON_ERROR": on_error}
    own_server.stop()
    assert codes(client, "/anon", 5) == [code] * 5


# As settings, environments and classes have them; each beside the framework's own throttle.
RATES: list[Any] = [
    *("3/m", "3/min", "3/minute", "3/h", "3/hour", "3/hours", "3/d", "3/day", "0/day", "1000/d", " 3/d"),
    *("3/month", "often", "3", "3/", "3/fortnight", "/day", "3.5/day", "", "3/d/d", None),
    *("3 /min", "10 /min", "3/ min", "-1/day", "1_0/day", "+3/d", "3/D", "3//d", "3/d 1", "\uff13/d"),
    *("9" * 13 + "/day", 3, 0, -1, 2.5, True, b"3/d", ("3", "d"), ["3/d"]),
]
# What hooks may return: keys, and the meanings of a rate.
KEYS: list[Any] = ["alice", "", 7, 0, None, ("a", 1), b"alice", "{a}:1", "\ud800", 2.5]
MEANINGS: list[Any] = [(3, 60), (0, 60), (-1, 60), (3, 0), (0, 0), (3, 1800.5), (9**13, 60)]


def outcome(throttle: type[Any], members: dict[str, Any]) -> Any:
    """Returns how many of five requests pass, and what the rate means; or that it is refused."""
    request = APIRequestFactory(REMOTE_ADDR="192.0.2.9").get("/")
    request.user = None
    try:
        throttles = [type("Throttle", (throttle,), {"scope": "rates", **members})() for _ in range(5)]
        allowed = sum(one.allow_request(request, None) for one in throttles)
        return allowed, throttles[0].num_requests, throttles[0].duration
    except (LookupError, ValueError, TypeError, AttributeError, ImproperlyConfigured):
        return "refused"


MEMBERS = [
    *({"rate": rate} for rate in RATES),
    *({"rate": "3/d", "get_cache_key": lambda *_, key=key: key} for key in KEYS),
    *({"rate": "3/d", "parse_rate": lambda *_, meaning=meaning: meaning} for meaning in MEANINGS),
]


@pytest.mark.parametrize("members", MEMBERS, ids=map(repr, RATES + KEYS + MEANINGS))
@pytest.mark.usefixtures("fake")
@pytest.mark.filterwarnings("ignore::django.core.cache.CacheKeyWarning")
def test_a_throttle_does_what_it_does_as_one_of_the_framework(members: dict[str, Any]) -> None:
    cache.clear()
    theirs = outcome(throttling.AnonRateThrottle, members)
    assert outcome(rest_framework.AnonRateThrottle, members) == theirs


@pytest.mark.parametrize("rate", ["often", "3/fortnight", "5 10/x", 3, b"3/d"])
@pytest.mark.usefixtures("fake")
def test_a_rate_that_is_none_is_named_with_its_scope(rate: Any) -> None:
    with pytest.raises(ValueError, match=f"rate: {rate!r} of the scope 'anon' is "):
        type("Throttle", (rest_framework.AnonRateThrottle,), {"rate": rate})()


MISTAKES: list[Any] = [
    *(("BATCH", wrong) for wrong in ("two", "", "2.5", 2.5, -1)),
    *(("TIMEOUT_MS", wrong) for wrong in ("soon", "", "0", "nan", "inf", [1])),
    *(
        ("RETRY_EVERY_MS", "-1"),
        ("ON_ERROR", "LOCAL"),
        ("BY", "lua"),
        ("PREFIX", 7),
        ("REMEMBER_DENIALS", "-1"),
    ),
]


def test_options_may_be_strings_as_from_the_environment(client: httpx.Client) -> None:
    settings.TOKENBUCKET |= {"TIMEOUT_MS": "5000", "BATCH": "2", "REMEMBER_DENIALS": "9"}
    assert codes(client, "/anon", 4) == [200, 200, 200, 429]
    rest_framework.limiter().close()
    good = settings.TOKENBUCKET | dict.fromkeys(("BATCH", "RETRY_EVERY_MS", "ON_ERROR", "BY", "PREFIX"))
    for name, wrong in MISTAKES:
        rest_framework.limiter.cache_clear()
        settings.TOKENBUCKET = good | {name: wrong}
        with pytest.raises(BadArgument, match=f"^TOKENBUCKET: {name}: .* is n"):
            rest_framework.limiter()
    settings.TOKENBUCKET = good
