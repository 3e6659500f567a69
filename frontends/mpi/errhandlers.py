"""Error handlers. Errors are exceptions here: ERRORS_RETURN raises them in the caller, the others end the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from frontends.mpi.errors import error
from frontends.mpi.handles import Body, Handle

MOST_CREATED: Final = 32
"""The most handlers of a program for each kind of object at a time: mpi4py has the same bound."""


class ErrhandlerBody(Body):
    """A function that is told of errors; None for a predefined handler."""

    def __init__(self, function: Callable[[Any, int], Any] | None, kind: type[Handle] | None) -> None:
        self.function = function
        self.kind = kind


class Errhandler(Handle):
    """The treatment of errors."""

    __module__ = "frontends.mpi.MPI"
    null = "ERRHANDLER_NULL"

    def Free(self) -> None:
        if self._body is None:
            raise error("ERR_ERRHANDLER", "it is ERRHANDLER_NULL")
        Handle.free(self)  # not that of a subclass, which may call this method

    def _release(self) -> None:
        _forget(self._body)


Errhandler.family = Errhandler
_created: Final[list[ErrhandlerBody]] = []


def _forget(body: ErrhandlerBody) -> None:
    if body in _created:
        _created.remove(body)


class Handling(Handle):
    """A handle of an object with an error handler. The body has it as `errhandler`."""

    handling_error: ClassVar[str] = "ERR_OTHER"

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[Any, int], Any]) -> Errhandler:
        if sum(body.kind is cls.family for body in _created) >= MOST_CREATED:
            raise RuntimeError(f"there are {MOST_CREATED} error handlers for {cls.family.__name__}: free one first")
        body = ErrhandlerBody(errhandler_fn, cls.family)
        _created.append(body)
        return Errhandler.of(body)

    def _holder(self) -> Any:
        if self._body is None:
            raise error(self.handling_error, f"it is {self.null}")
        return self._body

    def Get_errhandler(self) -> Errhandler:
        body = self._holder().errhandler
        return Errhandler.of(ERRORS_RETURN._body if body is None else body)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        if errhandler._body is None:
            raise error("ERR_ERRHANDLER", "it is ERRHANDLER_NULL")
        self._holder().errhandler = errhandler._body

    def Call_errhandler(self, errorcode: int) -> None:
        body = self._holder().errhandler
        if body is not None and body.function is not None:
            body.function(self, errorcode)
        elif body is not None and body is not ERRORS_RETURN._body:
            raise error("ERR_OTHER", f"error {errorcode} was handled by {body.predefined}")


def _predefined(name: str) -> Errhandler:
    body = ErrhandlerBody(None, None)
    body.predefined = name
    return Errhandler.of(body)


ERRHANDLER_NULL: Final = Errhandler()
ERRORS_RETURN: Final = _predefined("ERRORS_RETURN")
ERRORS_ABORT: Final = _predefined("ERRORS_ABORT")
ERRORS_ARE_FATAL: Final = _predefined("ERRORS_ARE_FATAL")
