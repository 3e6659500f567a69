"""Python objects over the wire: pickled, and unpickled only if the link proves the identity of the sender."""

from __future__ import annotations

import functools
import pickle
import struct
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, Protocol

import numpy as np

from collectives.arrays import Array, type_name
from collectives.execution import Executor
from collectives.operations.arguments import Arguments, check_list, check_pickler
from collectives.operations.job import FunctionJob, Job
from collectives.operations.shapes import Shapes, agree_on_parts
from collectives.operations.signature import Signature
from collectives.planning import Call
from transports.errors import TransportError, described

_BYTE = np.dtype(np.uint8)
_PROTOCOL: Final = 5
_WORD: Final = 8
_ALIGNED: Final = 16
"""Bytes. Elements of no usual dtype need more."""


class Objects:
    """Makes the jobs of object collectives. The arguments are those of the Communicator's methods."""

    def __init__(self, executor: Executor, arguments: Arguments) -> None:
        self._executor = executor
        self._arguments = arguments
        self._authenticated = False

    def _check(self, pickler: Pickler | None) -> None:
        check_pickler(pickler)
        if not self._authenticated:
            require_authenticated(self._executor)
            self._authenticated = True

    def broadcast_object(self, obj: Any, root: int, timeout: float | None, pickler: Pickler | None) -> Job[Any]:
        root = self._arguments.root(root)
        self._check(pickler)
        here = self._arguments.rank == root
        data = _encode(obj, "obj", pickler) if here else None
        alias = 0 if here else None

        def run(deadline: float) -> Array:
            first = np.zeros(_FIRST, np.uint8)
            if data is not None:
                _put(first, data)
            call = Call("broadcast", _BYTE, (_FIRST,), root=root, alias=alias, within=_FIRST_PARTS)
            self._executor.run_call(call, first if here else None, first, deadline)
            if data is not None:
                received, length = data, data.size
            else:
                length = _length(first)
                received = first[_ALIGNED : _ALIGNED + length]
            if length > _FIRST - _ALIGNED:
                received = np.empty(length, np.uint8) if data is None else data
                call = Call("broadcast", _BYTE, (length,), root=root, alias=alias)
                self._executor.run_call(call, data, received, deadline)
            return received

        def finish(received: Array) -> Any:
            return obj if here else decode(received.data, pickler)

        signature = Signature("broadcast_object", root=root)
        return FunctionJob(run, self._arguments.timeout(timeout), signature, finish=finish)

    def allgather_object(self, obj: Any, timeout: float | None, pickler: Pickler | None) -> Job[list[Any]]:
        self._check(pickler)
        data = _encode(obj, "obj", pickler)

        def run(deadline: float) -> list[Array]:
            parts, lengths = self._first_parts(data, deadline)
            if parts is None:
                everything = np.empty(sum(lengths), np.uint8)
                self._executor.run_call(Call("allgather", _BYTE, lengths), data, everything, deadline)
                parts = _cut(everything, lengths)
            return parts

        signature = Signature("allgather_object")
        return FunctionJob(
            run, self._arguments.timeout(timeout), signature, finish=functools.partial(_decode_all, pickler)
        )

    def gather_object(
        self, obj: Any, root: int, timeout: float | None, pickler: Pickler | None
    ) -> Job[list[Any] | None]:
        root = self._arguments.root(root)
        self._check(pickler)
        data = _encode(obj, "obj", pickler)
        here = self._arguments.rank == root

        def run(deadline: float) -> list[Array]:
            parts, lengths = self._first_parts(data, deadline, f" for root {root}")
            if parts is None:
                everything = np.empty(sum(lengths) if here else 0, np.uint8)
                call = Call("gather", _BYTE, lengths, root=root)
                self._executor.run_call(call, data, everything if here else None, deadline)
                parts = _cut(everything, lengths) if here else []
            return parts

        def finish(parts: list[Array]) -> list[Any] | None:
            return _decode_all(pickler, parts) if here else None

        signature = Signature("gather_object", root=root)
        return FunctionJob(run, self._arguments.timeout(timeout), signature, finish=finish)

    def _first_parts(
        self, data: Array, deadline: float, receiver: str = ""
    ) -> tuple[list[Array] | None, tuple[int, ...]]:
        """Give all ranks the length of this rank's pickle, and short pickles themselves: all pickles, or None if one of
        them is long, and their lengths. Ranks that name other receivers raise MismatchError."""
        size = len(self._executor.ranks)
        room = max(_LEAST_FIRST, min(_FIRST, _MOST_FIRST // size // _ALIGNED * _ALIGNED))
        mine, table = np.zeros(room, np.uint8), np.empty((size, room), np.uint8)
        _put(mine, data)
        call = Call("allgather", _BYTE, (room,) * size, within=f"{_FIRST_PARTS}{receiver}")
        self._executor.run_call(call, mine, table.reshape(-1), deadline)
        lengths = tuple(map(_length, table))
        if max(lengths) > room - _ALIGNED:
            return None, lengths
        return [row[_ALIGNED : _ALIGNED + length] for row, length in zip(table, lengths, strict=True)], lengths

    def scatter_object(
        self, objs: Sequence[Any] | None, root: int, timeout: float | None, pickler: Pickler | None
    ) -> Job[Any]:
        root = self._arguments.root(root)
        self._check(pickler)
        given, source = None, None
        if self._arguments.rank == root:
            if objs is not None:
                check_list(objs, "objs", "objects")
            if objs is None or len(objs) != self._arguments.size:
                count = "None" if objs is None else f"{len(objs)} objects"
                raise ValueError(f"objs={count}: must be {self._arguments.size} objects on the root, one for each rank")
            parts = [_encode(obj, f"objs[{rank}]", pickler) for rank, obj in enumerate(objs)]
            given, source = Shapes(_BYTE, tuple(map(len, parts)), ()), np.concatenate(parts)

        def run(deadline: float) -> Array:
            shapes = agree_on_parts(self._executor, given, root, deadline)
            mine = np.empty(shapes.rows[self._arguments.rank], np.uint8)
            self._executor.run_call(Call("scatter", _BYTE, shapes.blocks, root=root), source, mine, deadline)
            return mine

        signature = Signature("scatter_object", root=root)
        seconds = self._arguments.timeout(timeout)
        return FunctionJob(run, seconds, signature, finish=lambda mine: decode(mine.data, pickler))


_FIRST_PARTS: Final = "the first parts of objects"
"""The name in Call.within of the exchange that has the lengths of pickles, and short pickles themselves."""
_FIRST: Final = 2048
"""Bytes of one rank's part of such an exchange."""
_MOST_FIRST: Final = 1 << 14
"""Bytes of the parts of all ranks, unless they are so many that each has only _LEAST_FIRST."""
_LEAST_FIRST: Final = 64


def require_authenticated(executor: Executor) -> None:
    """Raise TransportError if the links do not prove the identity of the sender."""
    if len(executor.ranks) > 1 and not executor.authenticated:
        raise TransportError("objects are not unpickled over links that are not authenticated: give the job a secret")


def _encode(obj: Any, name: str, pickler: Pickler | None) -> Array:
    return np.frombuffer(encode(obj, name, pickler), np.uint8)


def _put(first: Array, data: Array) -> None:
    """Write the length of a pickle and, if there is room for all of it, the pickle."""
    first[:_WORD].view(np.int64)[0] = data.size
    if data.size <= first.size - _ALIGNED:
        first[_ALIGNED : _ALIGNED + data.size] = data


def _length(first: Array) -> int:
    """The length that `_put` has written."""
    return int.from_bytes(first[:_WORD].data, sys.byteorder)


def _cut(everything: Array, lengths: Sequence[int]) -> list[Array]:
    """The parts of these lengths, which stand one after the other."""
    ends = accumulate(lengths)
    return [everything[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _decode_all(pickler: Pickler | None, parts: Sequence[Array]) -> list[Any]:
    return [decode(part.data, pickler) for part in parts]


class Pickler(Protocol):
    """The serialization of Python objects: a module such as pickle, dill or cloudpickle, or an object of one's own."""

    def dumps(self, obj: Any, /) -> Any:
        """The bytes of an object."""

    def loads(self, data: Any, /) -> Any:
        """The object of bytes, which a memoryview gives."""


def encode(obj: Any, name: str, pickler: Pickler | None = None) -> memoryview:
    """The pickle of an object as bytes, which `decode` takes. Raises TypeError naming the argument if the object cannot
    be pickled.

    Without a pickler the buffers of arrays stand behind the pickle (protocol 5), each at a multiple of _ALIGNED, so
    that they are copied once here, and not at all where the object is made again. A head of words of 64 bits precedes:
    the number of buffers, shifted by 8 bits, so that the first byte is 0 and not that of a pickle; the length of the
    pickle; those of the buffers.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        if pickler is not None:
            return memoryview(pickler.dumps(obj)).cast("B")
        data = pickle.dumps(obj, _PROTOCOL, buffer_callback=buffers.append)
    except Exception as error:
        raise TypeError(f"{name}: a {type_name(obj)} that cannot be pickled: {described(error)}") from error
    if not buffers:
        return memoryview(data)
    parts = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    lengths = [len(part) for part in parts]
    starts, whole = _places(lengths)
    joined = memoryview(bytearray(whole))
    joined[: _WORD * (1 + len(parts))] = struct.pack(f"<{1 + len(parts)}Q", len(buffers) << 8, *lengths)
    for start, part in zip(starts, parts, strict=True):
        joined[start : start + len(part)] = part
    return joined


def decode(data: memoryview, pickler: Pickler | None = None) -> Any:
    """The object of bytes that `encode` has made. The arrays in it may share the memory of `data`."""
    if pickler is not None:
        return pickler.loads(data)
    if data[0]:
        return pickle.loads(data)
    count = int.from_bytes(data[:_WORD], "little") >> 8
    lengths = struct.unpack_from(f"<{1 + count}Q", data, _WORD)
    parts = [data[start : start + n] for start, n in zip(_places(lengths)[0], lengths, strict=True)]
    return pickle.loads(parts[0], buffers=parts[1:])


def _places(lengths: Sequence[int]) -> tuple[list[int], int]:
    """The places of the pickle and the buffers behind their head, and the length of all."""
    starts, end = [], _WORD * (1 + len(lengths))
    for length in lengths:
        starts.append(end := -(-end // _ALIGNED) * _ALIGNED)
        end += length
    return starts, end
