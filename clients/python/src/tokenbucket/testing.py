"""A server in memory, for tests of your own: see `FakeServer`."""

from .local.fake_server import FakeServer as FakeServer
