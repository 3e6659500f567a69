"""Broadcast as scatter and allgather: 2 (p - 1) / p N per rank instead of log2(p) N. Good for large arrays.

Van de Geijn's algorithm (Barnett et al., "Interprocessor collective communication library", 1994). The ring omits the
blocks that a rank has received in the scatter (Zhou et al., "A bandwidth-saving optimization for MPI broadcast
collective operation", 2015).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm, share
from collectives.schedule import (
    Geometry,
    Step,
    binomial_children,
    binomial_parent,
    binomial_width,
    circular_runs,
    copy,
    inp,
    out,
    recv,
    rounds,
    send,
)


def _traffic(g: Geometry) -> Fraction:
    """Count blocks of N / p: for every position but the root's its subtree, then all blocks outside its subtree."""
    widths = [binomial_width(position, g.size) for position in range(1, g.size)]
    return Fraction(sum(widths) + sum(g.size - width for width in widths), g.size)


@algorithm(
    "broadcast",
    "scatter_allgather",
    traffic=_traffic,
    cost=lambda g: Cost(rounds(g.size) + g.size - 1, 2 * share(g)),
)
def broadcast(g: Geometry) -> Iterator[Step]:
    """Binomial scatter, then ring allgather. Traffic (p - 1) N."""
    position = (g.rank - g.root) % g.size
    width = binomial_width(position, g.size)
    hold = out if position else inp
    label = "binomial scatter"
    if position:
        for run in circular_runs(g.rank, width, g.size):
            yield recv((binomial_parent(position) + g.root) % g.size, out(*run), label)
    for child in binomial_children(position, g.size):
        peer = (child + g.root) % g.size
        for run in circular_runs(peer, binomial_width(child, g.size), g.size):
            yield send(peer, hold(*run), label)
    left, right = (g.rank - 1) % g.size, (g.rank + 1) % g.size
    lacking = g.size - width
    right_lacks = g.size - binomial_width((position + 1) % g.size, g.size)
    for k in range(g.size - 1):
        label = f"ring allgather {k + 1}/{g.size - 1}"
        if k < lacking:
            yield recv(left, out((left - k) % g.size), label)
        if k < right_lacks:
            yield send(right, hold((g.rank - k) % g.size), label)
    if not position:
        yield copy(inp(0, g.size), out(0, g.size), "copy")
