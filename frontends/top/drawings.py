"""Drawings of a job as SVG, without a library: the chain of waits, and who waits when."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

from frontends.top.figures import NOTABLE, Figures
from frontends.top.history import Column

_BOX: Final = (204, 62)
_GAP: Final = 34
_ROWS: Final = 64
"""Rows of the map, at most: ranks are taken together beyond."""


def chain_svg(figures: Figures, per_row: int = 4) -> str:
    """The chain of waits as boxes and arrows; empty if no rank waits for long. Colours are those of the style sheet
    around it, with such of its own as defaults."""
    chain = figures["chain"]
    if chain is None or chain["seconds"] < NOTABLE:
        return ""
    links, (width, height) = chain["links"], _BOX
    hidden = chain["length"] - len(links)
    rows = -(-len(links) // per_row)
    columns = min(per_row, len(links))
    size = columns * (width + _GAP) - _GAP + 2, rows * (height + _GAP) - _GAP + 2
    parts = [
        f'<svg class="chain" role="img" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" '
        f'style="max-width:100%;height:auto" xmlns="http://www.w3.org/2000/svg"><title>the chain of waits</title>'
        '<defs><marker id="ronde-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="var(--muted,#777)"/></marker></defs>'
    ]
    for place, link in enumerate(links):
        x, y = place % per_row * (width + _GAP) + 1, place // per_row * (height + _GAP) + 1
        last = place == len(links) - 1 and not chain["circle"]
        edge = "var(--bad,#c0392b)" if last else "var(--line,#999)"
        doing = f"{link['call'].partition('(')[0]} {link['number'] or ''}".strip() or link["state"]
        rank = f"rank {link['rank']} on {link['host']}"
        since = f"{doing} for {_seconds(link['seconds'])}"
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="var(--panel,#fff)" '
            f'stroke="{edge}" stroke-width="{2 if last else 1}"/>'
        )
        for line, (text, weight) in enumerate(((rank, 600), (since, 400), (link["line"], 400))):
            parts.append(
                f'<text x="{x + 10}" y="{y + 19 + 17 * line}" font-size="12" font-weight="{weight}" '
                f'font-family="system-ui,sans-serif" fill="var(--ink,#222)">{html.escape(_cut(text, 30))}</text>'
            )
        if place + 1 < len(links):
            nx, ny = (place + 1) % per_row * (width + _GAP) + 1, (place + 1) // per_row * (height + _GAP) + 1
            if ny > y:
                begin, end = (x + width // 2, y + height), (nx + width // 2, ny - 2)
            else:
                begin, end = (x + width, y + height // 2), (nx - 2, ny + height // 2)
            dashed = ' stroke-dasharray="4 3"' if hidden and place == len(links) - 3 else ""
            parts.append(
                f'<path d="M{begin[0]} {begin[1]}L{end[0]} {end[1]}" stroke="var(--muted,#777)" stroke-width="1.5" '
                f'fill="none" marker-end="url(#ronde-arrow)"{dashed}/>'
            )
    parts.append("</svg>")
    return "".join(parts)


def waiting_svg(columns: Sequence[Column], width: int = 720) -> str:
    """The map of waiting: a row for each rank (or for several), a column for each look, darker for more."""
    if not columns:
        return ""
    size = len(columns[-1].waiting)
    rows = min(size, _ROWS)
    height = max(4, min(18, 320 // max(1, rows)))
    begin, end = columns[0].began, columns[-1].ended
    scale = (width - 40) / max(1e-9, end - begin)
    parts = [
        f'<svg role="img" viewBox="0 0 {width} {rows * height + 22}" width="{width}" '
        'style="max-width:100%;height:auto" xmlns="http://www.w3.org/2000/svg">'
        "<title>the share of waiting of each rank by time</title>"
        f'<g transform="translate(40 0)"><rect width="{width - 40}" height="{rows * height}" fill="#8881"/>'
    ]
    for column in columns:
        x, w = (column.began - begin) * scale, max(0.5, (column.ended - column.began) * scale)
        for row in range(rows):
            members = column.waiting[row * size // rows : max(row * size // rows + 1, (row + 1) * size // rows)]
            share = max(members, default=0.0)
            if share >= 0.02:
                parts.append(
                    f'<rect x="{x:.1f}" y="{row * height}" width="{w:.1f}" height="{height}" fill="#d1495b" '
                    f'fill-opacity="{share:.2f}"/>'
                )
    parts.append("</g>")
    for text, x, y, anchor in (
        ("0", 34, min(height, 12), "end"),
        (str(size - 1), 34, rows * height, "end"),
        (f"{end - begin:.0f} s ago", 40, rows * height + 16, "start"),
        ("now", width, rows * height + 16, "end"),
    ):
        parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11" font-family="system-ui,sans-serif" '
            f'fill="currentColor">{text}</text>'
        )
    parts.append("</svg>")
    return "".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
