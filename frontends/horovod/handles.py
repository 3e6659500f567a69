"""Handles of asynchronous operations, and what one does with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collectives import Work
from frontends.horovod.errors import as_horovod


class Handle:
    """An operation in flight. It keeps its tensors alive."""

    __slots__ = ("_finish", "_result", "_work")

    def __init__(self, work: Work[Any], finish: Callable[[Any], Any]) -> None:
        """`finish` makes what `synchronize` returns of the operation's result, once."""
        self._work: Work[Any] | None = work
        self._finish: Callable[[Any], Any] | None = finish
        self._result: Any = None

    def poll(self) -> bool:
        """True once the operation is over, well or not."""
        return self._work is None or self._work.test()

    def synchronize(self) -> Any:
        """Wait for the result. Raises HorovodInternalError, again and again, if the operation failed."""
        if self._work is not None and self._finish is not None:
            with as_horovod():
                self._result = self._finish(self._work.wait())
            self._work = self._finish = None
        return self._result


class Handles:
    """Several handles as one, whose result is the list of theirs."""

    __slots__ = ("_handles",)

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = list(handles)

    def poll(self) -> bool:
        """True once all are over."""
        return all(handle.poll() for handle in self._handles)

    def synchronize(self) -> list[Any]:
        """Wait for all. Raises what the first that failed raises."""
        return [handle.synchronize() for handle in self._handles]


def poll(handle: Handle | Handles) -> bool:
    """True once the operation of a handle is over; then `synchronize` does not wait."""
    return handle.poll()


def synchronize(handle: Handle | Handles) -> Any:
    """Wait for the operation of a handle, and return its output: a tensor, a list of them, or as the operation tells.

    Raises HorovodInternalError (a RuntimeError) if the operation failed: on every rank if they disagreed about it.
    """
    return handle.synchronize()
