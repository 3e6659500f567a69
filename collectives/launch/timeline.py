"""`ronde timeline`: makes one timeline of those that ranks have written."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from collectives.timeline import HEADER, Header
from transports.errors import ConfigError

DESCRIPTION: Final = """\
Ranks that run with the setting timeline=FILE (or call start_timeline) write what they do into one file each:
negotiation, queues, fusion, every collective and every step of it. `merge` makes one file of them, on the clock of
rank 0, to be opened in Perfetto (https://ui.perfetto.dev) or chrome://tracing. A file alone can be opened as well.

Ranks of one host share a clock. Clocks of several hosts were compared when the timeline began; how sure that is is
printed. Files of ranks that were killed lack their last second at most.
"""
EXAMPLES: Final = """\
examples:
  ronde run -np 4 --set timeline=run.json train.py      each rank writes: run.rank0.json, run.rank1.json, ...
  ronde timeline merge all.json run.rank*.json
"""


def add_parser(subparsers: Any) -> None:
    """The grammar of `ronde timeline`."""
    parser = subparsers.add_parser(
        "timeline",
        help="merge the timelines of ranks, to be looked at in Perfetto",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    merging = actions.add_parser(
        "merge",
        help="make one file of those of all ranks",
        description="Make one file of those of all ranks, on the clock of rank 0.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    merging.add_argument("out", metavar="OUT", type=Path, help="the file to write")
    merging.add_argument("files", metavar="FILE", type=Path, nargs="+", help="the files of the ranks")
    merging.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Merge, and say what was merged. Raises ConfigError for a file that is none, or cannot be read or written."""
    headers, events = merge(args.files)
    try:
        temporary = args.out.with_name(f".{args.out.name}.{os.getpid()}")
        with contextlib.ExitStack() as cleaning:
            cleaning.callback(temporary.unlink, missing_ok=True)
            temporary.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", "utf-8")
            temporary.replace(args.out)
    except OSError as error:
        raise ConfigError(f"{args.out}: cannot be written: {error.strerror}") from error
    ranks = ", ".join(str(header["rank"]) for header in headers)
    missing = sorted(set(range(headers[0]["size"])) - {header["rank"] for header in headers})
    worst = max(header["error"] for header in headers)
    sys.stdout.write(f"{args.out}: {len(events)} events of rank{'s' * (len(headers) > 1)} {ranks}\n")
    if missing:
        sys.stdout.write(f"missing: rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}\n")
    if worst:
        sys.stdout.write(f"clocks of different hosts agree within {worst / 1000:.0f} us, at the beginning\n")
    return 0


def merge(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The headers of timelines by rank, and all their events in order of time, which begins at 0 with the first.

    Raises ConfigError for a file that cannot be read or is no timeline, and for two of one rank or of different jobs.
    """
    found: dict[int, tuple[dict[str, Any], list[dict[str, Any]], Path]] = {}
    for path in paths:
        events = read(path)
        header = events[0]["args"]
        if header["rank"] in found:
            raise ConfigError(f"{path}: is of rank {header['rank']}, and so is {found[header['rank']][2]}")
        found[header["rank"]] = header, events, path
    ordered = [found[rank] for rank in sorted(found)]
    if len({header["size"] for header, _, _ in ordered}) > 1:
        sizes = "; ".join(f"{path}: {header['size']} ranks" for header, _, path in ordered)
        raise ConfigError(f"these timelines are of different jobs: {sizes}")
    facts, timed = [], []
    for header, events, _ in ordered:
        ahead = header["zero"] + header["offset"]
        for event in events:
            if "ts" in event:
                timed.append((ahead + round(event["ts"] * 1000), event))
            else:
                facts.append(event)
    timed.sort(key=lambda item: item[0])  # the sort is stable: what begins together stays in its order
    for moment, event in timed:
        event["ts"] = (moment - timed[0][0]) / 1000
    return [header for header, _, _ in ordered], facts + [event for _, event in timed]


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a rank's file, the header first. The end may be missing. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8") as lines:
            events = list(_events(lines))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not events or events[0].get("name") != HEADER or not {*Header._fields, "zero"} <= set(events[0].get("args", ())):
        raise ConfigError(f"{path}: is not the timeline of a rank")
    return events


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """One event per line; the last may be cut off."""
    for line in lines:
        text = line.strip().rstrip(",")
        if text.startswith("{"):
            try:
                yield json.loads(text)
            except json.JSONDecodeError:
                return
