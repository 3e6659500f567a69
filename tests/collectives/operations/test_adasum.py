"""Adasum against the formula, written down pair by pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives import OPS, Communicator, MismatchError
from collectives.arrays.ops import ADASUM, allowed_ops
from collectives.operations.adasum import levels
from collectives.schedule.topology import Tree, canonical_tree
from tests.collectives.compression.test_compression import alike
from tests.worlds import World, Worlds, world_of

Vector = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


def pairwise(a: Vector, b: Vector) -> Vector:
    """The formula of the paper, in float64. A vector of zeros changes nothing."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    ab, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - ab / (2 * aa) if aa else 1.0) * a + (1 - ab / (2 * bb) if bb else 1.0) * b


def along(tree: Tree, vectors: list[Vector]) -> Vector:
    return vectors[tree] if isinstance(tree, int) else pairwise(along(tree[0], vectors), along(tree[1], vectors))


def expected(vectors: list[Vector]) -> Vector:
    return along(canonical_tree(len(vectors)), vectors)


def vectors(size: int, shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> list[Vector]:
    """Gradients that have something in common."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=shape)
    return [(common + rng.normal(size=shape)).astype(dtype) for _ in range(size)]


def adasum(world: World, given: list[Vector], **options: Any) -> Vector:
    return alike(world.run(lambda comm: comm.allreduce(given[comm.rank], "adasum", **options)))


def test_the_tree() -> None:
    assert levels(1) == []
    assert levels(3) == [[(0, 1)], [(0, 2)]]
    assert levels(4) == [[(0, 1), (2, 3)], [(0, 2)]]
    assert levels(6) == [[(0, 1), (2, 3), (4, 5)], [(0, 2)], [(0, 4)]]
    for size in range(2, 65):
        pairs = [pair for level in levels(size) for pair in level]
        assert sorted(right for _, right in pairs) == list(range(1, size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("shape", [(1,), (3,), (), (0,), (40, 17), (20_000,)])
def test_it_follows_the_formula(worlds: Worlds, size: int, shape: tuple[int, ...]) -> None:
    given = vectors(size, shape)
    np.testing.assert_allclose(adasum(worlds.get("local", size), given), expected(given), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float64, 1e-12), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)], ids=str
)
def test_other_floats(worlds: Worlds, dtype: Any, tolerance: float) -> None:
    given = vectors(3, (1000,), dtype)
    result = adasum(worlds.get("local", 3), given)
    assert result.dtype == dtype
    np.testing.assert_allclose(result.astype(np.float64), expected(given), rtol=tolerance, atol=tolerance)


def test_halves_are_rounded_once(worlds: Worlds) -> None:
    """Four equal vectors: the mean at every level, whose intermediate values float16 could not hold."""
    given = [np.full(8, 60000, np.float16)] * 4
    np.testing.assert_array_equal(adasum(worlds.get("local", 4), given), given[0])


def test_adasum_keeps_a_common_gradient_and_adds_orthogonal_ones(worlds: Worlds) -> None:
    """The sum of orthogonal gradients, the mean of parallel ones."""
    world = worlds.get("local", 2)
    axes = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(adasum(world, [axes[0], axes[1] * 3]), [1, 3, 0, 0])
    np.testing.assert_array_equal(adasum(world, [axes[2] * 2, axes[2] * 2]), [0, 0, 2, 0])
    np.testing.assert_array_equal(adasum(world, [axes[2] * 2, axes[2] * 0]), [0, 0, 2, 0])
    np.testing.assert_array_equal(adasum(world, [axes[2] * 0, axes[2] * 2]), [0, 0, 2, 0])


def test_every_tensor_of_a_group_has_its_own_coefficients(worlds: Worlds) -> None:
    world = worlds.get("local", 3)
    shapes: list[tuple[int, ...]] = [(5,), (0,), (7, 3), (1,), (100,)]
    given = [vectors(3, shape, seed=number) for number, shape in enumerate(shapes)]
    given.append(vectors(3, (6,), np.float64))
    results = world.run(lambda comm: comm.grouped_allreduce([each[comm.rank] for each in given], "adasum"))
    for number, each in enumerate(given):
        result = alike([mine[number] for mine in results])
        assert result.dtype == each[0].dtype
        np.testing.assert_allclose(result, expected(each), rtol=2e-5, atol=1e-6)


def test_in_place_scaled_and_asynchronous(worlds: Worlds) -> None:
    world, given = worlds.get("local", 2), vectors(2, (50,))

    def body(comm: Communicator) -> tuple[Vector, Vector]:
        x = given[comm.rank].copy()
        comm.allreduce(x, "adasum", out=x)
        kept = given[comm.rank].copy()
        scaled = comm.allreduce_async(kept, "adasum", prescale=2.0, postscale=0.25).wait()
        np.testing.assert_array_equal(kept, given[comm.rank])
        return x, scaled

    results = world.run(body)
    whole = alike([x for x, _ in results])
    np.testing.assert_allclose(whole, expected(given), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(alike([scaled for _, scaled in results]), whole / 2, rtol=1e-6)


def test_infinity_and_nan_become_nan_of_their_tensor_only(worlds: Worlds) -> None:
    world = worlds.get("local", 2)
    bad, good = [np.array([1, np.inf, 2]), np.ones(3)], [np.ones(3), np.ones(3)]
    results = world.run(lambda comm: comm.grouped_allreduce([bad[comm.rank], good[comm.rank]], "adasum"))
    for spoilt, sound in results:
        assert np.isnan(spoilt).all()
        np.testing.assert_array_equal(sound, np.ones(3))


@pytest.mark.parametrize(
    ("method", "x", "options", "error", "text"),
    [
        (
            "allreduce",
            np.ones(3, np.int32),
            {},
            TypeError,
            "op='adasum': .*int32; .*sum, aver",
        ),
        ("allreduce", np.ones(3, np.complex64), {}, TypeError, "op='adasum': .*complex64"),
        ("allreduce", np.ones(3), {"algorithm": "ring"}, ValueError, "op='adasum': .*algorithm="),
        ("reduce", np.ones(3), {}, ValueError, "op='adasum': .*allreduce .*reduce$"),
        ("reduce_scatter", np.ones(4), {}, ValueError, "op='adasum': .*allreduce .*reduce_scatter"),
    ],
)
def test_unsupported_calls_are_refused(
    worlds: Worlds, method: str, x: Vector, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(error, match=text):
            getattr(comm, method)(x, "adasum", **options)

    world = worlds.get("local", 2)
    world.run(body)
    assert world.sound


def test_no_dtype_has_it_as_a_kernel() -> None:
    assert ADASUM in OPS
    assert not any(ADASUM in allowed_ops(np.dtype(dtype)) for dtype in ("?", "i1", "u8", "f2", "f4", "f8", "c8"))


def test_groups_that_are_cut_differently_do_not_mix() -> None:
    def body(comm: Communicator) -> None:
        sizes = (3, 5) if comm.rank == 0 else (5, 3)
        with pytest.raises(MismatchError, match="op=adasum"):
            comm.grouped_allreduce([np.ones(size) for size in sizes], "adasum")

    with world_of("local", 2) as world:
        world.run(body)
