"""Windows of links: the checks, keys and waits that all of them have in common. See transports.onesided."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from transports.driver import Awaited
from transports.engine import Engine
from transports.errors import DeadlineExceeded, MismatchError
from transports.onesided import OneSided, Window


class EngineWindow(Window):
    """A window whose waits drive an engine."""

    def __init__(self, engine: Engine, ranks: tuple[int, ...], nbytes: int) -> None:
        self.ranks = ranks
        self.index = ranks.index(engine.rank)
        self.nbytes = nbytes
        self._engine = engine

    @abstractmethod
    def epoch_of(self, index: int) -> int:
        """The epoch that a position has reached."""

    @abstractmethod
    def ask(self, index: int) -> None:
        """Have a position wake this rank when it publishes its next epoch."""

    @abstractmethod
    def raise_if_lost(self, index: int, awaited: Awaited) -> None:
        """Raise if an awaited epoch of a position will never be reached."""

    def compare(self, index: int, epoch: int, check: int, kept: Mapping[int, int]) -> None:
        """Raise MismatchError unless a position has published `check` with `epoch`. `kept`: its last checks, by epoch.
        One that all of these follow is not kept any more, and is not compared."""
        if kept.get(epoch) == check or min(kept) > epoch:
            return
        rank, peer = self._engine.rank, self.ranks[index]
        said = f"check {kept[epoch]:#010x}" if epoch in kept else "nothing"
        raise MismatchError(
            f"{self._engine.group.describe(peer)} published {said} with {self.epoch_in_words(epoch)}; rank {rank} "
            f"expected check {check:#010x}",
            rank=rank,
            peer=peer,
        )

    def await_epoch(self, index: int, epoch: int, deadline: float) -> None:
        """Wait until a position has reached an epoch. Raises as `wait`."""
        engine = self._engine
        if not engine.wait(_EpochReached(self, index, epoch), deadline):
            rank, peer = engine.rank, self.ranks[index]
            raise DeadlineExceeded(
                f"rank {rank} waited too long for {engine.group.describe(peer)} to reach {self.epoch_in_words(epoch)}; "
                f"it is at {self.epoch_in_words(self.epoch_of(index))}",
                rank=rank,
                peer=peer,
            )


W = TypeVar("W", bound=EngineWindow)


class Exposures(OneSided, Generic[W]):
    """The windows of a link, guarded by the engine's lock."""

    def __init__(self, engine: Engine, ranks: tuple[int, ...]) -> None:
        """`ranks`: those that the link joins."""
        self._engine = engine
        self._ranks = frozenset(ranks)
        self._keys: set[str] = set()
        self._windows: set[W] = set()

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
            if engine.life.obstacle is not None:
                raise engine.life.error()
            if key in self._keys:
                raise ValueError(f"key={key!r}: was used before; every window of a group needs a key of its own")
            self._keys.add(key)
        window = self._make(key, ranks, nbytes, deadline)
        weakref.finalize(window, self._keys.discard, key).atexit = False
        return window

    @abstractmethod
    def _make(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> W:
        """The window, made together with the other ranks, among `_windows`. Called without the lock."""

    def close_windows(self) -> None:
        """Close all windows."""
        for window in tuple(self._windows):
            window.close()


class _EpochReached(Awaited):
    """The wait for an epoch."""

    __slots__ = ("_epoch", "_index", "_window")

    def __init__(self, window: EngineWindow, index: int, epoch: int) -> None:
        self._window = window
        self._index = index
        self._epoch = epoch

    @property
    def done(self) -> bool:
        return self._window.epoch_of(self._index) >= self._epoch

    def check_possible(self) -> None:
        self._window.raise_if_lost(self._index, self)

    def request_wakeup(self) -> None:
        self._window.ask(self._index)
