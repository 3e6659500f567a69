"""Compression: the same bits everywhere, what is lost is sent later, as few bytes as promised; training converges."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import AbortedError, Communicator, MismatchError
from collectives.compression import BF16, FP16, Cast, Compressor, Int8, PowerSGD, State, TopK, Uncompressed
from collectives.compression.powersgd import orthonormalise
from collectives.compression.topk import largest
from tests.collectives.launch.launcher import ronde
from tests.worlds import World, Worlds, world_of

ROOT = Path(__file__).resolve().parents[3]
Vector = np.ndarray[Any, np.dtype[Any]]

ALL: list[Compressor] = [
    Uncompressed(),
    FP16(),
    BF16(),
    Int8(),
    Int8(block=100, rounding="stochastic", seed=3),
    TopK(0.05),
    PowerSGD(2),
]
REMEMBERING = [compressor for compressor in ALL if getattr(compressor, "feedback", False)]
ERRORS = {Uncompressed: 1e-6, FP16: 1e-3, BF16: 8e-3, Int8: 3e-2, TopK: 1.0, PowerSGD: 1.0}
"""The largest error of the result, relative to its norm. TopK and PowerSGD leave out most of random values."""


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


def vectors(size: int, shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> list[Vector]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for _ in range(size)]


def alike(results: list[Any]) -> Vector:
    """The result, the same bits on every rank."""
    assert len({np.asarray(result).tobytes() for result in results}) == 1
    return np.asarray(results[0])


def error(result: Vector, expected: Vector, given: list[Vector] | None = None) -> float:
    """Relative to the norm of what was expected, or of what was given."""
    difference = np.linalg.norm(result.astype(np.float64) - expected)
    norm = np.linalg.norm(expected) if given is None else sum(np.linalg.norm(x.astype(np.float64)) for x in given)
    return float(difference / norm) if norm else float(difference)


def reduced(world: World, compressor: Compressor, xs: list[Vector], op: str = "average", **options: Any) -> Vector:
    return alike(world.run(lambda comm: compressor.allreduce(comm, xs[comm.rank], op, **options)))


# ---- results


@pytest.mark.parametrize("compressor", ALL, ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__)
def test_every_rank_gets_the_same_and_about_the_right(
    worlds: Worlds, compressor: Compressor, size: int, dtype: Any
) -> None:
    world = worlds.get("local", size)
    half = 1e-2 if np.dtype(dtype).itemsize == 2 else 0.0
    for shape in ((61, 83), (5003,)):
        xs = vectors(size, shape, dtype)
        kept = [x.copy() for x in xs]
        total = np.sum([x.astype(np.float64) for x in xs], axis=0)
        for op, expected in (("sum", total), ("average", total / size)):
            result = reduced(world, compressor, xs, op)
            assert (result.dtype, result.shape) == (dtype, shape)
            assert error(result, expected) <= ERRORS[type(compressor)] + half
        if size == 1:
            np.testing.assert_array_equal(result, xs[0])
        for x, before in zip(xs, kept, strict=True):
            np.testing.assert_array_equal(x, before)


@pytest.mark.long
@given(data=st.data())
def test_any_shape(worlds: Worlds, data: st.DataObject) -> None:
    """Also sizes that are not divisible by blocks or ranks, and a few arrays at once."""
    size = data.draw(st.sampled_from([2, 3]))
    compressor = data.draw(st.sampled_from(ALL))
    shapes = data.draw(
        st.lists(st.sampled_from([(), (0,), (3,), (1, 1100), (1031,), (40, 3, 11), (2, 0, 5)]), max_size=4)
    )
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    columns = [vectors(size, shape, dtype, seed=number) for number, shape in enumerate(shapes)]
    names = [f"tensor {number}" for number in range(len(shapes))]

    def body(comm: Communicator) -> list[Any]:
        xs = [column[comm.rank] for column in columns]
        return compressor.grouped_allreduce(comm, xs, "sum", state=State(), names=names)

    results = worlds.get("local", size).run(body)
    found = [alike([mine[number] for mine in results]) for number in range(len(shapes))]
    assert [result.shape for result in found] == shapes
    if shapes:  # small tensors may share a block with large ones, so only the whole has a bound
        whole = [np.concatenate([column[rank].reshape(-1) for column in columns]) for rank in range(size)]
        expected = np.sum(whole, axis=0, dtype=np.float64)
        result = np.concatenate([result.reshape(-1) for result in found])
        assert error(result, expected, whole) <= ERRORS[type(compressor)] + 1e-6


@pytest.mark.parametrize("compressor", ALL, ids=str)
def test_small_arrays_and_other_dtypes_are_sent_uncompressed(worlds: Worlds, compressor: Compressor) -> None:
    world = worlds.get("local", 3)
    for x in (np.arange(3000), np.full((50, 50), 0.3), np.full(3000, 1 + 2j), np.float32(0.1), np.zeros(0)):
        x = x[:20, :20] if x.ndim == 2 else x

        def body(comm: Communicator, x: Any = x) -> tuple[Any, Any]:
            return compressor.allreduce(comm, x * (comm.rank + 1)), comm.allreduce(x * (comm.rank + 1))

        for compressed, plain in world.run(body):
            np.testing.assert_array_equal(compressed, plain)
            assert compressed.dtype == plain.dtype


@pytest.mark.parametrize("compressor", ALL, ids=str)
def test_long_doubles(worlds: Worlds, compressor: Compressor) -> None:
    """Casts take them, the others send them as they are."""
    xs = vectors(2, (61, 83), np.longdouble)

    def body(comm: Communicator) -> Vector:
        result: Vector = compressor.allreduce(comm, xs[comm.rank] / 3, state=State(), name="x")
        return result

    for result in worlds.get("local", 2).run(body):
        assert result.dtype == np.longdouble
        if isinstance(compressor, Cast):
            assert error(result, xs[0] / 3 + xs[1] / 3) <= ERRORS[type(compressor)]
        else:
            np.testing.assert_array_equal(result, xs[0] / 3 + xs[1] / 3)


@pytest.mark.parametrize("compressor", ALL, ids=str)
def test_where_the_result_goes(worlds: Worlds, compressor: Compressor) -> None:
    """In place, into another array, from read-only and strided memory: the same bits."""
    world, xs = worlds.get("local", 2), vectors(2, (64, 96))
    expected = reduced(world, compressor, xs)

    def body(comm: Communicator) -> list[Vector]:
        own, out, strided = xs[comm.rank].copy(), np.empty((64, 96), np.float32), np.zeros((64, 192), np.float32)
        strided[:, ::2] = xs[comm.rank]
        strided.flags.writeable = False
        assert compressor.allreduce(comm, own, "average", out=own, state=State(), name="w") is own
        assert compressor.allreduce(comm, strided[:, ::2], "average", out=out) is out
        shifted = np.zeros(64 * 96 + 7, np.float32)
        shifted[7:] = xs[comm.rank].reshape(-1)
        compressor.allreduce(comm, shifted[7:].reshape(64, 96), "average", out=shifted[:-7].reshape(64, 96))
        work = compressor.grouped_allreduce_async(comm, [xs[comm.rank]], "average")
        return [own, out, shifted[:-7].reshape(64, 96), work.wait()[0]]

    if isinstance(compressor, PowerSGD) or getattr(compressor, "rounding", "") == "stochastic":
        # their random numbers depend on the name
        body = _without_the_first(body)
    for results in zip(*world.run(body), strict=True):
        np.testing.assert_array_equal(alike(list(results)), expected)


def _without_the_first(body: Callable[[Communicator], list[Vector]]) -> Callable[[Communicator], list[Vector]]:
    return lambda comm: body(comm)[1:]


@pytest.mark.long
def test_named_tensors_may_come_in_any_order(worlds: Worlds) -> None:
    """Compress as gradients do. The names are those of operations and of the state's memory."""
    world = worlds.get("local", 3)
    shapes = {"a": (70, 90), "b": (5000,), "c": (64, 64), "d": (10,)}
    xs = {name: vectors(3, shape, np.float64, seed=number) for number, (name, shape) in enumerate(shapes.items())}

    def body(comm: Communicator, compressor: Compressor) -> dict[str, Vector]:
        state, order = State(), sorted(shapes, reverse=comm.rank == 1)
        for _ in range(3):
            works = {}
            for name in order:
                x = xs[name][comm.rank]
                works[name] = compressor.allreduce_async(comm, x, "average", state=state, name=name)
            results = {name: works[name].wait() for name in shapes}
        grouped = compressor.grouped_allreduce_async(comm, [results["c"]], name="of its own")
        assert grouped.wait()[0].shape == (64, 64)
        return results

    def alone(comm: Communicator, compressor: Compressor) -> Vector:
        state = State()
        return [compressor.allreduce(comm, xs["b"][comm.rank], "average", state=state, name="b") for _ in range(3)][2]

    for compressor in (Uncompressed(), Int8(), TopK(0.05), PowerSGD()):
        results = world.run(body, compressor)
        for name in shapes:
            alike([result[name] for result in results])
        np.testing.assert_array_equal(results[0]["b"], world.run(alone, compressor)[0])


@pytest.mark.processes
def test_the_documentation_works_as_shown(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "compression.md").read_text(), re.DOTALL)
    script = tmp_path / "script.py"
    script.write_text(snippet)
    done = ronde("run", "-np", "2", str(script))
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.long
def test_stochastic_rounding_is_unbiased_and_repeatable(worlds: Worlds) -> None:
    world, x = worlds.get("local", 2), np.linspace(-1, 1, 3001)

    def body(comm: Communicator) -> list[Vector]:
        compressor, state = Int8(rounding="stochastic", feedback=False), State()
        return [compressor.allreduce(comm, x, "average", state=state, name="x") for _ in range(200)]

    first, second = world.run(body)[0], world.run(body)[1]
    np.testing.assert_array_equal(first, second)
    step = 1 / 127
    assert np.abs(np.mean(first, axis=0) - x).max() < 0.35 * step  # nearest rounding would err by half a step
    assert len({each.tobytes() for each in first}) == 200
    other = reduced(world, Int8(rounding="stochastic", seed=1), [x, x])
    assert not np.array_equal(other, first[0])


# ---- what is lost is sent later


@pytest.mark.parametrize("op", ["sum", "average"])
@pytest.mark.parametrize("compressor", REMEMBERING, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_nothing_is_lost(worlds: Worlds, compressor: Compressor, op: str, size: int) -> None:
    """After any number of calls, what has arrived and what the ranks still hold is together what was given."""
    rng = np.random.default_rng(5)
    xs = rng.normal(size=(12, size, 70, 40))

    def body(comm: Communicator) -> tuple[Vector, Vector]:
        state, arrived = State(), np.zeros((70, 40))
        for x in xs:
            arrived += compressor.allreduce(comm, x[comm.rank], op, state=state, name="w")
        residual = state.memories["w"].residual
        assert residual is not None
        assert np.any(residual)
        assert state.memories["w"].step == 12
        assert state.nbytes >= 70 * 40 * 8
        return arrived, residual.reshape(70, 40)

    results = worlds.get("local", size).run(body)
    arrived = alike([arrived for arrived, _ in results])
    held = sum(residual for _, residual in results)
    part = size if op == "average" else 1
    np.testing.assert_allclose(arrived + held / part, xs.sum((0, 1)) / part, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compressor", REMEMBERING, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_shows_and_leaves_the_state_alone(
    worlds: Worlds, compressor: Compressor, bad: float
) -> None:
    xs = vectors(3, (64, 80))
    spoilt = [x.copy() for x in xs]
    spoilt[1][10, 10] = bad

    def body(comm: Communicator) -> Vector:
        state = State()
        for _ in range(2):
            compressor.allreduce(comm, xs[comm.rank], state=state, name="w")
        before = pickle.dumps(state)
        result = compressor.allreduce(comm, spoilt[comm.rank], state=state, name="w")
        assert pickle.dumps(state) == before
        return result

    result = alike(worlds.get("local", 3).run(body))
    assert not np.isfinite(result[10, 10])
    if isinstance(compressor, TopK):
        assert np.isfinite(result).sum() == result.size - 1
    if isinstance(compressor, Int8):
        assert np.isnan(result).sum() <= 2 * compressor.block


@pytest.mark.parametrize("compressor", [FP16(), BF16()], ids=str)
def test_casts_keep_infinity_and_nan(worlds: Worlds, compressor: Compressor) -> None:
    x = np.ones(5000, np.float32)
    x[:3] = np.nan, np.inf, -np.inf
    result = reduced(worlds.get("local", 2), compressor, [x, x])
    np.testing.assert_array_equal(result, x)


def test_sums_are_made_in_full_precision(worlds: Worlds) -> None:
    """Four times 30000 is more than float16 holds, but the mean is not; 1 + 4 * 2**-12 is rounded once."""
    world = worlds.get("local", 4)
    np.testing.assert_array_equal(reduced(world, FP16(), [np.full(5000, 30000, np.float32)] * 4), np.full(5000, 30000))
    xs = [np.full(5000, 1.0 if rank == 0 else 2.0**-11) for rank in range(4)]
    np.testing.assert_array_equal(reduced(world, FP16(), xs, "sum"), np.full(5000, np.float16(1 + 3 * 2.0**-11)))


def test_an_error_leaves_the_state_alone() -> None:
    def body(comm: Communicator) -> None:
        x, state = np.random.default_rng(comm.rank).normal(size=(64, 64)), State()
        for compressor, name in ((Int8(), "a"), (TopK(), "b"), (PowerSGD(), "c")):
            compressor.allreduce(comm, x, state=state, name=name)
        before = pickle.dumps(state)
        if comm.rank == 0:
            comm.abort("for the test")
        for compressor, name in ((Int8(), "a"), (TopK(), "b"), (PowerSGD(), "c")):
            with pytest.raises(AbortedError):
                compressor.allreduce(comm, x, state=state, name=name)
        assert pickle.dumps(state) == before

    with world_of("local", 2) as world:
        world.run(body)


def test_a_state_goes_on_after_pickling(worlds: Worlds) -> None:
    xs = vectors(2, (50, 60))

    def body(comm: Communicator, compressor: Compressor) -> bool:
        state = State()
        compressor.allreduce(comm, xs[comm.rank], state=state, name="w")
        copy = pickle.loads(pickle.dumps(state))
        after, again = (compressor.allreduce(comm, xs[comm.rank], state=s, name="w") for s in (state, copy))
        return after.tobytes() == again.tobytes()

    for compressor in REMEMBERING:
        assert all(worlds.get("local", 2).run(body, compressor))


# ---- arguments


def test_compressors_are_values() -> None:
    assert len({Int8(), Int8(), Int8(block=128), Int8(rounding="stochastic"), TopK(), TopK(0.5), FP16(), BF16()}) == 7
    assert FP16() != BF16()
    for compressor in ALL:
        assert pickle.loads(pickle.dumps(compressor)) == compressor


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Int8(block=0), "block=0: .*1 to 32768"),
        (lambda: Int8(rounding="up"), "rounding='up': .*'nearest' or 'stochastic'"),
        (lambda: Int8(block=1.5), "block=1.5: .*int"),  # type: ignore[arg-type]
        (lambda: Int8(block="a"), "block='a': .*int"),  # type: ignore[arg-type]
        (lambda: Int8(seed=-1), "seed=-1: .*0 or more"),
        (lambda: Int8(seed=None), "seed=None: .*int"),  # type: ignore[arg-type]
        (lambda: TopK("0.1"), "ratio='0.1': .*number"),  # type: ignore[arg-type]
        (lambda: PowerSGD(float("inf")), "rank=inf: .*int"),  # type: ignore[arg-type]
        (lambda: PowerSGD(seed=0.5), "seed=0.5: .*int"),  # type: ignore[arg-type]
        (lambda: TopK(0), "ratio=0: .*at most 1"),
        (lambda: TopK(1.5), "ratio=1.5: .*at most 1"),
        (lambda: PowerSGD(0), "rank=0: .*1 or more"),
        (lambda: PowerSGD(seed=-2), "seed=-2: .*0 or more"),
    ],
)
def test_a_bad_description(make: Callable[[], Compressor], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("compressor", ALL, ids=str)
def test_a_bad_call_is_refused_and_nothing_is_lost(worlds: Worlds, compressor: Compressor) -> None:
    world = worlds.get("local", 2)

    def body(comm: Communicator) -> None:
        x, state = np.ones((70, 80), np.float32), State()
        compressor.allreduce(comm, x, state=state, name="w")
        for error_type, text, arguments in (
            (ValueError, "op='max': .*sum and average only", {"op": "max"}),
            (TypeError, r"x=\[1\]: .*array", {"x": [1]}),
            (ValueError, r"out: has shape \(3,\)", {"out": np.zeros(3, np.float32)}),
            (ValueError, r"names=\[''\]: .*state.*name", {"state": state}),
            (ValueError, "timeout=-1: .*positive", {"timeout": -1}),
        ):
            with pytest.raises(error_type, match=text):
                compressor.allreduce(comm, **{"x": x, **arguments})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="names="):
            compressor.grouped_allreduce(comm, [x, x], state=state, names=["a", "a"])
        with pytest.raises(ValueError, match=r"out: .*1 arrays.* 2"):
            compressor.grouped_allreduce(comm, [x, x], out=[x])
        if state.memories["w"].residual is not None:
            text = r"state: .*'w' .*float32 .*\(70, 80\) .*\(80, 70\) .*state\.forget\(\)"
            with pytest.raises(ValueError, match=text):
                compressor.allreduce(comm, x.T, state=state, name="w")
            state.forget()
            compressor.allreduce(comm, x.T, state=state, name="w")

    world.run(body)
    assert world.sound


@pytest.mark.parametrize(
    "theirs",
    [
        lambda comm, x: TopK(0.1).allreduce(comm, x),
        lambda comm, x: Int8(rounding="stochastic").allreduce(comm, x),
        lambda comm, x: Int8().allreduce(comm, x, "average"),
        lambda comm, x: Int8().allreduce(comm, x[:-1]),
        lambda comm, x: comm.allreduce(x),
    ],
    ids=["compressor", "options", "op", "shape", "none"],
)
def test_ranks_that_compress_differently(theirs: Callable[[Communicator, Vector], object]) -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(5000)
        with pytest.raises(MismatchError, match=r"within allreduce\(float64 \(5000,\), op=sum, Int8\("):
            theirs(comm, x) if comm.rank == 1 else Int8().allreduce(comm, x)

    with world_of("local", 2) as world:
        world.run(body)


@pytest.mark.parametrize("compressor", [FP16(), BF16()], ids=str)
def test_compressing_by_hand(compressor: Cast) -> None:
    x = np.linspace(-3, 3, 11, dtype=np.float32)
    small, context = compressor.compress(x)
    assert small.dtype == compressor.dtype
    back = compressor.decompress(small, context)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, x, rtol=1e-2)
    for other in (np.arange(3), np.ones(3, np.float16), np.ones(3, ml_dtypes.bfloat16)):
        small, context = compressor.compress(other)
        assert small is other
        assert compressor.decompress(small, context) is other


# ---- the parts


def test_the_largest() -> None:
    x = np.array([1, -3, 2, 3, 0, -2], np.float32)
    assert largest(x, 2).tolist() == [1, 3]
    assert largest(x, 3).tolist() == [1, 2, 3]
    assert largest(np.zeros(5), 2).tolist() == [0, 1]
    assert largest(np.array([1, np.nan, np.inf, -np.inf]), 1).tolist() == [1]
    assert largest(np.array([1, 5, np.inf, -np.inf]), 2).tolist() == [2, 3]
    assert largest(x, 6).tolist() == list(range(6))


@given(st.integers(1, 4), st.integers(1, 40), st.integers(0, 2**31))
def test_orthonormal_columns(rank: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = rng.normal(size=(rows, rank)) * 10.0 ** rng.integers(-6, 6, rank)
    basis = given.copy()
    orthonormalise(basis)
    gram = basis.T @ basis
    diagonal = np.diag(gram)
    assert np.all((np.abs(diagonal - 1) < 1e-9) | (diagonal == 0))
    np.testing.assert_allclose(gram, np.diag(diagonal), atol=1e-9)
    assert np.count_nonzero(diagonal) <= rows
    np.testing.assert_allclose(basis @ (basis.T @ given), given, rtol=1e-6, atol=1e-12)  # it spans what was given


def test_columns_that_depend_on_others_become_zero_and_begin_anew(worlds: Worlds) -> None:
    basis = np.array([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    orthonormalise(basis)
    np.testing.assert_allclose(basis, [[0.5**0.5, 0, 0], [0.5**0.5, 0, 0], [0, 0, 1]], atol=1e-12)
    one = np.outer(np.arange(1.0, 51), np.arange(1.0, 61))
    two = one + np.outer(np.cos(np.arange(50)), np.sin(np.arange(60)))

    def body(comm: Communicator) -> float:
        compressor, state = PowerSGD(2, feedback=False), State()
        assert error(compressor.allreduce(comm, one, "average", state=state, name="w"), one) < 1e-9
        for _ in range(4):  # of rank 1 before, of rank 2 now: the second column is needed again
            result = compressor.allreduce(comm, two, "average", state=state, name="w")
        return error(result, two)

    assert max(worlds.get("local", 2).run(body)) < 1e-6


# ---- bytes


@pytest.mark.parametrize(
    ("compressor", "bytes_of"),
    [
        (FP16(), {"alltoall": 2 * 24_000, "allgather": 2 * 24_000}),
        (BF16(), {"alltoall": 2 * 24_000, "allgather": 2 * 24_000}),
        (Int8(), dict.fromkeys(("alltoall", "allgather"), 24_000 + 4 * 4 * 24)),
        (TopK(0.01), {"allgather": 4 * 240 * 8}),
        (PowerSGD(2), {"allreduce": 4 * 2 * (120 + 200)}),
        (Uncompressed(), {"allreduce": 4 * 24_000}),
    ],
    ids=str,
)
def test_the_bytes_are_those_of_the_docstring(worlds: Worlds, compressor: Compressor, bytes_of: dict[str, int]) -> None:
    """A gradient of 120 x 200 float32 on 4 ranks, 6000 numbers for each rank to add up."""
    xs = vectors(4, (120, 200))

    def body(comm: Communicator) -> dict[str, Any]:
        comm.reset_metrics()
        compressor.allreduce(comm, xs[comm.rank])
        metrics: dict[str, Any] = comm.metrics()["parts"]
        return metrics

    for parts in worlds.get("local", 4).run(body):
        assert {name: part["bytes"] for name, part in parts.items()} == bytes_of
        for name in ("alltoall", "allgather"):
            if name in bytes_of:
                assert parts[name]["moved"] == bytes_of[name] * 3 // 4


# ---- training


class Digits:
    """Logistic regression on all digits by gradient descent, every rank with a part of them."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits  # takes a second

        data = load_digits()
        self.x = data.data / 16 - (data.data / 16).mean(0)
        self.y = np.eye(10)[data.target]

    def loss(self, weights: Vector, bias: Vector) -> float:
        return float(-(self.y * self._log_softmax(self.x, weights, bias)).sum(1).mean())

    def train(self, comm: Communicator, compressor: Compressor, state: State | None, steps: int = 300) -> float:
        """The loss in the end."""
        x, y = self.x[comm.rank :: comm.size], self.y[comm.rank :: comm.size]
        weights, bias = np.zeros((64, 10)), np.zeros(10)
        for _ in range(steps):
            gradient = (np.exp(self._log_softmax(x, weights, bias)) - y) / len(x)
            mean = compressor.grouped_allreduce(
                comm,
                [x.T @ gradient, gradient.sum(0)],
                "average",
                state=state,
                names=("weights", "bias") if state is not None else (),
            )
            weights -= mean[0]
            bias -= mean[1]
        return self.loss(weights, bias)

    @staticmethod
    def _log_softmax(x: Vector, weights: Vector, bias: Vector) -> Vector:
        scores = x @ weights + bias
        scores -= scores.max(1, keepdims=True)
        result: Vector = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        return result


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits()


def loss_of(world: World, digits: Digits, compressor: Compressor, remember: bool) -> float:
    losses = world.run(lambda comm: digits.train(comm, compressor, State() if remember else None))
    assert len(set(losses)) == 1
    return float(losses[0])


@pytest.mark.long
def test_training_reaches_the_loss_of_uncompressed_training(worlds: Worlds, digits: Digits) -> None:
    """Within 6 %, mostly much closer, after 300 steps on 4 ranks. Without error feedback top-k and PowerSGD do not."""
    world = worlds.get("local", 4)
    plain = loss_of(world, digits, Uncompressed(), remember=False)
    assert plain < 0.2
    for compressor, tolerance in (
        (FP16(), 1e-3),
        (BF16(), 1e-3),
        (Int8(), 1e-3),
        (Int8(rounding="stochastic"), 1e-3),
        (TopK(0.01), 0.06),
        (PowerSGD(2), 0.02),
    ):
        assert loss_of(world, digits, compressor, remember=True) == pytest.approx(plain, rel=tolerance), compressor
    for compressor in (TopK(0.01), PowerSGD(2)):
        assert loss_of(world, digits, compressor, remember=False) > 3 * plain, compressor
