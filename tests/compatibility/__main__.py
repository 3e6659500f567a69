"""`python -m tests.compatibility`, see the package."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.compatibility.results import Bed, Results, count
from tests.compatibility.runs import ROOT, SCRIPTS, script, torch_suite
from tests.compatibility.table import replaced, table

PAGE: Final = ROOT / "docs/torch-distributed.md"
RESULTS: Final = ROOT / "build/compatibility/results.json"
PROJECTS: Final = ("torch", *SCRIPTS)


def main(words: Sequence[str]) -> int:
    """Run what the command line asks for, and write the results and the table. 1 if a difference is not deliberate."""
    parser = argparse.ArgumentParser(prog="python -m tests.compatibility", description="tests of others on ronde")
    parser.add_argument("projects", nargs="*", default=[], metavar="PROJECT", help=f"of {', '.join(PROJECTS)}; or all")
    parser.add_argument("--worlds", nargs="+", type=int, default=[2, 3], help="numbers of ranks for torch's tests")
    parser.add_argument("--backends", nargs="+", default=["gloo", "ronde"], choices=["gloo", "ronde"])
    parser.add_argument("--transports", nargs="+", default=["shm", "tcp"], help="of ronde")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEST", help="some of torch's tests")
    parser.add_argument("--table", action="store_true", help="run nothing; write the table of earlier results")
    options = parser.parse_args(words)
    if unknown := set(options.projects) - set(PROJECTS):
        parser.error(f"{', '.join(sorted(unknown))}: must be of {', '.join(PROJECTS)}")
    results = Results.load(RESULTS)
    if not options.table:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        for bed in beds(options):
            outcomes = run(bed, options.only)
            results.add(bed, outcomes)
            results.save(RESULTS)
            print(f"{bed}: {count(outcomes.values(), 'passed')} of {len(outcomes)} pass", flush=True)
    for difference in results.differences():
        print(f"{difference.bed}: {difference.name} {difference.outcome}: {difference.reason or 'NOT DELIBERATE'}")
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), table(results)), encoding="utf-8")
    return int(any(not difference.reason for difference in results.differences()))


def beds(options: argparse.Namespace) -> Iterator[Bed]:
    """The beds that the command line asks for; those of gloo first, as others are compared with them."""
    ways = [
        (backend, way) for backend in options.backends for way in ([""] if backend == "gloo" else options.transports)
    ]
    for project in options.projects or PROJECTS:
        if importlib.util.find_spec(project) is None:
            print(f"{project}: is not installed: pip install 'ronde[compatibility]'")
            continue
        for size in options.worlds if project == "torch" else [2]:
            for backend, transport in ways:
                yield Bed(project, size, backend, transport)


def run(bed: Bed, names: Sequence[str]) -> dict[str, str]:
    """Outcomes of the tests of one bed; what the processes write goes to a log beside the results."""
    log = RESULTS.parent / f"{str(bed).replace(' ', '-')}.log"
    Path(log).unlink(missing_ok=True)
    if bed.project == "torch":
        return torch_suite(bed, names, log)
    return {name: script(bed, name, log) for name in SCRIPTS[bed.project]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
