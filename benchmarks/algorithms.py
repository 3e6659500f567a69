"""Writes docs/algorithms.md: every algorithm with its idea, source, cost and a drawing, from the code that runs.

python -m benchmarks.algorithms     # replace the page; a test fails while it is out of date
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Final

from collectives.algorithms import Algorithm, algorithms
from collectives.drawing import draw_text, picture_of
from collectives.planning import Model, Rules, Selector
from collectives.planning.select import Demand
from collectives.schedule import SPECS, Geometry
from transports.base import LinkCost

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "algorithms.md"
HEAD: Final = """\
# Algorithms

<!-- written by python -m benchmarks.algorithms -->

Each collective has several algorithms. An algorithm is data: the steps of every rank, which the prover checks, the
simulator times, the executor runs, and `ronde draw` draws. This page is made from them.

Ronde chooses by a cost model with the properties of the machine ([Architecture](architecture.md)). To choose
yourself, pass `algorithm="ring"` to a call, or write a rule table with `ronde tune`. `comm.plan(...)` and the log
tell the choice. `ronde.import_msccl("file.xml")` adds an algorithm of MSCCL, after a proof. All ranks must import the
same files, before `init`.

The tables show the choice by size: `4 x 2` is four hosts of two ranks with links of 1 Gbit/s, `12 x 1` twelve hosts;
the others are on one host, over TCP.

N stands for the bytes of a call, p for the number of ranks, h for the number of hosts, q for the greatest power of two
up to p, and r for p - q. *Traffic* is of all ranks. *Rounds* are messages, or signals in shared memory, one after the
other; *bytes* are those that one rank sends, or copies out of the memory of others; both are for eight ranks. After
them come these properties:

- *segments*: it works in segments.
- *reproducible*: it combines in the fixed order of `reproducible=True`.
- *several hosts*: it needs ranks on several hosts.
- *shared memory*: it needs ranks that share memory.
- *windows*: it needs arrays in windows (`comm.empty`).
- *equal blocks*: it needs blocks of equal size.

The drawings are of four ranks, broadcasts in three segments: `3 > 1` in the column of a rank means that it sends part
3 to rank 1, `3 < 1` that it reads part 3 in the memory of rank 1. `ronde draw allreduce --algorithm ring -np 8 -o
ring.svg` makes others, also as pages that play.

"""
_SIZES: Final = {
    "4 B": 4,
    "1 KiB": 1 << 10,
    "16 KiB": 1 << 14,
    "128 KiB": 1 << 17,
    "1 MiB": 1 << 20,
    "16 MiB": 1 << 24,
    "128 MiB": 1 << 27,
}
_WORLDS: Final = {
    "2": (0, 0),
    "3": (0,) * 3,
    "4": (0,) * 4,
    "6": (0,) * 6,
    "8": (0,) * 8,
    "4 x 2": (0, 0, 1, 1, 2, 2, 3, 3),
    "4 x 8": tuple(rank // 8 for rank in range(32)),
    "12 x 1": tuple(range(12)),
}


def choices(collective: str) -> list[str]:
    """The table of chosen algorithms; worlds with the same choices share a row."""
    sizes = {"no bytes": 0} if collective == "barrier" else _SIZES
    worlds: dict[tuple[str, ...], list[str]] = {}
    for name, hosts in _WORLDS.items():
        selector = Selector(Model(), Rules(), "tcp")
        if len(set(hosts)) > 1:
            selector.use_link(LinkCost(1e-4, 8e-9))
        geometry = Geometry(0, len(hosts), hosts=hosts)
        row = (selector.choose(Demand(collective, geometry, size, size)).algorithm.name for size in sizes.values())
        worlds.setdefault(tuple(row), []).append(name)
    rows = [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in worlds.items()]
    return [f"| ranks | {' | '.join(sizes)} |", f"|---|{'---|' * len(sizes)}", *rows]


def section(found: Algorithm) -> list[str]:
    """The section about an algorithm."""
    text = inspect.cleandoc(found.generate.__doc__ or "").split("\n\n")
    paragraphs = [" ".join(part.split()) for part in text]
    hosts = (0, 0, 0, 0, 1, 1, 1, 1) if found.multihost else ()
    cost = found.cost(Geometry(0, 8, hosts=hosts))
    size, drawn = (4, (0, 0, 1, 1)) if found.multihost else (4, ())
    segments = 3 if found.collective == "broadcast" and found.segmented and not found.onesided else 1
    picture = draw_text(picture_of(found, size, segments=segments, hosts=drawn), 126).split("\n", 2)[2]
    return [
        f"### {found.name}",
        "",
        *[line for paragraph in paragraphs for line in (paragraph, "")],
        f"Rounds {cost.rounds:g}, bytes {cost.sent + cost.read or cost.copied:.3g} N{_properties(found)}.",
        "",
        f"```text{picture}",
        "```",
        "",
    ]


def _properties(found: Algorithm) -> str:
    """Properties that matter to a caller."""
    notes = {
        "segments": found.segmented,
        "reproducible": found.tree_order,
        "several hosts": found.multihost,
        "shared memory": found.onesided,
        "windows": bool(found.windows),
        "equal blocks": found.uniform,
    }
    return "".join(f", *{note}*" for note, holds in notes.items() if holds)


def page() -> str:
    """The whole page."""
    lines = []
    for collective in SPECS:
        lines += [f"## {collective}", "", *choices(collective), ""]
        for found in algorithms(collective).values():
            lines += section(found)
    return HEAD + "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
