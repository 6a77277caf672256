"""Both programs, run as a user runs them, against a real server."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "testing"))
from launch import ask  # noqa: E402
from services import redis_server, wait_for  # noqa: E402

BURST = re.compile(r"^(\S+) +asked (\d+)  granted (\d+)  possible (\d+)  (.+)$", re.MULTILINE)
JOB = re.compile(r"^ *\d+ ms  job (\d+)  worker \d+$", re.MULTILINE)


class Programs(unittest.TestCase):
    def setUp(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="tokenbucket-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.server = redis_server(folder)
        self.server.start()
        self.addCleanup(self.server.stop)
        self.address = f"127.0.0.1:{self.server.port}"

    def start(self, *words: object) -> subprocess.Popen[str]:
        command = [HERE / "tokenbucket-example", *map(str, words)]
        pipe = subprocess.PIPE
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        self.addCleanup(program.__exit__, None, None, None)
        self.addCleanup(program.kill)
        return program

    def worker(self, **flags: object) -> subprocess.Popen[str]:
        words = [word for name, value in flags.items() for word in (f"-{name.replace('_', '-')}", value)]
        return self.start("worker", "-addr", self.address, *words)

    def remaining(self) -> int:
        return ask(self.server, "TB.PEEK", "upstream-api", 1, "1/h", 0)[1]

    def test_the_burst_gets_what_the_bucket_has_and_the_naive_way_more(self) -> None:
        flags = "-goroutines 50 -connections 10 -capacity 100 -per-second 50 -duration 500ms".split()
        # That the naive way over-grants is a race, so it is given some tries. TB.TAKE has none: it must never.
        deadline = time.monotonic() + 30
        while True:
            printed, complained = self.start("burst", "-addr", self.address, *flags).communicate(timeout=30)
            (name, *counts, verdict), (naive_name, *naive_counts, naive_verdict) = BURST.findall(printed)
            self.assertEqual(("TB.TAKE", "read-compute-write"), (name, naive_name), complained)
            asked, granted, possible = map(int, counts)
            self.assertTrue(granted <= possible and verdict == "ok", printed)
            self.assertTrue(asked < 200 or granted >= 100, printed)
            _, granted, possible = map(int, naive_counts)
            self.assertEqual(granted > possible, naive_verdict == f"over by {granted - possible}", printed)
            if granted > possible:
                return
            self.assertLess(time.monotonic(), deadline, f"the naive way never over-granted:\n{printed}")

    def test_workers_of_two_processes_keep_the_shared_pace(self) -> None:
        capacity, rate, jobs, began = 3, 20, 23, time.monotonic()
        flags = {"capacity": capacity, "rate": rate, "jobs": jobs, "workers": 4, "max_wait": "100ms"}
        for worker in [self.worker(**flags) for _ in range(2)]:
            printed, complained = worker.communicate(timeout=30)
            self.assertEqual(jobs, len(set(JOB.findall(printed))), printed + complained)
            self.assertIn(f"{jobs} jobs in ", printed)
        # What the bucket did not hold at the start had to flow in first.
        self.assertGreaterEqual(time.monotonic() - began, (2 * jobs - capacity) / rate)

    def test_workers_wait_for_the_server_and_go_on(self) -> None:
        lines: Iterator[str] = iter(self.worker(capacity=1, rate=10, jobs=30, workers=2).stdout)
        self.assertTrue(any("job 1 " in line for line in lines))
        self.server.kill()
        self.assertTrue(any("cannot ask the server" in line for line in lines))
        time.sleep(1)  # the outage; jobs that had reserved their token before it act within 0.2 s
        self.server.start()
        self.assertTrue(any("30 jobs in " in line for line in lines))

    def test_an_interrupted_worker_gives_back_what_it_reserved(self) -> None:
        worker = self.worker(rate="1/h", capacity=1, max_wait="10h", jobs=5)
        # One job took the token that there was, the other four workers' jobs have reserved the next four.
        wait_for(lambda: self.remaining() == -4, "the reservations", 10)
        worker.send_signal(signal.SIGINT)
        _, complained = worker.communicate(timeout=30)
        self.assertEqual((130, "interrupted", 0), (worker.returncode, complained.strip(), self.remaining()))

    def test_wrong_input_is_one_clear_line(self) -> None:
        for words, code, named in [
            ("", 2, "usage:"),
            ("brust", 2, "usage:"),
            ("burst -goroutines 0", 1, "above 0"),
            ("burst -goroutines many", 2, "goroutines"),
            ("burst now", 1, '"now"'),
            ("burst -addr 127.0.0.1:1", 1, "refused"),
            ("worker -workers 0", 1, "workers"),
            (f"worker -addr {self.address} -rate fast", 1, "rate"),
            (f"worker -addr {self.address} -capacity 0", 1, "never"),
        ]:
            with self.subTest(words):
                program = self.start(*words.split())
                _, complained = program.communicate(timeout=30)
                self.assertEqual((code, True), (program.returncode, named in complained), complained)
                # The flags follow one that is wrong.
                self.assertTrue(code == 2 or len(complained.splitlines()) == 1, complained)


if __name__ == "__main__":
    # As Ctrl-C does, so that what the tests have started is still ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    unittest.main(verbosity=2)
