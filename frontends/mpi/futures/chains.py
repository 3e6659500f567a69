"""Futures that end with other futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any


def collect(fs: Iterable[Future[Any]]) -> Future[list[Any]]:
    """A future of the list of results of futures.

    It fails with the first of them that fails, and is cancelled with the first that is; the others are cancelled then,
    as they are if it is cancelled itself.
    """
    parts = list(fs)
    whole: Future[list[Any]] = type(parts[0])() if parts else Future()
    waiting, lock = set(parts), threading.RLock()

    def cancel(_: Future[list[Any]]) -> None:
        for part in parts:
            part.cancel()
        tell_cancelled(whole)

    def end(part: Future[Any]) -> None:
        with lock:
            waiting.discard(part)
            if whole.done():
                return
            if part.cancelled():
                whole.cancel()
            elif part.exception() is not None:
                whole.set_exception(part.exception())
            elif not waiting:
                whole.set_result([part.result() for part in parts])

    whole.add_done_callback(cancel)
    for part in set(parts):
        part.add_done_callback(end)
    if not parts:
        whole.set_result([])
    return whole


def compose(
    future: Future[Any],
    resulthook: Callable[[Any], Any] | None = None,
    excepthook: Callable[[BaseException], Any] | None = None,
) -> Future[Any]:
    """A future of what a function makes of the result of a future, or of its exception.

    resulthook   gives the result; None: the result of the future
    excepthook   gives the result, or an exception that is raised; None: the exception of the future

    An exception of these functions becomes that of the future. Cancelling one of both futures cancels the other.
    """
    after: Future[Any] = type(future)()

    def cancel(_: Future[Any]) -> None:
        if after.cancelled():
            future.cancel()
            tell_cancelled(after)

    def end(_: Future[Any]) -> None:
        if after.done() or (future.cancelled() and after.cancel()):
            return
        try:
            found: Any = future.exception()
            if found is None:
                found = future.result()
                result = found if resulthook is None else resulthook(found)
            else:
                result = found if excepthook is None else excepthook(found)
                if isinstance(result, BaseException):
                    raise result
        except BaseException as cause:  # noqa: BLE001 - it is the program's
            after.set_exception(cause)
        else:
            after.set_result(result)

    after.add_done_callback(cancel)
    future.add_done_callback(end)
    return after


def tell_cancelled(future: Future[Any]) -> None:
    """Wake those who wait for one of several futures."""
    if future.cancelled():
        future.set_running_or_notify_cancel()
