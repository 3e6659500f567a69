"""Going on after a failure, as ULFM does (user-level failure mitigation; Bland et al. 2013): agreement among the ranks
that are left, and communicators of them.

Ronde's contract is stronger than that of ULFM in one point and weaker in another. A lost rank ends the calls of all
communicators on all ranks at once: nobody has to revoke them. And the ranks that are left meet again as one world, so
that all of them must call Shrink or Agree, whichever communicators they had in common.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from collectives import AbortedError, PeerLost, RondeError
from frontends.mpi.constants import PATIENCE
from frontends.mpi.errors import Failure, error, failure
from frontends.mpi.memory import Bytes, as_memory
from frontends.mpi.operations import INTERNAL, Operation, Receiving, Sending, Several
from frontends.mpi.peers import Peers
from frontends.mpi.processes import current

_AGREEMENT: Final = INTERNAL + 8
"""The tag of the messages of an agreement."""
_FLAG: Final = np.dtype(np.int32)
_COMING_SECONDS: Final = 1.0
"""Seconds after which a rank that has revoked a communicator ends the calls of ranks that have not."""
_SLICE: Final = 1e-3


def failed(peers: Peers) -> tuple[int, ...]:
    """The ranks of the local group, as ranks of the world, that are known to have failed."""
    process = peers.process
    if process.successor is not None:
        return tuple(rank for rank in peers.ranks if rank not in process.moved)
    cause = process.world.failure
    lost = cause.peer if isinstance(cause, (PeerLost, AbortedError)) else None
    return tuple(rank for rank in peers.ranks if rank == lost)


def begin_agreement(peers: Peers, flag: int, place: Any = None) -> Operation:
    """Begin an agreement: its result is the bits that are set in the flags of all ranks of both groups. Every rank
    sends its flag to every other one. `place`: an array of one element for the result too."""
    everyone = Peers(peers.process, peers.messages, peers.messages.ranks)
    others = [rank for rank in range(everyone.size) if rank != everyone.rank]
    mine = np.array([flag], _FLAG).view(np.uint8)
    parts: list[Operation] = [
        Receiving(everyone, np.empty(_FLAG.itemsize, np.uint8), _number, rank, _AGREEMENT) for rank in others
    ]
    parts += [Sending(everyone, mine, rank, _AGREEMENT) for rank in others]

    def end(results: list[Any]) -> Any:
        common = flag
        for number in results[: len(others)]:
            common &= number
        if place is not None:
            place[0] = common
        return common

    return Several(parts, end)


def _number(data: Bytes) -> int:
    return int(data.view(_FLAG)[0])


def agree(peers: Peers, flag: int) -> int:
    """The bits that are set in the flags of all ranks that are left. Collective among them. Raises Exception with the
    class ERR_PROC_FAILED if ranks are lost that this rank has not acknowledged."""
    common = _common(peers, flag)
    unknown = [rank for rank in failed(peers) if rank not in peers.acknowledged]
    if unknown:
        raise error("ERR_PROC_FAILED", f"ranks {unknown} of the world are lost")
    return common


def _common(peers: Peers, flag: int) -> int:
    try:
        return _among_all(peers, flag)
    except Failure:
        return _among_all(among_those_left(peers), flag)


def _among_all(peers: Peers, flag: int) -> int:
    """The bits that are set in the flags of all ranks. Raises Failure if ranks are lost. A rank that has revoked the
    communicator ends the calls of those that do not come by themselves."""
    agreement = begin_agreement(peers, flag)
    until = time.monotonic() + _COMING_SECONDS
    while peers.revoked and not agreement.test():
        agreement.wait_briefly(_SLICE)
        if time.monotonic() >= until:
            peers.process.world.abort(f"MPI.Comm.Revoke of {peers.name or 'a communicator'}")
            break
    agreement.wait()
    return int(agreement.result())


def flag_of(buf: Any) -> Any:
    """The int that an immediate agreement reads and writes, as an array of one element. Raises TypeError for no memory,
    ValueError for another length."""
    data = as_memory(buf).data
    if len(data) != _FLAG.itemsize:
        raise ValueError(f"flag: {len(data)} bytes: must be one int of {_FLAG.itemsize} bytes")
    return data.view(_FLAG)


def shrink(peers: Peers) -> Peers:
    """A communicator of the ranks that are left. Collective among them."""
    try:
        _among_all(peers, 0)
        return peers.twin()
    except Failure:
        return among_those_left(peers).twin()


def among_those_left(peers: Peers) -> Peers:
    """The same communicator in the world of the ranks that are left, which the first call makes. Collective among the
    ranks of the world that are left."""
    left = peers.successor
    if left is None:
        left = peers.successor = _moved(peers)
    return left if left.process.world.failure is None else among_those_left(left)


def _moved(peers: Peers) -> Peers:
    process = peers.process
    try:
        if process.successor is None:
            rank = process.world.rank
            former = process.world.shrink().allgather(np.array([rank]), timeout=PATIENCE)
            process.moved = {int(rank): number for number, rank in enumerate(former)}
            process.successor = current()
        moved, now = process.moved, process.successor
        everyone = [moved[rank] for rank in peers.messages.ranks if rank in moved]
        channel = now.world.channel(everyone, timeout=PATIENCE)
    except RondeError as cause:
        raise failure(cause)  # noqa: B904 - its cause is the error
    mine = [moved[rank] for rank in peers.ranks if rank in moved]
    remote = None if peers.remote is None else [moved[rank] for rank in peers.remote if rank in moved]
    return Peers(now, channel, mine, remote=remote, local=peers.local and among_those_left(peers.local))
