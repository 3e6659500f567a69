"""Steps, the elements of an algorithm. This module imports nothing of Ronde.

An algorithm is a generator of steps for one rank, written as straight code. Steps are executed in order, with one
exception: SEND and RECV are *begun* in order and complete asynchronously. A step that accesses memory of a pending
SEND or RECV first waits for that request; lowering derives these waits from overlaps, so algorithms do not state them.
AWAIT is for the rare algorithm that must wait without such an overlap.

Memory is named by chunks. Chunks are numbered globally: chunk 5 is the same part of the data on every rank, in every
buffer, and has the same size everywhere. The collective determines the chunks of IN and OUT (see contracts.py):

    allreduce, broadcast, reduce    IN and OUT hold all chunks
    allgather, gather               IN holds the rank's own block, OUT all chunks (gather: at the root)
    reduce_scatter, scatter         IN holds all chunks (scatter: at the root), OUT the rank's own block
    alltoall                        chunk s * size + d goes from rank s to rank d; IN holds a row, OUT a column

    IN       the caller's input; never written, except if IN and OUT are the same memory (in place)
    OUT      the caller's output; may hold intermediate results before the final one
    SCRATCH  private memory, divided into slots of one chunk of the largest size
    STAGE    the rank's own part of a one-sided window, readable by peers, divided into slots likewise; `rank` names
             its owner

Algorithms registered for arrays in windows (`Communicator.empty`) or for single copy also name the IN and OUT of peers
by `rank`. In windows they may write to the OUT of peers.

Messages match in order: the k-th SEND from a to b matches the k-th RECV at b from a, and both must be of the same
size. SIGNAL publishes the end of the rank's phase `phase` (phases count 1, 2, 3, ... per rank); WAIT blocks until
`peer` has published `phase`. SIGNAL and WAIT order accesses to windows and nothing else.

Successive calls alternate between the two halves of the staging window, so an algorithm need not wait at its end for
the readers of its STAGE. But every rank must WAIT for every other at least once in a call, so that no rank gets two
calls ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple


class Opcode(IntEnum):
    SEND = 0
    RECV = 1
    COPY = 2
    REDUCE = 3
    SIGNAL = 4
    WAIT = 5
    AWAIT = 6
    NATIVE = 7


class Marks(IntEnum):
    """The bits of a combination's marks. Joined with `|` they are a plain int.

    LAST      the result contains the contributions of all ranks
    A_ALONE   the operand a is the contribution of one rank
    B_ALONE   the operand b is the contribution of one rank
    PAIR      all of them: every combination of two ranks has these marks
    """

    LAST = 1
    A_ALONE = 2
    B_ALONE = 4
    PAIR = LAST | A_ALONE | B_ALONE


class Buf(IntEnum):
    IN = 0
    OUT = 1
    SCRATCH = 2
    STAGE = 3


class Ref(NamedTuple):
    """The memory of `width` consecutive chunks, from `chunk` on, in the buffer `buf`.

    slot   SCRATCH and STAGE only: the first slot; the chunks then determine the size only
    rank   the owner of the buffer; -1 for this rank
    base   for a part of a larger piece in SCRATCH: the first chunk of that piece, which begins at `slot`
    """

    buf: Buf
    chunk: int
    width: int = 1
    slot: int = -1
    rank: int = -1
    base: int = -1


class Step(NamedTuple):
    """One step of one rank.

    SEND    a to peer                RECV    into dst from peer        (a or dst None: an empty token)
    COPY    a to dst                 REDUCE  a op b to dst, in this operand order; dst may be a or b. phase has the
                                             Marks of a combination, or 0
    SIGNAL  phase                    WAIT    peer, phase
    AWAIT   until every SEND and RECV begun so far is complete
    NATIVE  the whole collective, by the transport
    """

    opcode: Opcode
    label: str
    peer: int = -1
    a: Ref | None = None
    b: Ref | None = None
    dst: Ref | None = None
    phase: int = 0

    @property
    def sent(self) -> int:
        """Chunks that it sends in a message; 0 if it is no SEND."""
        return self.a.width if self.opcode is _SEND and self.a is not None else 0

    @property
    def received(self) -> int:
        """Chunks that it receives in a message; 0 if it is no RECV."""
        return self.dst.width if self.opcode is _RECV and self.dst is not None else 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """The inputs of an algorithm. They contain no sizes and no data.

    segments  number of pieces of each block, for pipelining; chunk = block * segments + segment
    hosts     the host number of every rank; hosts are numbered by first appearance
    """

    rank: int
    size: int
    root: int = 0
    segments: int = 1
    hosts: tuple[int, ...] = ()

    def at(self, rank: int) -> Geometry:
        """Return the geometry of another rank."""
        return replace(self, rank=rank)


# Schedules have many steps. Looking up members of an enumeration and calling a named tuple would dominate the time.

_new = tuple.__new__
_IN, _OUT, _SCRATCH, _STAGE = Buf
_SEND, _RECV, _COPY, _REDUCE, _SIGNAL, _WAIT, _AWAIT, _NATIVE = Opcode


def inp(chunk: int, width: int = 1, rank: int = -1) -> Ref:
    return _new(Ref, (_IN, chunk, width, -1, rank, -1))


def out(chunk: int, width: int = 1, rank: int = -1) -> Ref:
    return _new(Ref, (_OUT, chunk, width, -1, rank, -1))


def scratch(slot: int, chunk: int, width: int = 1, base: int = -1) -> Ref:
    return _new(Ref, (_SCRATCH, chunk, width, slot, -1, base))


def stage(slot: int, chunk: int, width: int = 1, rank: int = -1) -> Ref:
    return _new(Ref, (_STAGE, chunk, width, slot, rank, -1))


def send(peer: int, a: Ref | None, label: str) -> Step:
    return _new(Step, (_SEND, label, peer, a, None, None, 0))


def recv(peer: int, dst: Ref | None, label: str) -> Step:
    return _new(Step, (_RECV, label, peer, None, None, dst, 0))


def copy(a: Ref, dst: Ref, label: str) -> Step:
    return _new(Step, (_COPY, label, -1, a, None, dst, 0))


def reduce(a: Ref, b: Ref, dst: Ref, label: str, marks: int = 0) -> Step:
    return _new(Step, (_REDUCE, label, -1, a, b, dst, marks))


def signal(phase: int, label: str) -> Step:
    return _new(Step, (_SIGNAL, label, -1, None, None, None, phase))


def wait(peer: int, phase: int, label: str) -> Step:
    return _new(Step, (_WAIT, label, peer, None, None, None, phase))


def settle(label: str) -> Step:
    return _new(Step, (_AWAIT, label, -1, None, None, None, 0))


def native(label: str) -> Step:
    return _new(Step, (_NATIVE, label, -1, None, None, None, 0))
