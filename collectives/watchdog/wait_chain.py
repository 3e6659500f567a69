"""The wait chain of a call that runs out of time: from rank to rank, each waiting for the next.

    rank 0 --waits for--> rank 1 --waits for--> rank 2, which is in no call: rank 2 is the culprit

A rank knows only the rank that it waits for itself, which may wait for another one. So it asks that rank, then the next
one, until a rank waits for no other. See `StallReporter.explain_timeout`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_SHOWN: Final = 8
"""Ranks of a chain that its description names; of a longer chain the first and the last ones."""


class Wait(NamedTuple):
    """The wait of a rank in one call.

    key      names the communicator
    number   number of the collective; 0 for a message
    done     number of collectives of the communicator that the rank has completed
    phase    see CallPosition
    step     step of the call
    peer     the awaited rank of the world; None if the call waits for none
    """

    key: str
    number: int
    done: int
    phase: int
    step: int
    peer: int | None


class WaitChain(NamedTuple):
    """A wait chain.

    ranks     from the rank that asks to the end
    end       the reason why the last rank ends the chain, for people
    culprit   the rank that holds the others up
    """

    ranks: list[int]
    end: str
    culprit: int

    def describe(self, name: Callable[[int], str]) -> str:
        """For example 'rank 0 waits for rank 2 (node1, pid 4242), which is in no call'."""
        others = [f"waits for {name(rank)}" for rank in self.ranks[1:]]
        if len(others) > _SHOWN:
            others[_SHOWN // 2 : -_SHOWN // 2] = [f"... ({len(others) - _SHOWN} more) ..."]
        return f"rank {self.ranks[0]} {', which '.join([*others, self.end])}"


def _progress(wait: Wait) -> tuple[int, bool, int, int]:
    """Sorts waits by progress. A rank that waits for a message has not begun the collective after those done. Steps
    tell little, as ranks may have different programs."""
    return wait.done, wait.number > 0, wait.phase, wait.step


def find_wait_chain(rank: int, wait: Wait, ask: Callable[[int], Sequence[Wait] | None]) -> WaitChain:
    """The chain that begins with `wait` of `rank`.

    ask   returns the waits of a rank in all its calls: none if it is in no call, None if it does not answer
    """
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
                return WaitChain(ranks, "does not answer", rank)
            if not answer:
                return WaitChain(ranks, "is in no call", rank)
            wait = min(answer, key=lambda there: (there[:2] != before[:2], there.key != before.key))
        if before.number and wait.key == before.key and wait.done >= before.number:
            place = f"call {wait.number}" if wait.number else "a message"
            return WaitChain(ranks, f"has completed call {before.number} and is in {place}", rank)
        if rank in waits:  # a cycle: its wait with the least progress names the culprit
            behind = min((waits[member] for member in ranks[ranks.index(rank) : -1]), key=_progress)
            return WaitChain(ranks, "closes a cycle", behind.peer or 0)
        waits[rank] = wait
    return WaitChain(ranks, "waits for no rank", rank)
