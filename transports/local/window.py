"""Windows among threads, which share their memory anyway."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from transports.base import MAX_CHECK
from transports.driver import Awaited
from transports.engine import Engine
from transports.errors import ClosedError, PeerLost
from transports.exposing import EngineWindow
from transports.loop import Bell
from transports.onesided import KEPT, Memory

_ALIGNMENT: Final = 64


class Part:
    """One rank's share of a window.

    checks  the last epochs with a check, each with it, the oldest first
    asking  the doorbells of the ranks that sleep until the next epoch
    """

    def __init__(self, nbytes: int) -> None:
        memory = np.zeros(nbytes + _ALIGNMENT, np.uint8)
        offset = -memory.ctypes.data % _ALIGNMENT
        self.memory = memory[offset : offset + nbytes]
        self.epoch = 0
        self.exposed: tuple[NDArray[np.uint8], ...] = ()
        self.checks: tuple[tuple[int, int], ...] = ((0, 0),) * KEPT
        self.asking: set[Bell] = set()


class Exposure:
    """A window as all its ranks see it. `came`: the ranks that have come to it. `refused`: the reason why there is no
    memory for it; empty if there is."""

    def __init__(self, ranks: tuple[int, ...], nbytes: int) -> None:
        self.ranks = ranks
        self.nbytes = nbytes
        self.came: set[int] = set()
        self.refused = ""
        self.parts: list[Part] = []
        try:
            self.parts += [Part(nbytes) for _ in ranks]
        except MemoryError as error:
            self.refused = str(error)

    def missing(self) -> list[int]:
        """The ranks that have not come."""
        return [rank for rank in self.ranks if rank not in self.came]


class LocalWindow(EngineWindow):
    """Memory that is shared because the ranks are threads."""

    def __init__(self, engine: Engine, exposure: Exposure, bell: Bell, forget: Callable[[LocalWindow], None]) -> None:
        """`bell` is the doorbell of this rank; `forget` is called once, by `close`."""
        super().__init__(engine, exposure.ranks, exposure.nbytes)
        self._bell = bell
        self._forget = forget
        self._parts = exposure.parts
        self._views = [part.memory.data for part in exposure.parts]
        self._closed = False

    def view(self, index: int) -> memoryview:
        self._check_open()
        return self._views[index]

    def publish(self, epoch: int, check: int | None = None) -> None:
        if check is not None and not 0 <= check <= MAX_CHECK:
            raise ValueError(f"check={check!r}: must be 0 to 2**32 - 1")
        self._check_open()
        part = self._parts[self.index]
        if epoch <= part.epoch:
            raise ValueError(f"epoch={epoch!r}: must be greater than {part.epoch}, the epoch published before")
        if check is not None:
            part.checks = (*part.checks[1:], (epoch, check))
        part.epoch = epoch
        while part.asking:  # a rank that is about to sleep either sees the new epoch, or is seen here
            part.asking.pop().ring()

    def wait(self, index: int, epoch: int, deadline: float, check: int | None = None) -> None:
        part = self._parts[index]
        if part.epoch < epoch:
            self.await_epoch(index, epoch, deadline)
        if check is not None and (epoch, check) not in part.checks:
            self.compare(index, epoch, check, dict(part.checks))

    def expose_arrays(self, *pieces: Memory) -> bool:
        self._parts[self.index].exposed = tuple(np.asarray(piece).view(np.uint8) for piece in pieces)
        return True

    def read(self, index: int, piece: int, offset: int, target: Memory) -> None:
        self._check_open()
        here = np.asarray(target).view(np.uint8)
        here[...] = self._parts[index].exposed[piece][offset : offset + len(here)]
        engine, peer = self._engine, self.ranks[index]
        with engine.lock:
            engine.check_sound()  # a peer that has failed need not keep its exposed arrays
            if engine.departed(peer):  # nor one that has closed
                lost = f"rank {engine.rank} lost {engine.group.describe(peer)}"
                text = f"{lost}: it closed its transport while its memory was read"
                raise PeerLost(text, rank=engine.rank, peer=peer)

    def close(self) -> None:
        with self._engine.lock:
            if not self._closed:
                self._closed = True
                self._forget(self)
                for view in self._views:
                    with suppress(BufferError):  # an array is still a view of the memory, and keeps it
                        view.release()
                self._views.clear()
                self._engine.driver.interrupt()

    # For waits.

    def epoch_of(self, index: int) -> int:
        return self._parts[index].epoch

    def ask(self, index: int) -> None:
        self._parts[index].asking.add(self._bell)

    def raise_if_lost(self, index: int, awaited: Awaited) -> None:
        self._engine.check_peer(self.ranks[index], awaited, receiving=True)
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the window was closed", rank=self._engine.rank)
