"""python -m tests.netns: every case many times, and a table of what came of it; see --help."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.table import machine, said_of_zeros, write, zeros
from tests.netns.cases import CASES, Case
from tests.netns.crew import RankFailed
from tests.netns.network import obstacle
from tests.netns.site import Site
from transports.testing import LeakError, Leaks

TRANSPORTS = ("tcp", "auto")
_HEADS = ("case", "transport", "tried", "hangs", "wrong", "leaks", "unnamed", "noticed", "worst", "recovered", "worst")


@dataclass
class Row:
    """The outcomes of one case over one transport. Times are in seconds."""

    case: str
    transport: str
    tried: int = 0
    hangs: int = 0
    wrong: int = 0
    leaks: int = 0
    unnamed: int = 0
    detected: list[float] = field(default_factory=list)
    recovered: list[float] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """The number of wrong outcomes."""
        return self.hangs + self.wrong + self.leaks + self.unnamed

    def cells(self) -> list[str]:
        """Its texts for the columns of the table."""
        counts = (self.tried, self.hangs, self.wrong, self.leaks, self.unnamed)
        return [self.case, self.transport, *map(str, counts), *_times(self.detected), *_times(self.recovered)]


def _times(seconds: Sequence[float]) -> tuple[str, str]:
    return (f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}") if seconds else ("-", "-")


def table(rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown, with medians and worst times in seconds."""
    cells = [row.cells() for row in rows]
    left_out = zeros(cells, range(3, 7))
    shown = [column for column in range(len(_HEADS)) if column not in left_out]
    marks = ["---", "---", *["--:"] * (len(_HEADS) - 2)]
    lines = [[line[column] for column in shown] for line in (_HEADS, marks, *cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines[1] = [mark[0] * (width - 1) + mark[-1] for mark, width in zip(lines[1], widths, strict=True)]
    pad = [str.ljust] * 2 + [str.rjust] * (len(shown) - 2)
    texts = [
        f"| {' | '.join(fit(cell, width) for fit, cell, width in zip(pad, line, widths, strict=True))} |"
        for line in lines
    ]
    return "\n".join(texts) + said_of_zeros(_HEADS[column] for column in left_out)


def attempt(row: Row, case: Case, site: Site) -> str | None:
    """Try a case once more; what went wrong, or None."""
    row.tried += 1
    try:
        with Leaks():
            seen = case.run(site, row.transport)
    except TimeoutError as error:
        row.hangs += 1
        return str(error)
    except LeakError as error:
        row.leaks += 1
        return str(error)
    except RankFailed as error:
        row.leaks += error.kind == "LeakError"
        row.wrong += error.kind != "LeakError"
        return str(error)
    except AssertionError as error:
        row.unnamed += 1
        return str(error)
    row.detected += seen.detected
    row.recovered += seen.recovered
    return None


def main(arguments: Sequence[str]) -> int:
    """0 if everything came out as it must, 1 if not, 2 if there can be no hosts here."""
    parser = argparse.ArgumentParser(prog="python -m tests.netns", description="What networks do to hosts, many times.")
    parser.add_argument("--times", type=int, default=10, metavar="N", help="how often to try each (default 10)")
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--transport", action="append", default=[], choices=TRANSPORTS, help="by default both")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers in this file too")
    options = parser.parse_args(arguments)
    reason = obstacle()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    rows = []
    with contextlib.ExitStack() as resources:
        sites: dict[tuple[str, ...], Site] = {}
        for case in CASES:
            if options.only and case.name not in options.only:
                continue
            if case.hosts not in sites:
                sites[case.hosts] = resources.enter_context(Site(case.hosts))
            for transport in options.transport or TRANSPORTS:
                row = Row(case.title, transport)
                rows.append(row)
                for number in range(1, options.times + 1):
                    trouble = attempt(row, case, sites[case.hosts])
                    if trouble is not None:
                        print(f"\n{case.name} over {transport}, the {number}. time: {trouble}\n", flush=True)
                print(f"{case.name} over {transport}: {row.tried} times, {row.failed} failed", flush=True)
    print(f"\n{table(rows)}")
    if options.write is not None:
        write(options.write, f"python -m tests.netns --times {options.times}\n{machine()}\n\n{table(rows)}", "networks")
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
