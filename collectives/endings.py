"""The end of a process that leaves something of a rank open.

A process that ends normally, also by sys.exit, closes it in order: what was sent is delivered, and the other ranks are
told. A process that an uncaught exception ends aborts it with the exception as the cause. A process that is killed does
neither, and the others lose it.

Python calls sys.excepthook and then the functions of atexit. A process of multiprocessing does not: it may end by
os._exit, and prints exceptions itself. There a finalizer of multiprocessing does both.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Final

END_SECONDS: Final = 10.0
"""Seconds for the operations in flight of a process that ends."""

Close = Callable[[], object]
Abort = Callable[[BaseException], object]


def end_with_process(close: Close, abort: Abort, resources: contextlib.ExitStack) -> None:
    """Until `resources` are closed: call `close` when this process ends, and before that `abort` with the exception
    that ends it, if there is one."""
    if multiprocessing.parent_process() is None:
        atexit.register(close)
        resources.callback(atexit.unregister, close)
        _Hook.installed().add(abort, resources)
        return
    from multiprocessing.util import Finalize  # it registers a function of atexit itself, once it is imported

    def end() -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, SystemExit):
            abort(error)
        close()

    resources.callback(Finalize(None, end, exitpriority=0).cancel)


class _Hook:
    """The function for uncaught exceptions, from the first `abort` to the last."""

    def __init__(self) -> None:
        self._aborts: list[Abort] = []
        self._previous = sys.excepthook
        sys.excepthook = self

    @classmethod
    def installed(cls) -> _Hook:
        """The one that is called now; a new one if another library has put its own in front of it, which calls it."""
        return sys.excepthook if isinstance(sys.excepthook, cls) else cls()

    def add(self, abort: Abort, resources: contextlib.ExitStack) -> None:
        """Call `abort` until `resources` are closed."""
        self._aborts.append(abort)
        resources.callback(self._remove, abort)

    def _remove(self, abort: Abort) -> None:
        self._aborts.remove(abort)
        if not self._aborts and sys.excepthook is self:
            sys.excepthook = self._previous

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for abort in tuple(self._aborts):
            abort(error)
        self._previous(kind, error, trace)
