"""The short way of blocking messages: of plain arrays, and of bytes.

An array is plain if it is NumPy's own, of numbers, and one piece of memory. Everything else takes the way by blocks and
datatypes (`specs`), and by operations, which costs several times as many instructions. The other rank may take either
way: the messages are the same. Each function returns False or None, with nothing done, if a call is not for it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from collectives import RondeError
from frontends.mpi.constants import ANY_SOURCE, ANY_TAG, PATIENCE, TAG_LIMIT
from frontends.mpi.errors import failure
from frontends.mpi.operations import Awaited, Receiving, completed, tags_of
from frontends.mpi.peers import Peers
from frontends.mpi.status import Status

_NUMBERS: Final = frozenset(map(np.dtype, "bhilqBHILQfd"))
_ndarray: Final = np.ndarray


def bytes_of(buf: Any) -> memoryview | None:
    """The bytes of a plain array; None if it is not plain, or empty."""
    if type(buf) is not _ndarray or buf.dtype not in _NUMBERS or not buf.flags.c_contiguous or not buf.size:
        return None
    data: memoryview = buf.data.cast("B")
    return data


def send(peers: Peers, data: memoryview | None, dest: int, tag: int) -> bool:
    """Send bytes to a rank, unless this could wait for a thread of this process."""
    if data is None or not _goes_at_once(peers, dest, tag):
        return False
    try:
        peers.messages.send(data, peers.numbers[dest], tag, PATIENCE).wait()
    except RondeError as cause:
        raise failure(cause)  # noqa: B904 - its cause is the error
    except BaseException as interrupt:
        peers.messages.left(interrupt)
        raise
    return True


def recv(peers: Peers, view: memoryview | None, source: int, tag: int, status: Status | None) -> memoryview | None:
    """The payload of a message that comes in a moment, in `view`, or in new memory if that is None."""
    if not _can_come(peers, source, tag) or (view is not None and view.readonly):
        return None
    try:
        found = peers.messages.take(view, None if source == ANY_SOURCE else peers.numbers[source], tags_of(tag))
    except RondeError as cause:
        raise failure(cause)  # noqa: B904 - its cause is the error
    if found is None:
        return None
    if status is not None:
        status.fill(peers.rank_of(found.source), found.tag, len(found.view))
    return found.view


def sendrecv(
    peers: Peers,
    data: memoryview | None,
    dest: int,
    sendtag: int,
    view: memoryview | None,
    source: int,
    recvtag: int,
    status: Status | None,
) -> memoryview | None:
    """Send bytes to a rank, and receive a message as `recv`, however long it takes. The payload."""
    if data is None or not (_goes_at_once(peers, dest, sendtag) and _can_come(peers, source, recvtag)):
        return None
    if view is not None and view.readonly:
        return None
    try:
        sending = peers.messages.send(data, peers.numbers[dest], sendtag, PATIENCE)
    except RondeError as cause:
        raise failure(cause)  # noqa: B904 - its cause is the error
    payload = recv(peers, view, source, recvtag, status)
    receiving = None
    if payload is None:
        receiving = Receiving(
            peers, None if view is None else np.frombuffer(view, np.uint8), _as_it_is, source, recvtag
        )
        completed(peers, receiving)
    completed(peers, Awaited(peers, sending))
    if receiving is None:
        return payload
    try:
        found: memoryview = receiving.result().data
        return found
    finally:
        if status is not None:
            status.fill(*receiving.envelope())


def _as_it_is(data: Any) -> Any:
    return data


def _goes_at_once(peers: Peers, dest: int, tag: int) -> bool:
    """True for a rank and a tag that are good, and if there are no threads whose send must not wait."""
    if type(dest) is not int or type(tag) is not int:
        return False
    return 0 <= dest < peers.peer_count and 0 <= tag <= TAG_LIMIT and not peers.process.is_local and not peers.revoked


def _can_come(peers: Peers, source: int, tag: int) -> bool:
    """True for a source and a tag of which a message can come."""
    if type(source) is not int or type(tag) is not int:
        return False
    good = 0 <= source < peers.peer_count or source == ANY_SOURCE
    return good and (0 <= tag <= TAG_LIMIT or tag == ANY_TAG) and not peers.revoked
