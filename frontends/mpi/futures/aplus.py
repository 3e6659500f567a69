"""Futures in chains, as the promises of JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from frontends.mpi.futures.chains import tell_cancelled

OnSuccess = Callable[[Any], Any]
OnFailure = Callable[[BaseException], Any]


class ThenableFuture(Future[Any]):
    """A future with `then` and `catch`."""

    def then(self, on_success: OnSuccess | None = None, on_failure: OnFailure | None = None) -> Future[Any]:
        """The same as the function `then`."""
        return then(self, on_success, on_failure)

    def catch(self, on_failure: OnFailure | None = None) -> Future[Any]:
        """The same as the function `catch`."""
        return catch(self, on_failure)


def then(future: Future[Any], on_success: OnSuccess | None = None, on_failure: OnFailure | None = None) -> Future[Any]:
    """A future of what a function makes of the result of a future, or of its exception.

    on_success  gives the result; None: the result of the future
    on_failure  gives the result, or an exception that becomes that of the new future; gets what `on_success` raises,
                too; None: the exception itself

    A future that such a function gives is followed: its end is that of the new one, which fails with a RuntimeError if
    the futures that it follows are a ring. Cancelling the future cancels the new one, not the other way round.
    """
    after: Future[Any] = type(future)()
    future.add_done_callback(lambda _: _end(after, future, set(), on_success, on_failure))
    return after


def catch(future: Future[Any], on_failure: OnFailure | None = None) -> Future[Any]:
    """The same as `then` without `on_success`. Without a function the result of a failure is None."""
    return then(future, None, on_failure or (lambda _: None))


def _end(
    after: Future[Any],
    future: Future[Any],
    followed: set[Future[Any]],
    on_success: OnSuccess | None = None,
    on_failure: OnFailure | None = None,
) -> None:
    """End a future with one that has ended. `followed`: those that it has followed until here."""
    if future.cancelled() or after.cancelled():
        after.cancel()
        tell_cancelled(after)
        return
    cause = future.exception()
    if cause is None:
        try:
            found = future.result()
            _settle(after, found if on_success is None else on_success(found), followed)
            return
        except BaseException as raised:  # noqa: BLE001 - it is the program's
            cause = raised
    try:
        found = cause if on_failure is None else on_failure(cause)
        if isinstance(found, BaseException):
            raise found
        _settle(after, found, followed)
    except BaseException as raised:  # noqa: BLE001 - it is the program's
        after.set_exception(raised)


def _settle(after: Future[Any], found: Any, followed: set[Future[Any]]) -> None:
    """End a future with a result, or follow the future that it is. Raises RuntimeError."""
    if not isinstance(found, Future):
        after.set_result(found)
        return
    if found is after or found in followed:
        raise RuntimeError(f"chain cycle detected: {found} is in the chain already")
    followed.add(found)
    found.add_done_callback(lambda _: _end(after, found, followed))
