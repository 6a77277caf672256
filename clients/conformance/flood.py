"""A flood of HTTP requests, by wrk."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

# Each thread of wrk counts the answers by status; at the end it prints the sums.
REPORT = """
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() passed, refused, other = 0, 0, 0 end
function response(status)
    if status == 200 then passed = passed + 1
    elseif status == 429 then refused = refused + 1
    else other = other + 1 end
end
function done(summary)
    local sum = { passed = 0, refused = 0, other = 0 }
    for _, thread in ipairs(threads) do
        for name in pairs(sum) do sum[name] = sum[name] + thread:get(name) end
    end
    local errors = summary.errors
    io.stderr:write(string.format("%d %d %d %d\\n", sum.passed, sum.refused, sum.other,
        errors.connect + errors.read + errors.write))
end
"""


@dataclass
class Seen:
    passed: int
    refused: int
    failed: int
    """Other statuses, and broken connections."""
    seconds: float


def flood(port: int, folder: Path, *, connections: int, seconds: int) -> Seen:
    """Requests `http://127.0.0.1:port/` over so many connections for so long."""
    script = folder / "report.lua"
    script.write_text(REPORT)
    command = ["wrk", "-t2", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script)]
    began = time.monotonic()
    done = subprocess.run([*command, f"http://127.0.0.1:{port}/"], check=True, capture_output=True, text=True)
    passed, refused, other, broken = map(int, done.stderr.split())
    return Seen(passed, refused, other + broken, time.monotonic() - began)
