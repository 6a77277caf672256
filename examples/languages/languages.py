"""Runs (or tests) one TB.TAKE from every language, against a server of its own. See the Makefile."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "testing"))
from launch import Servers, ask  # noqa: E402
from services import free_port  # noqa: E402

# Each tested file, by language: how it is started.
PROGRAMS = {
    "redis-cli": [("redis-cli/take.sh", ["bash", "redis-cli/take.sh"])],
    "eval": [("eval/take.lua", ["bash", "-c", 'redis-cli -e -p "$REDIS_PORT" --eval eval/take.lua user:42'])],
    "python": [("python/take.py", ["python/.venv/bin/python", "python/take.py"])],
    "node": [
        ("node/take-redis.mjs", ["node", "node/take-redis.mjs"]),
        ("node/take-ioredis.mjs", ["node", "node/take-ioredis.mjs"]),
    ],
    "go": [("go/take.go", ["build/take-go"])],
    "rust": [("rust/take.rs", ["rust/target/debug/take"])],
    "ruby": [("ruby/take.rb", ["ruby", "ruby/take.rb"])],
    "php": [("php/take.php", ["php", "php/take.php"])],
    "perl": [("perl/take.pl", ["perl", "perl/take.pl"])],
    "lua": [("lua/take.lua", ["lua5.1", "lua/take.lua"])],
    "c": [("c/take.c", ["build/take-c"])],
    "haskell": [("haskell/Take.hs", ["build/take-haskell"])],
    "erlang": [("erlang/take.escript", ["escript", "erlang/take.escript"])],
}


def start(command, port):
    return subprocess.run(
        command, cwd=HERE, env={**os.environ, "REDIS_PORT": str(port)}, capture_output=True, text=True, timeout=60,
    )


def decision(command, port):
    """What the program printed, as four numbers."""
    done = start(command, port)
    printed = re.fullmatch(
        r"allowed=(-?\d+) remaining=(-?\d+) retry_after_ms=(-?\d+) reset_after_ms=(-?\d+)\n", done.stdout)
    assert done.returncode == 0 and printed, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    return [int(number) for number in printed.groups()]


def test_program(command, server):
    """5 per 10 s, that is 5 tokens and one more every 2 s."""
    ask(server, "FLUSHALL")
    assert decision(command, server.port) == [1, 4, 0, 2000], "the first of five"

    # A debt that outlasts any slowness of this machine: 1000 tokens are 2000 s.
    charged_at = time.monotonic()
    _, remaining, _, reset_after_ms = ask(server, "TB.CHARGE", "user:42", 5, "5/10s", 1000)
    denied = decision(command, server.port)
    passed_ms = (time.monotonic() - charged_at) * 1000 + 1
    assert denied[0] == 0 and remaining <= denied[1] < 0, denied
    # Denied for as long as it takes until one token is there, which is four tokens short of full.
    assert denied[3] - denied[2] == 8000, denied
    assert reset_after_ms - passed_ms <= denied[3] <= reset_after_ms, denied

    # After the reset the same line passes again.
    ask(server, "DEL", "user:42")
    assert decision(command, server.port)[0] == 1, "after a reset"

    # A key that holds something else, and no server at all, are errors and not decisions.
    ask(server, "SET", "user:42", "not a bucket")
    wrong = start(command, server.port)
    assert wrong.returncode != 0 and "WRONGTYPE" in wrong.stdout + wrong.stderr, f"{wrong.stdout}{wrong.stderr}"
    nobody = start(command, free_port())
    assert nobody.returncode != 0 and "allowed=" not in nobody.stdout, f"{nobody.stdout}{nobody.stderr}"
    assert re.search("refused|no_connection", nobody.stdout + nobody.stderr, re.IGNORECASE), f"{nobody.stdout}{nobody.stderr}"


def table(heading):
    """The rows of the table below a heading of README.md, without its two head rows."""
    section = (HERE / "README.md").read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_line_is_the_tested_line(file):
    lines = [line for *_, line, link in table("The line, by language") if link == f"[{file}]({file})"]
    assert len(lines) == 1, f"README.md has {len(lines)} rows for {file}"
    line = lines[0].strip("`")
    found = [text.strip() for text in (HERE / file).read_text().splitlines()].count(line)
    assert found == 1, f"README.md says {line!r}, {file} has it {found} times"


def test_table_has_no_untested_row():
    links = [link for *_, link in table("The line, by language")]
    files = [file for programs in PROGRAMS.values() for file, _ in programs]
    assert sorted(links) == sorted(f"[{file}]({file})" for file in files), links


def test_intervals(server):
    """Each row of the interval table: a full burst passes, nothing beyond it, and it has refilled when the row says."""
    rows = table("Interval limits")
    assert len(rows) >= 5, rows
    for wish, arguments, full_after in rows:
        capacity, rate = arguments.strip("`").split()
        unit = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}
        number, name = full_after.split()
        ask(server, "FLUSHALL")
        burst = ask(server, "TB.TAKE", "user:42", capacity, rate, capacity)
        assert burst == [1, 0, 0, round(float(number) * unit[name])], f"{wish}: {burst}"
        too_much = ask(server, "TB.PEEK", "user:43", capacity, rate, int(capacity) + 1)
        assert too_much[0] == 0 and too_much[2] == -1, f"{wish}: {too_much}"


def test_two_intervals(server):
    """The TB.MTAKE of the README, as it stands."""
    readme = (HERE / "README.md").read_text()
    [line] = re.findall(r"^    (TB\.MTAKE .*)$", readme, re.MULTILINE)
    ask(server, "FLUSHALL")
    assert ask(server, *line.split())[0] == 1, "both buckets are full"
    # In debt for a day, so that the second is denied on the slowest machine.
    ask(server, "TB.CHARGE", "{user:42}:distance", 1, "1/100ms", 864_000)
    assert ask(server, *line.split())[0] == 0, "one of the buckets is empty"
    _, remaining, _, _ = ask(server, "TB.PEEK", "{user:42}:interval", 5, "5@10s", 0)
    assert remaining >= 4, "denied, but it took from the other bucket"


def check(name, test, *args):
    began = time.monotonic()
    try:
        test(*args)
    except Exception as error:  # one broken language must not hide the others
        print(f"FAIL  {name}\n      {type(error).__name__}: {error}", flush=True)
        return False
    print(f"ok    {name}  ({time.monotonic() - began:.1f} s)", flush=True)
    return True


def main():
    mode, *languages = sys.argv[1:]
    for language in languages:
        if language not in PROGRAMS:
            sys.exit(f"no language {language!r}, there are: {' '.join(PROGRAMS)}")

    with tempfile.TemporaryDirectory() as folder, Servers(pathlib.Path(folder)) as servers:
        [server] = servers.nodes
        if mode == "run":
            for language in languages:
                for file, command in PROGRAMS[language]:
                    done = start(command, server.port)
                    print(f"{file:24}{done.stdout or done.stderr}", end="", flush=True)
            return 0

        results = [
            check("the table lists what is tested", test_table_has_no_untested_row),
            check("interval limits", test_intervals, server),
            check("two intervals at once", test_two_intervals, server),
        ]
        for language in languages:
            for file, command in PROGRAMS[language]:
                results.append(check(f"{file} runs the line of the table", test_line_is_the_tested_line, file))
                results.append(check(f"{file} against the server", test_program, command, server))
    print(f"{sum(results)} of {len(results)} passed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
