"""The collectives on Python objects: pickles in the collectives of Ronde, or in messages between two groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from collectives import TransportError
from collectives.operations import decode, encode
from frontends.mpi.constants import PATIENCE, PROC_NULL, ROOT
from frontends.mpi.errors import error, failure
from frontends.mpi.intra import check_root
from frontends.mpi.operations import INTERNAL, Receiving, Sending, Several, completed
from frontends.mpi.peers import Peers
from frontends.mpi.pickles import encoded, pickle

T = TypeVar("T")
Combine = Callable[[Any, Any], Any]
_OBJECTS = INTERNAL + (1 << 20)
"""The tag of objects of collectives."""


def check_authenticated(peers: Peers) -> None:
    """Raise TransportError if the links do not prove the identity of the sender of a pickle."""
    if peers.process.world.size > 1 and not peers.channel.authenticated:
        raise failure(TransportError("objects are not unpickled over links that are not authenticated"))


def _run(peers: Peers, method: str, *arguments: Any) -> Any:
    return peers.call(method, *arguments, timeout=PATIENCE, pickler=None if pickle.is_default else pickle)


# ---- within one group


def bcast(peers: Peers, obj: Any, root: int = 0) -> Any:
    """The root's object. The root of one group has a copy of it too, as the others do."""
    if peers.is_inter or check_root(peers, root) != peers.rank:
        return same_at_root(peers, obj, root)
    pickler = None if pickle.is_default else pickle
    data = encode(obj, "obj", pickler)
    peers.call("broadcast_object", None, peers.rank, timeout=PATIENCE, pickler=_Made(data))
    return decode(data, pickler)


class _Made:
    """Gives a pickle that was made before."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def dumps(self, obj: Any) -> memoryview:
        return self._data

    def loads(self, data: Any) -> Any:
        return pickle.loads(data)


def same_at_root(peers: Peers, obj: Any, root: int) -> Any:
    """The root's object; on the root of one group it is the object itself."""
    if peers.is_inter:
        return _inter_bcast(peers, obj, root)
    root = check_root(peers, root)
    here = root == peers.rank
    return _run(peers, "broadcast_object", obj if here else None, root)


def gather(peers: Peers, sendobj: Any, root: int = 0) -> list[Any] | None:
    if peers.is_inter:
        return _inter_gather(peers, sendobj, root)
    root = check_root(peers, root)
    return _run(peers, "gather_object", sendobj, root)  # type: ignore[no-any-return]


def scatter(peers: Peers, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
    if peers.is_inter:
        return _inter_scatter(peers, sendobj, root)
    root = check_root(peers, root)
    here = root == peers.rank
    return _run(peers, "scatter_object", _each(peers.size, sendobj) if here else None, root)


def allgather(peers: Peers, sendobj: Any) -> list[Any]:
    if peers.is_inter:
        return _exchanged(peers, [sendobj] * peers.peer_count)
    return _run(peers, "allgather_object", sendobj)  # type: ignore[no-any-return]


def alltoall(peers: Peers, sendobj: Sequence[Any] | None) -> list[Any]:
    objects = _each(peers.peer_count, sendobj)
    if peers.is_inter:
        return _exchanged(peers, objects)
    check_authenticated(peers)
    parts = [encoded(one) for one in objects]
    splits = [len(part) for part in parts]
    found, sizes = peers.call("alltoall", np.concatenate(parts), splits, return_splits=True, timeout=PATIENCE)
    ends = np.cumsum(sizes)
    return [pickle.loads(found[end - size : end].data) for end, size in zip(ends, sizes, strict=True)]


def together(peers: Peers, call: Callable[[], T]) -> list[T]:
    """Make a call on all ranks; the results of all. If it fails on a rank, all raise. Collective."""
    result: Any = None
    failed: Exception | None = None
    try:
        result = call()
    except Exception as cause:  # noqa: BLE001 - the other ranks wait
        failed = cause
    everyone = allgather(peers, (result, failed))
    failures = [one for _, one in everyone if one is not None]
    if failures:
        raise failed or failures[0]
    return [result for result, _ in everyone]


def _each(count: int, objects: Sequence[Any] | None) -> list[Any]:
    found = [None] * count if objects is None else list(objects)
    if len(found) != count:
        raise ValueError(f"{len(found)} objects; must be {count}, one for each rank")
    return found


def _check_op(op: Any) -> None:
    """Raise TypeError for what cannot combine two objects."""
    if not callable(op):
        raise TypeError(f"op={op!r}: must be an Op or a function of two objects")


def reduce(peers: Peers, sendobj: Any, op: Combine, root: int = 0) -> Any:
    _check_op(op)
    found = gather(peers, sendobj, root)
    return None if found is None else functools.reduce(op, found)


def allreduce(peers: Peers, sendobj: Any, op: Combine) -> Any:
    _check_op(op)
    return functools.reduce(op, allgather(peers, sendobj))


def scan(peers: Peers, sendobj: Any, op: Combine) -> Any:
    _check_op(op)
    return functools.reduce(op, allgather(peers, sendobj)[: peers.rank + 1])


def exscan(peers: Peers, sendobj: Any, op: Combine) -> Any:
    _check_op(op)
    found = allgather(peers, sendobj)[: peers.rank]
    return functools.reduce(op, found) if found else None


# ---- messages of objects


def send(peers: Peers, obj: Any, rank: int, slot: int = 0) -> Sending:
    """Begin to send an object to a rank."""
    return Sending(peers, encoded(obj), rank, _OBJECTS + slot)


def receive(peers: Peers, rank: int, slot: int = 0) -> Receiving:
    """Begin to receive an object from a rank."""
    check_authenticated(peers)
    return Receiving(peers, None, lambda data: pickle.loads(data.data), rank, _OBJECTS + slot)


def along(peers: Peers, sends: Sequence[tuple[int, Any, int]], receives: Sequence[tuple[int, int]]) -> list[Any]:
    """Send objects (rank, object, slot) and receive others (rank, slot), which are the result."""
    incoming = [receive(peers, rank, slot) for rank, slot in receives]
    outgoing = [send(peers, obj, rank, slot) for rank, obj, slot in sends]
    completed(peers, Several([*incoming, *outgoing]))
    return [operation.result() for operation in incoming]


# ---- between two groups


def _exchanged(peers: Peers, objects: Sequence[Any]) -> list[Any]:
    return along(
        peers,
        [(rank, obj, 0) for rank, obj in enumerate(objects)],
        [(rank, 0) for rank in range(peers.peer_count)],
    )


def _check_inter_root(peers: Peers, root: int) -> None:
    if root not in (ROOT, PROC_NULL) and not 0 <= root < peers.peer_count:
        raise error("ERR_ROOT", f"root={root}: must be ROOT, PROC_NULL, or 0 to {peers.peer_count - 1}")


def _inter_bcast(peers: Peers, obj: Any, root: int) -> Any:
    _check_inter_root(peers, root)
    if root == ROOT:
        along(peers, [(rank, obj, 0) for rank in range(peers.peer_count)], [])
        return None
    return None if root == PROC_NULL else along(peers, [], [(root, 0)])[0]


def _inter_gather(peers: Peers, obj: Any, root: int) -> list[Any] | None:
    _check_inter_root(peers, root)
    if root == ROOT:
        return along(peers, [], [(rank, 0) for rank in range(peers.peer_count)])
    if root != PROC_NULL:
        along(peers, [(root, obj, 0)], [])
    return None


def _inter_scatter(peers: Peers, objects: Sequence[Any] | None, root: int) -> Any:
    _check_inter_root(peers, root)
    if root == ROOT:
        along(peers, [(rank, obj, 0) for rank, obj in enumerate(_each(peers.peer_count, objects))], [])
        return None
    return None if root == PROC_NULL else along(peers, [], [(root, 0)])[0]
