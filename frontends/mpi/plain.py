"""The short way of blocking collectives on plain arrays: one call of Ronde on the arrays themselves.

An array is plain if it is NumPy's own, of numbers, and one piece of memory. Everything else takes the way by blocks and
datatypes (`specs`, `intra`), which costs several times as many instructions. Other ranks may take that way in the same
call: both make the same call of Ronde, on bytes, or on numbers to be combined. Each function returns False, with
nothing done, if a call is not for it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from frontends.mpi.constants import PATIENCE
from frontends.mpi.ops import SUM, Op
from frontends.mpi.peers import Peers

_NUMBERS: Final = frozenset(map(np.dtype, "bhilqBHILQfd"))


def _is_plain(array: Any) -> bool:
    return type(array) is np.ndarray and array.dtype in _NUMBERS and array.flags.c_contiguous


def _bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


def _is_short(peers: Peers) -> bool:
    return not peers.is_inter and not peers.process.attended


def allreduce(peers: Peers, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> bool:
    """Allreduce of a plain array into another one of its size and kind, with an operation of Ronde's."""
    if not (_is_plain(sendbuf) and _is_plain(recvbuf) and _is_short(peers)) or sendbuf is recvbuf:
        return False
    name: Any = op._known().name
    if not name or sendbuf.dtype is not recvbuf.dtype or sendbuf.size != recvbuf.size or not recvbuf.flags.writeable:
        return False
    peers.call("allreduce", sendbuf.reshape(-1), name, out=recvbuf.reshape(-1), timeout=PATIENCE)
    return True


def bcast(peers: Peers, buf: Any, root: int = 0) -> bool:
    """Bcast of a plain array that may be written."""
    if not (_is_plain(buf) and _is_short(peers)) or not buf.flags.writeable or not 0 <= root < peers.size:
        return False
    data = _bytes(buf)
    peers.call("broadcast", data, root, out=data, timeout=PATIENCE)
    return True


def allgather(peers: Peers, sendbuf: Any, recvbuf: Any) -> bool:
    """Allgather of plain arrays into one for all of them."""
    if not (_is_plain(sendbuf) and _is_plain(recvbuf) and _is_short(peers)) or not recvbuf.flags.writeable:
        return False
    if sendbuf.dtype is not recvbuf.dtype or recvbuf.size != peers.size * sendbuf.size:
        return False
    sizes = [sendbuf.nbytes] * peers.size
    peers.call("allgather", _bytes(sendbuf), out=_bytes(recvbuf), expected=sizes, timeout=PATIENCE)
    return True
