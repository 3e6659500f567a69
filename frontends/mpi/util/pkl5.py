"""Communicators whose objects travel with their large buffers apart from the pickle: arrays are not copied into it, nor
out of it when they are received.

    from ronde.mpi.util import pkl5
    comm = pkl5.Intracomm(MPI.COMM_WORLD)

A message is one frame: lengths, the pickle, and the buffers, each at a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from frontends.mpi import MPI
from frontends.mpi.memory import Bytes
from frontends.mpi.objects import same_at_root
from frontends.mpi.pickles import Pickle as Pickle

_ALIGNMENT: Final = 64
Message = MPI.Message
Request = MPI.Request
Status = MPI.Status
ANY_SOURCE, ANY_TAG, PROC_NULL, ROOT = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.PROC_NULL, MPI.ROOT
pickle = Pickle()
"""The serialization of the objects; programs may replace it."""


class _BigMPI:
    """mpi4py's bound on the bytes of one message, which programs may set. Messages of Ronde have none."""

    blocksize = 1 << 30


_bigmpi = _BigMPI()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def encoded(obj: Any) -> Bytes:
    """The frame of an object."""
    data, buffers = pickle.dumps_oob(obj)
    parts = [np.frombuffer(data, np.uint8), *(one._bytes() for one in buffers)]
    lengths = np.array([len(parts), *map(len, parts)], np.int64)
    at = _aligned(lengths.nbytes)
    frame: Bytes = np.empty(at + sum(_aligned(len(part)) for part in parts), np.uint8)
    frame[: lengths.nbytes] = lengths.view(np.uint8)
    for part in parts:
        frame[at : at + len(part)] = part
        at += _aligned(len(part))
    return frame


def decoded(frame: Bytes) -> Any:
    """The object of a frame, whose arrays show the frame's memory."""
    if not len(frame):
        return None
    count = int(frame[:8].view(np.int64)[0])
    lengths = frame[8 : 8 + 8 * count].view(np.int64).tolist()
    at, parts = _aligned(8 * (1 + count)), []
    for length in lengths:
        parts.append(frame[at : at + length])
        at += _aligned(length)
    return pickle.loads_oob(parts[0].data, parts[1:])


class Comm(MPI.Comm):
    """The messages and collectives of objects, in frames."""

    @staticmethod
    def _encode(obj: Any) -> Bytes:
        return encoded(obj)

    @staticmethod
    def _decode(data: Bytes) -> Any:
        return decoded(data)

    def bcast(self, obj: Any, root: int = 0) -> Any:
        sends = root == (ROOT if self.is_inter else self.rank)
        found = same_at_root(self.peers, encoded(obj) if sends else None, root)
        return None if found is None else decoded(found)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        found = super().gather(encoded(sendobj), root)
        return None if found is None else [decoded(frame) for frame in found]

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        found = super().scatter(None if sendobj is None else [encoded(obj) for obj in sendobj], root)
        return None if found is None else decoded(found)

    def allgather(self, sendobj: Any) -> list[Any]:
        return [decoded(frame) for frame in super().allgather(encoded(sendobj))]

    def alltoall(self, sendobj: Sequence[Any] | None) -> list[Any]:
        frames = None if sendobj is None else [encoded(obj) for obj in sendobj]
        return [None if frame is None else decoded(frame) for frame in super().alltoall(frames)]


class Intracomm(Comm, MPI.Intracomm):
    """A communicator of one group with objects in frames."""


class Intercomm(Comm, MPI.Intercomm):
    """A communicator of two groups with objects in frames."""
