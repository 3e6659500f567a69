"""Python objects over the wire: pickled, and unpickled only if the link proves the identity of the sender."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives.arrays import Array, type_name
from collectives.execution import Executor
from collectives.operations.arguments import Arguments
from collectives.operations.job import FunctionJob, Job
from collectives.operations.shapes import AGREEMENT, Shapes, agree_on_parts, agree_on_shapes
from collectives.operations.signature import Signature
from collectives.planning import Call
from transports.errors import TransportError

_BYTE = np.dtype(np.uint8)


class Objects:
    """Makes the jobs of object collectives. The arguments are those of the Communicator's methods."""

    def __init__(self, executor: Executor, arguments: Arguments) -> None:
        self._executor = executor
        self._arguments = arguments

    def broadcast_object(self, obj: Any, root: int, timeout: float | None) -> Job[Any]:
        root = self._arguments.root(root)
        require_authenticated(self._executor)
        here = self._arguments.rank == root
        data = encode(obj, "obj") if here else None
        alias = 0 if here else None

        def run(deadline: float) -> Array:
            length = np.array([0 if data is None else data.size], np.int64)
            agreement = Call("broadcast", length.dtype, (1,), root=root, alias=alias, within=AGREEMENT)
            self._executor.run_call(agreement, length if here else None, length, deadline)
            received = np.empty(int(length[0]), np.uint8) if data is None else data
            call = Call("broadcast", _BYTE, (received.size,), root=root, alias=alias)
            self._executor.run_call(call, data, received, deadline)
            return received

        def finish(received: Array) -> Any:
            return obj if here else pickle.loads(received.data)

        signature = Signature("broadcast_object", root=root)
        return FunctionJob(run, self._arguments.timeout(timeout), signature, finish=finish)

    def allgather_object(self, obj: Any, timeout: float | None) -> Job[list[Any]]:
        require_authenticated(self._executor)
        data = encode(obj, "obj")

        def run(deadline: float) -> tuple[Array, Sequence[int]]:
            shapes = agree_on_shapes(self._executor, "allgather_object", data.shape, _BYTE, deadline)
            everything = np.empty(shapes.whole, np.uint8)
            self._executor.run_call(Call("allgather", _BYTE, shapes.blocks), data, everything, deadline)
            return everything, shapes.rows

        signature = Signature("allgather_object")
        return FunctionJob(run, self._arguments.timeout(timeout), signature, finish=_decode_all)

    def gather_object(self, obj: Any, root: int, timeout: float | None) -> Job[list[Any] | None]:
        root = self._arguments.root(root)
        require_authenticated(self._executor)
        data = encode(obj, "obj")
        here = self._arguments.rank == root

        def run(deadline: float) -> tuple[Array, Sequence[int]]:
            shapes = agree_on_shapes(self._executor, "gather_object", data.shape, _BYTE, deadline)
            everything = np.empty(sum(shapes.rows) if here else 0, np.uint8)
            call = Call("gather", _BYTE, shapes.blocks, root=root)
            self._executor.run_call(call, data, everything if here else None, deadline)
            return everything, shapes.rows

        def finish(product: tuple[Array, Sequence[int]]) -> list[Any] | None:
            return _decode_all(product) if here else None

        signature = Signature("gather_object", root=root)
        return FunctionJob(run, self._arguments.timeout(timeout), signature, finish=finish)

    def scatter_object(self, objs: Sequence[Any] | None, root: int, timeout: float | None) -> Job[Any]:
        root = self._arguments.root(root)
        require_authenticated(self._executor)
        given, source = None, None
        if self._arguments.rank == root:
            if objs is None or len(objs) != self._arguments.size:
                count = "None" if objs is None else f"{len(objs)} objects"
                raise ValueError(f"objs={count}: must be {self._arguments.size} objects on the root, one for each rank")
            parts = [encode(obj, f"objs[{rank}]") for rank, obj in enumerate(objs)]
            given, source = Shapes(_BYTE, tuple(map(len, parts)), ()), np.concatenate(parts)

        def run(deadline: float) -> Array:
            shapes = agree_on_parts(self._executor, given, root, deadline)
            mine = np.empty(shapes.rows[self._arguments.rank], np.uint8)
            self._executor.run_call(Call("scatter", _BYTE, shapes.blocks, root=root), source, mine, deadline)
            return mine

        signature = Signature("scatter_object", root=root)
        seconds = self._arguments.timeout(timeout)
        return FunctionJob(run, seconds, signature, finish=lambda mine: pickle.loads(mine.data))


def require_authenticated(executor: Executor) -> None:
    """Raise TransportError if the links do not prove the identity of the sender."""
    if len(executor.ranks) > 1 and not executor.authenticated:
        raise TransportError("objects are not unpickled over links that are not authenticated: give the job a secret")


def _decode_all(product: tuple[Array, Sequence[int]]) -> list[Any]:
    """The objects whose pickles, of these lengths, stand one after the other."""
    everything, lengths = product
    ends = np.cumsum(lengths)
    return [pickle.loads(everything[end - length : end].data) for end, length in zip(ends, lengths, strict=True)]


def encode(obj: Any, name: str) -> Array:
    """The pickle of an object as bytes. Raises TypeError naming the argument if the object cannot be pickled."""
    stream = io.BytesIO()  # the pickler writes large arrays into it directly: pickle.dumps would make another copy
    try:
        pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(obj)
        return np.frombuffer(stream.getbuffer(), np.uint8)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"{name}: a {type_name(obj)} that cannot be pickled: {error}") from error
