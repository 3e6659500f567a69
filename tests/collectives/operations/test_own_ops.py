"""Reductions by a function of the user's: pairs and matrices, ops that do not commute, bad functions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import accumulate
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives import AbortedError, Communicator, MismatchError, Op
from collectives.algorithms import algorithms
from tests.worlds import World, Worlds, world_of

ALL = ["local", "tcp", "shm", "auto"]
Array = np.ndarray[Any, Any]
PAIR = np.dtype([("value", "f8"), ("index", "i4")])
"""12 bytes: no element of another dtype has this size."""
MATRIX = np.dtype([("m", "i8", (2, 2))])


def lesser(a: Array, b: Array) -> Array:
    return np.where((b["value"] < a["value"]) | ((b["value"] == a["value"]) & (b["index"] < a["index"])), b, a)


def product(a: Array, b: Array) -> None:
    """In place, as MPI's functions."""
    b["m"] = a["m"] @ b["m"]


ARGMIN = Op(lesser)
MATMUL = Op(product, commutative=False)


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


@pytest.fixture
def three(worlds: Worlds) -> World:
    return worlds.get("local", 3)


def pairs(rank: int, count: int) -> Array:
    array = np.zeros(count, PAIR)
    array["value"] = np.random.default_rng((rank, count)).integers(0, 10, count)
    array["index"] = rank
    return array


def matrices(rank: int, count: int) -> Array:
    array = np.zeros(count, MATRIX)
    array["m"] = np.random.default_rng((rank, count)).integers(0, 3, (count, 2, 2))
    return array


def times(a: Array, b: Array) -> Array:
    result = b.copy()
    product(a, result)
    return result


def test_records_are_combined_in_place(three: World) -> None:
    expected = list(accumulate((matrices(rank, 2) for rank in range(3)), times))

    def program(comm: Communicator) -> bool:
        before, scanned = (matrices(comm.rank, 2) for _ in range(2))
        comm.exscan(before, MATMUL, out=before)
        comm.scan(scanned, MATMUL, out=scanned)
        parts = matrices(comm.rank, 3)
        comm.reduce_scatter(parts, MATMUL, out=parts[comm.rank : comm.rank + 1])
        total = [matrices(rank, 3) for rank in range(3)]
        shares = reduce(times, total)
        return bool(
            (comm.rank == 0 or (before == expected[comm.rank - 1]).all())
            and (scanned == expected[comm.rank]).all()
            and parts[comm.rank] == shares[comm.rank]
        )

    assert three.run(program) == [True] * 3


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("transport", ALL)
@pytest.mark.parametrize("count", [1, 7, 20_003])
def test_pairs_and_matrices(worlds: Worlds, transport: str, size: int, count: int) -> None:
    """Argmin with its rank, and products of matrices, which do not commute, by every collective that reduces."""
    least = reduce(lesser, [pairs(rank, count) for rank in range(size)])
    products = list(accumulate((matrices(rank, count) for rank in range(size)), times))

    def program(comm: Communicator) -> bytes:
        x, m = pairs(comm.rank, count), matrices(comm.rank, count)
        mine = np.array_split(np.arange(count), size)[comm.rank]
        root = size - 1
        assert (comm.allreduce(x, ARGMIN) == least).all()
        result = comm.reduce(x, ARGMIN, root)
        assert (result is None) is (comm.rank != root)
        assert result is None or (result == least).all()
        assert (comm.reduce_scatter(x, ARGMIN) == least[mine]).all()
        total = comm.allreduce(m, MATMUL)
        assert (total == products[-1]).all()
        assert (comm.reduce_scatter(m, MATMUL) == products[-1][mine]).all()
        first = comm.reduce(m, MATMUL)
        assert first is None or (first == products[-1]).all()
        assert (comm.scan(m, MATMUL) == products[comm.rank]).all()
        before = comm.exscan(m, MATMUL)
        assert before is None or (before == products[comm.rank - 1]).all()
        assert (x == pairs(comm.rank, count)).all()
        assert (m == matrices(comm.rank, count)).all()
        comm.allreduce(m, MATMUL, out=m)
        assert (m == total).all()
        return total.tobytes()

    assert len(set(worlds.get(transport, size).run(program))) == 1


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan", "exscan"])
def test_every_algorithm_combines_an_op_that_does_not_commute_in_rank_order_or_refuses(
    worlds: Worlds, collective: str
) -> None:
    def program(comm: Communicator) -> int:
        done = 0
        for known in algorithms(collective).values():
            if known.onesided or known.multihost:
                continue
            m = matrices(comm.rank, 24)
            if not known.tree_order:
                with pytest.raises(ValueError, match=rf"'{known.name}': .*commute"):
                    getattr(comm, collective)(m, MATMUL, algorithm=known.name)
                continue
            result = getattr(comm, collective)(m, MATMUL, algorithm=known.name)
            products = list(accumulate((matrices(rank, 24) for rank in range(6)), times))
            wanted = {
                "reduce": products[-1] if comm.rank == 0 else None,
                "reduce_scatter": products[-1][4 * comm.rank : 4 * comm.rank + 4],
                "scan": products[comm.rank],
                "exscan": products[comm.rank - 1] if comm.rank else None,
            }.get(collective, products[-1])
            assert (result is None) is (wanted is None)
            assert wanted is None or (result == wanted).all()
            done += 1
        return done

    assert min(worlds.get("tcp", 6).run(program)) >= 1


def test_functions_of_ordinary_arrays(worlds: Worlds) -> None:
    """New array, in place, and ufunc; numbers, halves, layouts, factors, grouped, asynchronous, named, persistent."""

    def larger(a: Array, b: Array) -> Array:
        return np.where(abs(b) > abs(a), b, a)

    def add(a: Array, b: Array) -> None:
        np.add(a, b, out=b)

    def program(comm: Communicator) -> None:
        x = (np.arange(12.0) - 6) * (1 if comm.rank == 1 else 0.5)
        np.testing.assert_array_equal(comm.allreduce(x, Op(larger)), np.arange(12.0) - 6)
        summing, gcd = Op(add, name="my sum"), Op(np.gcd)
        np.testing.assert_array_equal(comm.allreduce(x, summing), comm.allreduce(x))
        np.testing.assert_array_equal(comm.allreduce(x, summing, prescale=2, postscale=3), 6 * comm.allreduce(x))
        np.testing.assert_array_equal(
            comm.allreduce(x.reshape(3, 4)[:, ::2], summing), comm.allreduce(x).reshape(3, 4)[:, ::2]
        )
        halves = x.astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(comm.allreduce(halves, summing), comm.allreduce(halves))
        assert comm.allreduce(6 * (comm.rank + 1), gcd) == 6
        assert isinstance(comm.allreduce(2, gcd), np.int64)
        both = comm.grouped_allreduce([x, 2 * x], summing)
        np.testing.assert_array_equal(both[1], 2 * both[0])
        work = comm.allreduce_async(x, summing, name="one")
        np.testing.assert_array_equal(comm.allreduce_async(x, Op(larger), name="two").wait(), np.arange(12.0) - 6)
        np.testing.assert_array_equal(work.wait(), comm.allreduce(x))
        plan = comm.plan("allreduce", x, summing)
        np.testing.assert_array_equal(plan.run(), comm.allreduce(x))

    for transport in ("local", "shm"):
        worlds.get(transport, 3).run(program)


def test_an_op_has_a_name() -> None:
    assert repr(Op(np.gcd)) == "Op(gcd)"
    assert repr(Op(lambda a, b: a, commutative=False, name="first")) == "Op(first, commutative=False)"
    with pytest.raises(TypeError, match=r"function='sum': .*function of two arrays"):
        Op("sum")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="commutative='largest': must be"):
        Op(np.gcd, "largest")  # type: ignore[arg-type]


def test_a_flag_is_no_text(worlds: Worlds) -> None:
    def program(comm: Communicator) -> None:
        with pytest.raises(TypeError, match="reproducible='no': must be"):
            comm.allreduce(np.ones(3), reproducible="no")  # type: ignore[arg-type]
        for yes in (True, np.True_, 1):
            assert comm.allreduce(np.ones(3), reproducible=yes)[0] == 3

    worlds.get("local", 3).run(program)


def test_bad_functions_are_refused_before_anything_is_sent(three: World) -> None:
    def program(comm: Communicator) -> None:
        x = np.ones(4, np.int32)
        for function, text in (
            (lambda a, b: a / 2, r"op=Op\(f\): .*float64 .*\(2,\); .*int32"),
            (lambda a, b: a[:1], r"op=Op\(f\): .*int32 .*\(1,\); "),
            (lambda a, b: 5, r"op=Op\(f\): .*int; .*int32"),
        ):
            with pytest.raises(TypeError, match=text):
                comm.allreduce(x, Op(function, name="f"))
        with pytest.raises(ValueError, match="read-only"):
            comm.allreduce(x, Op(lambda a, b: np.add(a, b, out=a)))
        with pytest.raises(ZeroDivisionError):
            comm.scan(x, Op(lambda a, b: 1 // 0))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="dtype object"):
            comm.allreduce(np.array([None, 1]), ARGMIN)
        with pytest.raises(TypeError, match=r"prescale=2: .*value"):
            comm.allreduce(pairs(0, 3), ARGMIN, prescale=2)
        for factor in (np.nan, np.inf):
            for name in ("prescale", "postscale"):
                with pytest.raises(ValueError, match=rf"{name}={factor}: .*finite for int32"):
                    comm.allreduce(np.ones(2, np.int32), **{name: factor})
        with pytest.raises(TypeError, match=r"x: dtype .*value"):
            comm.allreduce(pairs(0, 3), "min")
        with pytest.raises(ValueError, match=r"op=5: .*sum, .*, or an Op"):
            comm.allreduce(x, 5)  # type: ignore[call-overload]

    three.run(program)
    assert three.sound


def test_an_error_in_a_function_reaches_every_rank() -> None:
    def fails(a: Array, b: Array) -> Array:
        if a.any():
            raise RuntimeError("not that number")
        return a

    with world_of("local", 3) as world:

        def program(comm: Communicator) -> None:
            with pytest.raises((RuntimeError, AbortedError), match="not that number"):
                comm.allreduce(np.ones(3), Op(fails))
            assert comm.failure is not None

        world.run(program)


def test_ops_that_differ_are_a_mismatch() -> None:
    with world_of("local", 3) as world:

        def program(comm: Communicator) -> None:
            with pytest.raises(MismatchError, match=r"op=Op\("):
                comm.allreduce(np.ones(3), Op(np.add, commutative=comm.rank != 1))

        world.run(program)


def test_a_function_that_fails_on_zeros_is_not_tried_if_it_says_so(worlds: Worlds) -> None:
    """Without the trial the first call of the function is on the ranks' numbers."""
    seen: list[float] = []

    def quotient(a: Any, b: Any) -> Any:
        seen.append(float(b.min()))
        if not b.all():
            raise ZeroDivisionError("zeros")
        return a / b

    def body(comm: Communicator) -> Any:
        with pytest.raises(ZeroDivisionError):
            comm.allreduce(np.full(2, comm.rank + 1.0), Op(quotient, False))
        return comm.allreduce(np.full(2, comm.rank + 1.0), Op(quotient, False, trial=False)).tolist()

    assert worlds.get("local", 2).run(body) == [[0.5, 0.5]] * 2
    assert seen.count(0.0) == 2, "once on each rank, in the trial"
