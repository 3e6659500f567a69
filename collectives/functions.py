"""The functions of the package: the methods of `Communicator`, on the world communicator.

Every function has the signature of the method that it names; the method's docstring explains the arguments.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from collectives.annotations import A, Number, OpName, Scalar, SupportsArray, T
from collectives.arrays import Array, Op
from collectives.communicator import Communicator
from collectives.execution import Peers
from collectives.operations import Persistent, Status, Work
from collectives.world import world


def rank() -> int:
    """This process's number in the world, 0 to size() - 1."""
    return world().rank


def size() -> int:
    """The number of ranks in the world."""
    return world().size


def local_rank() -> int:
    """This rank's number among the ranks on its host."""
    return world().local_rank


def local_size() -> int:
    """The number of ranks on this rank's host."""
    return world().local_size


def cross_rank() -> int:
    """This rank's number among the ranks that have the same local rank, one on each host."""
    return world().cross_rank


def cross_size() -> int:
    """The number of ranks that have the same local rank as this one, itself included."""
    return world().cross_size


@overload
def allreduce(
    x: A,
    op: OpName | Op = ...,
    *,
    out: A | None = ...,
    prescale: float | None = ...,
    postscale: float | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A: ...


@overload
def allreduce(
    x: Number,
    op: OpName | Op = ...,
    *,
    out: Array | None = ...,
    prescale: float | None = ...,
    postscale: float | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> np.number[Any]: ...


def allreduce(
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
) -> Any:
    """Combine all ranks' `x` element by element. Every rank gets the result, with the same bits. See
    Communicator.allreduce.
    """
    return world().allreduce(
        x,
        op,
        out=out,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
    )


@overload
def allreduce_async(
    x: A,
    op: OpName | Op = ...,
    *,
    out: A | None = ...,
    prescale: float | None = ...,
    postscale: float | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A]: ...


@overload
def allreduce_async(
    x: Number,
    op: OpName | Op = ...,
    *,
    out: Array | None = ...,
    prescale: float | None = ...,
    postscale: float | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[np.number[Any]]: ...


def allreduce_async(
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
    """Begin `allreduce` and return its Work. See Communicator.allreduce_async."""
    return world().allreduce_async(
        x,
        op,
        out=out,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
        name=name,
    )


@overload
def reduce(
    x: A,
    op: OpName | Op = ...,
    root: int = ...,
    *,
    out: A | None = ...,
    prescale: float | None = ...,
    postscale: float | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A | None: ...


@overload
def reduce(
    x: Number,
    op: OpName | Op = ...,
    root: int = ...,
    *,
    out: Array | None = ...,
    prescale: float | None = ...,
    postscale: float | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> np.number[Any] | None: ...


def reduce(
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
) -> Any:
    """Combine all ranks' `x` element by element. The root gets the result, the other ranks get None. See
    Communicator.reduce.
    """
    return world().reduce(
        x,
        op,
        root,
        out=out,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
    )


@overload
def reduce_async(
    x: A,
    op: OpName | Op = ...,
    root: int = ...,
    *,
    out: A | None = ...,
    prescale: float | None = ...,
    postscale: float | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A | None]: ...


@overload
def reduce_async(
    x: Number,
    op: OpName | Op = ...,
    root: int = ...,
    *,
    out: Array | None = ...,
    prescale: float | None = ...,
    postscale: float | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[np.number[Any] | None]: ...


def reduce_async(
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
    """Begin `reduce` and return its Work. See Communicator.reduce_async."""
    return world().reduce_async(
        x,
        op,
        root,
        out=out,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
        name=name,
    )


def reduce_scatter(
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
) -> A:
    """Combine all ranks' `x` element by element, and split the result along axis 0: every rank gets its part. See
    Communicator.reduce_scatter.
    """
    return world().reduce_scatter(
        x,
        op,
        counts=counts,
        out=out,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
    )


def reduce_scatter_async(
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
    """Begin `reduce_scatter` and return its Work. See Communicator.reduce_scatter_async."""
    return world().reduce_scatter_async(
        x,
        op,
        counts=counts,
        out=out,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
        name=name,
    )


@overload
def broadcast(
    x: A,
    root: int = ...,
    *,
    out: A | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A: ...


@overload
def broadcast(
    x: Number,
    root: int = ...,
    *,
    out: Array | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> np.number[Any]: ...


def broadcast(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
) -> Any:
    """Give every rank the root's `x`. See Communicator.broadcast."""
    return world().broadcast(x, root, out=out, algorithm=algorithm, timeout=timeout, stream=stream, blocking=blocking)


@overload
def broadcast_async(
    x: A,
    root: int = ...,
    *,
    out: A | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A]: ...


@overload
def broadcast_async(
    x: Number,
    root: int = ...,
    *,
    out: Array | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[np.number[Any]]: ...


def broadcast_async(
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
    """Begin `broadcast` and return its Work. See Communicator.broadcast_async."""
    return world().broadcast_async(
        x, root, out=out, algorithm=algorithm, timeout=timeout, stream=stream, blocking=blocking, name=name
    )


@overload
def allgather(
    x: Scalar,
    *,
    out: Array | None = ...,
    expected: Sequence[int] | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> Array: ...


@overload
def allgather(
    x: A,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A: ...


def allgather(
    x: Any,
    *,
    out: Any = None,
    expected: Sequence[int] | None = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
) -> Any:
    """Give every rank all ranks' `x`, concatenated along axis 0 in rank order. See Communicator.allgather."""
    return world().allgather(
        x, out=out, expected=expected, algorithm=algorithm, timeout=timeout, stream=stream, blocking=blocking
    )


@overload
def allgather_async(
    x: Scalar,
    *,
    out: Array | None = ...,
    expected: Sequence[int] | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[Array]: ...


@overload
def allgather_async(
    x: A,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A]: ...


def allgather_async(
    x: Any,
    *,
    out: Any = None,
    expected: Sequence[int] | None = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
    name: str | None = None,
) -> Work[Any]:
    """Begin `allgather` and return its Work. See Communicator.allgather_async."""
    return world().allgather_async(
        x, out=out, expected=expected, algorithm=algorithm, timeout=timeout, stream=stream, blocking=blocking, name=name
    )


@overload
def gather(
    x: Scalar,
    root: int = ...,
    *,
    out: Array | None = ...,
    expected: Sequence[int] | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> Array | None: ...


@overload
def gather(
    x: A,
    root: int = ...,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A | None: ...


def gather(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    expected: Sequence[int] | None = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
) -> Any:
    """Give the root all ranks' `x`, concatenated along axis 0 in rank order. The other ranks get None. See
    Communicator.gather.
    """
    return world().gather(
        x, root, out=out, expected=expected, algorithm=algorithm, timeout=timeout, stream=stream, blocking=blocking
    )


@overload
def gather_async(
    x: Scalar,
    root: int = ...,
    *,
    out: Array | None = ...,
    expected: Sequence[int] | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[Array | None]: ...


@overload
def gather_async(
    x: A,
    root: int = ...,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A | None]: ...


def gather_async(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    expected: Sequence[int] | None = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
    name: str | None = None,
) -> Work[Any]:
    """Begin `gather` and return its Work. See Communicator.gather_async."""
    return world().gather_async(
        x,
        root,
        out=out,
        expected=expected,
        algorithm=algorithm,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
        name=name,
    )


@overload
def scatter(
    x: None = ...,
    root: int = ...,
    *,
    counts: Sequence[int] | None = ...,
    out: None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> Array: ...


@overload
def scatter(
    x: A | None = ...,
    root: int = ...,
    *,
    counts: Sequence[int] | None = ...,
    out: A | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A: ...


def scatter(
    x: Any = None,
    root: int = 0,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
) -> Any:
    """Split the root's `x` along axis 0: every rank gets its part. See Communicator.scatter."""
    return world().scatter(
        x, root, counts=counts, out=out, algorithm=algorithm, timeout=timeout, stream=stream, blocking=blocking
    )


@overload
def scatter_async(
    x: None = ...,
    root: int = ...,
    *,
    counts: Sequence[int] | None = ...,
    out: None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[Array]: ...


@overload
def scatter_async(
    x: A | None = ...,
    root: int = ...,
    *,
    counts: Sequence[int] | None = ...,
    out: A | None = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A]: ...


def scatter_async(
    x: Any = None,
    root: int = 0,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    algorithm: str | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
    name: str | None = None,
) -> Work[Any]:
    """Begin `scatter` and return its Work. See Communicator.scatter_async."""
    return world().scatter_async(
        x,
        root,
        counts=counts,
        out=out,
        algorithm=algorithm,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
        name=name,
    )


@overload
def alltoall(
    x: A,
    splits: Sequence[int] | None = ...,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    return_splits: Literal[False] = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A: ...


@overload
def alltoall(
    x: A,
    splits: Sequence[int] | None = ...,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    return_splits: Literal[True],
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> tuple[A, NDArray[np.int64]]: ...


@overload
def alltoall(
    x: A,
    splits: Sequence[int] | None = ...,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    return_splits: bool,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A | tuple[A, NDArray[np.int64]]: ...


def alltoall(
    x: Any,
    splits: Sequence[int] | None = None,
    *,
    out: Any = None,
    expected: Sequence[int] | None = None,
    return_splits: bool = False,
    algorithm: str | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
) -> Any:
    """Split every rank's `x` along axis 0, part i for rank i. The result is all parts for this rank, in rank order. See
    Communicator.alltoall.
    """
    return world().alltoall(
        x,
        splits,
        out=out,
        expected=expected,
        return_splits=return_splits,
        algorithm=algorithm,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
    )


@overload
def alltoall_async(
    x: A,
    splits: Sequence[int] | None = ...,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    return_splits: Literal[False] = ...,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A]: ...


@overload
def alltoall_async(
    x: A,
    splits: Sequence[int] | None = ...,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    return_splits: Literal[True],
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[tuple[A, NDArray[np.int64]]]: ...


@overload
def alltoall_async(
    x: A,
    splits: Sequence[int] | None = ...,
    *,
    out: A | None = ...,
    expected: Sequence[int] | None = ...,
    return_splits: bool,
    algorithm: str | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A | tuple[A, NDArray[np.int64]]]: ...


def alltoall_async(
    x: Any,
    splits: Sequence[int] | None = None,
    *,
    out: Any = None,
    expected: Sequence[int] | None = None,
    return_splits: bool = False,
    algorithm: str | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
    name: str | None = None,
) -> Work[Any]:
    """Begin `alltoall` and return its Work. See Communicator.alltoall_async."""
    return world().alltoall_async(
        x,
        splits,
        out=out,
        expected=expected,
        return_splits=return_splits,
        algorithm=algorithm,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
        name=name,
    )


@overload
def scan(
    x: A,
    op: OpName | Op = ...,
    *,
    out: A | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A: ...


@overload
def scan(
    x: Number,
    op: OpName | Op = ...,
    *,
    out: Array | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> np.number[Any]: ...


def scan(
    x: Any,
    op: OpName | Op = "sum",
    *,
    out: Any = None,
    algorithm: str | None = None,
    reproducible: bool | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
) -> Any:
    """Combine the `x` of this rank and of all lower ranks element by element. Every rank gets its own result. See
    Communicator.scan.
    """
    return world().scan(
        x,
        op,
        out=out,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
    )


@overload
def scan_async(
    x: A,
    op: OpName | Op = ...,
    *,
    out: A | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A]: ...


@overload
def scan_async(
    x: Number,
    op: OpName | Op = ...,
    *,
    out: Array | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[np.number[Any]]: ...


def scan_async(
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
    """Begin `scan` and return its Work. See Communicator.scan_async."""
    return world().scan_async(
        x,
        op,
        out=out,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
        name=name,
    )


@overload
def exscan(
    x: A,
    op: OpName | Op = ...,
    *,
    out: A | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> A | None: ...


@overload
def exscan(
    x: Number,
    op: OpName | Op = ...,
    *,
    out: Array | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
) -> np.number[Any] | None: ...


def exscan(
    x: Any,
    op: OpName | Op = "sum",
    *,
    out: Any = None,
    algorithm: str | None = None,
    reproducible: bool | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
) -> Any:
    """Combine the `x` of all lower ranks element by element. Every rank gets its own result, rank 0 None. See
    Communicator.exscan.
    """
    return world().exscan(
        x,
        op,
        out=out,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
    )


@overload
def exscan_async(
    x: A,
    op: OpName | Op = ...,
    *,
    out: A | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[A | None]: ...


@overload
def exscan_async(
    x: Number,
    op: OpName | Op = ...,
    *,
    out: Array | None = ...,
    algorithm: str | None = ...,
    reproducible: bool | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
    blocking: bool = ...,
    name: str | None = ...,
) -> Work[np.number[Any] | None]: ...


def exscan_async(
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
    """Begin `exscan` and return its Work. See Communicator.exscan_async."""
    return world().exscan_async(
        x,
        op,
        out=out,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
        name=name,
    )


def barrier(*, algorithm: str | None = None, timeout: float | None = None) -> None:
    """Return when every rank has called it. See Communicator.barrier."""
    world().barrier(algorithm=algorithm, timeout=timeout)


def barrier_async(*, algorithm: str | None = None, timeout: float | None = None, name: str | None = None) -> Work[None]:
    """Begin `barrier` and return its Work. See Communicator.barrier_async."""
    return world().barrier_async(algorithm=algorithm, timeout=timeout, name=name)


def grouped_allreduce(
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
) -> list[A]:
    """allreduce of several arrays as one operation. Returns the results in the order of `xs`. See
    Communicator.grouped_allreduce.
    """
    return world().grouped_allreduce(
        xs,
        op,
        out=out,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
    )


def grouped_allreduce_async(
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
    """Begin `grouped_allreduce` and return its Work. See Communicator.grouped_allreduce_async."""
    return world().grouped_allreduce_async(
        xs,
        op,
        out=out,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
        reproducible=reproducible,
        timeout=timeout,
        stream=stream,
        blocking=blocking,
        name=name,
    )


def grouped_allgather(
    xs: Sequence[A],
    *,
    expected: Sequence[Sequence[int]] | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
) -> list[A]:
    """allgather of several arrays as one operation. Returns the results in the order of `xs`. See
    Communicator.grouped_allgather.
    """
    return world().grouped_allgather(xs, expected=expected, timeout=timeout, stream=stream, blocking=blocking)


def grouped_allgather_async(
    xs: Sequence[A],
    *,
    expected: Sequence[Sequence[int]] | None = None,
    timeout: float | None = None,
    stream: Any = None,
    blocking: bool = False,
    name: str | None = None,
) -> Work[list[A]]:
    """Begin `grouped_allgather` and return its Work. See Communicator.grouped_allgather_async."""
    return world().grouped_allgather_async(
        xs, expected=expected, timeout=timeout, stream=stream, blocking=blocking, name=name
    )


def compose(body: Callable[[Peers], T], what: str, *, timeout: float | None = None) -> T:
    """Run `body(peers)` as one collective operation, and return its result. All ranks must call it. See
    Communicator.compose.
    """
    return world().compose(body, what, timeout=timeout)


def compose_async(
    body: Callable[[Peers], T], what: str, *, timeout: float | None = None, name: str | None = None
) -> Work[T]:
    """Begin `compose` and return its Work. See Communicator.compose_async."""
    return world().compose_async(body, what, timeout=timeout, name=name)


def broadcast_object(obj: Any = None, root: int = 0, *, timeout: float | None = None) -> Any:
    """Give every rank the root's object. See Communicator.broadcast_object."""
    return world().broadcast_object(obj, root, timeout=timeout)


def broadcast_object_async(
    obj: Any = None, root: int = 0, *, timeout: float | None = None, name: str | None = None
) -> Work[Any]:
    """Begin `broadcast_object` and return its Work. See Communicator.broadcast_object_async."""
    return world().broadcast_object_async(obj, root, timeout=timeout, name=name)


def allgather_object(obj: T, *, timeout: float | None = None) -> list[T]:
    """Give every rank the list of all ranks' objects, in rank order. See Communicator.allgather_object."""
    return world().allgather_object(obj, timeout=timeout)


def allgather_object_async(obj: T, *, timeout: float | None = None, name: str | None = None) -> Work[list[T]]:
    """Begin `allgather_object` and return its Work. See Communicator.allgather_object_async."""
    return world().allgather_object_async(obj, timeout=timeout, name=name)


def gather_object(obj: T, root: int = 0, *, timeout: float | None = None) -> list[T] | None:
    """Give the root the list of all ranks' objects, in rank order. See Communicator.gather_object."""
    return world().gather_object(obj, root, timeout=timeout)


def gather_object_async(
    obj: T, root: int = 0, *, timeout: float | None = None, name: str | None = None
) -> Work[list[T] | None]:
    """Begin `gather_object` and return its Work. See Communicator.gather_object_async."""
    return world().gather_object_async(obj, root, timeout=timeout, name=name)


def scatter_object(objs: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None) -> Any:
    """Give each rank one of the root's objects. See Communicator.scatter_object."""
    return world().scatter_object(objs, root, timeout=timeout)


def scatter_object_async(
    objs: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None, name: str | None = None
) -> Work[Any]:
    """Begin `scatter_object` and return its Work. See Communicator.scatter_object_async."""
    return world().scatter_object_async(objs, root, timeout=timeout, name=name)


def send(x: SupportsArray | Number, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
    """Send `x` to rank `dst`, which must call `recv`. See Communicator.send."""
    world().send(x, dst, tag=tag, timeout=timeout)


def send_async(x: SupportsArray | Number, dst: int, *, tag: int = 0, timeout: float | None = None) -> Work[None]:
    """Begin `send` and return its Work. See Communicator.send_async."""
    return world().send_async(x, dst, tag=tag, timeout=timeout)


@overload
def recv(
    x: A,
    src: int | None = ...,
    *,
    tag: int | None = ...,
    timeout: float | None = ...,
    status: Status | None = ...,
) -> A: ...


@overload
def recv(
    x: None = ...,
    src: int | None = ...,
    *,
    tag: int | None = ...,
    timeout: float | None = ...,
    status: Status | None = ...,
) -> Array: ...


def recv(
    x: Any = None,
    src: int | None = None,
    *,
    tag: int | None = 0,
    timeout: float | None = None,
    status: Status | None = None,
) -> Any:
    """Receive a message from rank `src`, or from any rank, and return the array with it. See Communicator.recv."""
    return world().recv(x, src, tag=tag, timeout=timeout, status=status)


@overload
def recv_async(
    x: A,
    src: int | None = ...,
    *,
    tag: int | None = ...,
    timeout: float | None = ...,
    status: Status | None = ...,
) -> Work[A]: ...


@overload
def recv_async(
    x: None = ...,
    src: int | None = ...,
    *,
    tag: int | None = ...,
    timeout: float | None = ...,
    status: Status | None = ...,
) -> Work[Array]: ...


def recv_async(
    x: Any = None,
    src: int | None = None,
    *,
    tag: int | None = 0,
    timeout: float | None = None,
    status: Status | None = None,
) -> Work[Any]:
    """Begin `recv` and return its Work. See Communicator.recv_async."""
    return world().recv_async(x, src, tag=tag, timeout=timeout, status=status)


def probe(src: int | None = None, *, tag: int | None = 0, timeout: float | None = None) -> Status:
    """Wait until a message has arrived that `recv` with the same `src` and `tag` would receive; its envelope. See
    Communicator.probe.
    """
    return world().probe(src, tag=tag, timeout=timeout)


def iprobe(src: int | None = None, *, tag: int | None = 0) -> Status | None:
    """The envelope of a message that `probe` would find now; None if there is none. See Communicator.iprobe."""
    return world().iprobe(src, tag=tag)


def send_object(obj: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
    """Send an object to rank `dst`, which must call `recv_object`. See Communicator.send_object."""
    world().send_object(obj, dst, tag=tag, timeout=timeout)


def send_object_async(obj: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> Work[None]:
    """Begin `send_object` and return its Work. See Communicator.send_object_async."""
    return world().send_object_async(obj, dst, tag=tag, timeout=timeout)


def recv_object(
    src: int | None = None, *, tag: int | None = 0, timeout: float | None = None, status: Status | None = None
) -> Any:
    """Receive an object from rank `src`, or from any rank, and return it. See Communicator.recv_object."""
    return world().recv_object(src, tag=tag, timeout=timeout, status=status)


def recv_object_async(
    src: int | None = None, *, tag: int | None = 0, timeout: float | None = None, status: Status | None = None
) -> Work[Any]:
    """Begin `recv_object` and return its Work. See Communicator.recv_object_async."""
    return world().recv_object_async(src, tag=tag, timeout=timeout, status=status)


@overload
def sendrecv(
    x: A, dst: int, src: int | None = ..., *, out: A | None = ..., tag: int = ..., timeout: float | None = ...
) -> A: ...


@overload
def sendrecv(
    x: Number, dst: int, src: int | None = ..., *, out: Array | None = ..., tag: int = ..., timeout: float | None = ...
) -> np.number[Any]: ...


def sendrecv(
    x: Any, dst: int, src: int | None = None, *, out: Any = None, tag: int = 0, timeout: float | None = None
) -> Any:
    """Send `x` to rank `dst` and receive an array from rank `src` at the same time. Returns the received array. See
    Communicator.sendrecv.
    """
    return world().sendrecv(x, dst, src, out=out, tag=tag, timeout=timeout)


@overload
def sendrecv_async(
    x: A, dst: int, src: int | None = ..., *, out: A | None = ..., tag: int = ..., timeout: float | None = ...
) -> Work[A]: ...


@overload
def sendrecv_async(
    x: Number, dst: int, src: int | None = ..., *, out: Array | None = ..., tag: int = ..., timeout: float | None = ...
) -> Work[np.number[Any]]: ...


def sendrecv_async(
    x: Any, dst: int, src: int | None = None, *, out: Any = None, tag: int = 0, timeout: float | None = None
) -> Work[Any]:
    """Begin `sendrecv` and return its Work. See Communicator.sendrecv_async."""
    return world().sendrecv_async(x, dst, src, out=out, tag=tag, timeout=timeout)


def join(*, timeout: float | None = None) -> int:
    """Tell the other ranks that this one has no more data, and wait until all have joined. See Communicator.join."""
    return world().join(timeout=timeout)


def join_async(*, timeout: float | None = None) -> Work[int]:
    """Begin `join` and return its Work. See Communicator.join_async."""
    return world().join_async(timeout=timeout)


def empty(
    shape: int | Sequence[int], dtype: Any = np.float64, *, name: str | None = None, timeout: float | None = None
) -> Array:
    """Make an array of zeros in memory that all ranks map. See Communicator.empty."""
    return world().empty(shape, dtype, name=name, timeout=timeout)


def plan(collective: str, /, *arguments: Any, **options: Any) -> Persistent:
    """Check and plan a call once, to make it many times on the same arrays. See Communicator.plan."""
    return world().plan(collective, *arguments, **options)


def metrics() -> dict[str, Any]:
    """The counts of the world communicator. See Communicator.metrics."""
    return world().metrics()


def reset_metrics() -> None:
    """Set all counts to zero. See Communicator.reset_metrics."""
    world().reset_metrics()


def metrics_text() -> str:
    """The metrics in Prometheus' text format. See Communicator.metrics_text."""
    return world().metrics_text()


def serve_metrics(port: int = 0, host: str = "127.0.0.1") -> int:
    """Serve the metrics of this rank over HTTP for Prometheus; returns the port. See Communicator.serve_metrics."""
    return world().serve_metrics(port, host)


def start_timeline(path: str | os.PathLike[str], style: str = "ronde") -> None:
    """Write the events of this rank to a file. See Communicator.start_timeline."""
    world().start_timeline(path, style)


def stop_timeline() -> None:
    """End the timeline, if there is one. See Communicator.stop_timeline."""
    world().stop_timeline()


def split(color: int | None, key: int = 0, *, timeout: float | None = None) -> Communicator | None:
    """Divide the world: ranks that give the same color form a new communicator. See Communicator.split."""
    return world().split(color, key, timeout=timeout)


def shrink(*, timeout: float | None = None) -> Communicator:
    """Make a new world of the ranks that are left after a failure. See Communicator.shrink."""
    return world().shrink(timeout=timeout)


def abort(reason: str) -> None:
    """Give up: pending and later calls of every rank raise AbortedError. See Communicator.abort."""
    world().abort(reason)


def regroup(*, timeout: float | None = None) -> Communicator | None:
    """Make a new world of the ranks that are left and of the newcomers that wait. See Communicator.regroup."""
    return world().regroup(timeout=timeout)


def changes_pending() -> bool:
    """True if all ranks are to call `regroup` now. See Communicator.changes_pending."""
    return world().changes_pending()


def leave(reason: str) -> None:
    """Ask that this rank leaves at the next change of ranks. See Communicator.leave."""
    world().leave(reason)
