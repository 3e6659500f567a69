"""The way of a snapshot from the ranks that have it to those that lack it.

The bytes are cut into a part for each rank that lacks them, and each part into a stripe for each rank that has them. So
all that have it send at once, each the same share of the bytes; then those that lacked it give each other their parts.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Final

import numpy as np

from collectives.communicator import Communicator
from collectives.elastic.snapshot import Bytes, Memory, Snapshot
from collectives.operations import Work

_TAG: Final = 1 << 20
_IN_FLIGHT: Final = 4
"""Chunks that a rank sends before it waits for the first of them."""


def give(comm: Communicator, snapshot: Snapshot | None, holders: list[int]) -> Snapshot:
    """Give the snapshot of the ranks `holders` to all others. Returns it. Collective.

    snapshot   None on a rank that lacks it; returned as it is where it is that of the first holder
    holders    ranks with the same arrays, at least one, ascending; the same list on all ranks. All get the outline of
               the first

    Raises as the methods of a communicator.
    """
    lacking = [rank for rank in range(comm.size) if rank not in holders]
    forms = None if snapshot is None else (snapshot.outline, snapshot.forms)
    outline, shapes = comm.broadcast_object(forms, root=holders[0])
    if snapshot is None:
        mine = Snapshot.empty(outline, shapes)
    else:
        mine = snapshot if outline == snapshot.outline else Snapshot(outline, snapshot.arrays)
    if not lacking:
        return mine
    memory = mine.memory()
    parts = _divided(0, memory.size, len(lacking))
    if comm.rank in holders:
        _send(comm, memory, holders.index(comm.rank), len(holders), dict(zip(lacking, parts, strict=True)))
    else:
        _receive(comm, memory, parts[lacking.index(comm.rank)], holders)
    if len(lacking) == 1:
        return mine
    others = comm.split(0 if comm.rank in lacking else None)
    if others is not None:
        for root, part in enumerate(parts):
            for start, stop in memory.chunks(*part):
                memory.write(start, others.broadcast(memory.read(start, stop), root))
        others.close()
    return mine


def _divided(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """A range in `count` parts of nearly the same size."""
    ends = [start + (stop - start) * place // count for place in range(count + 1)]
    return list(itertools.pairwise(ends))


def _send(comm: Communicator, memory: Memory, place: int, holders: int, parts: dict[int, tuple[int, int]]) -> None:
    sending: deque[Work[None]] = deque()
    for peer, part in parts.items():
        for start, stop in memory.chunks(*_divided(*part, holders)[place]):
            if len(sending) == _IN_FLIGHT:
                sending.popleft().wait()
            sending.append(comm.send_async(memory.read(start, stop), peer, tag=_TAG))
    for work in sending:
        work.wait()


def _receive(comm: Communicator, memory: Memory, part: tuple[int, int], holders: list[int]) -> None:
    stripes = [memory.chunks(*stripe) for stripe in _divided(*part, len(holders))]
    rounds = itertools.zip_longest(*stripes)  # in turn, so that all send at once
    chunks = [(peer, chunk) for row in rounds for peer, chunk in zip(holders, row, strict=True) if chunk is not None]
    receiving: deque[tuple[int, Work[Bytes]]] = deque()
    for peer, (start, stop) in chunks:
        if len(receiving) == _IN_FLIGHT * len(holders):
            _land(memory, *receiving.popleft())
        receiving.append((start, comm.recv_async(np.empty(stop - start, np.uint8), peer, tag=_TAG)))
    for start, work in receiving:
        _land(memory, start, work)


def _land(memory: Memory, start: int, work: Work[Bytes]) -> None:
    memory.write(start, work.wait())
