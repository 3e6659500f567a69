"""A picture as SVG: time from left to right, a line for each rank, an arrow for each message."""

from __future__ import annotations

from html import escape
from typing import Final

from collectives.drawing.picture import Event, Picture, chunk_text

_LEFT: Final = 76
_TOP: Final = 58
_ROUND: Final = 96
_RANK: Final = 40
_STYLE: Final = """\
svg { font: 12px system-ui, sans-serif; background: #fff; color: #1f2430 }
text { fill: currentColor }
.title { font-size: 15px; font-weight: 600 }
.rank { stroke: #c3c8d4; stroke-width: 1.5 }
.host { fill: #8894ab; opacity: .13 }
.part { font-size: 11px; text-anchor: middle; paint-order: stroke; stroke: #fff; stroke-width: 3px }
.round { text-anchor: middle; opacity: .7 }
@media (prefers-color-scheme: dark) {
  svg { background: #14161c; color: #e4e7ef } .rank { stroke: #4a5060 } .part { stroke: #14161c }
}
"""


def colour(chunks: tuple[int, int], of: int) -> str:
    """The colour of chunks: that of their middle, along the colour wheel; grey for packed ones."""
    first, width = chunks
    if first < 0:
        return "hsl(220 8% 52%)"
    return f"hsl({(first + width / 2) / max(of, 1) * 330:.0f} 70% 48%)"


def draw_svg(picture: Picture) -> str:
    """The picture as a document of its own, for light and dark pages."""
    end = max((event.end for event in picture.events), default=1.0)
    width, height = _LEFT + end * _ROUND + 40, _TOP + picture.size * _RANK + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img">',
        f"<title>{escape(picture.title)}</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>',
        f'<text class="title" x="12" y="22">{escape(picture.title)}</text>',
        *_hosts(picture, width),
    ]
    for rank in range(picture.size):
        lines.append(f'<text x="12" y="{_y(rank) + 4}">rank {rank}</text>')
        lines.append(f'<line class="rank" x1="{_LEFT}" x2="{_x(end):.1f}" y1="{_y(rank)}" y2="{_y(rank)}"/>')
    if all(begin == int(begin) for begin, _ in picture.rounds()):
        lines += [
            f'<text class="round" x="{_x(number + 0.5):.1f}" y="44">{number + 1}</text>' for number in range(int(end))
        ]
    lines += [_mark(event, picture.chunks) for event in picture.events]
    return "\n".join([*lines, "</svg>", ""])


def _x(time: float) -> float:
    return _LEFT + time * _ROUND


def _y(rank: int) -> int:
    return _TOP + rank * _RANK + _RANK // 2


def _hosts(picture: Picture, width: float) -> list[str]:
    """Bands behind the ranks of every second host."""
    return [
        f'<rect class="host" x="0" width="{width:.0f}" y="{_TOP + rank * _RANK}" height="{_RANK}"/>'
        for rank, host in enumerate(picture.hosts)
        if host % 2 == 0
    ]


def _mark(event: Event, chunks: int) -> str:
    tint, tip = colour(event.chunks, chunks), escape(event.label)
    if event.kind == "combine":
        place = f'cx="{_x(event.end):.1f}" cy="{_y(event.rank)}"'
        return f'<circle {place} r="3.5" fill="{tint}"><title>{tip}</title></circle>'
    source, target = (event.rank, event.peer) if event.kind == "send" else (event.peer, event.rank)
    x1, x2, y1, y2 = _x(event.begin) + 3, _x(event.end) - 4, _y(source), _y(target)
    dashes = "" if event.kind == "send" else ' stroke-dasharray="5 3"'
    middle = f'x="{x1 + (x2 - x1) * 0.3:.1f}" y="{y1 + (y2 - y1) * 0.3 + 4:.1f}"'
    return (
        f'<g><title>{tip}</title><line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" stroke="{tint}" '
        f'stroke-width="1.8"{dashes} marker-end="url(#tip)"/>'
        f'<text class="part" {middle}>{chunk_text(event.chunks)}</text></g>'
    )
