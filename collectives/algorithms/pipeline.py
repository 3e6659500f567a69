"""Pipelines: the data goes through a fixed chain or tree in segments, so that all links work at once.

    time           1     2     3     4
    root -> 1      s1    s2    s3
    1 -> 2               s1    s2    s3
    2 -> 3                     s1    s2

Good for large arrays in broadcast and reduce. Time of a pipeline of depth d: (d + s - 1) (alpha + beta N / s) for s
segments; the best s is sqrt((d - 1) beta N / alpha) (van de Geijn et al., "Collective communication: theory, practice,
and experience", 2007).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.schedule import Geometry, Step, copy, inp, out, recv, reduce, scratch, send


def _chain_steps(g: Geometry) -> int:
    """Return the number of successive messages: the first segment passes p - 1 links, each other follows one later."""
    return g.size + g.segments - 2 if g.size > 1 else 0


def _binary_tree_steps(g: Geometry) -> int:
    """Return the number of successive messages in a tree whose inner ranks send everything twice, left child first."""
    arrival = [0]
    for position in range(1, g.size):
        arrival.append(arrival[(position - 1) // 2] + (1 if position % 2 else 2))
    return max(arrival) + min(2, g.size - 1) * (g.segments - 1)


def _send_down(g: Geometry, parent: int | None, children: Sequence[int], label: str) -> Iterator[Step]:
    """Receive segments from the parent and forward each to all children, with one receive posted ahead."""
    hold = inp if parent is None else out
    if parent is not None:
        yield recv(parent, out(0), label)
    for s in range(g.segments):
        if parent is not None and s + 1 < g.segments:
            yield recv(parent, out(s + 1), label)
        for child in children:
            yield send(child, hold(s), label)
    if parent is None:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")


@algorithm(
    "broadcast",
    "chain",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(_chain_steps(g), _chain_steps(g) / g.segments),
    segmented=True,
)
def broadcast_chain(g: Geometry) -> Iterator[Step]:
    """Forward segments along root -> root + 1 -> ... Traffic (p - 1) N; every rank sends N at most once."""
    position = (g.rank - g.root) % g.size
    parent = (g.rank - 1) % g.size if position else None
    children = [(g.rank + 1) % g.size] if position + 1 < g.size else []
    yield from _send_down(g, parent, children, "chain broadcast")


@algorithm(
    "broadcast",
    "binary_tree",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(_binary_tree_steps(g), _binary_tree_steps(g) / g.segments),
    segmented=True,
)
def broadcast_binary_tree(g: Geometry) -> Iterator[Step]:
    """Forward segments down a binary tree: logarithmic depth, but inner ranks send everything twice. Traffic (p - 1)
    N."""
    position = (g.rank - g.root) % g.size
    parent = (g.root + (position - 1) // 2) % g.size if position else None
    children = [(g.root + c) % g.size for c in (2 * position + 1, 2 * position + 2) if c < g.size]
    yield from _send_down(g, parent, children, "binary tree broadcast")


@algorithm(
    "reduce",
    "chain",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(_chain_steps(g), _chain_steps(g) / g.segments, (g.size - 1) / g.segments),
    segmented=True,
)
def reduce_chain(g: Geometry) -> Iterator[Step]:
    """Pass segments along ... -> root + 2 -> root + 1 -> root; every rank combines its contribution on the way.
    Traffic (p - 1) N."""
    position = (g.rank - g.root) % g.size
    label, source, target = "chain reduce", (g.rank + 1) % g.size, (g.rank - 1) % g.size
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
    elif position == g.size - 1:
        for s in range(g.segments):
            yield send(target, inp(s), label)
    else:
        yield recv(source, scratch(0, 0), label)
        for s in range(g.segments):
            if s + 1 < g.segments:
                yield recv(source, scratch((s + 1) % 2, s + 1), label)
            total = scratch(2 + s % 2, s) if position else out(s)
            yield reduce(scratch(s % 2, s), inp(s), total, label)
            if position:
                yield send(target, total, label)
