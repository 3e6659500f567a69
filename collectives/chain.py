"""Who is behind it when a call runs out of time: from rank to rank, whom each of them waits for.

A rank whose time is over knows only whom it waits for itself, who may wait for somebody else. So it asks: that rank,
then the one that this one waits for, and so on, until there is one that does not wait for another. See `Stall.explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_SHOWN: Final = 8
"""Ranks of a chain that are named; of a longer one the first and the last."""


class Wait(NamedTuple):
    """That a rank, which has done `done` collectives of the communicator `key`, waits for `peer` (None: for no rank),
    at `step` of collective `number` (0: of a message)."""

    key: str
    number: int
    done: int
    step: int
    peer: int | None


class Chain(NamedTuple):
    """The ranks of a chain, from the one that asks; how it ends, in words; and the rank that holds all of them up."""

    ranks: list[int]
    end: str
    culprit: int

    def describe(self, name: Callable[[int], str]) -> str:
        """'rank 0 waits for rank 2 (node1, pid 4242), which is in no call'."""
        others = [f"waits for {name(rank)}" for rank in self.ranks[1:]]
        if len(others) > _SHOWN:
            others[_SHOWN // 2 : -_SHOWN // 2] = [f"... ({len(others) - _SHOWN} more) ..."]
        return f"rank {self.ranks[0]} {', which '.join([*others, self.end])}"


def _progress(wait: Wait) -> tuple[int, bool, int]:
    """How far a rank has come: who waits for a message has not begun the collective after those that it has done."""
    return wait.done, wait.number > 0, wait.step


def trace(rank: int, wait: Wait, ask: Callable[[int], Sequence[Wait] | None]) -> Chain:
    """The chain that begins with `wait` of `rank`. `ask` tells what a rank waits for in the calls that it is in;
    nothing if it is in none, None if it does not answer."""
    waits = {rank: wait}
    ranks = [rank]
    while wait.peer is not None:
        before, rank = wait, wait.peer
        ranks.append(rank)
        if rank in waits:
            wait = waits[rank]
        else:
            answer = ask(rank)
            if answer is None:
                return Chain(ranks, "does not answer", rank)
            if not answer:
                return Chain(ranks, "is in no call", rank)
            wait = min(answer, key=lambda there: (there[:2] != before[:2], there.key != before.key))
        if before.number and wait.key == before.key and wait.done >= before.number:
            where = f"call {wait.number}" if wait.number else "a message"
            return Chain(ranks, f"is done with call {before.number} and in {where}", rank)
        if rank in waits:
            behind = min((waits[member] for member in ranks[ranks.index(rank) : -1]), key=_progress)
            return Chain(ranks, "was named before", behind.peer or 0)
        waits[rank] = wait
    return Chain(ranks, "waits for nobody", rank)
