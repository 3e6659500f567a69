"""frontends.jax.jit: results, order and errors are those of jax.jit, but no call is dispatched in Python."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'ronde[jax]'")

import jax.numpy as jnp  # noqa: E402

import frontends.jax as hvd  # noqa: E402
from tests.frontends.test_jax_ops import Pools, in_world, same  # noqa: E402

total = functools.partial(hvd.allreduce, op=hvd.Sum)


def forms(rank: int, size: int) -> None:
    sums = np.full(3, sum(range(size)), np.float32)
    constant = jnp.full(3, 10.0 + rank)

    @functools.partial(hvd.jit, static_argnums=1, static_argnames="sign", donate_argnums=2)
    def step(tree: Any, times: int, given: Any, *, sign: str = "+", offset: Any = 0.0) -> Any:
        """The documented step."""
        assert isinstance(times, int)
        looped = jax.lax.fori_loop(0, times, lambda _, x: total(x), tree["x"])
        branched = jax.lax.cond(True, total, lambda x: x, tree["x"] * 2)
        found = {"looped": looped, "branched": branched + offset, "constant": total(constant)}
        return found, (given + 1, None if sign == "-" else offset)

    assert (step.__name__, step.__doc__) == ("step", "The documented step.")
    for sign in "+-":
        given = jnp.ones(2)
        found, (more, nothing) = step({"x": jnp.full(3, 1.0 * rank)}, 2, given, sign=sign, offset=0.5)
        same(found["looped"], sums * size)
        same(found["branched"], 2 * sums + np.float32(0.5))
        same(found["constant"], np.full(3, 10.0 * size, np.float32) + sums)
        same(more, np.full(2, 2, np.float32))
        assert (nothing is None) == (sign == "-")
        assert given.is_deleted()
    twice = hvd.jit(lambda x: (total(x) * x).sum())
    x = jnp.full(3, 1.0 + rank)
    both = np.full(3, size * (size + 1) / 2, np.float32)
    same(jax.grad(twice)(x), 2 * both)  # within transformations
    same(jax.jit(lambda x: twice(x) * 2)(x), np.float32(2 * 3 * both[0] * (1 + rank)))
    with jax.disable_jit():
        same(hvd.jit(total)(x), both)
    same(hvd.jit(lambda x: x + 1)(x), x + 1)
    lines: list[float] = []

    def note(value: Any) -> None:
        lines.append(float(value))

    @hvd.jit
    def noted(x: Any) -> Any:
        jax.debug.callback(note, x[0], ordered=True)
        y = total(x)
        jax.debug.callback(note, y[0], ordered=True)
        return y

    same(noted(x), both)
    jax.effects_barrier()
    assert lines == [1.0 + rank, both[0]]


@pytest.mark.parametrize(("size", "transport", "path"), [(2, "shm", "ffi"), (3, "tcp", "callback")])
def test_it_is_jax_jit(pool: Pools, size: int, transport: str, path: str) -> None:
    pool(size).run(in_world, forms, transport=transport, jax_path=path)


def mixed(rank: int, size: int) -> None:
    """Programs of all kinds that do not depend on each other, and are not waited for, run in the order of the calls."""

    def work(x: Any, factor: float) -> Any:
        first = total(x * factor)
        heavy = jnp.tanh(jnp.outer(x, x)) @ x  # makes JAX run it in the background
        return first, heavy, hvd.broadcast(x * factor, 0)

    fast, plain = hvd.jit(functools.partial(work, factor=1.0)), jax.jit(functools.partial(work, factor=2.0))
    results = []
    for number in range(60):
        x = jnp.full(256, 1.0 * number + rank)
        kinds = (fast, fast, plain, total, plain, fast)
        results.append([kind(x) for kind in kinds[number % 3 :]])
    hvd.barrier()
    for number, found in enumerate(results):
        sums = np.full(256, size * number + sum(range(size)), np.float32)
        expected = [sums, sums, 2 * sums, sums, 2 * sums, sums][number % 3 :]
        for one, right in zip(found, expected, strict=True):
            same(one[0] if isinstance(one, tuple) else one, right)
            if isinstance(one, tuple):
                same(one[2], np.full(256, number * right[0] / sums[0] if number else 0, np.float32))


def test_programs_of_all_kinds_run_in_one_order(pool: Pools) -> None:
    pool(2).run(in_world, mixed)
    pool(3).run(in_world, mixed, transport="tcp")


def disagreeing(rank: int, size: int) -> None:
    good = hvd.jit(total)
    heavy = hvd.jit(lambda x, y: jnp.tanh(x @ x).sum() + total(y).sum())
    known = [hvd.jit(lambda x, op=op: hvd.allreduce(x, op=op, name="known")) for op in (hvd.Sum, hvd.Max)]
    for compiled in known:
        compiled(jnp.ones(2))
    for wrong in (
        lambda: known[rank](jnp.ones(2)),
        lambda: good(jnp.ones(3 + rank)),
        lambda: heavy(jnp.ones((500, 500)), jnp.ones(1 + rank)),
    ):
        same(good(jnp.ones(2)), np.full(2, size, np.float32))
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)MismatchError.*rank 0: .*rank 1: "):
            jax.block_until_ready(wrong())
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # it may have been raised already
            hvd.settle()
        same(good(jnp.ones(2)), np.full(2, size, np.float32))
    counted = hvd.jit(lambda x, times: x * times[0], static_argnums=1)
    counted(jnp.ones(2), (2,))
    with pytest.raises(ValueError, match="hashable"):
        counted(jnp.ones(2), [2])
    with pytest.raises(ValueError, match="op='median'"):
        hvd.jit(lambda x: hvd.allreduce(x, op="median"))(jnp.ones(2))


def test_failures_are_those_of_jax_jit(pool: Pools) -> None:
    pool(2).run(in_world, disagreeing)


def dispatched(rank: int, size: int) -> list[int]:
    """The number of passes through JAX's Python dispatch in five calls, by jit and by jax.jit."""
    from jax._src.interpreters.pxla import ExecuteReplicated

    counts, inner = [0], ExecuteReplicated.__call__

    def counting(self: Any, *args: Any) -> Any:
        counts[-1] += 1
        return inner(self, *args)

    x = jnp.ones(2)
    for compiled in (hvd.jit(total), jax.jit(total)):
        compiled(x)
        counts.append(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ExecuteReplicated, "__call__", counting)
            for _ in range(5):
                compiled(x)
    return counts[1:]


def test_calls_are_not_dispatched_in_python(pool: Pools) -> None:
    assert pool(2).run(in_world, dispatched) == [[0, 5], [0, 5]]


def places(rank: int, size: int) -> None:
    """In place works what the program made or was given for good; what is kept is read where it is."""

    def step(kept: Any, given: Any) -> Any:
        inner = jax.jit(total)(kept)
        looped = jax.lax.while_loop(lambda x: x[0] < 100, total, kept)
        return total([kept, given, kept * 2]), inner, looped, kept

    kept, given = jnp.full(3, 1.0 + rank), jnp.full(5, 1.0)
    text = jax.jit(step, donate_argnums=1).lower(kept, given).as_text()
    calls = [line for line in text.splitlines() if "@ronde" in line]
    assert sorted(line.count("output_operand_alias<") for line in calls) == [1, 1, 2]
    sums = np.full(3, size * (size + 1) / 2, np.float32)
    for jit in (jax.jit, hvd.jit):
        (one, two, three), inner, looped, same_as_before = jit(step, donate_argnums=1)(kept, jnp.full(5, 1.0))
        same([one, two, three, inner], [sums, np.full(5, size, np.float32), 2 * sums, sums])
        assert looped[0] >= 100
        same([kept, same_as_before], [np.full(3, 1 + rank, np.float32)] * 2)


def test_only_donated_arrays_are_changed_in_place(pool: Pools) -> None:
    pool(2).run(in_world, places)
