"""`ronde timeline`: merges and draws the timelines that ranks have written."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from collectives.metering import HEADER, Header
from frontends.command_line.arguments import output_file, writing
from frontends.command_line.plots import picture_file, plot_lanes
from transports.errors import ConfigError

DESCRIPTION: Final = """\
Merge or draw the timelines of several ranks.

With the setting timeline=FILE (or after start_timeline) each rank writes a timeline into a file of its own:
negotiation, queues, fusion, every collective and each of its steps. `merge` combines these files into one, on the
clock of rank 0. Open the result, or the file of a single rank, in Perfetto (https://ui.perfetto.dev) or
chrome://tracing. `draw` makes a picture of the collectives and their steps.

Ranks on one host share a clock. The clocks of different hosts are compared when the timeline begins; `merge` prints
the uncertainty. The file of a rank that was killed may lack the last second.
"""
EXAMPLES: Final = """\
examples:
  ronde run -np 4 --set timeline=run.json train.py    ranks write run.rank0.json, run.rank1.json, ...
  ronde timeline merge all.json run.rank*.json
  ronde timeline draw run.png run.rank*.json --begin 20 --end 25
"""
_LANES: Final = ("collectives", "steps")
"""The tracks that are drawn, of all communicators together."""
_LONGEST: Final = 1e15
"""Microseconds, 31 years: the times of events are less."""
_MOST_SHOWN: Final = 200
"""Characters of a damaged event that its error shows."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    more: dict[str, Any] = {"epilog": EXAMPLES, "formatter_class": parser.formatter_class, "allow_abbrev": False}
    merging = actions.add_parser(
        "merge",
        help="merge the files of several ranks into one",
        description="Merge the timelines of several ranks into one file, on the clock of rank 0.",
        **more,
    )
    merging.add_argument("out", metavar="OUT", type=output_file, help="the file to write")
    merging.add_argument("files", metavar="FILE", type=Path, nargs="+", help="the files of the ranks")
    drawing = actions.add_parser(
        "draw",
        help="draw the files of several ranks as one picture (ronde[plot])",
        description="Draw the collectives and their steps by time, two lanes for each rank, on the clock of rank 0.",
        **more,
    )
    drawing.add_argument("out", metavar="OUT", type=picture_file, help="the picture to write: .png, .svg or .pdf")
    drawing.add_argument("files", metavar="FILE", type=Path, nargs="+", help="the files of the ranks")
    drawing.add_argument("--begin", type=float, default=0.0, metavar="MS", help="first millisecond (default: 0)")
    drawing.add_argument("--end", type=float, default=math.inf, metavar="MS", help="last millisecond (default: all)")
    drawing.set_defaults(main=draw)


def draw(args: argparse.Namespace) -> int:
    """Draw the files. Raises ConfigError as `merge` and `plot_lanes`, and if nothing lies between begin and end."""
    if not args.begin < args.end:
        raise ConfigError(f"--begin={args.begin:g}: must be less than --end={args.end:g}")
    headers, events = merge(args.files)
    lanes = lanes_of(events, args.begin, args.end)
    if not any(lanes.values()):
        raise ConfigError(f"--begin={args.begin:g}, --end={args.end:g}: no collective lies between these milliseconds")
    ranks = f"{headers[0]['size']} ranks"
    plot_lanes(args.out, f"{ranks}: collectives and their steps", lanes)
    sys.stdout.write(f"{args.out}: {sum(map(len, lanes.values()))} boxes of {ranks}\n")
    return 0


def lanes_of(
    events: Iterable[Mapping[str, Any]], begin: float, end: float
) -> dict[str, list[tuple[str, float, float]]]:
    """Return the lanes of all ranks. A box is (kind, begin, duration); it touches the time from `begin` to `end`. Times
    are milliseconds. The kind is the operation of a collective, or that of a step."""
    ranks = sorted({event["pid"] for event in events})
    lanes: dict[str, list[tuple[str, float, float]]] = {f"rank {rank} {name}": [] for rank in ranks for name in _LANES}
    for event in events:
        name = next((lane for lane in _LANES if lane in event.get("cat", "").split()), "")
        if event["ph"] == "X" and name:
            start, duration = event["ts"] / 1000, event["dur"] / 1000
            if start + duration >= begin and start <= end:
                kind = event["name"] if name == _LANES[0] else event["args"]["kind"]
                lanes[f"rank {event['pid']} {name}"].append((kind, start, duration))
    return lanes


def main(args: argparse.Namespace) -> int:
    """Merge the files and print a summary. Raises ConfigError as `merge`, for a file that cannot be written, and where
    OUT is the timeline of a rank."""
    headers, events = merge(args.files)
    if _would_lose_a_rank(args.out, args.files, headers):
        raise ConfigError(f"OUT {args.out}: is the timeline of a rank, which would be lost; begin with another file")
    temporary = args.out.with_name(f".{args.out.name}.{os.getpid()}")
    with writing(args.out), contextlib.ExitStack() as cleaning:
        cleaning.callback(temporary.unlink, missing_ok=True)
        temporary.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", "utf-8")
        temporary.replace(args.out)
    ranks = ", ".join(str(header["rank"]) for header in headers)
    missing = sorted(set(range(headers[0]["size"])) - {header["rank"] for header in headers})
    worst = max(header["error"] for header in headers)
    sys.stdout.write(f"{args.out}: {len(events)} events of rank{'s' * (len(headers) > 1)} {ranks}\n")
    if missing:
        sys.stdout.write(f"missing: rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}\n")
    if worst:
        sys.stdout.write(f"clocks of different hosts agree within {worst / 1000:.0f} us at the beginning\n")
    return 0


def _would_lose_a_rank(out: Path, files: Sequence[Path], headers: Sequence[Mapping[str, Any]]) -> bool:
    """True if `out` is the timeline of a rank, and not what was merged before: where OUT was forgotten before
    run.rank*.json, it is that of rank 0."""
    if not out.is_file():
        return False
    try:
        header, merged = read(out)[0]["args"], is_merged(out)
    except ConfigError:  # another file
        return False
    return not merged and (header not in headers or any(out.samefile(file) for file in files))


def merge(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Merge timelines: their headers in rank order, and all events in order of time. The first event is at time 0.

    Raises ConfigError for a file that cannot be read or is not a timeline, for two files of one rank, and for files of
    different jobs.
    """
    found: dict[int, tuple[dict[str, Any], list[dict[str, Any]], Path]] = {}
    for path in paths:
        events = read(path)
        header = events[0]["args"]
        if header["rank"] in found:
            raise ConfigError(f"{path}: is a timeline of rank {header['rank']}, as {found[header['rank']][2]} is")
        found[header["rank"]] = header, events, path
    ordered = [found[rank] for rank in sorted(found)]
    if len({header["size"] for header, _, _ in ordered}) > 1:
        sizes = "; ".join(f"{path}: {header['size']} ranks" for header, _, path in ordered)
        raise ConfigError(f"the timelines belong to different jobs: {sizes}")
    untimed, timed = [], []
    for header, events, _ in ordered:
        ahead = header["zero"] + header["offset"]
        for event in events:
            if "ts" in event:
                timed.append((ahead + round(event["ts"] * 1000), event))
            else:
                untimed.append(event)
    timed.sort(key=lambda item: item[0])  # stable: simultaneous events keep their order
    for moment, event in timed:
        event["ts"] = (moment - timed[0][0]) / 1000
    return [header for header, _, _ in ordered], untimed + [event for _, event in timed]


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a rank's file, the header first. The file may be incomplete. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8") as lines:
            events = list(_events(lines))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not events or events[0].get("name") != HEADER or not _is_header(events[0].get("args")):
        raise ConfigError(f"{path}: is not the timeline of a rank")
    damaged = next((event for event in events if not _is_sound(event)), None)
    if damaged is not None:
        raise ConfigError(f"{path}: is damaged: {json.dumps(damaged)[:_MOST_SHOWN]}")
    return events


def _is_header(fields: Any) -> bool:
    """True for the fields of a Header and the `zero` beside them. All but the name of the host are integers."""
    numbers = {*Header._fields, "zero"} - {"host"}
    return isinstance(fields, dict) and "host" in fields and all(isinstance(fields.get(name), int) for name in numbers)


def _is_sound(event: Mapping[str, Any]) -> bool:
    """True for an event that has all that is read here, and of the right types."""
    times = [event.get(name, 0) for name in ("ts", "dur")]
    if not all(isinstance(time, int | float) and abs(time) < _LONGEST for time in times):
        return False
    match event:
        case {"ph": "X", "name": str(), "pid": int(), "ts": _, "dur": _, "cat": str(kinds), "args": dict(facts)}:
            return _LANES[1] not in kinds.split() or isinstance(facts.get("kind"), str)
        case {"ph": str(kind), "pid": int(), "args": dict()}:
            return kind != "X"
    return False


def is_merged(path: Path) -> bool:
    """True for a file that `merge` has written. Raises ConfigError for a file that cannot be read."""
    try:
        with path.open(encoding="utf-8") as lines:
            first = itertools.takewhile(lambda event: "ts" not in event, _events(lines))
            headers = [event for event in first if event.get("name") == HEADER]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return len(headers) > 1


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """One event per line; the last line may be incomplete."""
    for line in lines:
        text = line.strip().rstrip(",")
        if text.startswith("{"):
            try:
                yield json.loads(text)
            except json.JSONDecodeError:
                return
