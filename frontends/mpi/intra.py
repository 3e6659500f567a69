"""The collectives on buffers of an intracommunicator: each is one call of Ronde, on bytes or on numbers to reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.mpi.blocks import Block, Blocks
from frontends.mpi.constants import PATIENCE
from frontends.mpi.errors import error
from frontends.mpi.ints import as_int, as_ints
from frontends.mpi.memory import is_in_place
from frontends.mpi.ops import SUM, Op, known
from frontends.mpi.peers import Peers
from frontends.mpi.plans import Collective, Plan
from frontends.mpi.repeats import Call
from frontends.mpi.specs import divided, message, various, vector


def check_root(peers: Peers, root: int) -> int:
    """A root as an int. Raises Exception."""
    number = as_int(root, "root")
    if not 0 <= number < peers.size:
        raise error("ERR_ROOT", f"root={root}: must be 0 to {peers.size - 1}")
    return number


def _check_equal(given: Block, result: Block, received: int) -> None:
    """Raise ValueError if the elements that are sent and received differ in number or kind."""
    if given.count != received:
        raise ValueError(f"message: {given.count} elements are sent and {received} received: must be equally many")
    kinds = given.datatype.dtype, result.datatype.dtype
    if (kinds[0] is None) != (kinds[1] is None) or (kinds[0] is not None and kinds[0] != kinds[1]):
        raise ValueError(f"message: {kinds[0]} is sent and {kinds[1]} received: must be equal")


def _check_own(peers: Peers, sent: int, received: int) -> None:
    """Raise ValueError if the bytes that this rank sends itself are not as many as it receives from itself."""
    if sent != received:
        raise ValueError(
            f"message: rank {peers.rank} sends itself {sent} bytes and receives {received}: must be equally many"
        )


def barrier(peers: Peers) -> Plan:
    return Collective(peers, lambda: Call("barrier", (), {"timeout": PATIENCE}))


def bcast(peers: Peers, buf: Any, root: int = 0) -> Plan:
    root = check_root(peers, root)
    here = root == peers.rank
    block = message(buf, writable=not here)

    def prepare() -> Call:
        if here:
            data = block.read()
            return Call("broadcast", (data, root), {"out": data, "timeout": PATIENCE})
        target, scatter = block.target()
        finish = None if scatter is None else lambda _: scatter(target)
        return Call("broadcast", (target, root), {"out": target, "timeout": PATIENCE}, finish)

    return Collective(peers, prepare)


def _gathering(peers: Peers, sendbuf: Any, blocks: Blocks | None, root: int | None, *, agreed: bool = True) -> Plan:
    """A gather or allgather; `blocks` are the places of all parts where they are received. `agreed`: all ranks know the
    sizes of these; elsewhere they are those of the own part."""
    in_place = is_in_place(sendbuf)
    if in_place:
        if blocks is None:
            raise ValueError("message: IN_PLACE is allowed at the root alone")
        given = blocks.blocks[peers.rank]
    else:
        given = message(sendbuf, writable=False)
        if blocks is not None and agreed:
            _check_own(peers, given.nbytes, blocks.sizes[peers.rank])

    def prepare() -> Call:
        data = given.read().copy() if in_place else given.read()
        options: dict[str, Any] = {"timeout": PATIENCE, "agreed": agreed}
        finish = None
        if agreed:
            options["expected"] = [len(data)] * peers.size
        if blocks is not None:
            target, scatter = blocks.target()
            options.update(out=target, expected=blocks.sizes)
            finish = None if scatter is None else lambda _: scatter(target)
        return (
            Call("allgather", (data,), options, finish)
            if root is None
            else Call("gather", (data, root), options, finish)
        )

    return Collective(peers, prepare)


def gather(peers: Peers, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    root = check_root(peers, root)
    here = root == peers.rank
    return _gathering(peers, sendbuf, divided(recvbuf, peers.size, writable=True) if here else None, root)


def gatherv(peers: Peers, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    root = check_root(peers, root)
    here = root == peers.rank
    return _gathering(peers, sendbuf, vector(recvbuf, peers.size, writable=True) if here else None, root, agreed=False)


def allgather(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    return _gathering(peers, sendbuf, divided(recvbuf, peers.size, writable=True), None)


def allgatherv(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    return _gathering(peers, sendbuf, vector(recvbuf, peers.size, writable=True), None)


def _scattering(peers: Peers, blocks: Blocks | None, recvbuf: Any, root: int, *, agreed: bool) -> Plan:
    here = peers.rank == root
    if is_in_place(recvbuf) and not here:
        raise ValueError("message: IN_PLACE is allowed at the root alone")
    result = None if is_in_place(recvbuf) else message(recvbuf, writable=True)
    if blocks is not None and result is not None and agreed:
        _check_own(peers, blocks.sizes[root], result.nbytes)

    def prepare() -> Call:
        options: dict[str, Any] = {"timeout": PATIENCE, "agreed": agreed}
        data = None
        if agreed and result is not None:
            options["counts"] = [result.nbytes] * peers.size
        if blocks is not None:
            data = blocks.read()
            options["counts"] = blocks.sizes
        if result is None:
            return Call("scatter", (data, root), options)
        target, scatter = result.target()
        options["out"] = target
        finish = None if scatter is None else lambda _: scatter(target)
        return Call("scatter", (data, root), options, finish)

    return Collective(peers, prepare)


def scatter(peers: Peers, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    root = check_root(peers, root)
    here = root == peers.rank
    return _scattering(
        peers, divided(sendbuf, peers.size, writable=False) if here else None, recvbuf, root, agreed=True
    )


def scatterv(peers: Peers, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    root = check_root(peers, root)
    here = root == peers.rank
    return _scattering(
        peers, vector(sendbuf, peers.size, writable=False) if here else None, recvbuf, root, agreed=False
    )


def _exchanging(peers: Peers, sent: Blocks | None, received: Blocks, equal: bool) -> Plan:
    """An alltoall; without `sent` the data are where the result goes."""
    if sent is not None:
        _check_own(peers, sent.sizes[peers.rank], received.sizes[peers.rank])

    def prepare() -> Call:
        data = received.read().copy() if sent is None else sent.read()
        target, scatter = received.target()
        options: dict[str, Any] = {"out": target, "timeout": PATIENCE}
        if not equal:
            given = received if sent is None else sent
            options.update(splits=given.sizes, expected=received.sizes, agreed=True)
        return Call("alltoall", (data,), options, None if scatter is None else lambda _: scatter(target))

    return Collective(peers, prepare)


def alltoall(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    sent = None if is_in_place(sendbuf) else divided(sendbuf, peers.size, writable=False)
    return _exchanging(peers, sent, divided(recvbuf, peers.size, writable=True), equal=True)


def alltoallv(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    sent = None if is_in_place(sendbuf) else vector(sendbuf, peers.size, writable=False)
    return _exchanging(peers, sent, vector(recvbuf, peers.size, writable=True), equal=False)


def alltoallw(peers: Peers, sendbuf: Any, recvbuf: Any) -> Plan:
    sent = None if is_in_place(sendbuf) else various(sendbuf, peers.size, writable=False)
    return _exchanging(peers, sent, various(recvbuf, peers.size, writable=True), equal=False)


# ---- reductions


def _reducing(
    peers: Peers, method: str, given: Block, result: Block | None, op: Op, arguments: tuple[Any, ...], **options: Any
) -> Plan:
    """A reduction of the numbers of `given` into `result`, which may be the same block."""
    ronde_op, dtype = known(op).on_arrays(given.datatype)

    def prepare() -> Call:
        data = given.array(dtype)
        if result is None:
            return Call(method, (data, ronde_op, *arguments), {"timeout": PATIENCE, **options})
        target, scatter = result.target()
        out = target.view(dtype)
        if given is result and scatter is None:
            data = out
        elif np.may_share_memory(data, out):
            data = data.copy()

        def finish(found: Any) -> None:
            if found is not None and scatter is not None:  # rank 0 gets nothing of an exscan
                scatter(target)

        finishing = None if scatter is None else finish
        return Call(method, (data, ronde_op, *arguments), {"out": out, "timeout": PATIENCE, **options}, finishing)

    return Collective(peers, prepare)


def _pair(sendbuf: Any, recvbuf: Any) -> tuple[Block, Block]:
    result = message(recvbuf, writable=True)
    if is_in_place(sendbuf):
        return result, result
    given = message(sendbuf, writable=False)
    _check_equal(given, result, result.count)
    return given, result


def reduce(peers: Peers, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Plan:
    root = check_root(peers, root)
    if root == peers.rank:
        given, result = _pair(sendbuf, recvbuf)
        return _reducing(peers, "reduce", given, result, op, (root,))
    if is_in_place(sendbuf):
        raise ValueError("message: IN_PLACE is allowed at the root alone")
    return _reducing(peers, "reduce", message(sendbuf, writable=False), None, op, (root,))


def allreduce(peers: Peers, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Plan:
    return _reducing(peers, "allreduce", *_pair(sendbuf, recvbuf), op, ())


def reduce_scatter_block(peers: Peers, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Plan:
    if is_in_place(sendbuf):
        first = divided(recvbuf, peers.size, writable=True).blocks[0]
        given = Block(first.memory, first.offset, first.count * peers.size, first.datatype)
        result = first
    else:
        part = divided(sendbuf, peers.size, writable=False).blocks[0]
        given = Block(part.memory, part.offset, part.count * peers.size, part.datatype)
        result = message(recvbuf, writable=True)
        _check_equal(part, result, result.count)
    return _reducing(peers, "reduce_scatter", given, result, op, (), counts=[result.count] * peers.size)


def reduce_scatter(
    peers: Peers, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
) -> Plan:
    given = message(recvbuf if is_in_place(sendbuf) else sendbuf, writable=is_in_place(sendbuf))
    result = message(recvbuf, writable=True)
    counts = share_counts(peers, given, result, recvcounts, in_place=is_in_place(sendbuf))
    if not is_in_place(sendbuf):
        _check_equal(given, result, given.count)
    result = Block(result.memory, result.offset, counts[peers.rank], result.datatype)
    total = Block(given.memory, given.offset, sum(counts), given.datatype)
    return _reducing(peers, "reduce_scatter", total, result, op, (), counts=counts)


def share_counts(
    peers: Peers, given: Block, result: Block, recvcounts: Sequence[int] | None, *, in_place: bool
) -> list[int]:
    """The elements of each rank. Without counts the ranks tell each other those of their buffers."""
    if recvcounts is None:
        if in_place:
            even, rest = divmod(given.count, peers.size)
            return [even + (rank < rest) for rank in range(peers.size)]
        return [int(n) for n in peers.call("allgather", np.array([result.count]))]
    counts = as_ints(recvcounts, "recvcounts")
    if len(counts) != peers.size or min(counts) < 0:
        raise ValueError(f"recvcounts={counts}: must be {peers.size} ints of at least 0, one for each rank")
    if sum(counts) > given.count or (not in_place and sum(counts) != given.count):
        raise ValueError(f"recvcounts={counts}: must be the {given.count} elements of the buffer together")
    if result.count < counts[peers.rank]:
        raise ValueError(f"recvcounts={counts}: the receive buffer has {result.count} elements")
    return counts


def scan(peers: Peers, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Plan:
    return _reducing(peers, "scan", *_pair(sendbuf, recvbuf), op, ())


def exscan(peers: Peers, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Plan:
    return _reducing(peers, "exscan", *_pair(sendbuf, recvbuf), op, ())
