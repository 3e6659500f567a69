"""In which order the messages of a call can be exchanged where each rank exchanges one group of them after the other.

On a device a group of sends and receives ends before the next one begins, so all ranks must put each message into the
same place of one order, or they wait for each other for ever. The order is found by playing the programs of all ranks:
a round is all messages whose both ends have begun when nobody can go on otherwise. Every rank does that for itself, and
all come to the same, as they play the same programs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from collectives.lowered import ProofError
from collectives.program import Kind, Program


def rounds(programs: Sequence[Program], rank: int) -> tuple[int, ...]:
    """For every request of a rank's program the number of its round.

    programs   those of all ranks, for one call. Ranks whose calls are not in place may follow the order of those that
               are, which wait more often

    Raises ProofError if the ranks wait for each other.
    """
    at = [0] * len(programs)
    done: list[list[int]] = [[-1] * program.requests for program in programs]
    begun: dict[tuple[int, int], tuple[deque[int], deque[int]]] = defaultdict(lambda: (deque(), deque()))
    number = 0
    while any(here < len(program.instructions) for here, program in zip(at, programs, strict=True)):
        moved = False
        for me, program in enumerate(programs):
            for step in program.instructions[at[me] :]:
                if step.kind is Kind.AWAIT and done[me][step.request] < 0:
                    break
                if step.kind is Kind.SEND:
                    begun[me, step.peer][0].append(step.request)
                elif step.kind is Kind.RECV:
                    begun[step.peer, me][1].append(step.request)
                at[me] += 1
                moved = True
        for (source, target), (sends, receives) in begun.items():
            while sends and receives:
                done[source][sends.popleft()] = done[target][receives.popleft()] = number
                moved = True
        if not moved:
            raise ProofError("the ranks wait for each other")
        number += 1
    return tuple(done[rank])
