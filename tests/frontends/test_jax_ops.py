"""frontends.jax: every operation eager, compiled and in loops, on both paths; gradients and order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontends.pool import Pool

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'ronde[jax]'")

import jax.numpy as jnp  # noqa: E402

import frontends.jax as hvd  # noqa: E402

Pools = Callable[[int], Pool]
DTYPES = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8", "complex64")


def in_world(body: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The program of a rank: `body(rank, size, *args)` between init and shutdown."""
    hvd.init(**options)
    try:
        assert hvd.path() == os.environ.get("RONDE_JAX_PATH", "ffi")
        return body(hvd.rank(), hvd.size(), *args)
    finally:
        jax.clear_caches()  # the next run is another world
        hvd.shutdown()


def same(found: Any, expected: Any) -> None:
    """Raises unless the trees are equal, in bits and dtypes."""
    found, expected = jax.tree.map(np.asarray, found), jax.tree.map(np.asarray, expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def in_all_ways(call: Callable[[Any], Any], x: Any, expected: Any) -> None:
    """`call(x)` eager, and compiled: as it is, in a loop and in a branch."""

    @jax.jit
    def compiled(x: Any) -> Any:
        looped = jax.lax.scan(lambda carry, _: (carry, call(x)), 0, None, length=2)[1]
        return call(x), looped, jax.lax.cond(True, call, call, x)

    same(call(x), expected)
    same(compiled(x), (expected, _twice(expected), expected))


def _twice(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * 2), tree)


def all_ways(rank: int, size: int) -> None:
    contributions = [np.arange(1, 7).reshape(2, 3) * (peer + 1) for peer in range(size)]
    total = sum(contributions)
    for name in DTYPES:
        dtype = jnp.dtype(name)
        x = jnp.asarray(contributions[rank]).astype(dtype)
        in_all_ways(lambda x: hvd.allreduce(x, op=hvd.Sum), x, total.astype(dtype))
        came = np.concatenate(contributions).astype(dtype)
        same(hvd.allgather(x), came)
        same(jax.jit(hvd.allgather)(x), came)
        same(jax.jit(lambda x: hvd.broadcast(x, size - 1))(x), contributions[-1].astype(dtype))
    x = jnp.asarray(contributions[rank], jnp.float32)
    totals = total.astype(np.float32)
    in_all_ways(hvd.allreduce, x, (totals / size).astype(np.float32))
    in_all_ways(lambda x: hvd.allreduce(x, op=hvd.Max), x, contributions[-1].astype(np.float32))
    in_all_ways(lambda x: hvd.allreduce(x, op=hvd.Min), x, contributions[0].astype(np.float32))
    in_all_ways(
        lambda x: hvd.allreduce(x, op=hvd.Product), x, np.prod(np.array(contributions), axis=0).astype(np.float32)
    )
    in_all_ways(hvd.allgather, x, np.concatenate(contributions).astype(np.float32))
    in_all_ways(lambda x: hvd.broadcast(x, 0), x, contributions[0].astype(np.float32))
    rows = jnp.tile(x, (size, 1))[: 2 * size - 1]  # 2 rows for every rank, 1 for the last
    whole = sum(np.tile(one, (size, 1)) for one in contributions)[: 2 * size - 1].astype(np.float32)
    in_all_ways(lambda x: hvd.reduce_scatter(x, op=hvd.Sum), rows, whole[2 * rank : 2 * rank + 2])
    in_all_ways(hvd.reduce_scatter, rows, (whole / size).astype(np.float32)[2 * rank : 2 * rank + 2])
    numbers = jnp.arange(2.0 * size) + 100 * rank
    moved = np.concatenate([np.arange(2.0) + 2 * rank + 100 * peer for peer in range(size)]).astype(np.float32)
    in_all_ways(hvd.alltoall, numbers, moved)
    table = [[giver + 1] * size for giver in range(size)]
    uneven = jnp.repeat(jnp.arange(1.0 * size), rank + 1) + 100 * rank
    arrived = np.concatenate([np.full(giver + 1, rank + 100.0 * giver) for giver in range(size)]).astype(np.float32)
    in_all_ways(lambda x: hvd.alltoall(x, table), uneven, arrived)
    counts = [peer + 1 for peer in range(size)]
    ragged = np.concatenate([np.full((peer + 1, 2), peer) for peer in range(size)]).astype(np.float32)
    in_all_ways(lambda x: hvd.allgather(x, rows=counts), jnp.full((rank + 1, 2), 1.0 * rank), ragged)
    tree = {
        "w": x,
        "b": (x[0], jnp.int32(rank)),
        "half": x.astype(jnp.bfloat16),
        "number": 3.0,
        "none": jnp.zeros((0, 2)),
    }
    expected = {
        "w": totals,
        "b": (totals[0], np.int32(sum(range(size)))),
        "half": totals.astype(jnp.bfloat16),
        "number": np.float32(3 * size),
        "none": np.zeros((0, 2), np.float32),
    }
    in_all_ways(lambda tree: hvd.allreduce(tree, op=hvd.Sum), tree, expected)
    same(jax.jit(hvd.grouped_allreduce)([x, x[0]]), [totals / size, totals[0] / size])
    same(
        hvd.allgather({"a": jnp.float32(rank), "b": x}),
        {"a": np.arange(size, dtype=np.float32), "b": np.concatenate(contributions).astype(np.float32)},
    )
    same(hvd.allreduce({}), {})
    same(hvd.allreduce(np.float32(rank)), np.float32((size - 1) / 2))
    scaled = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))
    same(scaled(x), totals * 2)
    for kind in (hvd.Compression.fp16, hvd.Compression.bf16):
        same(jax.jit(lambda x, kind=kind: hvd.allreduce(x, op=hvd.Sum, compression=kind))(x), totals)
    kept = jnp.ones(4) * rank
    same(
        jax.jit(lambda x: (hvd.allreduce(x, op=hvd.Sum), x))(kept),
        (np.full(4, 1.0 * sum(range(size)), np.float32), kept),
    )
    same(kept, np.full(4, rank, np.float32))
    with jax.enable_x64(True):
        wide = jnp.arange(3, dtype=jnp.float64) + 1e-12 * rank
        same(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(wide), sum(np.arange(3) + 1e-12 * p for p in range(size)))
        same(hvd.allreduce(jnp.int64(2**40), op=hvd.Sum), np.int64(2**40 * size))
    jax.jit(lambda x: [hvd.barrier(), x + 1][1])(x)
    hvd.barrier()
    evens = hvd.add_process_set([0, 1]) if size > 2 else hvd.global_process_set
    if evens.included():
        same(
            jax.jit(lambda x: hvd.allreduce(x, process_set=evens, op=hvd.Sum))(x),
            (contributions[0] + contributions[1]).astype(np.float32),
        )
        same(hvd.broadcast(x, 1, process_set=evens), contributions[1].astype(np.float32))


@pytest.mark.parametrize(("size", "transport", "path"), [(3, "tcp", "ffi"), (2, "shm", "callback")])
def test_every_operation_in_all_ways(pool: Pools, size: int, transport: str, path: str) -> None:
    pool(size).run(in_world, all_ways, transport=transport, jax_path=path)


def gradients(rank: int, size: int) -> None:
    weights = jnp.arange(3.0) + rank
    mean = np.arange(3, dtype=np.float32) + np.float32((size - 1) / 2)
    x = jnp.ones(3)

    def check(loss: Callable[[Any], Any], x: Any, expected: Any) -> None:
        looped = jax.grad(lambda x: jax.lax.scan(lambda total, _: (total + loss(x), None), 0.0, None, length=3)[0])
        compiled = jax.jit(lambda x: (jax.grad(loss)(x), jax.grad(jax.checkpoint(loss))(x), looped(x)))
        three = jax.tree.map(lambda one: 3 * np.asarray(one), expected)
        for found, right in zip((jax.grad(loss)(x), *compiled(x)), (expected, expected, expected, three), strict=True):
            jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), found, right)

    check(lambda x: (hvd.allreduce(x) * weights).sum(), x, mean)
    check(lambda x: (hvd.allreduce(x, op=hvd.Sum, name="sum") * weights).sum(), x, mean * size)
    check(lambda x: (hvd.allreduce(x, prescale_factor=2.0) * weights).sum(), x, 2 * mean)

    def partly(tree: Any) -> Any:
        reduced = hvd.allreduce({**tree, "count": jnp.int32(3), "constant": jnp.ones(2)}, op=hvd.Sum)
        return (reduced["a"] * weights).sum() * reduced["count"] / size

    check(partly, {"a": x, "unused": x}, {"a": 3 * mean * size, "unused": np.zeros(3)})
    check(lambda x: (hvd.broadcast(x, 1) * weights).sum(), x, mean if rank == 1 else np.zeros(3))
    check(lambda x: (hvd.allgather(x) * weights).sum(), jnp.ones((2, 3)), np.tile(mean, (2, 1)))
    counts = [peer + 1 for peer in range(size)]
    check(
        lambda x: (hvd.allgather(x, rows=counts) * weights).sum(), jnp.ones((rank + 1, 3)), np.tile(mean, (rank + 1, 1))
    )
    check(lambda x: hvd.allgather(x).sum() * (rank + 1), jnp.float32(1), np.float32((size + 1) / 2))
    rows = np.arange(3, dtype=np.float32) + np.arange(size, dtype=np.float32)[:, None]
    check(lambda x: (hvd.alltoall(x) * weights).sum(), jnp.ones((size, 3)), rows)
    table = [[giver + 1] * size for giver in range(size)]
    given = jnp.ones((size * (rank + 1), 3))
    check(lambda x: (hvd.alltoall(x, table) * weights).sum(), given, np.repeat(rows, rank + 1, axis=0))
    check(lambda x: (hvd.reduce_scatter(x, op=hvd.Sum) * weights).sum(), jnp.ones((size, 3)), rows * size)
    check(lambda x: (hvd.reduce_scatter(x) * weights).sum(), jnp.ones((size, 3)), rows)
    uneven = np.repeat(rows, [2] * (size - 1) + [1], axis=0)
    check(lambda x: (hvd.reduce_scatter(x) * weights).sum(), jnp.ones((2 * size - 1, 3)), uneven)
    check(lambda x: jax.lax.cond(x[0] > 0, hvd.allreduce, lambda x: x, x) @ weights, x, mean)
    value, slope = jax.jit(jax.value_and_grad(lambda x: (hvd.allreduce(x * x) * weights).sum()))(x)
    np.testing.assert_allclose(value, weights.sum(), rtol=1e-6)
    np.testing.assert_allclose(slope, 2 * mean, rtol=1e-6)
    tangent = jax.jit(lambda x: jax.jvp(hvd.allreduce, (x,), (x * rank,)))(x)[1]
    np.testing.assert_allclose(tangent, np.full(3, (size - 1) / 2), rtol=1e-6)
    with pytest.raises(NotImplementedError, match=r"op='max': .*derivative"):
        jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum())(x)


@pytest.mark.parametrize(("size", "transport", "path"), [(2, "shm", "ffi"), (3, "tcp", "callback")])
def test_gradients(pool: Pools, size: int, transport: str, path: str) -> None:
    pool(size).run(in_world, gradients, transport=transport, jax_path=path)


def steps(rank: int, size: int) -> None:
    """Operations that do not depend on each other, from programs that do not wait for each other."""

    @jax.jit
    def step(x: Any) -> Any:
        many = [hvd.allreduce(x[: number + 1] * number, op=hvd.Sum) for number in range(5)]
        gathered = hvd.allgather(x[:2])
        sent = hvd.broadcast(x, 1)
        heavy = jnp.tanh(jnp.outer(x, x)) @ x  # something to do meanwhile
        return [one.sum() for one in many], gathered, sent, hvd.allreduce({"heavy": heavy, "x": x}, op=hvd.Sum)["x"]

    @jax.jit
    def other(x: Any) -> Any:
        return hvd.allreduce(x * 2, op=hvd.Sum)

    results = []
    for number in range(200):
        x = jnp.full(64, 1.0 * number + rank)
        results.append((step(x), other(x)))
    for number, ((many, gathered, sent, total), twice) in enumerate(results):
        sums = np.float32(sum(number + peer for peer in range(size)))
        np.testing.assert_allclose(many, [sums * factor * (factor + 1) for factor in range(5)], rtol=1e-6)
        same(gathered, np.repeat(np.arange(size, dtype=np.float32) + number, 2))
        same(sent, np.full(64, number + 1, np.float32))
        same(total, np.full(64, sums))
        same(twice, np.full(64, 2 * sums))


def test_200_steps_of_independent_operations(pool: Pools) -> None:
    pool(2).run(in_world, steps)
    pool(3).run(in_world, steps, transport="tcp", jax_path="callback")


def batches(rank: int, size: int) -> None:
    """vmap gives what a loop over the batch gives, for all positions of the batch's axis."""
    x = jnp.asarray(np.random.default_rng(rank).integers(0, 9, (3, 2 * size, 4)), jnp.float32)
    rows = [peer + 1 for peer in range(size)]
    table = [[1 + (i + j) % 2 for j in range(size)] for i in range(size)]
    own = sum(table[rank])
    calls = {
        "allreduce": (hvd.allreduce, x),
        "max": (lambda one: hvd.allreduce(one, op=hvd.Max), x),
        "broadcast": (lambda one: hvd.broadcast(one, size - 1), x),
        "allgather": (hvd.allgather, x),
        "allgather of numbers": (hvd.allgather, x[:, 0, 0]),
        "allgather of different rows": (lambda one: hvd.allgather(one, rows=rows), x[:, : rows[rank]]),
        "reduce_scatter": (lambda one: hvd.reduce_scatter(one, op=hvd.Sum), x),
        "alltoall": (hvd.alltoall, x),
        "alltoall by a table": (lambda one: hvd.alltoall(one, table)[0], jnp.resize(x, (3, own, 2))),
    }
    for name, (call, given) in calls.items():
        wanted = np.stack([np.asarray(call(one)) for one in given])
        for axis in {0, given.ndim - 1}:
            batched = jnp.moveaxis(given, 0, axis)
            try:
                same(jax.vmap(call, in_axes=axis, out_axes=-1)(batched), np.moveaxis(wanted, 0, -1))
            except AssertionError as error:
                error.add_note(f"{name}, axis {axis}")
                raise

    tree = {"batched": x, "shared": x[0]}
    found = jax.jit(jax.vmap(hvd.allreduce, in_axes=({"batched": 0, "shared": None},)))(tree)
    same(found, {"batched": hvd.allreduce(x), "shared": np.stack([np.asarray(hvd.allreduce(x[0]))] * 3)})
    inner = jax.vmap(jax.vmap(hvd.allreduce, in_axes=1, out_axes=1))
    same(inner(x), hvd.allreduce(x))

    def loss(one: Any) -> Any:
        return (hvd.allreduce(one, op=hvd.Sum) ** 2).sum()

    same(jax.jit(jax.vmap(jax.grad(loss)))(x), np.stack([np.asarray(jax.grad(loss)(one)) for one in x]))
    looped = jax.vmap(lambda one: jax.lax.scan(lambda carry, _: (hvd.allreduce(carry), 0), one, length=2)[0])
    same(looped(x), hvd.allreduce(x))


def test_vmap(pool: Pools) -> None:
    pool(2).run(in_world, batches)
