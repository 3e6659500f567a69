"""Jobs -> methods: what makes a communicator's methods of the functions that make its jobs and messages.

So a collective is described in one place: its docstring and arguments are those of the function that makes its job.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from collectives.jobs import Jobs
from collectives.point_to_point import Message, PointToPoint
from collectives.progress import Job, Work

if TYPE_CHECKING:
    from collectives.communicator import Communicator

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


def method(
    make: Callable[Concatenate[S, P], object], suffix: str, returns: str, *more: inspect.Parameter
) -> Callable[[T], T]:
    """Decorates a method so that it reads like `make`: name, docstring, arguments (and `more` of them)."""

    def dress(call: T) -> T:
        method: Any = functools.wraps(make)(call)  # type: ignore[arg-type]
        method.__name__ = make.__name__ + suffix
        method.__qualname__ = f"Communicator.{method.__name__}"
        signature = inspect.signature(make)
        parameters = [*signature.parameters.values(), *more]
        method.__signature__ = signature.replace(parameters=parameters, return_annotation=returns)
        return call

    return dress


def now(make: Callable[Concatenate[Jobs, P], Job[T]]) -> Callable[Concatenate[Communicator, P], T]:
    """The method that runs a job and returns its result."""

    @method(make, "", "Any")
    def call(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._stream.run(make(self._jobs, *args, **kwargs))

    return call


_NAME: Final = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")


def later(make: Callable[Concatenate[Jobs, ...], Job[T]]) -> Callable[Concatenate[Communicator, ...], Work[T]]:
    """The method that begins a job and returns its Work: in the order of calls, or by its name."""

    @method(make, "_async", "Work[Any]", _NAME)
    def call(self: Communicator, /, *args: Any, name: str | None = None, **kwargs: Any) -> Work[T]:
        if name is None:
            return self._stream.submit(make(self._jobs, *args, **kwargs))
        return self._engine.submit(name, make(self._named, *args, **kwargs))

    return call


def message(make: Callable[Concatenate[PointToPoint, P], Message]) -> Callable[Concatenate[Communicator, P], Any]:
    """The method that sends or receives and returns when that is done."""

    @method(make, "", "Any")
    def call(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return make(self._messages, *args, **kwargs).wait()

    return call


def begin_message(
    make: Callable[Concatenate[PointToPoint, P], Message],
) -> Callable[Concatenate[Communicator, P], Work[Any]]:
    """The method that begins to send or receive and returns the Work."""

    @method(make, "_async", "Work[Any]")
    def call(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> Work[Any]:
        return make(self._messages, *args, **kwargs)

    return call
