#!/usr/bin/env python3
"""What `make soak` does: the long forms, all of them even where one fails, and closing counts.

Needs the programs that `make drill` builds. What a part prints goes to `target/soak/<part>.log`. Exit code 1 where a
part failed: its report is printed.

Usage: soak.py [part]...
"""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DRILL = str(ROOT / "target/release/drill")
LOGS = ROOT / "target/soak"
TESTS = ["cargo", "test", "--locked", "--features", "stubs"]
KILLS = "cluster::kills::killed_replicas_lose_no_session_and_no_acknowledged_event"
MATRIX = "matrix::every_cell_does_what_the_rules_say"
# Both ends of 10,000 connections.
FILES = 16384
# Cases of each property test; 256 in `make test`.
CASES = 12800
# How long replicas are killed; 30 in `make test`.
KILL_SECONDS = 120
# Failures of Redis and of a replica's network, of each kind; one in `make test`.
ROUNDS = 10
# Lines of a failed part that are printed.
TAIL = 40


class Part:
    """One command; `facts` are the figures of its report that the closing table has."""

    def __init__(self, name, minutes, command, facts=(), environment=None):
        self.name = name
        self.minutes = minutes
        self.command = command
        self.facts = facts
        self.environment = environment or {}

    def counts(self, report, text):
        """Name and value of what was done."""
        facts = report.get("facts", {})
        return [(fact, facts[fact]) for fact in self.facts if fact in facts]

    def is_passed(self, code, report):
        return code == 0 and report.get("passed") is True


class Tests(Part):
    """Tests, which have their counts in lines of their own."""

    def counts(self, report, text):
        cells = re.findall(r"(\d+) (cells|features|kills)", text)
        results = re.findall(r"^test result: .*? (\d+) passed; (\d+) failed", text, re.M)
        done = [(what, int(number)) for number, what in cells]
        done += [("tests", sum(int(passed) for passed, _ in results))]
        return done + [("failed", sum(int(failed) for _, failed in results))]

    def is_passed(self, code, report):
        return code == 0


def drill(name, minutes, options, facts):
    return Part(name, minutes, [DRILL, name, *options], facts)


PARTS = [
    drill("resumption", 30, ["--disconnects", "1000"], ["disconnects", "calls", "events"]),
    drill("kills", 15, ["--rounds", "10"], ["rounds"]),
    drill("drain", 15, ["--rounds", "10"], ["rounds", "replies", "replies_after_the_signal"]),
    drill(
        "network",
        60,
        ["--calls", "10000"],
        ["calls", "answered", "calls_that_ran_twice", "connections_closed_while_idle"],
    ),
    drill("parked", 15, ["--calls", "10000", "--deadline", "60"], ["calls", "kib_per_call"]),
    drill("lifecycle", 60, ["--sessions", "5000"], ["sessions", "most_children"]),
    drill(
        "hostile",
        15,
        ["--seconds", "300"],
        ["calls_alone", "calls_beside", "highest_resident_mib", "median_factor", "p99_factor"],
    ),
    drill(
        "replicas",
        15,
        ["--sessions", "20000"],
        ["opened_sessions", "opened_gateway_bytes", "opened_redis_bytes", "called_redis_bytes", "titled_redis_bytes"],
    ),
    Tests(
        "redis",
        60,
        [*TESTS, "--test", "it", "--", "--nocapture", "--test-threads=1", "cluster::trouble"],
        # Without Redis the tests would be skipped.
        environment={"DRAWBRIDGE_ROUNDS": str(ROUNDS), "DRAWBRIDGE_PEERS": "required"},
    ),
    Tests(
        "matrix",
        60,
        [*TESTS, "--test", "it", "--", "--include-ignored", "--nocapture", "--exact", MATRIX],
        # What was chosen for a trial does not choose here.
        environment={"DRAWBRIDGE_CELLS": "", "DRAWBRIDGE_FEATURES": ""},
    ),
    Tests(
        "replica-kills",
        15,
        [*TESTS, "--test", "it", "--", "--nocapture", "--exact", KILLS],
        environment={"DRAWBRIDGE_KILL_SECONDS": str(KILL_SECONDS), "DRAWBRIDGE_PEERS": "required"},
    ),
    Tests(
        "properties",
        60,
        [*TESTS, "--lib"],
        environment={"PROPTEST_CASES": str(CASES)},
    ),
]


def kill(process):
    """Ends a process with its group, if there is one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(part):
    """Runs one part to its end or limit; exit code, output and seconds."""
    begin = time.monotonic()
    process = subprocess.Popen(
        part.command,
        cwd=ROOT,
        env={**os.environ, **part.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # A group of its own, to end it with all that it started.
        start_new_session=True,
    )
    limit = threading.Timer(part.minutes * 60, kill, [process])
    limit.start()
    lines = []
    try:
        with open(LOGS / f"{part.name}.log", "w", encoding="utf-8") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                lines.append(line)
        code = process.wait()
    except BaseException:
        kill(process)
        raise
    finally:
        limit.cancel()
    return code, "".join(lines), time.monotonic() - begin


def report_of(text):
    """The report of `drill`, a line of JSON; empty without one."""
    for line in reversed(text.splitlines()):
        if line.startswith('{"check"'):
            return json.loads(line)
    return {}


def clock(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02}"


def shown(value):
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def main():
    known = {part.name: part for part in PARTS}
    names = sys.argv[1:] or list(known)
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no part is called {' or '.join(unknown)}; there are {', '.join(known)}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    LOGS.mkdir(parents=True, exist_ok=True)

    table, failed, violations, total = [], [], 0, 0.0
    for name in names:
        part = known[name]
        print(f"{name}: {' '.join(part.command)}", flush=True)
        code, text, seconds = run(part)
        report = report_of(text)
        passed = part.is_passed(code, report)
        if not passed:
            failed.append(name)
            print("".join(f"  {line}\n" for line in text.splitlines()[-TAIL:]), end="", flush=True)
            if seconds >= part.minutes * 60:
                print(f"  ended after {part.minutes} minutes", flush=True)
        violations += report.get("violations", 0)
        total += seconds
        counts = ", ".join(f"{fact} {shown(value)}" for fact, value in part.counts(report, text))
        verdict = "passed" if passed else "FAILED"
        table.append(f"{name:<12}{verdict:<8}{clock(seconds):>7}  {counts}")
        print(f"{name}: {verdict}", flush=True)

    print("", *table, sep="\n")
    which = f" ({', '.join(failed)})" if failed else ""
    print(
        f"{len(names)} parts: {len(names) - len(failed)} passed, {len(failed)} failed{which},"
        f" {violations} violations, in {clock(total)}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
