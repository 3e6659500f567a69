"""python -m tests.chaos: the campaign and its table; see --help."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.chaos import campaign, crew, soak, thread_bed
from tests.chaos.case import Case
from tests.chaos.faults import FAULTS, TRANSPORTS
from tests.chaos.process_bed import ProcessBed
from tests.chaos.table import Tally, machine, write

_INTERRUPTS = [
    *(f"tests/collectives/operations/test_{name}.py" for name in ("interrupts", "reentry")),
    "tests/transports/test_interrupts.py",
]
NO_NETWORKS = 2
"""The exit code of tests.netns where there can be no network namespaces."""


def main(arguments: list[str]) -> int:
    """0 if nothing was broken, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Break ranks on purpose and judge what the others do."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    many = commands.add_parser("campaign", help="many random cases, and a table of what came of them")
    many.add_argument("--threads", type=int, default=3000, metavar="N", help="cases on threads (default 3000)")
    many.add_argument("--processes", type=int, default=400, metavar="N", help="cases on processes (default 400)")
    many.add_argument("--seed", type=int, default=None, help="of the cases (default: a new one, which is shown)")
    jobs = 3 * (os.cpu_count() or 1)  # they wait more than they compute
    many.add_argument(
        "--jobs", type=int, default=jobs, metavar="N", help=f"cases on threads at a time (default {jobs})"
    )
    many.add_argument("--only", action="append", default=[], metavar="NAME", help="a fault or transport; repeatable")
    many.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers in this file too")
    many.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="a soak afterwards (default none)")
    _common_options(many)
    many.set_defaults(run=_campaign)

    whole = commands.add_parser(
        "everything",
        help="the campaign; interrupts at every line; networks that fail (tests.netns); the fuzzers (tests.security); "
        "a soak",
    )
    whole.add_argument("--minutes", type=float, default=30.0, help="of the soak (default 30)")
    whole.add_argument("--times", type=int, default=5, metavar="N", help="for each network fault (default 5)")
    whole.add_argument("--storm", type=float, default=120.0, help="seconds of signals for a transport (default 120)")
    whole.add_argument("--examples", type=int, default=2000, metavar="N", help="for each fuzzer (default 2000)")
    whole.set_defaults(run=_everything)

    one = commands.add_parser("case", help="one case again, by its name")
    one.add_argument("name", help="bed/transport/fault/ranks/seed, as a failure shows it")
    one.add_argument("--times", type=int, default=1, metavar="N", help="so many times (default 1)")
    one.set_defaults(run=_case)

    long = commands.add_parser("soak", help="minutes of mixed collectives under small faults; nothing may grow")
    long.add_argument("--minutes", type=float, default=30.0, help="how long (default 30)")
    long.add_argument("--seed", type=int, default=None, help="of the faults (default: a new one, which is shown)")
    _common_options(long)
    long.set_defaults(run=_soak)

    options = parser.parse_args(arguments)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the processes that are started
    signal.signal(signal.SIGTERM, _leave)
    run: int = options.run(parser, options)
    return run


def _leave(number: int, _: object) -> None:
    """End, and clean up on the way."""
    sys.exit(128 + number)


def _common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds beyond what is promised to raise, for a busy machine"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="of memory and descriptors in the soak (PNG, SVG, PDF)"
    )


def _campaign(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    known = {name for _, name in FAULTS} | {name for names in TRANSPORTS.values() for name in names}
    if unknown := sorted(set(options.only) - known):
        parser.error(f"--only {' '.join(unknown)}: must be among {', '.join(sorted(known))}")
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}; {machine()}", flush=True)
    tally = Tally()
    if options.threads:
        cases = campaign.for_threads(options.threads, seed, options.only)
        campaign.report(crew.run(cases, options.jobs, options.patience), len(cases), tally, "threads")
    if options.processes:
        kinds = campaign.kinds("processes", options.processes, random.Random(seed), options.only)
        campaign.report(campaign.on_processes(kinds, seed, options.patience), len(kinds), tally, "processes")
    table = tally.table()
    print(f"\n{table}\n", flush=True)
    grown = bool(options.soak) and not soak.run(options.soak, seed, options.plot, options.patience)
    if options.write is not None:
        arguments = f"campaign --threads {options.threads} --processes {options.processes} --seed {seed}"
        arguments += "".join(f" --only {shlex.quote(name)}" for name in options.only)
        write(options.write, f'make chaos ARGS="{arguments}"\n{machine()}\n\n{table}', "campaign")
    print(f"{tally.failures} cases failed" if tally.failures else "no case failed")
    return int(bool(tally.failures) or grown)


def _everything(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """One after the other, all of them whatever comes of the first."""
    fuzzers = sorted(map(str, Path("tests/security").glob("test_fuzz_*.py")))
    parts = {
        "campaign": (["-m", "tests.chaos", "campaign"], {}),
        "interrupts": (
            [
                "-m",
                "pytest",
                "-q",
                "--timeout",
                "3600",
                *_INTERRUPTS,
            ],
            {"RONDE_INTERRUPTS": "long", "RONDE_STORM_SECONDS": str(options.storm)},
        ),
        "networks": (["-m", "tests.netns", "--times", str(options.times)], {}),
        "fuzzers": (
            ["-m", "pytest", "-q", "--timeout", "3600", *fuzzers],
            {"RONDE_FUZZ_EXAMPLES": str(options.examples)},
        ),
        "soak": (["-m", "tests.chaos", "soak", "--minutes", str(options.minutes)], {}),
    }
    codes = {}
    for name, (words, variables) in parts.items():
        print(f"== {name}", flush=True)
        codes[name] = subprocess.run([sys.executable, *words], env={**os.environ, **variables}, check=False).returncode
    if codes["networks"] == NO_NETWORKS:
        print("networks: not tried, there can be no network namespaces here")
        codes["networks"] = 0
    failed = [name for name, code in codes.items() if code]
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return int(bool(failed))


def _case(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        case = Case.parse(options.name)
    except ValueError as error:
        parser.error(str(error))
    failed = 0
    for _ in range(options.times):
        if case.bed == "threads":
            outcome = thread_bed.run(case)
        else:
            with ProcessBed() as bed:
                outcome = bed.run(case)
        failed += bool(outcome.findings)
        detection = "" if outcome.detection is None else f", noticed after {outcome.detection:.3f} s"
        recovery = "" if outcome.recovery is None else f", recovered in {outcome.recovery:.3f} s"
        print(campaign.describe(outcome) if outcome.findings else f"passed {case}{detection}{recovery}", flush=True)
    return int(failed > 0)


def _soak(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}; {machine()}", flush=True)
    return int(not soak.run(options.minutes, seed, options.plot, options.patience))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
