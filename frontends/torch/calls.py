"""The calls of a process group's methods: in several forms, by way of torch's dispatcher where somebody listens there
(dispatch.py), and recorded by torch's profiler.

torch's own code passes lists of tensors and an object with options. Scripts may pass one tensor, and the options'
fields in position or by name: `group.allreduce(tensor, dist.ReduceOp.MAX)`.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.futures
from torch.autograd import _profiler_enabled

from frontends.torch.dispatch import passes
from frontends.torch.works import Work
from frontends.torch_backend import BACKEND

_FIELDS: Final = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
"""Names of arguments, and the fields of options that they set."""

Method = Callable[..., Any]


def collective(
    title: str, options: type[Any], *fields: str, tensors: int = 1, listed: bool = True
) -> Callable[[Method], Method]:
    """Decorator for a method whose last argument is an object with options: it accepts all forms of a call, and is
    recorded.

    title     name of the event in torch's profiler, without the backend's
    options   type of the last argument
    fields    names of the arguments that may stand in its place, in their order
    tensors   number of arguments with tensors, which come first; the last of them has the input
    listed    the arguments with tensors are lists
    """

    def decorate(method: Method) -> Method:
        names = list(inspect.signature(method).parameters)[1:-1]
        record = recorded(title, tensors)(method)
        lists = tensors if listed else 0

        @functools.wraps(method)
        def call(self: Any, *args: Any, **named: Any) -> Any:
            if named or not args or type(args[-1]) is not options:
                leading = [*args[: len(names)], *(named.pop(name) for name in names[len(args) :] if name in named)]
                args = (*leading, _options(method.__name__, options, fields, args[len(names) :], named))
            for given in args[:lists]:
                if type(given) is not list and isinstance(given, torch.Tensor):
                    args = (*([each] for each in args[:tensors]), *args[tensors:])
                    break
            if passes(args[:tensors]):
                return self.seen.call(method.__name__, args)
            return method(self, *args)

        call.direct = record  # type: ignore[attr-defined]
        return call

    return decorate


def message(title: str) -> Callable[[Method], Method]:
    """`collective` for a method that sends or receives a list of tensors: its arguments have one form, all by name or
    in position."""

    def decorate(method: Method) -> Method:
        record = recorded(title)(method)
        signature = inspect.signature(method)

        @functools.wraps(method)
        def call(self: Any, *args: Any, **named: Any) -> Any:
            tensors = args[0] if args else named.get("tensors")
            if not passes((tensors,)):
                return method(self, *args, **named)
            bound = signature.bind(self, *args, **named)
            bound.apply_defaults()
            return self.seen.call(method.__name__, bound.args[1:])

        call.direct = record  # type: ignore[attr-defined]
        return call

    return decorate


def recorded(title: str, tensors: int = 1) -> Callable[[Method], Method]:
    """Decorator for a method that returns a Work: torch's profiler records it from the call to the operation's end.

    title     name of the event, without the backend's
    tensors   number of arguments with tensors, which come first; the last of them has the input, whose shapes are kept
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **named: Any) -> Any:
            if not _profiler_enabled():
                return method(self, *args, **named)
            event = _Event(f"{BACKEND}:{title}", list(_flat(args[tensors - 1])) if tensors else [])
            try:
                work = method(self, *args, **named)
            except BaseException:
                event.end()
                raise
            if isinstance(work, Work):
                work.before_it_is_over(event.end)
            else:
                event.end()
            return work

        return call

    return decorate


class _Event:
    """An event in torch's profiler. It begins when it is made.

    The profiler calls an event asynchronous if it ends in another thread than it began in. Those of all operations
    are, as on other backends: their times do not count as parts of the events around them.
    """

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        self._thread = threading.get_ident()
        self._over: torch.futures.Future[None] = torch.futures.Future()
        event = torch.autograd._record_function_with_args_enter(name, *tensors)
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(event, self._over)

    def end(self) -> None:
        """End the event."""
        if threading.get_ident() != self._thread:
            self._over.set_result(None)
        else:
            other = threading.Thread(target=self._over.set_result, args=(None,), name="ronde-torch-profiler")
            other.start()
            other.join()


def _options(
    method: str, options: type[Any], fields: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """Return the object with options of a call that has passed one, its fields, or neither."""
    named = dict(named)
    passed = named.pop("opts", None)
    if given and (given[0] is None or isinstance(given[0], options)):
        passed, given = given[0], given[1:]
    values = {**dict(zip(fields, given, strict=False)), **named}
    if len(given) > len(fields) or not values.keys() <= set(fields) or (passed is not None and values):
        allowed = " or ".join([options.__name__, ", ".join(fields)])
        raise TypeError(f"{method}: got {[*given, *named]} after the tensors; takes {allowed}")
    made = options() if passed is None else passed
    for name, value in values.items():
        if value is not None:
            setattr(made, _FIELDS[name], value)
    return made


def _flat(tensors: Any) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    elif isinstance(tensors, list | tuple):
        for each in tensors:
            yield from _flat(each)
