"""The launcher of the servers for all languages leaves none behind."""

from __future__ import annotations

import json
import subprocess
import sys
from subprocess import PIPE

import pytest

from paths import REPOSITORY
from services import answers, wait_for

LAUNCHER = str(REPOSITORY / "testing/launch.py")


@pytest.mark.parametrize("is_killed", [False, True], ids=["its input ends", "it is killed"])
def test_a_server_ends_with_its_launcher(is_killed: bool) -> None:
    with subprocess.Popen([sys.executable, LAUNCHER, "serve"], stdin=PIPE, stdout=PIPE) as launcher:
        assert launcher.stdin
        assert launcher.stdout
        [node] = json.loads(launcher.stdout.readline())["nodes"]
        assert answers(node["port"])
        launcher.kill() if is_killed else launcher.stdin.close()
    wait_for(lambda: not answers(node["port"]), "the end of the server")


def test_a_server_ends_with_a_caller_that_is_killed() -> None:
    run = [sys.executable, LAUNCHER, "run", "sh", "-c", "echo $REDIS_PORT; exec sleep 1000"]
    # The colon keeps the shell from becoming the launcher.
    with subprocess.Popen(["sh", "-c", '"$@"; :', "sh", *run], stdout=PIPE, text=True) as caller:
        assert caller.stdout
        port = int(caller.stdout.readline())
        assert answers(port)
        caller.kill()
    wait_for(lambda: not answers(port), "the end of the server")


def test_a_wrong_server_is_a_line_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER", "/nowhere/redis-server")
    done = subprocess.run([sys.executable, LAUNCHER, "serve"], input="", stderr=PIPE, text=True)
    assert done.returncode == 1
    assert (
        done.stderr == "no /nowhere/redis-server: install redis-server, or set SERVER=/path/to/redis-server\n"
    )
