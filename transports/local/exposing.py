"""Making a window: its ranks gather at the hub."""

from __future__ import annotations

import weakref
from typing import Protocol

from transports.driver import Awaited
from transports.engine import Engine
from transports.errors import DeadlineExceeded, MismatchError
from transports.local.hub import Hub
from transports.local.seat import Seat
from transports.local.window import Exposure, LocalWindow
from transports.onesided import OneSided, Window


class Seated(Protocol):
    """The link to the ranks of a window."""

    hub: Hub
    seat: Seat


class Exposures(OneSided):
    """The windows of a link. All is guarded by the engine's lock."""

    def __init__(self, engine: Engine, link: Seated, ranks: tuple[int, ...]) -> None:
        """`ranks`: those that the link joins."""
        self._engine = engine
        self._link = link
        self._ranks = frozenset(ranks)
        self._keys: set[str] = set()
        self._windows: set[LocalWindow] = set()

    def reaches(self, ranks: tuple[int, ...]) -> bool:
        return self._ranks.issuperset(ranks)

    def expose(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> Window:
        """See OneSided. Also raises MismatchError if another rank came with other arguments."""
        engine = self._engine
        if engine.rank not in ranks or len(set(ranks)) != len(ranks) or not self.reaches(ranks):
            allowed = ", ".join(map(str, sorted(self._ranks)))
            raise ValueError(f"ranks={ranks!r}: must be distinct ranks among {allowed}, {engine.rank} among them")
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes!r}: must be 0 or more")
        with engine.lock:
            if engine.life.refusal is not None:
                raise engine.life.refused()
            if key in self._keys:
                raise ValueError(f"key={key!r}: was used before; every window of a group needs a key of its own")
            gathering = self._link.hub.gathering
            exposure = gathering.get(key) or gathering.setdefault(key, Exposure(ranks, nbytes))
            if (exposure.ranks, exposure.nbytes) != (ranks, nbytes):
                raise MismatchError(
                    f"window {key!r}: rank {engine.rank} asks for {nbytes} bytes among ranks {ranks}, "
                    f"another rank for {exposure.nbytes} among {exposure.ranks}",
                    rank=engine.rank,
                )
            self._keys.add(key)
            exposure.came.add(engine.rank)
        for rank in ranks:
            self._link.hub.seats[rank].bell.ring()
        if not engine.wait(_AllCame(engine, exposure), deadline) and (missing := exposure.missing()):
            exposure.came.discard(engine.rank)
            absent = ", ".join(map(engine.group.describe, missing))
            raise DeadlineExceeded(f"{absent} did not come to window {key!r} in time", rank=engine.rank)
        gathering.pop(key, None)
        with engine.lock:
            engine.check_sound()
            window = LocalWindow(engine, exposure, self._link.seat.bell, self._windows.discard)
            self._windows.add(window)
        weakref.finalize(window, self._keys.discard, key).atexit = False
        return window

    def close(self) -> None:
        """Close all windows."""
        for window in tuple(self._windows):
            window.close()


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
