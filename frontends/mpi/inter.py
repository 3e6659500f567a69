"""The collectives on buffers of an intercommunicator: messages between the ranks of the two groups.

Every rank sends to the ranks of the other group that need its data, and combines by itself; the number of messages
grows with the product of the two groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from frontends.mpi.blocks import Block, Blocks
from frontends.mpi.constants import PROC_NULL, ROOT
from frontends.mpi.datatypes import BYTE
from frontends.mpi.errors import error
from frontends.mpi.memory import Bytes
from frontends.mpi.ops import SUM, Op, combine_arrays, known
from frontends.mpi.peers import Peers
from frontends.mpi.plans import Exchange, Local, Plan, Sent
from frontends.mpi.specs import divided, message, various, vector


def _role(peers: Peers, root: int) -> str:
    """'root', 'idle' in the root's group, or 'other' in the other one. Raises Exception."""
    if root == ROOT:
        return "root"
    if root == PROC_NULL:
        return "idle"
    if not 0 <= root < peers.peer_count:
        raise error("ERR_ROOT", f"root={root}: must be ROOT, PROC_NULL, or 0 to {peers.peer_count - 1}")
    return "other"


def _idle() -> Plan:
    return Local(lambda: None)


def _bytes(nbytes: int) -> Block:
    """New memory."""
    return Block(np.empty(nbytes, np.uint8), 0, nbytes, BYTE)


def barrier(peers: Peers) -> Plan:
    nothing = _bytes(0)
    messages = [Sent(rank, nothing) for rank in range(peers.peer_count)]
    return Exchange(peers, messages, messages)


def bcast(peers: Peers, buf: Any, root: int = 0) -> Plan:
    role = _role(peers, root)
    if role == "idle":
        return _idle()
    block = message(buf, writable=role == "other")
    if role == "root":
        return Exchange(peers, [Sent(rank, block) for rank in range(peers.peer_count)], [])
    return Exchange(peers, [], [Sent(root, block)])


Divide = Callable[..., Blocks]


def _gathering(peers: Peers, sendbuf: Any, recvbuf: Any, root: int, divide: Divide) -> Plan:
    role = _role(peers, root)
    if role == "idle":
        return _idle()
    if role == "root":
        blocks = divide(recvbuf, peers.peer_count, writable=True).blocks
        return Exchange(peers, [], [Sent(rank, block) for rank, block in enumerate(blocks)])
    return Exchange(peers, [Sent(root, message(sendbuf, writable=False))], [])


def gather(peers: Peers, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    return _gathering(peers, sendbuf, recvbuf, root, divided)


def gatherv(peers: Peers, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    return _gathering(peers, sendbuf, recvbuf, root, vector)


def _scattering(peers: Peers, sendbuf: Any, recvbuf: Any, root: int, divide: Divide) -> Plan:
    role = _role(peers, root)
    if role == "idle":
        return _idle()
    if role == "root":
        blocks = divide(sendbuf, peers.peer_count, writable=False).blocks
        return Exchange(peers, [Sent(rank, block) for rank, block in enumerate(blocks)], [])
    return Exchange(peers, [], [Sent(root, message(recvbuf, writable=True))])


def scatter(peers: Peers, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    return _scattering(peers, sendbuf, recvbuf, root, divided)


def scatterv(peers: Peers, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    return _scattering(peers, sendbuf, recvbuf, root, vector)


def _to_all(peers: Peers, block: Block) -> list[Sent]:
    return [Sent(rank, block) for rank in range(peers.peer_count)]


def _each(blocks: Blocks) -> list[Sent]:
    return [Sent(rank, block) for rank, block in enumerate(blocks.blocks)]


def allgather(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    given, received = message(sendbuf, writable=False), divided(recvbuf, peers.peer_count, writable=True)
    return Exchange(peers, _to_all(peers, given), _each(received))


def allgatherv(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    given, received = message(sendbuf, writable=False), vector(recvbuf, peers.peer_count, writable=True)
    return Exchange(peers, _to_all(peers, given), _each(received))


def _exchanging(peers: Peers, sendbuf: Any, recvbuf: Any, divide: Divide) -> Plan:
    sent = divide(sendbuf, peers.peer_count, writable=False)
    return Exchange(peers, _each(sent), _each(divide(recvbuf, peers.peer_count, writable=True)))


def alltoall(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    return _exchanging(peers, sendbuf, recvbuf, divided)


def alltoallv(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    return _exchanging(peers, sendbuf, recvbuf, vector)


def alltoallw(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    return _exchanging(peers, sendbuf, recvbuf, various)


# ---- reductions: of the other group's contributions, in the order of its ranks


def _combined(parts: Sequence[Block], op: Op, result: Block) -> None:
    ronde_op, dtype = known(op).on_arrays(result.datatype)
    total = parts[0].array(dtype).copy()
    for part in parts[1:]:
        combined = part.array(dtype)
        combine_arrays(ronde_op, total, combined, combined)
        total = combined
    data: Bytes = total.view(np.uint8)
    result.write(data)


def _receiving(peers: Peers, sends: list[Sent], result: Block, op: Op) -> Plan:
    known(op).on_arrays(result.datatype)
    parts = [_bytes(result.nbytes) for _ in range(peers.peer_count)]
    receives = [Sent(rank, part) for rank, part in enumerate(parts)]
    return Exchange(peers, sends, receives, lambda: _combined(parts, op, result))


def reduce(peers: Peers, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Plan:
    role = _role(peers, root)
    if role == "idle":
        return _idle()
    if role == "root":
        return _receiving(peers, [], message(recvbuf, writable=True), op)
    return Exchange(peers, [Sent(root, message(sendbuf, writable=False))], [])


def allreduce(peers: Peers, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Plan:
    given, result = message(sendbuf, writable=False), message(recvbuf, writable=True)
    return _receiving(peers, _to_all(peers, given), result, op)


def reduce_scatter_block(peers: Peers, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Plan:
    sent = divided(sendbuf, peers.peer_count, writable=False)
    return _receiving(peers, _each(sent), message(recvbuf, writable=True), op)


def reduce_scatter(
    peers: Peers, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
) -> Plan:
    given, result = message(sendbuf, writable=False), message(recvbuf, writable=True)
    if recvcounts is not None:
        result = Block(result.memory, result.offset, int(recvcounts[peers.rank]), result.datatype)
    mine, theirs = _bytes(8), [_bytes(8) for _ in range(peers.peer_count)]
    mine.memory.view(np.int64)[0] = result.count
    Exchange(peers, _to_all(peers, mine), [Sent(rank, block) for rank, block in enumerate(theirs)]).run()
    sends, at = [], given.offset
    for rank, block in enumerate(theirs):
        count = int(block.memory.view(np.int64)[0])
        sends.append(Sent(rank, Block(given.memory, at, count, given.datatype)))
        at += count * given.datatype.extent
    return _receiving(peers, sends, result, op)
