"""Run mpi4py's own tests, from its source distribution, on ronde.mpi.

    make compatibility ARGS=mpi4py
    python -m tests.compatibility.mpi4py_suite [FILE...] [--worlds 1 2 3] [--transports shm tcp] [--source FOLDER]

The source distribution is fetched once with pip, into build/mpi4py; none of its files belongs to this repository.
Every file of tests runs in ranks of its own. A test counts as passed if it passes on all ranks, as skipped if no rank
fails and one skips it, and as failed otherwise, also if the ranks do not reach it in time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build/mpi4py"
VERSION: Final = "4.1.2"
RESULTS: Final = BUILD / "results.json"
PAGE: Final = ROOT / "docs/mpi.md"
LIMIT: Final = 300
"""Seconds that the tests of one file may take."""
IMPOSSIBLE: Final = ("test_cffi", "test_ctypes", "test_mpiabi", "test_mpiapi", "test_doc")
"""Files about the binding itself: its C interfaces and docstrings."""
BEGIN, END = "<!-- mpi4py's tests -->", "<!-- end of mpi4py's tests -->"

_LATE: Final = "a rank did not end it"
Outcomes = dict[str, tuple[str, str]]
"""By the name of a test: outcome and reason."""


def fetch() -> Path:
    """The folder of mpi4py's tests; fetches the source distribution if it is not there."""
    folder = BUILD / f"mpi4py-{VERSION}" / "test"
    if not folder.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        words = ["download", "--no-deps", "--no-binary", "mpi4py", "--no-build-isolation", f"mpi4py=={VERSION}"]
        subprocess.run([sys.executable, "-m", "pip", *words, "-d", str(BUILD)], check=True, timeout=600)
        with tarfile.open(next(BUILD.glob(f"mpi4py-{VERSION}.tar.gz"))) as archive:
            archive.extractall(BUILD, filter="data")
    return folder


def run_file(folder: Path, name: str, size: int, transport: str, log: Path) -> Outcomes:
    """The outcomes of a file's tests on so many ranks."""
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results"
        launch = [sys.executable, "-m", "ronde", "run", "-np", str(size), "--time-limit", str(LIMIT)]
        command = [*launch, "--transport", transport, sys.executable, "-m", "tests.compatibility.mpi4py_rank"]
        with log.open("ab") as output:
            output.write(f"##### {name} on {size} ranks over {transport}\n".encode())
            output.flush()
            subprocess.run([*command, str(folder), name, str(results)], cwd=ROOT, stdout=output, stderr=output)
        ranks = [_read(Path(f"{results}.{rank}")) for rank in range(size)]
    found: Outcomes = {}
    for test in dict.fromkeys(test for rank in ranks for test in rank):
        outcomes = [rank.get(test, ("failed", _LATE)) for rank in ranks]
        failed = [one for one in outcomes if one[0] == "failed"]
        skipped = [one for one in outcomes if one[0] == "skipped"]
        found[test] = failed[0] if failed else skipped[0] if skipped else ("passed", "")
    return found or {f"{name}.all": ("failed", "the file cannot be imported")}


def _read(path: Path) -> Outcomes:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["name"]: (row["outcome"], row["reason"]) for row in rows}


def _earlier() -> dict[str, dict[str, Outcomes]]:
    """The results of earlier runs: by file, then by world."""
    if not RESULTS.exists():
        return {}
    read = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {
        name: {world: {test: (one[0], one[1]) for test, one in outcomes.items()} for world, outcomes in worlds.items()}
        for name, worlds in read.items()
    }


def world_name(size: int, transport: str) -> str:
    """The name of a world in the table. A rank alone uses no transport."""
    return "1 rank" if size == 1 else f"{size} ranks, {transport}"


def counts(outcomes: Outcomes) -> str:
    """'40/0/0': passed, skipped, failed."""
    kinds = [outcome for outcome, _ in outcomes.values()]
    return "/".join(str(kinds.count(kind)) for kind in ("passed", "skipped", "failed"))


def table(found: Mapping[str, Mapping[str, Outcomes]], worlds: Sequence[str]) -> str:
    """The table of a page: a row for each file with skipped or failed tests, and one for all others together."""
    others = [name for name in found if all(found[name].get(world) and _passed(found[name][world]) for world in worlds)]
    lines = [f"| file | {' | '.join(worlds)} |", "|---" * (len(worlds) + 1) + "|"]
    for name in sorted(found.keys() - others):
        cells = " | ".join(counts(found[name][world]) if world in found[name] else "-" for world in worlds)
        lines.append(f"| {name.removeprefix('test_')} | {cells} |")
    if others:
        sums = " | ".join(f"{sum(len(found[name][world]) for name in others)}/0/0" for world in worlds)
        lines.append(f"| the other {len(others)} files | {sums} |")
    return "\n".join(lines)


def _passed(outcomes: Outcomes) -> bool:
    return all(outcome == "passed" for outcome, _ in outcomes.values())


def main(words: Sequence[str]) -> int:
    """Run what the command line asks for, and print the table. 1 if a test fails."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.compatibility.mpi4py_suite", description="mpi4py's own tests"
    )
    parser.add_argument("files", nargs="*", help="names of files, such as test_comm or comm; by default all")
    parser.add_argument("--worlds", nargs="+", type=int, default=[1, 2, 3], help="numbers of ranks")
    parser.add_argument("--transports", nargs="+", default=["shm", "tcp"])
    parser.add_argument("--source", type=Path, help="folder of mpi4py's tests, in place of the one that is fetched")
    parser.add_argument("--table", action="store_true", help="run nothing; the table of earlier results")
    parser.add_argument("--page", action="store_true", help="write the table into docs/mpi.md")
    options = parser.parse_args(words)
    folder = options.source or fetch()
    names = [f"test_{name.removeprefix('test_').removesuffix('.py')}" for name in options.files]
    names = names or sorted(path.stem for path in folder.glob("test_*.py") if path.stem not in IMPOSSIBLE)
    BUILD.mkdir(parents=True, exist_ok=True)
    log = BUILD / "output.log"
    log.unlink(missing_ok=True)
    found = _earlier()
    worlds = {world_name(size, way): (size, way) for way in options.transports for size in options.worlds}
    for name in [] if options.table else names:
        for world, (size, transport) in worlds.items():
            began = time.monotonic()
            outcomes = run_file(folder, name, size, transport, log)
            found.setdefault(name, {})[world] = outcomes
            RESULTS.write_text(json.dumps(found), encoding="utf-8")
            print(f"{name} on {world}: {counts(outcomes)} in {time.monotonic() - began:.0f} s", flush=True)
            for test, (outcome, reason) in outcomes.items():
                if outcome == "failed":
                    print(f"    {test}: {reason}", flush=True)
    text = table(found, list(worlds))
    print(text)
    if options.page:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return int(
        any(outcome == "failed" for rows in found.values() for one in rows.values() for outcome, _ in one.values())
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
