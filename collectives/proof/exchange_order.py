"""A common order of the messages of a call, for devices that exchange messages in groups.

On a device a group of sends and receives ends before the next one begins. All ranks must therefore put each message
into the same group, or they deadlock. A round is such a group. The rounds are found by running the programs of all
ranks: when no rank can proceed without a message, all messages whose two ends have begun form the next round. Every
rank computes the rounds itself, from the same programs, so all ranks get the same rounds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from collectives.proof.all_ranks import ProofError
from collectives.schedule import Kind, Program


def exchange_rounds(programs: Sequence[Program], rank: int) -> tuple[int, ...]:
    """Return the round of every request of a rank's program.

    programs   the programs of all ranks for one call. Programs for calls in place serve also for calls that are not,
               since they wait more often

    Raises ProofError for a deadlock.
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
