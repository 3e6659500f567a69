"""Windows among the ranks of one host, for a transport whose ranks are on several."""

from __future__ import annotations

from typing import Protocol

from transports.child import Child
from transports.errors import DeadlineExceeded, RondeError
from transports.joint_waits import PAST, Event
from transports.onesided import Memory, OneSided, Window


class Parent(Protocol):
    """The whole transport."""

    def translate(self, child: Child, error: RondeError) -> RondeError:
        """The error to raise for an error of an inner transport: the first failure if that transport has failed."""

    def wait(self, event: Event, deadline: float) -> bool:
        """Wait until `event` has happened (True) or the deadline has passed (False)."""


class HostWindows(OneSided):
    """The windows of the transport inside the host, addressed by the group's ranks."""

    def __init__(self, parent: Parent, child: Child, inner: OneSided) -> None:
        self._parent = parent
        self._child = child
        self._inner = inner

    def reaches(self, ranks: tuple[int, ...]) -> bool:
        place = self._child.place
        return all(rank in place for rank in ranks) and self._inner.reaches(tuple(place[rank] for rank in ranks))

    def expose(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> Window:
        if not self.reaches(ranks):
            raise ValueError(f"ranks={ranks!r}: must be among {self._child.ranks}, the ranks of one host")
        try:
            places = tuple(self._child.place[rank] for rank in ranks)
            return HostWindow(self._parent, self._child, self._inner.expose(key, places, nbytes, deadline), ranks)
        except RondeError as error:
            raise self._parent.translate(self._child, error) from None


class HostWindow(Window):
    """A window of the inner transport, whose waits drive the other transports."""

    def __init__(self, parent: Parent, child: Child, inner: Window, ranks: tuple[int, ...]) -> None:
        self._parent = parent
        self._child = child
        self._inner = inner
        self.ranks = ranks
        self.index = inner.index
        self.nbytes = inner.nbytes

    def view(self, index: int) -> memoryview:
        return self._inner.view(index)

    def publish(self, epoch: int, check: int = 0) -> None:
        self._inner.publish(epoch, check)

    def wait(self, index: int, epoch: int, deadline: float, check: int | None = None) -> None:
        if not self._inner.reached(index, epoch):
            self._parent.wait(_EpochReached(self._parent, self._child, self._inner, index, epoch), deadline)
        try:
            self._inner.wait(index, epoch, PAST, check)
        except RondeError as error:
            raise self._parent.translate(self._child, error) from None

    def reached(self, index: int, epoch: int, wakeup: bool = False) -> bool:
        return self._inner.reached(index, epoch, wakeup)

    def expose_arrays(self, *pieces: Memory) -> bool:
        return self._inner.expose_arrays(*pieces)

    def read(self, index: int, piece: int, offset: int, target: Memory) -> None:
        try:
            self._inner.read(index, piece, offset, target)
        except RondeError as error:
            raise self._parent.translate(self._child, error) from None

    def close(self) -> None:
        self._inner.close()


class _EpochReached(Event):
    """A position of a window has reached an epoch."""

    def __init__(self, parent: Parent, child: Child, window: Window, index: int, epoch: int) -> None:
        self.child = child
        self._parent = parent
        self._window = window
        self._index = index
        self._epoch = epoch

    def attempt(self, until: float) -> bool:
        if self._window.reached(self._index, self._epoch):
            self.done = True
        elif until > PAST:
            try:
                self._window.wait(self._index, self._epoch, until)
                self.done = True
            except DeadlineExceeded as error:
                if self.child.transport.failure is not None:
                    raise self._parent.translate(self.child, error) from None
            except RondeError as error:
                raise self._parent.translate(self.child, error) from None
        return self.done

    def announce(self) -> bool:
        self.done = self._window.reached(self._index, self._epoch, wakeup=True)
        return self.done
