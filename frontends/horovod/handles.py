"""Handles of asynchronous operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collectives import Work
from collectives.arrays import type_name
from frontends.horovod.errors import as_horovod

__all__ = ["Handle", "Handles", "poll", "synchronize"]


class Handle:
    """An operation in flight. It keeps the operation's tensors alive."""

    __slots__ = ("_finish", "_result", "_work")

    def __init__(self, work: Work[Any], finish: Callable[[Any], Any]) -> None:
        """`finish` converts the operation's result for `synchronize`; called once."""
        self._work: Work[Any] | None = work
        self._finish: Callable[[Any], Any] | None = finish
        self._result: Any = None

    def poll(self) -> bool:
        """True when the operation has ended, with or without an error."""
        return self._work is None or self._work.test()

    def synchronize(self) -> Any:
        """Wait for the operation and return its result. Raises HorovodInternalError, at every call, if the operation
        failed."""
        if self._work is not None and self._finish is not None:
            with as_horovod():
                self._result = self._finish(self._work.wait())
            self._work = self._finish = None
        return self._result


class Handles:
    """Several handles as one; its result is the list of their results."""

    __slots__ = ("_handles",)

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = list(handles)

    def poll(self) -> bool:
        """True when all operations have ended."""
        return all(handle.poll() for handle in self._handles)

    def synchronize(self) -> list[Any]:
        """Wait for all operations. Raises the error of the first one that failed."""
        return [handle.synchronize() for handle in self._handles]


def poll(handle: Handle | Handles) -> bool:
    """True when the operation of a handle has ended; `synchronize` then returns at once. Raises TypeError for another
    object."""
    return _checked(handle).poll()


def synchronize(handle: Handle | Handles) -> Any:
    """Wait for the operation of a handle and return its output: a tensor, or a list of tensors for a grouped operation.

    Raises HorovodInternalError (a RuntimeError) if the operation failed: on every rank if the ranks disagreed.
    TypeError for another object than a handle.
    """
    return _checked(handle).synchronize()


def _checked(handle: Any) -> Handle | Handles:
    if not isinstance(handle, Handle | Handles):
        raise TypeError(
            f"handle={handle!r:.60}: must be one that an asynchronous operation returned, such as allreduce_async, "
            f"not {type_name(handle)}"
        )
    return handle
