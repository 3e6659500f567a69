"""Windows among the ranks of one host, for a transport whose ranks are on several."""

from __future__ import annotations

from transports.child import Child, Parent
from transports.errors import RondeError
from transports.onesided import Memory, OneSided, Window


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
        self._parent.wait_in_slices(self._child, lambda end: self._inner.wait(index, epoch, end, check), deadline)

    def expose_arrays(self, *pieces: Memory) -> bool:
        return self._inner.expose_arrays(*pieces)

    def read(self, index: int, piece: int, offset: int, target: Memory) -> None:
        try:
            self._inner.read(index, piece, offset, target)
        except RondeError as error:
            raise self._parent.translate(self._child, error) from None

    def close(self) -> None:
        self._inner.close()
