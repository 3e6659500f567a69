"""The n-block broadcast on a circulant graph: n blocks reach any number of ranks in n - 1 + ceil(log2 p) rounds, the
fewest possible.

Positions are ranks seen from the root. In every round a position sends to the one `skip` ahead, and receives from the
one `skip` behind, with the skips 1, 2, ... of p halved and rounded up, in turn. Five ranks, skips 1 2 3, four blocks:

    round      1  2  3  4  5  6
    skip       1  2  3  1  2  3
    from 0     0  1  2  3  3  3     every position sends what its receiver lacks, and never a block
                                    that it has not received before

A rank finds its own rounds without those of others: the blocks that a position receives in ceil(log2 p) successive
rounds are different ones, one of them new to its part of the ring.
(Träff, "Optimal broadcast schedules in logarithmic time with applications to broadcast, all-broadcast, reduction and
all-reduction", 2024, arXiv:2407.18004.)
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.schedule import Geometry, Step, copy, inp, out, recv, rounds, send, settle


def _skips(size: int) -> list[int]:
    """Return 1, 2, ... `size`: halves of the next one, rounded up."""
    skips = [size]
    while skips[-1] > 1:
        skips.append((skips[-1] + 1) // 2)
    return skips[::-1]


def first_block(position: int, skips: list[int]) -> int:
    """Return the number of the smallest skip on the way to a position that takes the largest possible skips first: the
    first block that arrives. For position 0 the number of rounds."""
    for k in reversed(range(len(skips) - 1)):
        if skips[k] == position:
            return k
        if skips[k] < position:
            position -= skips[k]
    return len(skips) - 1


class _Search:
    """The search for the blocks that a position receives.

    In round k it receives the first block of some position between skip k + 1 and skip k behind it. Depth first, the
    search follows ways from the root in order of falling positions, and takes no block twice. Positions are counted
    from a whole turn further, so that none is negative.
    """

    def __init__(self, position: int, size: int) -> None:
        self.skips = _skips(size)
        self.goal = position + size
        self.lowest = 2 * size
        self.left = list(range(len(self.skips)))
        self.own = first_block(position, self.skips)
        self.left.remove(self.own)
        self.found: list[int] = []

    def visit(self, position: int, most: int) -> None:
        """Follow the ways from a position that go on with skip `most` or smaller ones."""
        skips, rounds = self.skips, len(self.skips) - 1
        for e in [e for e in reversed(self.left) if e <= most]:
            k = len(self.found)
            if k == rounds:
                return
            there = position + skips[e]
            if e not in self.left or there > self.goal - skips[k] or there >= self.lowest:
                continue
            if there <= self.goal - skips[k + 1]:
                self.visit(there, e)
                k = len(self.found)
                if k == rounds:
                    return
            if position > self.goal - skips[k + 1]:
                return
            self.lowest = there
            self.found.append(e)
            self.left.remove(e)


def blocks_received(position: int, size: int) -> list[int]:
    """Return the block that arrives at a position in each of the first rounds, from 0 to ceil(log2 size) - 1.

    A negative one is that number of blocks before the first of the phase: in the following rounds, which repeat these,
    it is larger by their number each time.
    """
    search = _Search(position, size)
    search.visit(0, len(search.left))
    count = rounds(size)
    return [search.own if e == count else e - count for e in search.found]


def _arrivals(position: int, g: Geometry) -> list[int]:
    """Return the segment that arrives at a position in every round; -1 for none. Numbers beyond the last segment stand
    for the last one, which is received once."""
    count, last = rounds(g.size), g.segments - 1
    if not position:
        return [-1] * (last + count)
    idle = -last % count
    blocks = blocks_received(position, g.size)
    arrivals, complete = [], False
    for turn in range(idle, idle + last + count):
        block = blocks[turn % count] + turn // count * count - idle
        arrivals.append(-1 if block < 0 or (block >= last and complete) else min(block, last))
        complete = complete or block >= last
    return arrivals


def _steps(g: Geometry) -> int:
    return g.segments - 1 + rounds(g.size) if g.size > 1 else 0


@algorithm(
    "broadcast",
    "circulant",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=lambda g: Cost(_steps(g), _steps(g) / g.segments),
    segmented=True,
)
def broadcast(g: Geometry) -> Iterator[Step]:
    """In every round a rank passes on one segment, to the rank one skip ahead: p halved again and again, in turn. No
    order of sends has fewer rounds for segments on ports that send and receive one message at a time (Träff 2024).

    Traffic (p - 1) N. Time for s segments: (s - 1 + ceil(log2 p)) (alpha + beta N / s); the chain has s - 2 + p rounds.
    """
    if g.size > 1:
        count, skips = rounds(g.size), _skips(g.size)
        position = (g.rank - g.root) % g.size
        hold = out if position else inp
        mine = _arrivals(position, g)
        theirs = [_arrivals((position + skips[k]) % g.size, g) for k in range(count)]
        idle = (1 - g.segments) % count

        for turn, arrives in enumerate(mine):
            label = f"circulant broadcast {turn + 1}/{len(mine)}"
            k = (turn + idle) % count
            if arrives >= 0:
                yield recv((g.rank - skips[k]) % g.size, out(arrives), label)
            if theirs[k][turn] >= 0:
                yield send((g.rank + skips[k]) % g.size, hold(theirs[k][turn]), label)
            yield settle(label)  # a rank that runs ahead would occupy its peers' ports in the others' rounds
    if g.rank == g.root:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
