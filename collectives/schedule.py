"""Steps: what an algorithm is made of. Imports nothing of Ronde.

An algorithm is a generator of steps for one rank, written as straight code. Steps are executed in order, with one
liberty: SEND and RECV are *begun* in order and complete on their own. A step that touches memory which a pending
SEND or RECV uses waits for it first; nobody writes that wait down, lowering derives it from the overlap. AWAIT is for
the rare algorithm that wants to hold back although no memory asks for it.

Memory is named by chunks. Chunks are numbered globally: chunk 5 is the same part of the data on every rank, in every
buffer, and has the same size everywhere. Which chunks a rank's IN and OUT hold is fixed by the collective (specs.py):

    allreduce, broadcast, reduce    IN and OUT hold all chunks
    allgather, gather               IN holds the rank's own block, OUT all chunks (gather: at the root)
    reduce_scatter, scatter         IN holds all chunks (scatter: at the root), OUT the rank's own block
    alltoall                        chunk s * size + d goes from rank s to rank d; IN holds a row, OUT a column

    IN       what the caller gave; never written, except where IN and OUT are the same memory (in place)
    OUT      what the caller gets; may be used as a workplace before it holds the result
    SCRATCH  private; `slots`, each as large as the largest piece that is ever put into it
    STAGE    the own part of a one-sided window: peers read it; `slots` likewise. `rank` names whose part it is

Where the callers' arrays lie in windows themselves (`Communicator.empty`), an algorithm may be registered for that:
then `rank` names whose IN or OUT it is, and peers' OUT may be written.

Two-sided steps pair up in order: the k-th SEND from a to b goes into the k-th RECV at b from a, and both must be of
the same size. SIGNAL publishes that the own phase `phase` is over (phases count 1, 2, 3, ... per rank); WAIT holds
until `peer` has published `phase`. SIGNAL and WAIT order accesses to windows and nothing else. Successive calls use
the two halves of the staging window in turn, so an algorithm need not wait at its end for those who read it there; but
every rank must WAIT for every other at least once in a call, which is what keeps anyone from being two calls ahead.
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


class Buf(IntEnum):
    IN = 0
    OUT = 1
    SCRATCH = 2
    STAGE = 3


class Ref(NamedTuple):
    """`width` consecutive chunks from `chunk` on: where they stand in `buf`.

    In IN and OUT that is where the buffer holds them. In SCRATCH and STAGE it is slot `slot`, and the chunks only
    say how large the piece is; where it is part of a larger piece in that slot, `base` is the chunk that one begins
    with. `rank` >= 0 names a peer's buffer.
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
    COPY    a to dst                 REDUCE  a op b to dst, in this operand order; dst may be a or b. phase 1 says
                                             that all ranks' contributions are in the result, for what is done last
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


@dataclass(frozen=True, slots=True)
class Geometry:
    """What an algorithm may know: who and where it is, never sizes or contents.

    segments  pieces that each block is cut into, for pipelining; chunk = block * segments + segment
    hosts     for every rank the index of its host (hosts numbered by first appearance)
    """

    rank: int
    size: int
    root: int = 0
    segments: int = 1
    hosts: tuple[int, ...] = ()

    def at(self, rank: int) -> Geometry:
        """The same world seen from another rank."""
        return replace(self, rank=rank)


# Schedules have many steps: looking members up in an enumeration and calling a named tuple would take most of the time.

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


def reduce(a: Ref, b: Ref, dst: Ref, label: str, last: bool = False) -> Step:
    return _new(Step, (_REDUCE, label, -1, a, b, dst, int(last)))


def signal(phase: int, label: str) -> Step:
    return _new(Step, (_SIGNAL, label, -1, None, None, None, phase))


def wait(peer: int, phase: int, label: str) -> Step:
    return _new(Step, (_WAIT, label, peer, None, None, None, phase))


def settle(label: str) -> Step:
    return _new(Step, (_AWAIT, label, -1, None, None, None, 0))


def native(label: str) -> Step:
    return _new(Step, (_NATIVE, label, -1, None, None, None, 0))
