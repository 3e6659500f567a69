"""Python objects over the wire: pickled, and unpickled only if the link proves the identity of the sender."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from collectives.arrays import Array, type_name
from collectives.execution import Executor
from collectives.operations.arguments import Arguments
from collectives.operations.job import FunctionJob, Job
from collectives.operations.shapes import AGREEMENT, agree_on_shapes
from collectives.operations.signature import Signature
from collectives.planning import Call
from transports.errors import TransportError

_BYTE = np.dtype(np.uint8)


class Objects:
    """Makes the jobs of object collectives. The arguments are those of the Communicator's methods."""

    def __init__(self, executor: Executor, arguments: Arguments) -> None:
        self._executor = executor
        self._arguments = arguments

    def broadcast_object(self, obj: Any = None, root: int = 0, *, timeout: float | None = None) -> Job[Any]:
        root = self._arguments.root(root)
        self._require_authenticated()
        here = self._arguments.rank == root
        data = _encode(obj, "obj") if here else None
        alias = 0 if here else None

        def run(deadline: float) -> Any:
            length = np.array([0 if data is None else data.size], np.int64)
            agreement = Call("broadcast", length.dtype, (1,), root=root, alias=alias, within=AGREEMENT)
            self._executor.run_call(agreement, length if here else None, length, deadline)
            received = np.empty(int(length[0]), np.uint8) if data is None else data
            call = Call("broadcast", _BYTE, (received.size,), root=root, alias=alias)
            self._executor.run_call(call, data, received, deadline)
            return obj if here else pickle.loads(received.data)

        return FunctionJob(run, self._arguments.timeout(timeout), Signature("broadcast_object", root=root))

    def allgather_object(self, obj: Any, *, timeout: float | None = None) -> Job[list[Any]]:
        self._require_authenticated()
        data = _encode(obj, "obj")

        def run(deadline: float) -> list[Any]:
            shapes = agree_on_shapes(self._executor, "allgather_object", data.shape, _BYTE, deadline)
            everything = np.empty(shapes.whole, np.uint8)
            self._executor.run_call(Call("allgather", _BYTE, shapes.blocks), data, everything, deadline)
            ends = np.cumsum(shapes.rows)
            return [
                pickle.loads(everything[end - length : end].data) for end, length in zip(ends, shapes.rows, strict=True)
            ]

        return FunctionJob(run, self._arguments.timeout(timeout), Signature("allgather_object"))

    def _require_authenticated(self) -> None:
        if self._arguments.size > 1 and not self._executor.authenticated:
            raise TransportError(
                "objects are not unpickled over links that are not authenticated: give the job a secret"
            )


def _encode(obj: Any, name: str) -> Array:
    """The pickle of an object as bytes. Raises TypeError naming the argument if the object cannot be pickled."""
    try:
        return np.frombuffer(bytearray(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)), np.uint8)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"{name}: a {type_name(obj)} that cannot be pickled: {error}") from error
