"""Calls on arrays on GPUs with their expected results, the same for simulated GPUs and real ones.

Each function is called on every rank, with its communicator and CuPy.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from collectives import OPS, Communicator, Op, Status
from collectives.algorithms import algorithms
from collectives.arrays.ops import ADASUM, UFUNCS, allowed_ops

DTYPES = [
    *(np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *map(np.dtype, ("float16", "float32", "float64", "complex64", "complex128", "bool", ml_dtypes.bfloat16)),
]
REDUCTIONS = [op for op in OPS if op != ADASUM]
Array = np.ndarray[Any, Any]


def values(shape: tuple[int, ...], dtype: np.dtype[Any], rank: int) -> Array:
    """Small whole numbers: what four ranks combine is exact in every dtype."""
    rng = np.random.default_rng((rank, *shape))
    numbers = rng.integers(0, 3, shape)
    if dtype.kind == "c":
        return (numbers + 1j * rng.integers(0, 3, shape)).astype(dtype)
    return numbers.astype(dtype)


def combined(op: str, parts: list[Array]) -> Array:
    dtype = parts[0].dtype
    if op in ("land", "lor", "lxor"):
        parts = [(part != 0).astype(dtype) for part in parts]
    with np.errstate(all="ignore"):
        total = reduce(UFUNCS[op], parts).astype(dtype)
        if op == "average":
            wide = dtype if dtype.kind in "fc" and dtype.itemsize > 2 else np.dtype(np.float64)
            total = (total.astype(wide) / np.asarray(len(parts), wide)).astype(dtype)
    return np.asarray(total)


def same(found: Array, expected: Array, op: str | None = None) -> None:
    """Equal, but for averages of floats: NCCL divides first."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if op == "average" and expected.dtype.kind not in "biu":
        rtol = 1e-2 if expected.dtype.itemsize == 2 else 1e-6
        np.testing.assert_allclose(found.astype(np.complex128), expected.astype(np.complex128), rtol=rtol)
    else:
        np.testing.assert_array_equal(found, expected)


_ROOTED = ("reduce", "broadcast", "gather", "scatter")
FAMILIES = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "alltoall")


def host(array: Any) -> Array:
    """The values of an array on a GPU."""
    found: Array = array.get()
    return found


def reductions(comm: Communicator, cupy: Any) -> None:
    """allreduce, reduce and reduce_scatter of every dtype by every op, in place and not."""
    size = comm.size
    for dtype in DTYPES:
        parts = [values((6, 2), dtype, rank) for rank in range(size)]
        for op in REDUCTIONS:
            if op not in allowed_ops(dtype):
                continue
            expected = combined(op, parts)
            x = cupy.asarray(parts[comm.rank])
            y = comm.allreduce(x, op)
            assert isinstance(y, cupy.ndarray)
            same(host(y), expected, op)
            same(host(x), parts[comm.rank])
            out = cupy.empty((6, 2), dtype)
            assert comm.allreduce(x, op, out=out) is out
            same(host(out), expected, op)
            root = size - 1
            got = comm.reduce(x, op, root, out=x if comm.rank == root else None)
            assert (got is x) is (comm.rank == root)
            if got is not None:
                same(host(x), expected, op)
            else:
                same(host(x), parts[comm.rank])
            x = cupy.asarray(parts[comm.rank])
            rows = [6 // size] * size if op == "sum" else [6 - (size - 1), *[1] * (size - 1)]
            begin = sum(rows[: comm.rank])
            mine = comm.reduce_scatter(x, op, counts=rows)
            same(host(mine), expected[begin : begin + rows[comm.rank]], op)


def prefixes_and_own_ops(comm: Communicator, cupy: Any) -> None:
    """scan, exscan, and ops of the user's: they are combined in the host's memory, and come back to the GPU."""
    larger = Op(np.maximum)
    left = Op(lambda a, b: a, commutative=False, name="left")
    for dtype in (np.dtype("float32"), np.dtype("int64"), np.dtype(ml_dtypes.bfloat16)):
        parts = [values((5, 2), dtype, rank) for rank in range(comm.size)]
        x = cupy.asarray(parts[comm.rank])
        same(host(comm.scan(x)), combined("sum", parts[: comm.rank + 1]))
        before = comm.exscan(x, "max")
        assert (before is None) is (comm.rank == 0)
        if before is not None:
            same(host(before), combined("max", parts[: comm.rank]))
        y = comm.allreduce(x, larger)
        assert isinstance(y, cupy.ndarray)
        same(host(y), combined("max", parts))
        same(host(comm.scan(x, left)), parts[0])
        got = comm.reduce(x, left)
        assert got is None or (host(got) == parts[0]).all()
        same(host(comm.allreduce_async(x, larger, name=f"own {dtype}").wait()), combined("max", parts))
        same(host(x), parts[comm.rank])
        assert comm.scan(x, out=x) is x
        same(host(x), combined("sum", parts[: comm.rank + 1]))


def factors(comm: Communicator, cupy: Any) -> None:
    """Factors before and after."""
    size = comm.size
    for dtype in DTYPES:
        if dtype.kind == "b":
            continue
        parts = [values((5,), dtype, rank) for rank in range(size)]
        for op in ("sum", "average"):
            x = cupy.asarray(parts[comm.rank])
            expected = comm.allreduce(parts[comm.rank], op, prescale=2.0, postscale=4.0)
            same(host(comm.allreduce(x, op, prescale=2.0, postscale=4.0)), expected, op)
            same(host(x), parts[comm.rank])
            expected = comm.allreduce(parts[comm.rank], op, prescale=2.0)
            same(host(comm.allreduce(x, op, prescale=2.0, reproducible=True)), expected, op)
            same(host(comm.allreduce(x, op, prescale=2.0, out=x)), expected, op)


def movements(comm: Communicator, cupy: Any) -> None:
    """The collectives that move data, for every dtype, in equal and unequal parts."""
    size = comm.size
    rank = comm.rank
    for dtype in DTYPES:
        whole = [values((4, 3), dtype, other) for other in range(size)]
        x = cupy.asarray(whole[rank])
        root = size // 2
        same(host(comm.broadcast(x, root)), whole[root])
        y = cupy.asarray(whole[rank])
        assert comm.broadcast(y, root, out=y) is y
        same(host(y), whole[root])
        same(host(comm.allgather(x)), np.concatenate(whole))
        uneven = np.concatenate([part[: 1 + other] for other, part in enumerate(whole)])
        same(host(comm.allgather(x[: 1 + rank])), uneven)
        got = comm.gather(x[: 1 + rank], root)
        assert (got is None) is (rank != root)
        if got is not None:
            same(host(got), uneven)
        counts = [4 - (size - 1), *[1] * (size - 1)]
        begin = sum(counts[:rank])
        out = cupy.empty((counts[rank], 3), dtype)
        given = comm.scatter(x if rank == root else None, root, counts=counts, out=out)
        assert given is out
        same(host(out), whole[root][begin : begin + counts[rank]])
        table = cupy.asarray(np.concatenate([whole[rank]] * size))
        same(host(comm.alltoall(table)), np.concatenate(whole))
        splits = [other + rank for other in range(size)]
        rows = np.concatenate([whole[rank]] * size)[: sum(splits)]
        result, came = comm.alltoall(cupy.asarray(rows), splits, return_splits=True)
        expected, expected_came = comm.alltoall(rows, splits, return_splits=True)
        same(host(result), expected)
        np.testing.assert_array_equal(came, expected_came)


def groups_of_arrays(comm: Communicator, cupy: Any) -> None:
    """Several arrays as one operation."""
    shapes = [(3,), (2, 2), (100_000,), (0,), ()]
    kinds = [np.float32, np.float32, np.float32, np.int16, np.float64]
    parts = [values(shape, np.dtype(kind), comm.rank) for shape, kind in zip(shapes, kinds, strict=True)]
    xs = [cupy.asarray(part) for part in parts]
    expected = comm.grouped_allreduce(parts, "average")
    for found, wanted in zip(comm.grouped_allreduce(xs, "average"), expected, strict=True):
        same(host(found), wanted, "average")
    outs = [xs[0], cupy.empty((2, 2), np.float32), xs[2], xs[3], xs[4]]
    results = comm.grouped_allreduce(xs, "sum", out=outs)
    assert all(found is out for found, out in zip(results, outs, strict=True))
    for found, wanted in zip(results, comm.grouped_allreduce(parts), strict=True):
        same(host(found), wanted)
    gathered = comm.grouped_allgather([cupy.asarray(part) for part in parts])
    for found, wanted in zip(gathered, comm.grouped_allgather(parts), strict=True):
        same(host(found), wanted)


def reproducible(comm: Communicator, cupy: Any) -> None:
    """The bits that the host gives."""
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        part = np.random.default_rng(comm.rank).normal(size=1000).astype(dtype)
        for op in ("sum", "average", "prod"):
            expected = comm.allreduce(part, op, reproducible=True)
            found = host(comm.allreduce(cupy.asarray(part), op, reproducible=True))
            assert found.tobytes() == expected.tobytes(), (dtype, op)


def averages(comm: Communicator, cupy: Any) -> None:
    """Averages by Ronde's own schedules have the bits that the host gives, also at the ends of the range."""
    for dtype in map(np.dtype, ("float16", ml_dtypes.bfloat16, "float32", "float64", "complex64")):
        facts = ml_dtypes.finfo(dtype)
        ends = [float(facts.max), -float(facts.max), float(facts.smallest_normal), float(facts.smallest_subnormal)]
        rng = np.random.default_rng(comm.rank)
        part = np.concatenate([rng.normal(size=500), rng.choice(ends, 500), np.repeat(ends, 25)]).astype(dtype)
        part = part[: len(part) // comm.size * comm.size]
        for method in (comm.allreduce, comm.reduce_scatter):
            for name, known in algorithms(method.__name__).items():
                if known.onesided or known.multihost or known.native:
                    continue
                expected = method(part, "average", algorithm=name)
                assert host(method(cupy.asarray(part), "average", algorithm=name)).tobytes() == expected.tobytes(), name
            expected = method(part, "average", reproducible=True)
            assert host(method(cupy.asarray(part), "average", reproducible=True)).tobytes() == expected.tobytes()


def schedules(comm: Communicator, cupy: Any) -> None:
    """Ronde's own schedules."""
    rank, size = comm.rank, comm.size
    root = min(1, size - 1)
    for collective in FAMILIES:
        for name, known in algorithms(collective).items():
            if known.onesided or known.multihost:
                continue
            count = 40 * size
            parts = [values((count,), np.dtype(np.float32), other) for other in range(size)]
            x = cupy.asarray(parts[rank])
            method = getattr(comm, collective)
            options: dict[str, Any] = {"root": root} if collective in _ROOTED else {}
            if collective in ("allreduce", "broadcast") and rank % 2:  # in place on some ranks only
                options["out"] = x
            if collective == "scatter" and rank != root:
                options["out"] = cupy.empty((40,), np.float32)
            found = method(x, algorithm=name, **options)
            expected = method(parts[rank], **{**options, "out": None})
            assert (found is None) is (expected is None), name
            if found is not None:
                same(host(found), expected)


def layouts(comm: Communicator, cupy: Any) -> None:
    """Strided, empty and 0-d arrays."""
    for shape in ((), (0,), (0, 3), (5,), (4, 3)):
        part = values(shape, np.dtype(np.float32), comm.rank)
        same(host(comm.allreduce(cupy.asarray(part))), comm.allreduce(part))
    wide = cupy.asarray(np.arange(24, dtype=np.int32).reshape(4, 6) + comm.rank)
    for piece in (wide[:, ::2], wide[::-1], wide[1:3, 1:4]):
        expected = comm.allreduce(np.ascontiguousarray(host(piece)))
        same(host(comm.allreduce(piece)), expected)
        same(host(comm.allgather(piece)), comm.allgather(np.ascontiguousarray(host(piece))))
    room = cupy.asarray(np.zeros((4, 6), np.int32))
    out = room[:, 1::2]
    assert comm.allreduce(wide[:, ::2], out=out) is out
    same(host(out), comm.allreduce(np.ascontiguousarray(host(wide[:, ::2]))))
    same(host(room[:, ::2]), np.zeros((4, 3), np.int32))
    expected = comm.allreduce(np.ascontiguousarray(host(wide[:, ::2])))
    comm.allreduce(wide[:, ::2], out=wide[:, ::2])  # in place, but another object
    same(host(wide[:, ::2]), expected)


def mixed(comm: Communicator, cupy: Any) -> None:
    """Ranks with odd numbers have their arrays on GPUs, the others in the host's memory."""
    rank, size = comm.rank, comm.size

    def put(array: Array) -> Any:
        return cupy.asarray(array) if rank % 2 else array

    def get(found: Any) -> Any:
        return host(found) if isinstance(found, cupy.ndarray) else found

    for count in (5, 300_000):
        parts = [values((count,), np.dtype(np.float32), other) for other in range(size)]
        x = put(parts[rank])
        same(get(comm.allreduce(x)), sum(parts))
        same(get(comm.allreduce(x, "average")), combined("average", parts), "average")
        same(get(comm.allreduce(x, "max")), reduce(np.maximum, parts))
        same(get(comm.broadcast(x, 1)), parts[1])
        same(get(comm.allgather(x)), np.concatenate(parts))
        got = comm.reduce(x, root=size - 1)
        assert (got is None) is (rank != size - 1)
        counts = [count - (size - 1), *[1] * (size - 1)]
        begin = sum(counts[:rank])
        same(get(comm.reduce_scatter(x, counts=counts)), sum(parts)[begin : begin + counts[rank]])
        works = [comm.allreduce_async(x, name=f"{count}/{number}") for number in range(3)]
        for work in works:
            same(get(work.wait(20)), sum(parts))
        group = comm.grouped_allreduce_async([x, x[:3]], name=f"{count}/group")
        for found, expected in zip(group.wait(20), (sum(parts), sum(parts)[:3]), strict=True):
            same(get(found), expected)


def messages(comm: Communicator, cupy: Any) -> None:
    """send, recv, sendrecv."""
    size = comm.size
    right, left = (comm.rank + 1) % size, (comm.rank - 1) % size
    x = cupy.asarray(np.arange(12, dtype=np.int16).reshape(3, 4) + comm.rank)
    y = cupy.asarray(np.zeros((3, 4), np.int16))
    sending = comm.send_async(x, right)
    assert comm.recv(y, left) is y
    sending.wait()
    same(host(y), np.arange(12, dtype=np.int16).reshape(3, 4) + np.int16(left))
    found = comm.sendrecv(x[:, ::2], right, left)
    assert isinstance(found, cupy.ndarray)
    same(host(found), (np.arange(12, dtype=np.int16).reshape(3, 4) + np.int16(left))[:, ::2])
    room = cupy.asarray(np.zeros((3, 8), np.int16))
    out = room[:, ::2]
    assert comm.sendrecv(x, right, left, out=out) is out
    same(host(out), host(y))
    comm.send_async(host(x), right)
    comm.recv(y, left)
    same(host(y), np.arange(12, dtype=np.int16).reshape(3, 4) + np.int16(left))
    sending, status = comm.send_async(x, right, tag=3), Status()
    assert comm.recv(out, tag=3, status=status) is out
    sending.wait()
    assert (status.source, status.count) == (left, 12)
    same(host(out), host(y))
