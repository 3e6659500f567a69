"""A speculative call by messages that has no effect: its own messages tell all ranks.

A rank whose part is not what the call assumes refuses the call: it sends an empty message with another check in the
place of each message. A rank that receives such a message sends such messages from then on, and ends the call without
effect:

    rank 0 refuses     rank 1               rank 2
       empty  ------>  another check
                       empty  ----------->  another check

In an allgather every element reaches every rank by a chain of messages, each of which is sent after the one before it
has been awaited. So all ranks hear of a refusal, and each message of the call has been sent and received.
"""

from __future__ import annotations

import contextlib
from typing import Final

from collectives.execution.positions import StepCounter
from collectives.planning import Plan
from collectives.schedule import Kind
from transports.base import MAX_CHECK, Request, Transport
from transports.errors import MismatchError

_EMPTY: Final = memoryview(bytearray())


def refuse(
    plan: Plan,
    transport: Transport,
    ranks: tuple[int, ...],
    tag: int,
    check: int,
    deadline: float,
    *,
    first: int,
    requests: list[Request | None],
    counter: StepCounter,
) -> None:
    """Send and receive the messages of a plan from step `first` on, without effect.

    check     of this call; the messages of a refusal have another one
    requests  those that the steps before have begun

    Raises the failures of the transport, DeadlineExceeded among them.
    """
    other, steps = check ^ MAX_CHECK, plan.program.instructions
    for at in range(first, len(steps)):
        counter.step, step = at, steps[at]
        match step.kind:
            case Kind.SEND:
                requests[step.request] = transport.isend(ranks[step.peer], tag, _EMPTY, other)
            case Kind.RECV:
                requests[step.request] = transport.irecv(ranks[step.peer], tag, _EMPTY, other)
            case Kind.AWAIT if (request := requests[step.request]) is not None:  # None: it has ended
                with contextlib.suppress(MismatchError):  # whatever it receives
                    request.wait(deadline)
