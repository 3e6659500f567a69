"""frontends.jax: training with optax on several ranks, against one process that sees the whole batches; the example."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.pool import ROOT, Framework, Pool

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'ronde[jax]'")
optax = pytest.importorskip("optax", reason="optax is not installed: pip install 'ronde[jax]'")

import jax.numpy as jnp  # noqa: E402

import frontends.jax as hvd  # noqa: E402
from collectives.elastic import State  # noqa: E402
from tests.frontends.launch import output, ronde_run  # noqa: E402
from tests.frontends.test_jax_ops import in_world, same  # noqa: E402
from tests.test_snippets import snippets  # noqa: E402

Pools = Callable[[int], Pool]
OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(0.01),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.01)),
}
STEPS, ROWS = 12, 12


def begin(seed: int) -> Any:
    one, two = jax.random.split(jax.random.key(seed))
    return {"first": (jax.random.normal(one, (5, 8)), jnp.zeros(8)), "last": [jax.random.normal(two, (8, 3))]}


def loss(parameters: Any, x: Any, y: Any) -> Any:
    (weights, bias), (last,) = parameters["first"], parameters["last"]
    return ((jnp.tanh(x @ weights + bias) @ last - y) ** 2).mean()


def train(parameters: Any, optimizer: Any, mine: Callable[[int], slice], passes: int = 1) -> Any:
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(loss)(parameters, x, y)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    for number in range(STEPS):
        rng = np.random.default_rng(number // passes)
        x, y = rng.normal(size=(ROWS, 5)).astype(np.float32), rng.normal(size=(ROWS, 3)).astype(np.float32)
        part = mine(number % passes)
        parameters, state = step(parameters, state, x[part], y[part])
    return parameters


def digest(tree: Any) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))


def like_one_process(rank: int, size: int) -> None:
    for name, make in OPTIMIZERS.items():
        parameters = hvd.broadcast_parameters(begin(seed=rank))
        same(parameters, begin(seed=0))
        found = train(parameters, hvd.distributed(make()), lambda _: slice(rank, None, size))
        assert len(set(hvd.allgather_object(digest(found)))) == 1, name
        alone = train(begin(seed=0), make(), lambda _: slice(None))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5, err_msg=name)
    # half of a rank's rows in each of two backward passes
    passes = hvd.distributed(optax.sgd(0.1), backward_passes_per_step=2)
    found = train(begin(seed=0), passes, lambda turn: slice(rank + turn * size, None, 2 * size), passes=2)
    assert len(set(hvd.allgather_object(digest(found)))) == 1
    alone = train(begin(seed=0), optax.MultiSteps(optax.sgd(0.1), 2), lambda _: slice(None), passes=2)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
    optimizer = hvd.distributed(optax.sgd(0.1), compression=hvd.Compression.bf16)
    squeezed = train(begin(seed=0), optimizer, lambda _: slice(rank, None, size))
    assert len(set(hvd.allgather_object(digest(squeezed)))) == 1
    alone = train(begin(seed=0), optax.sgd(0.1), lambda _: slice(None))
    for one, other in zip(jax.tree.leaves(squeezed), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)
    halves = {"w": jnp.full(3, 1 + rank, jnp.bfloat16)}
    updates, _ = hvd.distributed(optax.sgd(1.0)).update(halves, optax.sgd(1.0).init(halves))
    same(updates, {"w": np.full(3, -(size + 1) / 2).astype(jnp.bfloat16)})


@pytest.mark.parametrize(("size", "transport", "path"), [(2, "shm", "ffi"), (3, "tcp", "callback")])
def test_training_is_that_of_one_process(pool: Pools, size: int, transport: str, path: str) -> None:
    pool(size).run(in_world, like_one_process, transport=transport, jax_path=path)


def beginnings(rank: int, size: int) -> None:
    state = {
        "key": jax.random.key(rank),
        "old key": jax.random.PRNGKey(rank),
        "count": np.int32(rank),
        "array": np.full(2, rank, np.float64),
        "name": f"of rank {rank}",
        "nothing": None,
    }
    found = hvd.broadcast_parameters(state, root_rank=1)
    assert found["key"] == jax.random.key(1)
    same(found["old key"], jax.random.PRNGKey(1))
    half = hvd.allreduce(jnp.ones(2), prescale_factor=np.float32(0.5), postscale_factor=np.float64(0.5))
    same(half, np.full(2, 0.25, np.float32))
    same([found["count"], found["array"]], [np.int32(1), np.full(2, 1, np.float32)])
    assert (found["name"], found["nothing"]) == (f"of rank {rank}", None)
    adam = optax.adam(0.1)
    params = {"w": jnp.full(3, 1.0 * rank)}
    _, moved = adam.update(params, adam.init(params))
    same(hvd.broadcast_parameters(moved), adam.update({"w": jnp.zeros(3)}, adam.init(params))[1])
    assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
    with pytest.raises(ValueError, match="root_rank=9"):
        hvd.broadcast_parameters(params, root_rank=9)
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        hvd.distributed(optax.sgd(1.0), backward_passes_per_step=0)


def test_all_begin_alike(pool: Pools) -> None:
    pool(2).run(in_world, beginnings)


def test_the_page(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(snippets("docs/jax.md")[0])
    output(*ronde_run(2), sys.executable, script)


@pytest.mark.parametrize(("size", "options"), [(2, []), (3, ["--optimizer", "sgd", "--compression", "bf16"])])
def test_the_example(pool: Pools, size: int, options: list[str]) -> None:
    """On two ranks as a user starts it, on three in ranks that have JAX already."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    script = ROOT / "examples/jax_optax_digits.py"
    text = output(*ronde_run(2), script) if size == 2 else pool(size).run_script(script, *options)
    found = re.search(r"accuracy ([\d.]+)% on (\d) ranks, parameters identical", text)
    assert found is not None, text
    assert "epoch 8: loss" in text
    assert float(found[1]) > 92
    assert int(found[2]) == size


def compressed(rank: int, size: int) -> None:
    """Compressions with loss and a memory, in a compiled step."""
    x = np.random.default_rng(3).normal(size=(96, 40)).astype(np.float32)
    y = np.tanh(np.roll(x, 1, 1))
    first = {"one": jnp.eye(40) * 0.1, "two": jnp.eye(40) * 0.1}

    def error(parameters: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ parameters["one"]) @ parameters["two"] - y) ** 2)

    found = {}
    ways = (hvd.Compression.int8(), hvd.Compression.topk(0.2), hvd.Compression.powersgd(8))
    for compression in (hvd.Compression.none, *ways):
        optimizer = hvd.distributed(optax.sgd(2.0), compression=compression)
        parameters, state = first, optimizer.init(first)

        @hvd.jit
        def step(parameters: Any, state: Any, optimizer: Any = optimizer) -> Any:
            gradients = jax.grad(error)(parameters, x[rank::size], y[rank::size])
            updates, state = optimizer.update(gradients, state)
            return optax.apply_updates(parameters, updates), state

        for _ in range(60):
            parameters, state = step(parameters, state)
        every = hvd.allgather_object(np.asarray(parameters["one"]).tobytes())
        assert every[0] == every[-1]
        found[str(compression)] = float(error(parameters, x, y))
        if compression in ways:
            assert len(compression.memory.memories) == 2
    plain, *others = found.values()
    assert all(loss != plain and abs(loss - plain) < 0.3 * plain for loss in others), found


def test_compressions_with_a_memory(pool: Pools) -> None:
    pool(2).run(in_world, compressed)


def missing(rank: int, size: int) -> None:
    """The part that a gradient has not sent is not added to another parameter in a step that lacks the gradient."""
    compression = hvd.Compression.topk(0.01)
    optimizer = hvd.distributed(optax.sgd(1.0), compression=compression)
    nothing = jnp.zeros(2000)
    for one in (jnp.linspace(1.0, 2.0, 2000), None):
        updates, _ = optimizer.update({"one": one, "other": nothing}, optimizer.init(nothing))
        assert not np.asarray(updates["other"]).any()
    assert len(compression.memory.memories) == 2


def test_a_memory_belongs_to_its_parameter(pool: Pools) -> None:
    pool(2).run(in_world, missing)


def two_optimizers(rank: int, size: int) -> None:
    """Two optimizers do not share a memory, and one may take the place of another."""
    compression = hvd.Compression.topk(0.01)
    nothing, something = jnp.zeros(2000), jnp.linspace(1.0, 2.0, 2000)
    first, second = (
        hvd.distributed(optax.sgd(1.0), compression=compression, backward_passes_per_step=passes) for passes in (1, 2)
    )
    first.update(something, first.init(nothing))
    for update in (second.update, jax.jit(second.update)):
        with pytest.raises(ValueError, match=r"compression=.*one for each"):
            update(nothing, second.init(nothing))
    del first, second, update
    third = hvd.distributed(optax.sgd(1.0), compression=compression)
    updates, _ = third.update(nothing, third.init(nothing))
    assert not np.asarray(updates).any()


def test_one_memory_serves_one_optimizer(pool: Pools) -> None:
    pool(2).run(in_world, two_optimizers)


def test_the_example_of_vmap(pool: Pools) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    text = pool(2).run_script(ROOT / "examples/jax_vmap_digits.py", "--epochs", 2)
    found = [float(each) for each in re.findall(r"accuracy ([\d.]+)% on 2 ranks", text)]
    assert len(found) == 3
    assert found == sorted(found), "higher rates learn more in two epochs"
    assert found[-1] > 85


def test_the_example_of_shard_map(frameworks: Callable[[str], Framework]) -> None:
    """Each process sets its number of devices before JAX starts: the ranks are new ones."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    ranks = frameworks("jax").fresh(2)
    try:
        text = ranks.run_script(ROOT / "examples/jax_shard_map_digits.py", "--steps", 10)
    finally:
        ranks.close()
    assert "2 processes with 2 devices each" in text
    found = re.search(r"largest difference of a parameter to one device: (\S+)", text)
    assert found is not None
    assert float(found[1]) < 1e-5


def sharing(rank: int, size: int) -> None:
    weights = jax.numpy.full(3, float(rank))
    state = State(model={"w": weights}, opt=[weights, (weights,)], step=0)
    state.sync()
    state.commit()
    state.restore()
    assert state.model["w"] is state.opt[0] is state.opt[1][0]
    assert state.model["w"].tolist() == [0.0] * 3


def test_e1_state_identity(pool: Pools) -> None:
    pool(2).run(in_world, sharing)


def with_numbers(rank: int, size: int) -> Any:
    return jax.tree.map(
        float, hvd.broadcast_parameters({"a": jnp.float32(rank), "epoch": 3 + rank, "rate": 0.5 * rank}, 1)
    )


def test_python_numbers_are_broadcast(pool: Pools) -> None:
    assert pool(2).run(in_world, with_numbers) == [{"a": 1.0, "epoch": 4.0, "rate": 0.5}] * 2


def other_trees(rank: int, size: int) -> None:
    w = jnp.ones(2)
    for mine, other, text in (
        ({"a": 1, "b": 2}, {"a": 5, "c": 6}, "'c': rank 0 .*not .*, rank 1 "),
        ({"a": 1, "b": 2, "w": w}, {"a": 1, "w": w}, "'b': .*rank 1 .*not"),
        ({"a": 1, "w": w}, {"a": jnp.array(1), "w": w}, "'a': rank 0 .* Python, rank 1 .* int32"),
        ({"a": np.int64(1)}, {"a": np.int32(1)}, "'a': rank 0 .* int64, rank 1 .* int32"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(hvd.broadcast_parameters(other if rank else mine))
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            hvd.settle()
    found = hvd.broadcast_parameters({"steps": np.int64(2**40 + rank), "seen": np.full(2, 2**50 + rank), "w": w + rank})
    assert (found["steps"], found["seen"].tolist()) == (2**40, [2**50] * 2)
    same(found["w"], np.ones(2, np.float32))


def test_trees_that_differ_between_ranks_are_refused_on_all(pool: Pools) -> None:
    pool(2).run(in_world, other_trees)


def errors_of(*calls: Callable[[], Any]) -> list[str]:
    """The texts of the errors that these calls end with."""
    texts = []
    for call in calls:
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(call())
        texts.append(str(caught.value))
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            hvd.settle()
    return texts


def other_keys(rank: int, size: int) -> list[str]:
    tree = {"a": jnp.ones(4), ("b" if rank == 0 else "c"): jnp.full(4, 2.0)}
    return errors_of(
        lambda: hvd.allreduce(tree),
        lambda: jax.jit(hvd.allreduce)(tree),
        lambda: hvd.reduce_scatter(tree),
        lambda: hvd.allgather(tree),
        lambda: hvd.broadcast(tree, 0),
        lambda: hvd.alltoall(tree),
    )


def test_f1_trees_with_other_keys_are_not_mixed(pool: Pools) -> None:
    for texts in pool(2).run(in_world, other_keys):
        assert all("'b'" in text and "'c'" in text for text in texts), texts


def other_passes(rank: int, size: int) -> list[str]:
    optimizer = hvd.distributed(optax.sgd(1.0), backward_passes_per_step=1 + rank)
    state = optimizer.init(jnp.ones(2))
    return errors_of(
        *(lambda step=step: step(jnp.ones(2), state) for step in (optimizer.update, jax.jit(optimizer.update)))
    )


def test_f2_passes_per_step_that_differ_between_ranks(pool: Pools) -> None:
    """Each rank would step when it has its own number: their parameters would be different ones."""
    for texts in pool(2).run(in_world, other_passes):
        assert all("'backward_passes_per_step': rank 0 has a value of 1, rank 1 has" in text for text in texts), texts


def stated_sizes(rank: int, size: int) -> list[str]:
    x = jnp.arange(4.0) + 10 * rank
    return errors_of(
        lambda: hvd.alltoall(x, splits=[[3, 1], [1, 3]] if rank == 0 else [[1, 3], [3, 1]]),
        lambda: hvd.allgather(x, rows=[4, 4] if rank == 0 else None),
        lambda: hvd.allgather(x[: 1 + rank]),
    )


def test_t2_sizes_that_ranks_state_differently(pool: Pools) -> None:
    for texts in pool(2).run(in_world, stated_sizes):
        assert all("MismatchError" in text for text in texts)
