"""The functions that a small allreduce passes, in order: the walk that docs/architecture.md shows.

    python -m benchmarks.walks            # print the walks of this tree
    python -m benchmarks.walks --write    # put them between the markers in docs/architecture.md

Each walk is that of the call with the fewest functions among many, since waits for the other rank add functions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "architecture.md"
BEGIN: Final = "<!-- walks: made by python -m benchmarks.walks --write -->"
END: Final = "<!-- end of walks -->"
CALLS: Final = 300
"""Calls of which a walk is the shortest. The one of the page is of more: the shortest of few may have waited."""
_WIDTH: Final = 46

PROBE: Final = """
import dataclasses, json, sys, time
import numpy as np
import collectives as ronde
from collectives import startup

transport, calls, hosts = sys.argv[1], int(sys.argv[2]), sys.argv[3]
connect = startup.connect

def on_hosts(group, *args):
    members = zip(group.members, hosts, strict=True)
    members = tuple(dataclasses.replace(one, host=host) for one, host in members)
    return connect(dataclasses.replace(group, members=members), *args)

def probe():
    world, x = ronde.world(), np.ones(1, np.float32)
    for _ in range(100):
        world.allreduce(x)
    best = None
    for _ in range(calls):
        events, depth = [], 0
        def note(frame, event, arg):
            nonlocal depth
            if event == "call":
                code = frame.f_code
                if code.co_filename != "<string>":  # named tuples are made there
                    events.append([depth, code.co_filename, code.co_qualname])
                depth += 1
            elif event == "return":
                depth -= 1
        world.barrier()
        sys.setprofile(note)
        world.allreduce(x)
        sys.setprofile(None)
        if best is None or len(events) < len(best):
            best = events
    return best

if hosts != "aa":
    startup.connect = on_hosts

if __name__ == "__main__":
    found = ronde.run(probe, np=len(hosts), transport=transport, timeout=200)
    print(json.dumps(found[0]))
"""


class Setting(NamedTuple):
    """A way to run the two or more ranks of a walk."""

    title: str
    transport: str
    compiled: str
    hosts: str = "aa"


SETTINGS: Final = (
    Setting("Shared memory, 2 ranks", "shm", "off"),
    Setting("Shared memory, 2 ranks, with `ronde[jit]`", "shm", "on"),
    Setting("TCP, 2 ranks", "tcp", "off"),
    Setting("TCP, 2 ranks, with `ronde[jit]`", "tcp", "on"),
    Setting("Two hosts of two ranks each, `auto`, with `ronde[jit]`", "auto", "on", "aabb"),
)


class Step(NamedTuple):
    """A function on the way: its depth, its file relative to the tree, and its name."""

    depth: int
    path: str
    name: str


def walk(folder: Path, setting: Setting, calls: int = CALLS) -> list[Step]:
    """The Python functions that one allreduce of 4 bytes calls on rank 0, in order. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "probe.py")
        script.write_text(PROBE)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RONDE_")}
        done = subprocess.run(
            [sys.executable, str(script), setting.transport, str(calls), setting.hosts],
            env={
                **kept,
                "PYTHONPATH": str(folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                "RONDE_COMPILED": setting.compiled,
                "RONDE_CALIBRATE": "0",
            },
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{folder}: an allreduce failed: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    return [Step(depth, _relative(path, folder), name.split(".<locals>")[0]) for depth, path, name in found]


def _relative(path: str, folder: Path) -> str:
    return Path(path).relative_to(folder).as_posix() if Path(path).is_relative_to(folder) else Path(path).name


def text_of(steps: Sequence[Step]) -> str:
    """The walk, one function a line, those that are called by a line indented below it."""
    return "\n".join(f"    {'  ' * step.depth + step.name:<{_WIDTH}} {step.path}" for step in steps)


def page_of(walks: Sequence[tuple[Setting, Sequence[Step]]]) -> str:
    """The part of the page between the markers."""
    parts = [f"{setting.title}: {len(steps)} functions.\n\n{text_of(steps)}" for setting, steps in walks]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.walks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write them into docs/architecture.md")
    options = parser.parse_args(arguments)
    found = page_of([(setting, walk(ROOT, setting, 16 * CALLS)) for setting in SETTINGS])
    if not options.write:
        print(found)
        return 0
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
