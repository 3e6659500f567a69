"""`ronde why`: the reason for which a job has failed or hangs, from the flight records of its ranks."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from collectives import flight
from collectives.config import Settings
from collectives.observing import (
    CurrentCall,
    DifferentWorlds,
    Explanation,
    Failure,
    RankState,
    explain,
    trace_events,
)
from frontends.command_line.arguments import output_file, writing
from frontends.top import find
from transports.base import runs
from transports.errors import ConfigError

DESCRIPTION: Final = """\
Tell for which reason a job has failed or hangs: the first call in which its ranks differ, the rank that the others
missed, and the last call of every rank.

Every rank of a job notes its last calls in a file, its flight record. The files stay when the processes have ended, by
SIGKILL too, those of this user's last jobs on this host. Without PATH or --job the newest job is told of. For a job on
several hosts copy the files of all hosts (ronde.save_flight_record) to one folder.
"""
EXAMPLES: Final = """\
examples:
  ronde why                              the newest job of this user on this host
  ronde why --job h1-4711                an earlier one, by its name or the beginning of it
  ronde why records/                     records that were copied
  ronde why --trace calls.json           and write all calls for Perfetto (https://ui.perfetto.dev)

exit codes: 0 no rank has failed, and none has been waited for longer than 30 s; 1 the job has failed or hangs; 2 there
are no records, or a file is none
"""
_MOST_LINES: Final = 32
"""Ranks up to which each has a line; beyond it ranks in the same call share one."""
_WORDS: Final = {
    Failure.KILLED: "was killed: its process ended without closing",
    Failure.LEFT: "has closed its world while others needed it: its program ended, or called shutdown or close",
    Failure.STOPPED: "is stopped, or does not answer",
    Failure.ABORTED: "aborted: its program raised an exception or called abort",
    Failure.ABSENT: "lives and has not come to the call",
    Failure.OTHER: "failed",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    parser.add_argument("paths", metavar="PATH", type=Path, nargs="*", help="records of ranks, or folders of records")
    parser.add_argument("--job", metavar="NAME", help="name of a job here, or its beginning (default: the newest)")
    parser.add_argument("--trace", metavar="FILE", type=output_file, help="write the calls as a trace for Perfetto")


def main(args: argparse.Namespace) -> int:
    """Explain the records; the exit code. Raises ConfigError."""
    if args.job is not None and args.paths:
        raise ConfigError(f"--job={args.job}: names the records; give it without PATH {args.paths[0]}")
    found = read(args.paths if args.job is None else [find(args.job).folder])
    try:
        explanation = explain(found, {record.rank: _process(record) for record in found if record.alive})
    except DifferentWorlds as error:
        raise ConfigError(f"{', '.join(map(str, args.paths))}: {error}") from error
    for line in lines(explanation):
        sys.stdout.write(line + "\n")
    if args.trace is not None:
        events = trace_events(explanation.snapshot.charges)
        with writing(args.trace, "--trace"):
            args.trace.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", "utf-8")
        sys.stdout.write(f"{args.trace}: the last calls of all ranks\n")
    return exit_code(explanation)


def exit_code(explanation: Explanation) -> int:
    """See EXAMPLES. In a job that runs well, ranks wait for others for less than the setting `stall`."""
    kind, call = explanation.kind, explanation.call
    is_new = call is not None and call.seconds < Settings().stall
    return 0 if kind == Failure.NONE or (kind == Failure.ABSENT and not explanation.cause and is_new) else 1


def read(paths: Sequence[Path]) -> list[flight.Record]:
    """The records at these paths; those of the newest world without any. Raises ConfigError."""
    if not paths:
        worlds = [folder for folder in flight.worlds() if flight.records(folder)]
        if not worlds:
            raise ConfigError("there are no flight records of this user on this host; name files or a folder")
        paths = worlds[:1]
    found, left_out = [], []
    for path in paths:
        in_folder = path.is_dir()
        for file in flight.records(path) if in_folder else [path]:
            try:
                found.append(flight.read(file, time.perf_counter_ns()))
            except (OSError, flight.UnreadableRecord) as error:
                if not in_folder:
                    raise ConfigError(f"{file}: cannot be read: {error}") from error
                left_out.append(f"ronde why: without a record that cannot be read: {error}\n")  # others may tell enough
    sys.stderr.writelines(left_out)
    if not found:
        raise ConfigError(f"{', '.join(map(str, paths))}: there are no flight records")
    return found


def lines(explanation: Explanation) -> Iterator[str]:
    """The explanation in words."""
    snapshot, kind, ranks = explanation.snapshot, explanation.kind, explanation.ranks
    world = snapshot.charges.world
    program = next((str(record.facts.get("program", "")) for record in world.records), "")
    yield f"{snapshot.world}: {snapshot.size} ranks on {len(world.hosts)} host(s), {program}"
    if snapshot.missing:
        yield f"there is no record of {_ranks(snapshot.missing)}"
    states = {state.rank: state for state in snapshot.ranks}
    if kind == Failure.MISMATCH:
        yield "the ranks' calls do not fit together"
    elif kind == Failure.DEADLOCK:
        circle = ", which waits for ".join(f"rank {rank}" for rank in (*ranks, ranks[0]))
        yield f"deadlock: {circle}"
    elif kind == Failure.NONE:
        yield "nothing is wrong: no rank has failed, and none waits for another one"
    elif len(ranks) == len(states) > 1 and kind == Failure.KILLED:
        yield "all ranks were killed: their processes ended without closing"
    else:
        yield from (f"{_named(rank, states.get(rank))} {_WORDS[kind]}" for rank in ranks)
    if explanation.call is not None and kind not in (Failure.MISMATCH, Failure.NONE):
        waiting = [
            state.rank for state in states.values() if any(set(call.waits_for) & set(ranks) for call in state.calls)
        ]
        yield f"{_ranks(waiting)} waited for {_ranks(ranks)} in {_call(explanation.call)}"
    difference = explanation.difference
    if difference is not None:
        yield f"the first call in which the ranks differ is call {difference.number} of {difference.communicator}:"
        for side in difference.sides:
            yield f"  {_ranks(side.ranks)}: {side.description.call}{_from(side.description.line)}"
        if difference.absent:
            yield f"  {_ranks(difference.absent)}: not begun"
    if explanation.cause:
        error, text = explanation.cause.get("error"), explanation.cause.get("text")
        yield f"rank {explanation.first} failed first, with {error}: {text}"
    yield "the last calls:"
    yield from _last_calls(snapshot.ranks)


def _last_calls(states: Sequence[RankState]) -> Iterator[str]:
    if len(states) <= _MOST_LINES:
        yield from (f"  {_named(state.rank, state)}: {_doing(state, times=True)}" for state in states)
        return
    shared: dict[str, list[int]] = {}
    for state in states:
        shared.setdefault(_doing(state, times=False), []).append(state.rank)
    yield from (f"  {_ranks(ranks)}: {doing}" for doing, ranks in shared.items())


def _doing(state: RankState, *, times: bool) -> str:
    """The last call of a rank, and what became of the rank."""
    ends = {flight.CLOSED: "; closed", flight.FAILED: "; failed", flight.OPEN: "" if state.alive else "; killed"}
    since = f" for {state.seconds:.3g} s" if times else ""
    if state.call is not None:
        waits = f"; waits for {_ranks(state.waits_for)}" if state.waits_for else ""
        text = f"in {_call(state.call)}{since}{waits}"
    elif state.last is not None:
        text = f"in no call{since}, after {state.last.call}{_by(state.last.algorithm)}{_from(state.last.line)}"
    else:
        text = "has made no call"
    return text + ends.get(state.state, "")


def _call(call: CurrentCall) -> str:
    found = call.description
    return f"call {call.number} of {call.communicator}: {found.call}{_by(found.algorithm)}{_from(found.line)}"


def _by(algorithm: str) -> str:
    return f", {algorithm}" if algorithm else ""


def _from(line: str) -> str:
    return f", called from {line}" if line else ""


def _named(rank: int, state: RankState | None) -> str:
    return f"rank {rank}" if state is None else f"rank {rank} ({state.hostname}, pid {state.pid})"


def _ranks(ranks: Iterable[int]) -> str:
    found = sorted(ranks)
    return f"{'rank' if len(found) == 1 else 'ranks'} {runs(found)}"


def _process(record: flight.Record) -> str:
    """The state of the process of a living rank, as in /proc/PID/stat; empty where there is no such file."""
    try:
        text = Path(f"/proc/{int(record.facts['pid'])}/stat").read_text()
    except (OSError, KeyError):
        return ""
    return text.rpartition(")")[2].split()[0]
