"""The asynchronous twins of the Communicator's methods. Made by `python -m docs._tools.twins`: do not edit it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from collectives.annotations import A, Number, OpName, Options, ReduceOptions, Scalar, ScaledOptions, SupportsArray, T
from collectives.arrays import Array, Op
from collectives.execution import Peers
from collectives.operations import Pickler, PointToPoint, ReceiveOptions, Starter, Status, Work


class AsynchronousCalls:
    """The methods that begin a call and return its Work. The calls themselves are those of Communicator."""

    def __init__(self, begin: Callable[[str | None], Starter[Work[Any]]]) -> None:
        """`begin` gives the starter of the calls with a name; with None that of the calls without one."""
        self._begin = begin

    @overload
    def allreduce_async(
        self,
        x: A,
        op: OpName | Op = ...,
        *,
        out: A | None = ...,
        name: str | None = ...,
        **options: Unpack[ScaledOptions],
    ) -> Work[A]: ...

    @overload
    def allreduce_async(
        self,
        x: Number,
        op: OpName | Op = ...,
        *,
        out: Array | None = ...,
        name: str | None = ...,
        **options: Unpack[ScaledOptions],
    ) -> Work[np.number[Any]]: ...

    def allreduce_async(
        self,
        x: Any,
        op: OpName | Op = "sum",
        *,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `allreduce` and return its Work.

        name  see Names in Communicator; other arguments as for `allreduce`
        """
        return self._begin(name).arrays(
            "allreduce", x, out, (op, prescale, postscale, algorithm, reproducible), timeout, stream, blocking
        )

    @overload
    def reduce_async(
        self,
        x: A,
        op: OpName | Op = ...,
        root: int = ...,
        *,
        out: A | None = ...,
        name: str | None = ...,
        **options: Unpack[ScaledOptions],
    ) -> Work[A | None]: ...

    @overload
    def reduce_async(
        self,
        x: Number,
        op: OpName | Op = ...,
        root: int = ...,
        *,
        out: Array | None = ...,
        name: str | None = ...,
        **options: Unpack[ScaledOptions],
    ) -> Work[np.number[Any] | None]: ...

    def reduce_async(
        self,
        x: Any,
        op: OpName | Op = "sum",
        root: int = 0,
        *,
        out: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `reduce` and return its Work.

        name  see Names in Communicator; other arguments as for `reduce`
        """
        return self._begin(name).arrays(
            "reduce", x, out, (root, op, prescale, postscale, algorithm, reproducible), timeout, stream, blocking
        )

    def reduce_scatter_async(
        self,
        x: A,
        op: OpName | Op = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: A | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[A]:
        """Begin `reduce_scatter` and return its Work.

        name  see Names in Communicator; other arguments as for `reduce_scatter`
        """
        return self._begin(name).arrays(
            "reduce_scatter",
            x,
            out,
            (counts, op, prescale, postscale, algorithm, reproducible),
            timeout,
            stream,
            blocking,
        )

    @overload
    def broadcast_async(
        self, x: A, root: int = ..., *, out: A | None = ..., name: str | None = ..., **options: Unpack[Options]
    ) -> Work[A]: ...

    @overload
    def broadcast_async(
        self, x: Number, root: int = ..., *, out: Array | None = ..., name: str | None = ..., **options: Unpack[Options]
    ) -> Work[np.number[Any]]: ...

    def broadcast_async(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `broadcast` and return its Work.

        name  see Names in Communicator; other arguments as for `broadcast`
        """
        return self._begin(name).arrays("broadcast", x, out, (root, algorithm), timeout, stream, blocking)

    @overload
    def allgather_async(
        self,
        x: Scalar,
        *,
        out: Array | None = ...,
        expected: Sequence[int] | None = ...,
        agreed: bool = ...,
        name: str | None = ...,
        **options: Unpack[Options],
    ) -> Work[Array]: ...

    @overload
    def allgather_async(
        self,
        x: A,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        agreed: bool = ...,
        name: str | None = ...,
        **options: Unpack[Options],
    ) -> Work[A]: ...

    def allgather_async(
        self,
        x: Any,
        *,
        out: Any = None,
        expected: Sequence[int] | None = None,
        agreed: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `allgather` and return its Work.

        name  see Names in Communicator; other arguments as for `allgather`
        """
        return self._begin(name).arrays("allgather", x, out, (expected, agreed, algorithm), timeout, stream, blocking)

    @overload
    def gather_async(
        self,
        x: Scalar,
        root: int = ...,
        *,
        out: Array | None = ...,
        expected: Sequence[int] | None = ...,
        agreed: bool = ...,
        name: str | None = ...,
        **options: Unpack[Options],
    ) -> Work[Array | None]: ...

    @overload
    def gather_async(
        self,
        x: A,
        root: int = ...,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        agreed: bool = ...,
        name: str | None = ...,
        **options: Unpack[Options],
    ) -> Work[A | None]: ...

    def gather_async(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        expected: Sequence[int] | None = None,
        agreed: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `gather` and return its Work.

        name  see Names in Communicator; other arguments as for `gather`
        """
        return self._begin(name).arrays(
            "gather", x, out, (root, expected, agreed, algorithm), timeout, stream, blocking
        )

    @overload
    def scatter_async(
        self,
        x: None = ...,
        root: int = ...,
        *,
        counts: Sequence[int] | None = ...,
        out: None = ...,
        agreed: bool = ...,
        name: str | None = ...,
        **options: Unpack[Options],
    ) -> Work[Array]: ...

    @overload
    def scatter_async(
        self,
        x: A | None = ...,
        root: int = ...,
        *,
        counts: Sequence[int] | None = ...,
        out: A | None = ...,
        agreed: bool = ...,
        name: str | None = ...,
        **options: Unpack[Options],
    ) -> Work[A]: ...

    def scatter_async(
        self,
        x: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        agreed: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `scatter` and return its Work.

        name  see Names in Communicator; other arguments as for `scatter`
        """
        return self._begin(name).arrays("scatter", x, out, (root, counts, agreed, algorithm), timeout, stream, blocking)

    @overload
    def alltoall_async(
        self,
        x: A,
        splits: Sequence[int] | None = ...,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        return_splits: Literal[False] = ...,
        agreed: bool = ...,
        name: str | None = ...,
        **options: Unpack[Options],
    ) -> Work[A]: ...

    @overload
    def alltoall_async(
        self,
        x: A,
        splits: Sequence[int] | None = ...,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        return_splits: Literal[True],
        agreed: bool = ...,
        name: str | None = ...,
        **options: Unpack[Options],
    ) -> Work[tuple[A, NDArray[np.int64]]]: ...

    @overload
    def alltoall_async(
        self,
        x: A,
        splits: Sequence[int] | None = ...,
        *,
        out: A | None = ...,
        expected: Sequence[int] | None = ...,
        return_splits: bool,
        agreed: bool = ...,
        name: str | None = ...,
        **options: Unpack[Options],
    ) -> Work[A | tuple[A, NDArray[np.int64]]]: ...

    def alltoall_async(
        self,
        x: Any,
        splits: Sequence[int] | None = None,
        *,
        out: Any = None,
        expected: Sequence[int] | None = None,
        return_splits: bool = False,
        agreed: bool = False,
        algorithm: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `alltoall` and return its Work.

        name  see Names in Communicator; other arguments as for `alltoall`
        """
        return self._begin(name).arrays(
            "alltoall", x, out, (splits, expected, return_splits, agreed, algorithm), timeout, stream, blocking
        )

    @overload
    def scan_async(
        self,
        x: A,
        op: OpName | Op = ...,
        *,
        out: A | None = ...,
        name: str | None = ...,
        **options: Unpack[ReduceOptions],
    ) -> Work[A]: ...

    @overload
    def scan_async(
        self,
        x: Number,
        op: OpName | Op = ...,
        *,
        out: Array | None = ...,
        name: str | None = ...,
        **options: Unpack[ReduceOptions],
    ) -> Work[np.number[Any]]: ...

    def scan_async(
        self,
        x: Any,
        op: OpName | Op = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `scan` and return its Work.

        name  see Names in Communicator; other arguments as for `scan`
        """
        return self._begin(name).arrays(
            "scan", x, out, (op, None, None, algorithm, reproducible), timeout, stream, blocking
        )

    @overload
    def exscan_async(
        self,
        x: A,
        op: OpName | Op = ...,
        *,
        out: A | None = ...,
        name: str | None = ...,
        **options: Unpack[ReduceOptions],
    ) -> Work[A | None]: ...

    @overload
    def exscan_async(
        self,
        x: Number,
        op: OpName | Op = ...,
        *,
        out: Array | None = ...,
        name: str | None = ...,
        **options: Unpack[ReduceOptions],
    ) -> Work[np.number[Any] | None]: ...

    def exscan_async(
        self,
        x: Any,
        op: OpName | Op = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `exscan` and return its Work.

        name  see Names in Communicator; other arguments as for `exscan`
        """
        return self._begin(name).arrays(
            "exscan", x, out, (op, None, None, algorithm, reproducible), timeout, stream, blocking
        )

    def barrier_async(
        self, *, algorithm: str | None = None, timeout: float | None = None, name: str | None = None
    ) -> Work[None]:
        """Begin `barrier` and return its Work.

        name  see Names in Communicator; other arguments as for `barrier`
        """
        return self._begin(name).job("barrier", algorithm, timeout)

    def grouped_allreduce_async(
        self,
        xs: Sequence[A],
        op: OpName | Op = "sum",
        *,
        out: Sequence[A] | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[list[A]]:
        """Begin `grouped_allreduce` and return its Work.

        name  see Names in Communicator; other arguments as for `grouped_allreduce`
        """
        return self._begin(name).arrays(
            "grouped_allreduce", xs, out, (op, prescale, postscale, algorithm, reproducible), timeout, stream, blocking
        )

    def grouped_allgather_async(
        self,
        xs: Sequence[A],
        *,
        expected: Sequence[Sequence[int]] | None = None,
        timeout: float | None = None,
        stream: Any = None,
        blocking: bool = False,
        name: str | None = None,
    ) -> Work[list[A]]:
        """Begin `grouped_allgather` and return its Work.

        name  see Names in Communicator; other arguments as for `grouped_allgather`
        """
        return self._begin(name).arrays("grouped_allgather", xs, None, (expected,), timeout, stream, blocking)

    def compose_async(
        self, body: Callable[[Peers], T], what: str, *, timeout: float | None = None, name: str | None = None
    ) -> Work[T]:
        """Begin `compose` and return its Work.

        name  see Names in Communicator; other arguments as for `compose`
        """
        return self._begin(name).job("compose", body, what, timeout)

    def broadcast_object_async(
        self,
        obj: Any = None,
        root: int = 0,
        *,
        timeout: float | None = None,
        pickler: Pickler | None = None,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `broadcast_object` and return its Work.

        name  see Names in Communicator; other arguments as for `broadcast_object`
        """
        return self._begin(name).job("broadcast_object", obj, root, timeout, pickler)

    def allgather_object_async(
        self, obj: T, *, timeout: float | None = None, pickler: Pickler | None = None, name: str | None = None
    ) -> Work[list[T]]:
        """Begin `allgather_object` and return its Work.

        name  see Names in Communicator; other arguments as for `allgather_object`
        """
        return self._begin(name).job("allgather_object", obj, timeout, pickler)

    def gather_object_async(
        self,
        obj: T,
        root: int = 0,
        *,
        timeout: float | None = None,
        pickler: Pickler | None = None,
        name: str | None = None,
    ) -> Work[list[T] | None]:
        """Begin `gather_object` and return its Work.

        name  see Names in Communicator; other arguments as for `gather_object`
        """
        return self._begin(name).job("gather_object", obj, root, timeout, pickler)

    def scatter_object_async(
        self,
        objs: Sequence[Any] | None = None,
        root: int = 0,
        *,
        timeout: float | None = None,
        pickler: Pickler | None = None,
        name: str | None = None,
    ) -> Work[Any]:
        """Begin `scatter_object` and return its Work.

        name  see Names in Communicator; other arguments as for `scatter_object`
        """
        return self._begin(name).job("scatter_object", objs, root, timeout, pickler)

    def send_async(
        self,
        x: SupportsArray | Number,
        dst: int,
        *,
        tag: int = 0,
        synchronous: bool = False,
        timeout: float | None = None,
    ) -> Work[None]:
        """Begin `send`, with the same arguments, and return its Work."""
        return self._begin(None).message(PointToPoint.send, x, dst, tag, timeout, synchronous)

    @overload
    def recv_async(self, x: A, src: int | None = ..., **options: Unpack[ReceiveOptions]) -> Work[A]: ...

    @overload
    def recv_async(self, x: None = ..., src: int | None = ..., **options: Unpack[ReceiveOptions]) -> Work[Array]: ...

    def recv_async(
        self,
        x: Any = None,
        src: int | None = None,
        *,
        tag: int | None = 0,
        timeout: float | None = None,
        status: Status | None = None,
        shorter: bool = False,
    ) -> Work[Any]:
        """Begin `recv`, with the same arguments, and return its Work."""
        return self._begin(None).message(PointToPoint.recv, x, src, tag, timeout, status, shorter)

    def send_object_async(
        self,
        obj: Any,
        dst: int,
        *,
        tag: int = 0,
        synchronous: bool = False,
        timeout: float | None = None,
        pickler: Pickler | None = None,
    ) -> Work[None]:
        """Begin `send_object`, with the same arguments, and return its Work."""
        return self._begin(None).message(PointToPoint.send_object, obj, dst, tag, timeout, synchronous, pickler)

    def recv_object_async(
        self,
        src: int | None = None,
        *,
        tag: int | None = 0,
        timeout: float | None = None,
        status: Status | None = None,
        pickler: Pickler | None = None,
    ) -> Work[Any]:
        """Begin `recv_object`, with the same arguments, and return its Work."""
        return self._begin(None).message(PointToPoint.recv_object, src, tag, timeout, status, pickler)

    @overload
    def sendrecv_async(
        self, x: A, dst: int, src: int | None = ..., *, out: A | None = ..., tag: int = ..., timeout: float | None = ...
    ) -> Work[A]: ...

    @overload
    def sendrecv_async(
        self,
        x: Number,
        dst: int,
        src: int | None = ...,
        *,
        out: Array | None = ...,
        tag: int = ...,
        timeout: float | None = ...,
    ) -> Work[np.number[Any]]: ...

    def sendrecv_async(
        self, x: Any, dst: int, src: int | None = None, *, out: Any = None, tag: int = 0, timeout: float | None = None
    ) -> Work[Any]:
        """Begin `sendrecv`, with the same arguments, and return its Work."""
        return self._begin(None).message(PointToPoint.sendrecv, x, dst, src, out, tag, timeout)
