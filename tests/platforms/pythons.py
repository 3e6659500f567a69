"""Runs Ronde on other Pythons and prints a table: the first program, the oracle over every transport, tests.

    python -m tests.platforms.pythons 3.12 3.13 3.14 3.15 oldest     make pythons
    python -m tests.platforms.pythons 3.13t 3.14t                    make free-threaded
    python -m tests.platforms.pythons aarch64                        make arm

`interpreters` tells what the names mean. The exit code is 1 if anything was wrong, 2 if none of the Pythons is to be
had here. `--write FILE` adds the rows to a file of JSON, with date and versions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Final

from tests.platforms.debian import Unobtainable
from tests.platforms.interpreters import REPOSITORY, Interpreter, interpreter

_SECONDS: Final = 900.0
_MOST_LINES: Final = 25
TESTS: Final = (
    "tests/transports/test_shm_rings.py",
    "tests/transports/test_shm_windows.py",
    "tests/transports/test_matching.py",
    "tests/platforms/test_litmus.py",
)
"""The tests of rings, windows, matching and of the memory order."""


@dataclass(frozen=True)
class Part:
    """A part of what is run on a Python: a command, its variables, and the seconds that it may take."""

    name: str
    arguments: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Row:
    """The outcome of a part: its last line, or why it has failed."""

    python: str
    part: str
    right: bool
    text: str
    seconds: int


def _oracle(name: str, transport: str, *more: str) -> Part:
    return Part(f"oracle, {name}", ("-m", "tests.platforms.oracle", "--transport", transport, *more))


def parts(found: Interpreter, *, quick: bool) -> Iterator[Part]:
    """All parts for a Python. Emulation takes ten to fifty times as long: fewer and smaller ones. `quick`: the oracle
    alone, without machine code."""
    slow = found.how != "native"
    if quick:
        yield _oracle("local", "local", "--kind", "threads", "--rows", "12")
        for transport in ("shm", "tcp", "auto"):
            yield _oracle(transport, transport, "--rows", "12")
        return
    compiled = "off,auto" if found.has_lock and not found.lacks else "off"
    hello = ("-m", "ronde", "run", "-np", "2", "{python}", "-m", "tests.platforms.hello")
    for transport in ("shm", "tcp") if slow else ("shm", "tcp", "auto"):
        yield Part(f"ronde run, {transport}", hello, (("RONDE_TRANSPORT", transport), ("RONDE_COMPILED", "off")))
    if compiled != "off":
        yield Part("machine code", ("-m", "tests.platforms.compile"))
    if slow:
        for transport in ("shm", "tcp"):
            yield _oracle(transport, transport, "--compiled", compiled, "--rows", "12")
    else:
        yield _oracle("local", "local", "--kind", "threads", "--compiled", compiled)
        for transport in ("shm", "tcp", "auto"):
            yield _oracle(transport, transport, "--compiled", compiled)
    if not found.has_lock:
        for transport in ("local", "shm", "tcp", "auto"):
            more = ("--kind", "threads", "--ranks", "4", "--callers", "4", "--rows", "12")
            yield _oracle(f"{transport}, 4 threads, 4 callers each", transport, *more)
    elif not slow:
        more = ("--ranks", "4", "--callers", "4", "--rows", "12", "--compiled", compiled)
        yield _oracle("auto, 4 callers each", "auto", *more)
    pytest = ("-m", "pytest", "-p", "no:cacheprovider", "-q", "--timeout", str(int(_SECONDS)))
    # An emulator keeps the order of its own processor: litmus tests in machine code would show nothing
    tests = (
        ("-k", "not machine_code and not barrier") if slow else ("tests/collectives/operations/test_against_oracle.py",)
    )
    yield Part("tests", (*pytest, *TESTS, *tests))


def run(found: Interpreter, part: Part) -> Row:
    """Run a part; its output is shown if it fails."""
    command = [str(found.python), *(word.format(python=found.python) for word in part.arguments)]
    began = time.monotonic()
    try:
        ended = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={**found.variables(), **dict(part.variables)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
        )
        right, lines = ended.returncode == 0, ended.stdout.strip().splitlines() or [f"exit code {ended.returncode}"]
    except subprocess.TimeoutExpired:
        right, lines = False, [f"not over after {_SECONDS:.0f} s"]
    seconds = round(time.monotonic() - began)
    if not right:
        print("\n".join(lines[-_MOST_LINES:]), file=sys.stderr, flush=True)
    shown = "; ".join(line for line in lines if " right " in line) if right else ""
    return Row(found.name, part.name, right, shown or lines[-1].strip("= "), seconds)


def table(rows: Sequence[Row]) -> str:
    lines = ["| Python | part | | result | s |", "|---|---|---|---|---|"]
    for row in rows:
        verdict = "right" if row.right else "WRONG"
        lines.append(f"| {row.python} | {row.part} | {verdict} | {row.text} | {row.seconds} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.platforms.pythons")
    parser.add_argument("names", nargs="+", metavar="NAME", help="3.13, 3.13t, aarch64, oldest, ...")
    parser.add_argument("--part", default="", help="only the parts whose name has this text")
    parser.add_argument("--quick", action="store_true", help="the oracle alone, on small arrays, without machine code")
    parser.add_argument("--write", type=Path, metavar="FILE", help="add the rows to this file of JSON")
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    described: dict[str, str] = {}
    for name in given.names:
        try:
            found = interpreter(name)
        except Unobtainable as error:
            print(f"{name}: not to be had here: {error}", flush=True)
            described[name] = f"not to be had: {error}"
            continue
        described[name] = f"{found.describe()}, {found.how}"
        lacks = f"; no wheels of {', '.join(found.lacks)}" if found.lacks else ""
        print(f"{name}: {described[name]}{lacks}", flush=True)
        for part in parts(found, quick=given.quick):
            if given.part in part.name:
                rows.append(run(found, part))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
        if given.write is not None:
            _write(given.write, name, described[name], [row for row in rows if row.python == name])
    print(f"\n{table(rows)}")
    if not rows:
        return 2
    return 0 if all(row.right for row in rows) else 1


def _write(path: Path, name: str, python: str, rows: Sequence[Row]) -> None:
    """Replace the rows of a Python in a file."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    host = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    shown = [asdict(row) for row in rows]
    kept[name] = {"date": date.today().isoformat(), "python": python, "host": host, "rows": shown}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
