"""Draws the pictures of the site and the README: python -m docs._tools.pictures

`ring.svg` is simulated, `chart.svg` and `ratios.svg` are made from benchmarks/results/, and `rooms.svg` from
pyproject.toml. They have a background of their own, so that they can be read on light and dark pages.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from html import escape
from pathlib import Path
from typing import Any, Final

from docs._tools import rooms as declared
from docs._tools.generated import ROOT

FOLDER: Final = ROOT / "docs" / "pictures"
RESULTS: Final = ROOT / "benchmarks" / "results" / "amd-epyc-zen4"
INK, PALE, LINE = "#1f2933", "#f7fafa", "#8795a1"
COLORS: Final = ("#2a9d8f", "#e9a23b", "#d1495b", "#3d6fb6")
LINES: Final = (*COLORS, "#6b4e9b")
COLLECTIVES: Final = ("allreduce", "allgather", "broadcast", "reduce_scatter", "alltoall")


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    """An SVG file with a pale background."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">'
    )
    arrow = (
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>'
    )
    back = f'<rect width="{width}" height="{height}" rx="10" fill="{PALE}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", arrow, back, *parts, "</svg>\n"])


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, color: str, more: str = "") -> str:
    """A rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{color}" {more}/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head."""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="{INK}" stroke-width="1.5" marker-end="url(#a)"/>'


def ring(size: int = 4) -> str:
    """Ring allreduce: the number of ranks whose data are in each chunk of each rank, after every step."""
    held = [[1] * size for _ in range(size)]
    states = [("at first", [row[:] for row in held])]
    for step in range(2 * size - 2):
        first = step < size - 1
        before = [row[:] for row in held]
        for rank in range(size):
            chunk = (rank - 1 - step) % size if first else (rank - step + size - 1) % size
            got = before[(rank - 1) % size][chunk]
            held[rank][chunk] = before[rank][chunk] + got if first else got
        name = f"reduce-scatter {step + 1}" if first else f"allgather {step - size + 2}"
        states.append((name, [row[:] for row in held]))
    assert all(count == size for row in held for count in row)
    wide, high, cell = 112, 150, 22
    parts = [
        text(
            16,
            26,
            "Ring allreduce of 4 ranks: each step sends one chunk to the next rank",
            "start",
            'font-size="15" font-weight="600"',
        )
    ]
    for number, (name, rows) in enumerate(states):
        left = 16 + number * wide
        parts.append(text(left + 2 * cell, 52, name, more='font-size="11"'))
        for rank, row in enumerate(rows):
            top = 62 + rank * (cell + 6)
            for chunk, count in enumerate(row):
                opacity = 0.15 + 0.85 * (count - 1) / (size - 1)
                parts.append(
                    box(left + chunk * cell, top, cell - 2, cell - 2, COLORS[chunk], f'fill-opacity="{opacity:.2f}"')
                )
                dark = ' fill="#fff"' if opacity > 0.7 else ""
                parts.append(
                    text(left + chunk * cell + cell / 2 - 1, top + 15, str(count), more=f'font-size="11"{dark}')
                )
        if number < len(states) - 1:
            parts.append(arrow(left + 4 * cell + 1, 62 + 2 * (cell + 6), left + wide - 4, 62 + 2 * (cell + 6)))
    parts.append(
        text(
            16,
            high + 44,
            "Rows are ranks, columns are chunks. A number says how many ranks are summed in that chunk.",
            "start",
            'font-size="12"',
        )
    )
    return svg(16 + len(states) * wide - 8, high + 60, "Ring allreduce of four ranks", parts)


def hosts() -> str:
    """Two hosts of two ranks: shared memory inside a host, TCP between hosts."""
    parts = []
    for host in range(2):
        left = 20 + host * 330
        parts += [
            box(left, 40, 270, 150, "#e3efee", f'stroke="{LINE}"'),
            text(left + 12, 62, f"host h{host + 1}", "start", 'font-weight="600"'),
        ]
        for rank in range(2):
            x = left + 20 + rank * 130
            parts += [
                box(x, 76, 100, 44, COLORS[0]),
                text(x + 50, 95, f"rank {2 * host + rank}", more='fill="#fff" font-weight="600"'),
                text(x + 50, 111, f"local rank {rank}", more='fill="#fff" font-size="11"'),
            ]
        parts += [
            box(left + 20, 146, 230, 28, "#cfe3e1"),
            text(left + 135, 164, "shared memory", more='font-size="12"'),
            arrow(left + 70, 121, left + 70, 145),
            arrow(left + 200, 121, left + 200, 145),
        ]
    parts += [arrow(292, 110, 348, 110), arrow(348, 124, 292, 124), text(320, 100, "TCP", more='font-size="12"')]
    parts.append(text(20, 26, "ronde run -H h1:2,h2:2 python train.py", "start", 'font-family="monospace"'))
    return svg(640, 206, "Four ranks on two hosts", parts)


def calls() -> str:
    """A picture of the collectives on three ranks."""
    rows = (
        ("allreduce", ("1", "2", "3"), ("6", "6", "6")),
        ("broadcast", ("1", "-", "-"), ("1", "1", "1")),
        ("allgather", ("1", "2", "3"), ("1 2 3", "1 2 3", "1 2 3")),
        ("reduce_scatter", ("1 2 3", "1 2 3", "1 2 3"), ("3", "6", "9")),
        ("scatter", ("1 2 3", "-", "-"), ("1", "2", "3")),
        ("alltoall", ("a b c", "d e f", "g h i"), ("a d g", "b e h", "c f i")),
    )
    parts = [text(250, 28, "before", more='font-weight="600"'), text(530, 28, "after", more='font-weight="600"')]
    for number, (name, before, after) in enumerate(rows):
        top = 40 + number * 40
        parts.append(text(16, top + 20, name, "start", 'font-weight="600"'))
        for values, left in ((before, 130), (after, 410)):
            for rank, value in enumerate(values):
                parts += [
                    box(left + rank * 82, top, 76, 30, COLORS[rank] if value != "-" else "#e4e7eb"),
                    text(left + rank * 82 + 38, top + 20, value if value != "-" else "", more='fill="#fff"'),
                ]
        parts.append(arrow(378, top + 15, 402, top + 15))
    parts.append(
        text(
            16,
            296,
            'Each column is a rank: rank 0 green, rank 1 yellow, rank 2 red. Reductions use op="sum".',
            "start",
            'font-size="12"',
        )
    )
    return svg(664, 312, "What the collectives do", parts)


def measured(name: str) -> Any:
    """The table of this name that `benchmarks/compare.py` made on Zen 4 (docs/performance.md)."""
    return json.loads((RESULTS / f"compare-{name}.json").read_text("utf-8"))


def ratios() -> str:
    """The time of the fastest MPI library, divided by Ronde's, by size: all five collectives of 2 ranks."""
    high, low = math.log(8), math.log(0.25)
    parts: list[str] = []
    for title, name, left in (("shared memory", "shm-2-jit", 60), ("TCP", "tcp-2-jit", 470)):
        data = measured(name)
        sizes = sorted({line["size"] for line in data["lines"]})
        width, top, bottom = 340, 56, 296

        def x(size: int, left: int = left, width: int = width, sizes: list[int] = sizes) -> float:
            return left + width * sizes.index(size) / (len(sizes) - 1)

        def y(ratio: float, top: int = top, bottom: int = bottom) -> float:
            return bottom - (bottom - top) * (min(high, max(low, math.log(ratio))) - low) / (high - low)

        parts.append(
            text(left, 40, f"{title} ({data['machine']['date']})", "start", 'font-size="12" font-weight="600"')
        )
        for ratio in (0.25, 0.5, 1, 2, 4, 8):
            stroke = "#1f2d33" if ratio == 1 else "#d5dde0"
            parts += [
                f'<line x1="{left}" x2="{left + width}" y1="{y(ratio):.1f}" y2="{y(ratio):.1f}" stroke="{stroke}"/>',
                text(left - 8, y(ratio) + 4, f"{ratio:g}", "end", 'font-size="11"'),
            ]
        parts += [text(x(size), bottom + 18, _bytes(size).replace("iB", ""), more='font-size="10"') for size in sizes]
        for color, collective in zip(LINES, COLLECTIVES, strict=True):
            points = []
            for line in data["lines"]:
                if line["collective"] == collective:
                    times = line["times"]
                    peers = [times[peer] for peer in ("openmpi", "mpich") if peer in times]
                    found = min(
                        statistics.median(a / b for a, b in zip(peer, times["ronde"], strict=True)) for peer in peers
                    )
                    points.append(f"{x(line['size']):.1f},{y(found):.1f}")
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2.5"/>')
    for number, (color, collective) in enumerate(zip(LINES, COLLECTIVES, strict=True)):
        parts.append(
            text(60 + 150 * number, 346, collective, "start", f'font-size="12" style="fill:{color}" font-weight="600"')
        )
    title = (
        "Time of the faster MPI library by Ronde's, 2 ranks on 2 cores of an AMD EPYC (Zen 4): above 1 Ronde is faster"
    )
    parts.append(text(16, 20, title, "start", 'font-size="13" font-weight="600"'))
    return svg(830, 360, "Ratios by size", parts)


def chart() -> str:
    """Allreduce of 2 ranks in shared memory: Ronde beside Open MPI and MPICH, from benchmarks/results."""
    data, windows = measured("shm-2-jit"), measured("shm-2-windows-jit")
    series: dict[str, list[tuple[int, float]]] = {}
    for source, names in (
        (data, {"ronde": "Ronde", "openmpi": "Open MPI", "mpich": "MPICH"}),
        (windows, {"ronde": "Ronde, shared arrays"}),
    ):
        for line in source["lines"]:
            if line["collective"] == "allreduce":
                for key, name in names.items():
                    series.setdefault(name, []).append((line["size"], statistics.median(line["times"][key])))
    left, right, top, bottom = 64, 720, 46, 290
    sizes = [size for size, _ in series["Ronde"]]

    def x(size: int) -> float:
        return left + (right - left - 110) * sizes.index(size) / (len(sizes) - 1)

    def y(seconds: float) -> float:
        low, high = math.log(5e-7), math.log(4e-2)
        return bottom - (bottom - top) * (math.log(seconds) - low) / (high - low)

    machine = f"{data['machine']['cpu']}, {data['machine']['cores']} cores, {data['machine']['date']}"
    parts = [
        text(
            16,
            26,
            f"Allreduce, 2 ranks of one host, with ronde[jit] ({machine})",
            "start",
            'font-size="15" font-weight="600"',
        )
    ]
    for seconds, label in ((1e-6, "1 us"), (1e-5, "10 us"), (1e-4, "100 us"), (1e-3, "1 ms"), (1e-2, "10 ms")):
        parts += [
            f'<line x1="{left}" x2="{right - 110}" y1="{y(seconds):.1f}" y2="{y(seconds):.1f}" stroke="#d5dde0"/>',
            text(left - 8, y(seconds) + 4, label, "end", 'font-size="11"'),
        ]
    parts += [text(x(size), bottom + 18, _bytes(size), more='font-size="11"') for size in sizes]
    colored = zip(("#2a9d8f", "#d1495b", "#e9a23b", "#155f56"), series.items(), strict=True)
    end = 0.0
    for color, (name, points) in sorted(colored, key=lambda one: -one[1][1][-1][1]):  # the names do not overlap
        path = " ".join(f"{x(size):.1f},{y(seconds):.1f}" for size, seconds in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        end = max(y(points[-1][1]), end + 15)
        parts.append(
            text(right - 104, end + 4, name, "start", f'font-size="12" style="fill:{color}" font-weight="600"')
        )
    return svg(right + 60, bottom + 34, "Time of an allreduce by size", parts)


def _bytes(count: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count // size} {unit}"
    return f"{count} B"


def rooms(folder: Path = ROOT) -> str:
    """The rooms in their layers, as pyproject.toml declares them; modules beside the rooms are paler."""
    width, high, gap, inner = 860, 26, 10, 828
    parts: list[str] = []
    top, frame = 6.0, ""
    for title, names in declared.rows(folder):
        if frame != (title or "collectives/"):
            frame = title or "collectives/"
            top += 8
            parts.append(text(16, top + 12, frame, "start", 'font-size="12" font-weight="600"'))
            top += 20
        lines: list[list[tuple[str, float, float]]] = [[]]
        left = 0.0
        for name in names:
            wide = 20 + 7.2 * len(name)
            if left + wide > inner:
                lines.append([])
                left = 0.0
            lines[-1].append((name, left, wide))
            left += wide + gap
        for line in lines:
            start = (width - (line[-1][1] + line[-1][2])) / 2
            for name, left, wide in line:
                color = COLORS[3] if title.startswith("transports") else COLORS[1] if title else COLORS[0]
                opacity = 0.35 if name.endswith("/") else 0.15
                parts.append(box(start + left, top, wide, high - 4, color, f'fill-opacity="{opacity}"'))
                parts.append(text(start + left + wide / 2, top + 15, name, more='font-size="12"'))
            top += high
        top += 4
    words = "A layer may import the layers below it. Paler boxes are modules beside the rooms."
    parts.append(text(16, top + 14, words, "start", 'font-size="12"'))
    return svg(width, round(top + 26), "The rooms in their layers", parts)


PICTURES: Final = {
    "ring.svg": ring,
    "hosts.svg": hosts,
    "calls.svg": calls,
    "chart.svg": chart,
    "ratios.svg": ratios,
    "rooms.svg": rooms,
}
"""File -> the function that draws it."""


def main() -> int:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
