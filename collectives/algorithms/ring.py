"""Ring algorithms: every rank talks to its two neighbours only, and every byte crosses every link once a phase.

Optimal in bytes (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009),
linear in latency: good for large arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.patterns import Run, neighbours
from collectives.schedule import Geometry, Ref, Step, copy, inp, out, recv, reduce, scratch, send

_AHEAD = 2
"""Receives under way at a time: one that is needed next and one more."""


def circulate(
    team: Sequence[int],
    me: int,
    parts: Sequence[Sequence[Run]],
    *,
    own: Callable[[int, int], Ref],
    place: Callable[[int, int], Ref | None],
    first: int = 0,
    reducing: int = 0,
    copying: int = 0,
    label: str = "ring",
) -> Iterator[Step]:
    """Parts travel to the right around `team`, of which the rank is number `me`.

    In round k the rank passes on part me + first - k and takes part me + first - 1 - k from the left. In the first
    `reducing` rounds it adds its own contribution to what came, in the `copying` rounds after them it keeps what came.

    parts   the pieces (chunk, width) of each part; a piece is passed on as soon as it is there
    own     where a piece of the own contribution stands
    place   where a piece goes that came; None: it only passes through SCRATCH
    """
    if not reducing + copying:
        return
    size = len(team)
    left, right = (team[neighbour] for neighbour in neighbours(me, size))
    items = [(k, piece) for k in range(reducing + copying) for piece in parts[(me + first - 1 - k) % size]]
    onward = len(items) - len(parts[(me + first - reducing - copying) % size])
    room = max(width for part in parts for _, width in part)
    slots = _AHEAD
    if any(place(*piece) is None for k, piece in items):  # a slot is in use until a whole part has been passed on
        slots += max(len(part) for part in parts)

    def name(k: int) -> str:
        if k < reducing:
            return f"{label} reduce-scatter {k + 1}/{reducing}"
        return f"{label} allgather {k - reducing + 1}/{copying}"

    def landing(item: int) -> Ref:
        k, piece = items[item]
        target = None if k < reducing else place(*piece)
        return scratch(item % slots * room, *piece) if target is None else target

    def receive(item: int) -> Iterator[Step]:
        if item < len(items):
            yield recv(left, landing(item), name(items[item][0]))

    yield from receive(0)
    for piece in parts[(me + first) % size]:
        yield send(right, own(*piece), name(0))
    yield from receive(1)
    for item, (k, piece) in enumerate(items):
        result = landing(item)
        if k < reducing:
            target = place(*piece) or result
            yield reduce(result, own(*piece), target, name(k))
            result = target
        if item < onward:
            yield send(right, result, name(k + 1))
        yield from receive(item + _AHEAD)


def blocks_in_segments(g: Geometry) -> list[list[Run]]:
    """Every rank's block as a part of `segments` pieces."""
    return [[(block * g.segments + s, 1) for s in range(g.segments)] for block in range(g.size)]


def _share(g: Geometry) -> float:
    return (g.size - 1) / g.size


@algorithm(
    "allreduce",
    "ring",
    traffic=lambda g: Fraction(2 * (g.size - 1)),
    cost=lambda g: Cost(2 * (g.size - 1) * g.segments, 2 * _share(g), _share(g) / g.segments),
    segmented=True,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Reduce-scatter, then allgather, both around the ring, in segments so that adding overlaps with moving.

    Traffic 2 (p - 1) N, that is 2 (p - 1) / p N per rank (Patarasuk and Yuan 2009).
    """
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
    yield from circulate(
        range(g.size),
        g.rank,
        blocks_in_segments(g),
        own=inp,
        place=out,
        reducing=g.size - 1,
        copying=g.size - 1,
    )


@algorithm(
    "reduce_scatter",
    "ring",
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost((g.size - 1) * g.segments, _share(g), _share(g) / g.segments),
    segmented=True,
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """The first half of the ring allreduce, begun one part earlier so that every rank ends with its own block.

    Traffic (p - 1) N (Patarasuk and Yuan 2009).
    """
    mine = range(g.rank * g.segments, (g.rank + 1) * g.segments)
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
    yield from circulate(
        range(g.size),
        g.rank,
        blocks_in_segments(g),
        own=inp,
        place=lambda chunk, width: out(chunk, width) if chunk in mine else None,
        first=-1,
        reducing=g.size - 1,
    )


@algorithm(
    "allgather",
    "ring",
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(g.size - 1, _share(g), copied=1 / g.size),
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Every rank passes on what it got last.

    Traffic (p - 1) N (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
    2005).
    """
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    yield from circulate(range(g.size), g.rank, blocks_in_segments(g), own=inp, place=out, copying=g.size - 1)
