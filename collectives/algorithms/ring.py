"""Ring algorithms: every rank sends to its right neighbour and receives from its left one.

    0 --> 1 --> 2 --> 3 --+      In each of p - 1 rounds every rank passes one part to the right:
    ^                     |      reduce-scatter adds the own contribution to the part, allgather keeps a copy.
    +---------------------+

Optimal in bytes (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009),
linear in latency: good for large arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm, share
from collectives.algorithms.symmetry import around_the_ring
from collectives.schedule import Geometry, Ref, Run, Step, copy, inp, neighbours, out, recv, reduce, scratch, send

_AHEAD = 2
"""Receives posted at a time: the next one and one more."""


def _no_steps(chunk: int, width: int) -> Iterable[Step]:
    return ()


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
    slot: int = 0,
    label: str = "ring",
    ahead: int = _AHEAD,
    before: Callable[[int, int], Iterable[Step]] = _no_steps,
    after: Callable[[int, int], Iterable[Step]] = _no_steps,
) -> Iterator[Step]:
    """Move parts to the right around the ring `team`; the rank is member number `me`.

    In round k the member sends part me + first - k and receives part me + first - 1 - k from the left. In the first
    `reducing` rounds it adds its own contribution to the received part, in the following `copying` rounds it keeps it.

    parts   the pieces (chunk, width) of each part; a piece is sent as soon as it is received and combined
    own     piece -> memory of the own contribution
    place   piece -> destination of a received piece; None if it only passes through SCRATCH
    slot    first SCRATCH slot for received pieces
    ahead   receives posted at a time
    before  piece -> steps before the first use of the own contribution
    after   piece -> steps after a piece is kept, or combined in the last of the reducing rounds, and sent on
    """
    if not reducing + copying:
        return
    size = len(team)
    left, right = (team[neighbour] for neighbour in neighbours(me, size))
    items = [(k, piece) for k in range(reducing + copying) for piece in parts[(me + first - 1 - k) % size]]
    onward = len(items) - len(parts[(me + first - reducing - copying) % size])
    room = max(width for part in parts for _, width in part)
    slots = ahead
    if any(place(*piece) is None for k, piece in items):  # a slot is in use until a whole part has been sent
        slots += max(len(part) for part in parts)

    def name(k: int) -> str:
        if k < reducing:
            return f"{label} reduce-scatter {k + 1}/{reducing}"
        return f"{label} allgather {k - reducing + 1}/{copying}"

    def landing(item: int) -> Ref:
        k, piece = items[item]
        target = None if k < reducing else place(*piece)
        return scratch(slot + item % slots * room, *piece) if target is None else target

    def receive(item: int) -> Iterator[Step]:
        if item < len(items):
            yield recv(left, landing(item), name(items[item][0]))

    for item in range(ahead - 1):
        yield from receive(item)
    for piece in parts[(me + first) % size]:
        yield from before(*piece)
        yield send(right, own(*piece), name(0))
    yield from receive(ahead - 1)
    for item, (k, piece) in enumerate(items):
        result = landing(item)
        if k < reducing:
            yield from before(*piece)
            target = place(*piece) or result
            yield reduce(result, own(*piece), target, name(k))
            result = target
        if item < onward:
            yield send(right, result, name(k + 1))
        yield from receive(item + ahead)
        if k >= reducing - 1:
            yield from after(*piece)


def blocks_in_segments(g: Geometry) -> list[list[Run]]:
    """Return the block of every rank as a part of `segments` pieces."""
    return [[(block * g.segments + s, 1) for s in range(g.segments)] for block in range(g.size)]


@algorithm(
    "allreduce",
    "ring",
    traffic=lambda g: Fraction(2 * (g.size - 1)),
    cost=lambda g: Cost(2 * (g.size - 1) * g.segments, 2 * share(g), share(g) / g.segments, flight=g.segments),
    segmented=True,
    symmetry=around_the_ring,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Reduce-scatter, then allgather around the ring; combining overlaps with messages.

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
    cost=lambda g: Cost((g.size - 1) * g.segments, share(g), share(g) / g.segments, flight=g.segments),
    segmented=True,
    symmetry=around_the_ring,
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """The first half of the ring allreduce, shifted by one part so that every rank ends with its own block.

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
    cost=lambda g: Cost(g.size - 1, share(g), copied=1 / g.size),
    symmetry=around_the_ring,
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Every rank sends the block that it received last.

    Traffic (p - 1) N (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
    2005).
    """
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    yield from circulate(range(g.size), g.rank, blocks_in_segments(g), own=inp, place=out, copying=g.size - 1)
