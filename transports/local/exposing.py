"""Making a window: its ranks gather at the hub."""

from __future__ import annotations

from transports import exposing
from transports.driver import Awaited
from transports.engine import Engine
from transports.errors import DeadlineExceeded, MismatchError
from transports.local.hub import Hub
from transports.local.seat import Seat
from transports.local.window import Exposure, LocalWindow
from transports.onesided import NoRoom


class Exposures(exposing.Exposures[LocalWindow]):
    """The windows of a link. `hub` must be that of the group before the first is made."""

    def __init__(self, engine: Engine, hub: Hub, seat: Seat, ranks: tuple[int, ...]) -> None:
        """`ranks`: those that the link joins."""
        super().__init__(engine, ranks)
        self.hub = hub
        self._seat = seat

    def _make(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> LocalWindow:
        engine, hub = self._engine, self.hub
        exposure = hub.gathering.get(key) or hub.gathering.setdefault(key, Exposure(ranks, nbytes))
        if (exposure.ranks, exposure.nbytes) != (ranks, nbytes):
            self._keys.discard(key)
            raise MismatchError(
                f"window {key!r}: rank {engine.rank} asks for {nbytes} bytes among ranks {ranks}, "
                f"another rank for {exposure.nbytes} among {exposure.ranks}",
                rank=engine.rank,
            )
        exposure.came.add(engine.rank)
        for rank in ranks:
            hub.seats[rank].bell.ring()
        if not engine.wait(_AllCame(engine, exposure), deadline) and (missing := exposure.missing()):
            exposure.came.discard(engine.rank)
            absent = ", ".join(map(engine.group.describe, missing))
            text = f"{absent} did not come to window {key!r} in time"
            raise DeadlineExceeded(text, rank=engine.rank, peer=missing[0] if len(missing) == 1 else None)
        hub.gathering.pop(key, None)
        if exposure.refused:
            self._keys.discard(key)
            raise NoRoom(f"rank {engine.rank} cannot make window {key!r}: {exposure.refused}", rank=engine.rank)
        with engine.lock:
            engine.check_sound()
            window = LocalWindow(engine, exposure, self._seat.bell, self._windows.discard)
            self._windows.add(window)
        return window


class _AllCame(Awaited):
    """The wait until all ranks have come to a window. Every rank that comes rings."""

    def __init__(self, engine: Engine, exposure: Exposure) -> None:
        self._engine = engine
        self._exposure = exposure

    @property
    def done(self) -> bool:
        return len(self._exposure.came) == len(self._exposure.ranks)

    def check_possible(self) -> None:
        for rank in self._exposure.missing():
            self._engine.check_peer(rank, self, receiving=True)
