"""Windows among threads, which share their memory anyway."""

from __future__ import annotations

from contextlib import suppress
from threading import RLock
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from transports.base import MAX_CHECK, Group
from transports.errors import ClosedError, DeadlineExceeded, MismatchError
from transports.onesided import Memory, Window

ALIGNMENT: Final = 64
KEPT_CHECKS: Final = 8


class _Part:
    """One rank's share of a window."""

    def __init__(self, nbytes: int) -> None:
        memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
        offset = -memory.ctypes.data % ALIGNMENT
        self.memory = memory[offset : offset + nbytes]
        self.epoch = 0
        self.exposed: tuple[NDArray[np.uint8], ...] = ()
        self.checks: list[tuple[int, int]] = [(0, 0)] * KEPT_CHECKS


class Exposure:
    """A window as all its ranks see it."""

    def __init__(self, ranks: tuple[int, ...], nbytes: int) -> None:
        self.ranks = ranks
        self.nbytes = nbytes
        self.came: set[int] = set()
        self.parts = [_Part(nbytes) for _ in ranks]


class Host(Protocol):
    """The transport of a window."""

    rank: int
    group: Group
    lock: RLock
    windows: set[LocalWindow]

    def check_peer(self, peer: int) -> None:
        """Raises if a wait for `peer` cannot end well."""

    def pause(self, deadline: float) -> bool:
        """Wait for news, with the lock held; False if the deadline has passed."""

    def wake_all(self) -> None:
        """Let every rank look again. Raises the first failure, or ClosedError."""


class LocalWindow(Window):
    """Memory that is shared because the ranks are threads."""

    def __init__(self, transport: Host, exposure: Exposure) -> None:
        self.ranks = exposure.ranks
        self.index = exposure.ranks.index(transport.rank)
        self.nbytes = exposure.nbytes
        self._transport = transport
        self._parts = exposure.parts
        self._views = [part.memory.data for part in exposure.parts]
        self._closed = False

    def view(self, index: int) -> memoryview:
        self._check_open()
        return self._views[index]

    def publish(self, epoch: int, check: int = 0) -> None:
        if not 0 <= check <= MAX_CHECK:
            raise ValueError(f"check={check!r}: must be 0 to 2**32 - 1")
        with self._transport.lock:
            self._check_open()
            part = self._parts[self.index]
            if epoch <= part.epoch:
                raise ValueError(f"epoch={epoch!r}: must be greater than {part.epoch}, the epoch published before")
            part.checks[epoch % KEPT_CHECKS] = (epoch, check)
            part.epoch = epoch
            self._transport.wake_all()

    def wait(self, index: int, epoch: int, deadline: float, check: int | None = None) -> None:
        transport, part, peer = self._transport, self._parts[index], self.ranks[index]
        with transport.lock:
            while part.epoch < epoch:
                transport.check_peer(peer)
                self._check_open()
                if not transport.pause(deadline):
                    raise DeadlineExceeded(
                        f"rank {transport.rank} waited too long for {transport.group.describe(peer)} to reach epoch "
                        f"{epoch} of a window; it is at {part.epoch}",
                        rank=transport.rank,
                        peer=peer,
                    )
            if check is None:
                return
            published, kept = part.checks[epoch % KEPT_CHECKS]
            if published > epoch:  # the check is no longer kept
                return
            if published != epoch or kept != check:
                said = f"check {kept:#010x}" if published == epoch else "nothing"
                raise MismatchError(
                    f"{transport.group.describe(peer)} published {said} with epoch {epoch} of a window; "
                    f"rank {transport.rank} expected check {check:#010x}",
                    rank=transport.rank,
                    peer=peer,
                )

    def expose_arrays(self, *pieces: Memory) -> bool:
        self._parts[self.index].exposed = tuple(np.asarray(piece).view(np.uint8) for piece in pieces)
        return True

    def read(self, index: int, piece: int, offset: int, target: Memory) -> None:
        self._check_open()
        here = np.asarray(target).view(np.uint8)
        here[...] = self._parts[index].exposed[piece][offset : offset + len(here)]
        with self._transport.lock:
            self._transport.check_peer(
                self.ranks[index]
            )  # a peer that has failed or closed need not keep its exposed arrays

    def close(self) -> None:
        with self._transport.lock:
            if not self._closed:
                self._closed = True
                self._transport.windows.discard(self)
                for view in self._views:
                    with suppress(BufferError):  # an array is still a view of the memory, and keeps it
                        view.release()
                self._views.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the window was closed", rank=self._transport.rank)
