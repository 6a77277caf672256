"""A server object made so decides by the script, with no more rights than the documentation gives."""

from __future__ import annotations

import pytest

from conftest import TOKEN_MS, Package, StartProxy, StartServer, documented_rights, info
from drivers import DriverError
from launch import ask
from services import module


def test_the_documented_rights_suffice(package: Package, start_server: StartServer) -> None:
    server = start_server(with_module=False)
    ask(server, "ACL", "SETUSER", "app", "on", ">secret", *documented_rights(info(server)["redis_version"]))
    package.server(server, url=f"redis://app:secret@127.0.0.1:{server.port}", by="script")
    package.limiter(capacity=10, rate="10/h")
    done = package.many(count=20, concurrency=5)
    assert (done["allowed"], done["degraded"], done["errors"]) == (10, 0, {})


def test_without_the_module_each_call_is_an_error_that_names_the_option(
    package: Package, start_server: StartServer
) -> None:
    server = start_server(with_module=False)
    package.limit(server, capacity=10, rate="10/h", connect=False, on_error="open", timeout_ms=5000)
    for _ in range(2):
        # by='script', by: "script", ByScript, by_script
        with pytest.raises(DriverError, match=r"(?i)ModuleMissing: .*module.*by\W{0,3}_?script"):
            package.take()
    ask(server, "MODULE", "LOAD", module())
    assert package.take()["remaining"] == 9


def test_the_script_decides_as_the_module_and_is_never_left_for_it(
    package: Package, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(with_module=False)
    proxy = start_proxy(server)
    package.server(proxy, timeout_ms=5000, by="script")
    package.limiter(capacity=10, rate="10/h", connect=False, on_error="closed")
    package.joint({"a": [10, "10/h"], "b": [10, "10/h"]})
    assert package.take(cost=4)["remaining"] == 6
    assert package.do("take_up_to", amount=5)["remaining"] == 1
    assert package.do("charge", amount=3)["remaining"] == -2
    assert package.do("give", amount=4)["remaining"] == 2
    assert 0 < package.take(cost=3)["retry_after_ms"] <= TOKEN_MS
    assert package.do("take_all", on="j", costs={"a": 1, "b": 2})["remaining"] == 8
    with pytest.raises(DriverError, match="cost"):
        package.take(cost=-1)
    ask(server, "SCRIPT", "FLUSH")
    assert package.take()["remaining"] == 1
    ask(server, "SCRIPT", "FLUSH")
    proxy.cut["SCRIPT"] = 1
    assert package.take(cost=0)["remaining"] == 1

    ask(server, "MODULE", "LOAD", module())
    proxy.drop_connections()
    assert package.take()["remaining"] == 0
    assert proxy.count("TB.") == 0, proxy.commands
    assert all(key.endswith(":script") for key in ask(server, "KEYS", "*"))


def test_what_the_script_cannot_do_is_an_error_of_the_call(
    package: Package, start_server: StartServer
) -> None:
    package.limit(start_server(), capacity=10, rate="10/h", on_error="open", by="script")
    with pytest.raises(DriverError, match=r"ModuleMissing: .*[Hh]olds.* need"):
        package.do("hold", amount=1)
    with pytest.raises(DriverError, match=r"ModuleMissing: .*[Ss]hares.* need"):
        package.take(max_wait_ms=1, share="tenant")
    package.joint({"a": [10, "10/h"], "b": [10, "10/h"]})
    for ask_any in ("take_any", "hold_any"):
        with pytest.raises(DriverError, match="ModuleMissing"):
            package.do(ask_any, on="j", alternatives=[{"a": 1}, {"b": 1}])
    package.limiter(capacity=10, rate="10@d", connect=False, on_error="open")
    with pytest.raises(DriverError, match=r"rate .*needs the module"):
        package.take()
