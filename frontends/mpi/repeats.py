"""Calls that are repeated: the short way of blocking collectives on buffers.

The general way (`specs`, `intra`) makes blocks of a program's buffers, and describes a call as one of Ronde on their
memory. If all of this memory is that of NumPy arrays as they lie, the description is kept under the kinds of the
arguments: dtype, shape and flags of each array, and the values of all others. A later call with arguments of the same
kinds is then Ronde's call on its own arrays, without blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter, methodcaller
from typing import Any, Final, NamedTuple

import numpy as np

from collectives import Communicator, RondeError
from frontends.mpi.errors import failure
from frontends.mpi.handles import Handle
from frontends.mpi.memory import IN_PLACE

_MOST: Final = 1024
_ndarray: Final = np.ndarray
_BYTE: Final = np.dtype(np.uint8)
_as_bytes: Final = methodcaller("view", _BYTE)
_flat: Final = methodcaller("reshape", -1)


class Call(NamedTuple):
    """A call of Ronde.

    method     name of a collective of a communicator
    arguments  its arguments
    options    those by keyword
    finish     makes the result from that of Ronde; None if there is nothing to do
    """

    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    finish: Callable[[Any], Any] | None = None


class _NoValue(Exception):
    """An argument that cannot be compared with that of another call."""


def kinds_of(name: str, buffers: int, arguments: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The kinds of the arguments of a collective, of which the first ones are buffers. Calls with equal kinds are the
    same but for the memory. None if that cannot be told."""
    kinds: list[Any] = [name]
    try:
        for one in arguments[:buffers]:
            if type(one) is _ndarray:
                kinds += one.flags.num, one.dtype, one.shape
            elif one is None or one is IN_PLACE:
                kinds.append(one is None)
            elif type(one) in (list, tuple) and len(one) > 1 and type(one[0]) is _ndarray:
                kinds += len(one), one[0].flags.num, one[0].dtype, one[0].shape
                kinds += map(_value, one[1:])
            else:
                return None
        for one in arguments[buffers:]:
            kinds.append(one if type(one) is int else _value(one))
        for option, one in options.items():
            kinds += option, _value(one)
    except _NoValue:
        return None
    return tuple(kinds)


def _value(one: Any) -> Any:
    """An argument that is no buffer as something that can be hashed. Raises _NoValue."""
    if one is None or type(one) in (int, str):
        return one
    if isinstance(one, Handle) and one._body is not None:
        return one._body
    if type(one) in (list, tuple):
        return tuple(map(_value, one))
    raise _NoValue


class Repeats:
    """The repeats of one communicator.

    latest   of each method the call that was made last, if its arguments need no change
    known    all, by the kinds of the arguments
    """

    __slots__ = ("known", "latest")

    def __init__(self) -> None:
        self.latest: dict[str, Latest] = {}
        self.known: dict[Any, Repeat] = {}

    def clear(self) -> None:
        """Forget all."""
        self.latest.clear()
        self.known.clear()

    def keep(self, kinds: Any, repeat: Repeat) -> None:
        """Keep the repeat of a call with arguments of these kinds."""
        if len(self.known) >= _MOST:
            self.clear()
        self.known[kinds] = repeat


class Repeat:
    """A call of Ronde on arrays at some positions of the arguments of a call of MPI.

    source, target   the positions of the array that is given and of that for the result; None without one
    given, result    the functions that make these arrays of the arguments; None for the arguments as they are
    """

    __slots__ = ("_call", "_given", "_result", "_source", "_target", "again")

    def __init__(self, call: Any, source: _Place, target: _Place) -> None:
        self._call = call
        self._source, self._given = source
        self._target, self._result = target
        self.again: Callable[[Any, Any], bool] = call.again

    def __call__(self, arguments: Sequence[Any]) -> None:
        """Make the call. Raises MPI's Exception."""
        x, out = _of(arguments, self._source, self._given), _of(arguments, self._target, self._result)
        if self._source == self._target:
            out = x
        try:
            self._call(x, out)
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error

    def latest(self, arguments: Sequence[Any], options: Mapping[str, Any], buffers: int) -> Latest | None:
        """It as the latest call of its method. None if it does not use all buffers as they are, or if an argument can
        become another one."""
        rest = tuple(arguments[buffers:])
        if {self._source, self._target} != set(range(buffers)) or not (self._given is None and self._result is None):
            return None
        if self._source is None or self._target is None or not all(map(_is_constant, (*rest, *options.values()))):
            return None
        return self.again, len(arguments), self._source, self._target, rest, dict(options)


Latest = tuple[Callable[[Any, Any], bool], int, int, int, tuple[Any, ...], dict[str, Any]]
"""Makes a call on two arrays if they are like those before; number of arguments; positions of both arrays; the
arguments behind the buffers, and those by keyword."""
_Place = tuple[int | None, Callable[[Any], Any] | None]
"""The position of an argument, None without one; and the function that makes the call's array of it, None for the
argument itself."""


def _is_constant(one: Any) -> bool:
    """True for an argument that never becomes another one: an int, and the handle of a predefined op."""
    return type(one) is int or (isinstance(one, Handle) and one.is_canonical)


def _of(arguments: Sequence[Any], position: int | None, change: Callable[[Any], Any] | None) -> Any:
    if position is None:
        return None
    return arguments[position] if change is None else change(arguments[position])


def repeat_of(communicator: Communicator, call: Call, arguments: Sequence[Any]) -> Repeat | None:
    """The repeat of a call that was made with arguments of known kinds. None if there is none: its memory is not all in
    arrays as they lie, or the result has to be put in places."""
    if call.finish is not None:
        return None
    given, out = call.arguments[0], call.options.get("out")
    source, target = _find(given, arguments), _find(out, arguments)
    if source is None or target is None or (source.position == target.position and out is not given):
        return None
    in_bytes = all(memory is None or memory.dtype == _BYTE for memory in (given, out))
    shapes = {found.array.shape for found in (source, target) if found.array is not None}
    flat = not in_bytes and (len(shapes) > 1 or call.method == "reduce_scatter")
    run = communicator.repeated(call.method, *call.arguments, in_bytes=in_bytes, **call.options)
    return Repeat(run, source.place(flat), target.place(flat))


class _Found(NamedTuple):
    """The memory of a call in the arguments.

    array    the array that it is in; None if there is no memory
    memory   of one dimension
    """

    position: int | None = None
    listed: bool = False
    array: Any = None
    memory: Any = None
    start: int = 0

    def place(self, flat: bool) -> _Place:
        """The function that makes the memory of arguments like these; `flat`: in one dimension."""
        if self.array is None:
            return None, None
        array, memory, start = self.array, self.memory, self.start
        steps: list[Callable[[Any], Any]] = [itemgetter(0)] if self.listed else []
        whole = memory.nbytes == array.nbytes
        in_bytes = memory.dtype == _BYTE
        if (flat or not whole or (memory.dtype != array.dtype and not in_bytes)) and array.ndim != 1:
            steps.append(_flat)
        if not whole or (memory.dtype != array.dtype and not in_bytes):
            steps.append(_as_bytes)
        if not whole:
            steps.append(itemgetter(slice(start, start + memory.nbytes)))
        if not in_bytes and _as_bytes in steps:
            steps.append(methodcaller("view", memory.dtype))
        if len(steps) < 2:
            return self.position, steps[0] if steps else None

        def change(one: Any) -> Any:
            for step in steps:
                one = step(one)
            return one

        return self.position, change


def _find(memory: Any, arguments: Sequence[Any]) -> _Found | None:
    """The place of an array of one dimension in the arguments; None if it is not in one of them."""
    if memory is None:
        return _Found()
    for position, argument in enumerate(arguments):
        listed = type(argument) in (list, tuple) and len(argument) > 0
        array = argument[0] if listed else argument
        if type(array) is not _ndarray or not array.flags.c_contiguous or not array.size:
            continue
        start = _address(memory) - _address(array)
        if start >= 0 and start + memory.nbytes <= array.nbytes:
            return _Found(position, listed, array, memory, start)
    return None


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
