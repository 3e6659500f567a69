"""Named operations: ranks submit them in different orders, the coordinator on rank 0 decides on one order for all.

Coordinator and Participant are state machines without I/O; the Engine carries their messages and runs the operations.
An operation that ran before travels as one bit of the response cache, as in Horovod. The other rooms use the Engine
and its error only. Change the message format in messages.py alone: all ranks of a job run the same version.
"""

from __future__ import annotations

from collectives.negotiation.engine import Engine
from collectives.negotiation.in_flight import MemoryInFlightError, NameInFlightError

__all__ = ["Engine", "MemoryInFlightError", "NameInFlightError"]
