"""Python objects over the wire: pickled, and unpickled only where the link proves who sent them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from collectives.agree import AGREEMENT, agree_on_shapes
from collectives.buffers import Array, type_name
from collectives.movement_jobs import MovementJobs
from collectives.plan import Call
from collectives.progress import Job
from collectives.terms import Terms
from transports.errors import TransportError

_BYTE = np.dtype(np.uint8)


class ObjectJobs(MovementJobs):
    """Makes the jobs of object collectives."""

    def broadcast_object(self, obj: Any = None, root: int = 0, *, timeout: float | None = None) -> Job[Any]:
        """Every rank gets the root's object, which must be picklable; off the root `obj` is ignored.

        Raises TransportError on every rank if the transport's links are not authenticated: unpickling can run any
        code. The communicator stays usable.
        """
        self.check_rank(root, "root")
        self._require_authenticated()
        data = _encode(obj, "obj") if self.rank == root else None

        def run(deadline: float) -> Any:
            length = np.array([0 if data is None else data.size], np.int64)
            here = data is not None
            alias = 0 if here else None
            self._executor.run(
                Call("broadcast", length.dtype, (1,), root=int(root), alias=alias, within=AGREEMENT),
                length if here else None,
                length,
                deadline,
            )
            received = np.empty(int(length[0]), np.uint8) if data is None else data
            self._executor.run(
                Call("broadcast", _BYTE, (received.size,), root=int(root), alias=alias), data, received, deadline
            )
            return obj if here else pickle.loads(received.data)

        return self.job(run, timeout, Terms("broadcast_object", root=int(root)))

    def allgather_object(self, obj: Any, *, timeout: float | None = None) -> Job[list[Any]]:
        """Every rank gets the list of all ranks' objects, in rank order. Errors as broadcast_object."""
        self._require_authenticated()
        data = _encode(obj, "obj")

        def run(deadline: float) -> list[Any]:
            shapes = agree_on_shapes(
                self._executor, self.rank, self.size, "allgather_object", data.shape, _BYTE, deadline
            )
            everything = np.empty(shapes.whole, np.uint8)
            self._executor.run(Call("allgather", _BYTE, shapes.blocks), data, everything, deadline)
            ends = np.cumsum(shapes.rows)
            return [
                pickle.loads(everything[end - length : end].data) for end, length in zip(ends, shapes.rows, strict=True)
            ]

        return self.job(run, timeout, Terms("allgather_object"))

    def _require_authenticated(self) -> None:
        if self.size > 1 and not self._executor.authenticated:
            raise TransportError(
                "objects are not unpickled over links that are not authenticated: give the job a secret"
            )


def _encode(obj: Any, name: str) -> Array:
    """The object's pickle as bytes. Raises TypeError naming the argument if it cannot be pickled."""
    try:
        return np.frombuffer(bytearray(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)), np.uint8)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"{name}: a {type_name(obj)} that cannot be pickled: {error}") from error
