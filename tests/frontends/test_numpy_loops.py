"""frontends.numpy: trees, shards, averaging while computing, and loops against one process with the whole batches."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import frontends.numpy as hvd
from collectives import Communicator, MismatchError
from collectives.compression import FP16, Int8, PowerSGD, TopK
from frontends.numpy.shards import _rows
from tests.frontends.launch import output, ronde_run
from tests.frontends.pool import ROOT, Pool
from tests.test_snippets import snippets
from tests.worlds import Worlds

WORLDS = [("local", 2), ("shm", 2), ("shm", 3), ("tcp", 3)]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


class Layer(NamedTuple):
    weights: Any
    bias: Any


def trees(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    total = sum(range(1, size + 1))
    w, b = np.arange(6.0).reshape(2, 3) * (rank + 1), np.float32(rank)
    tree = {"layers": [Layer(w, b), Layer(w.T, None)], "half": (np.full(3, rank, np.float16),), "count": 2 + rank}
    before = w.copy()
    found = hvd.allreduce(tree, op=hvd.Sum)
    assert isinstance(found["layers"][0], Layer)
    np.testing.assert_array_equal(found["layers"][0].weights, np.arange(6.0).reshape(2, 3) * total)
    np.testing.assert_array_equal(found["layers"][1].weights, np.arange(6.0).reshape(2, 3).T * total)
    assert found["layers"][1].bias is None
    assert (found["layers"][0].bias, found["layers"][0].bias.dtype) == (sum(range(size)), np.float32)
    assert found["half"][0].dtype == np.float16
    assert (type(found["count"]), found["count"]) == (int, sum(range(2, 2 + size)))
    np.testing.assert_array_equal(w, before)
    for name in (None, "average", "mean", "avg"):
        assert hvd.allreduce(rank, name) == (size - 1) / 2
    assert hvd.allreduce({"b": {}, "a": []}) == {"b": {}, "a": []}
    assert hvd.allreduce(np.float64(rank), op=hvd.Max) == size - 1
    other_order = {"b": 10.0 * rank, "a": 1.0} if rank else {"a": 1.0, "b": 0.0}
    assert hvd.allreduce(other_order, op=hvd.Sum) == {"a": size, "b": 10.0 * sum(range(size))}
    mine = [np.full(2, 1.0 * rank), np.full(2, rank, ml_dtypes.bfloat16)]
    changed = hvd.allreduce(mine, op=hvd.Sum, in_place=True)
    assert changed[0] is mine[0]
    assert [array.tolist() for array in mine] == [[sum(range(size))] * 2] * 2
    scaled = hvd.allreduce(np.ones(2), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    np.testing.assert_array_equal(scaled, np.full(2, 2.0 * size))
    near = hvd.allreduce({"w": np.linspace(0, 1, 5000) + rank}, compression=FP16())
    np.testing.assert_allclose(near["w"], np.linspace(0, 1, 5000) + (size - 1) / 2, rtol=2e-3)
    gathered = hvd.allgather({"rows": np.full((rank + 1, 2), rank), "number": rank})
    assert gathered["rows"][:, 0].tolist() == [peer for peer in range(size) for _ in range(peer + 1)]
    assert gathered["number"].tolist() == list(range(size))


def masked(comm: Communicator) -> None:
    array = np.ma.masked_array([1.0, 2.0], [False, True])
    for function in (
        hvd.allreduce,
        hvd.allgather,
        hvd.broadcast_parameters,
        hvd.GradientAverager().begin,
        lambda tree: hvd.GradientAverager().add("w", tree),
    ):
        with pytest.raises(TypeError, match=r"tree: .*masked.*filled"):
            function(array)
        with pytest.raises(TypeError, match=r"tree\['layers/1'\]: .*masked"):
            function({"layers": [np.ones(2), array]})


def test_masked_arrays_are_refused(worlds: Worlds) -> None:
    worlds.get("local", 2).run(masked)


def foreign(comm: Communicator) -> None:
    array = np.ones(2).astype(">f4")
    averager = hvd.GradientAverager(backward_passes_per_step=2)
    for function in (hvd.allreduce, hvd.allgather, hvd.broadcast_parameters, averager.begin):
        with pytest.raises(TypeError, match=r"tree: .*native byte order"):
            function(array)
        with pytest.raises(TypeError, match=r"tree\['layers/1'\]: .*native byte order"):
            function({"layers": [np.ones(2), array]})
    with pytest.raises(TypeError, match=r"tree\['count'\]: dtype object"):
        hvd.allreduce({"count": 2**70})
    for number in (1.0, 3.0):
        averager.begin({"w": np.full(2, number)})
        averages = averager.wait()
    assert averages["w"].tolist() == [2.0, 2.0]


def test_a_leaf_that_cannot_be_communicated_is_named(worlds: Worlds) -> None:
    worlds.get("local", 2).run(foreign)


@pytest.mark.parametrize(("transport", "size"), WORLDS)
def test_trees(worlds: Worlds, transport: str, size: int) -> None:
    worlds.get(transport, size).run(trees)


def beginnings(comm: Communicator) -> None:
    rank = comm.rank
    w = np.full((2, 2), 1.0 * rank)
    tree = {"w": w, "strided": np.full((4, 4), rank)[::2, ::2], "step": 7 * rank, "rate": np.float32(rank)}
    found = hvd.broadcast_parameters(tree, root_rank=1)
    assert found["w"] is w
    assert w.tolist() == [[1, 1], [1, 1]]
    assert tree["strided"].tolist() == [[1, 1], [1, 1]]
    assert (found["step"], found["rate"]) == (7, np.float32(1))
    metrics = hvd.average_metrics({"loss": 1.0 * rank, "accuracy": np.float32(0.5)})
    assert metrics == {"loss": (comm.size - 1) / 2, "accuracy": 0.5}
    weighted = hvd.average_metrics({"loss": 1.0 * rank}, weight=rank)
    assert weighted["loss"] == sum(peer**2 for peer in range(comm.size)) / sum(range(comm.size))
    empty = hvd.average_metrics({"loss": float("nan") if rank == 0 else 3.0}, weight=rank)  # rank 0 has no rows
    assert empty["loss"] == 3.0
    with pytest.raises(ValueError, match="rank 1 has"):
        hvd.average_metrics({f"loss{min(rank, 1)}": 1.0})
    with pytest.raises(ValueError, match="2 names of rank 1"):
        hvd.average_metrics({"1": 1.0} if rank == 0 else {1: 1.0, "1": 2.0})  # type: ignore[dict-item]
    for value in (None, "text" if rank == 1 else 1.0):  # one that a single rank has raises on all, at once
        with pytest.raises(TypeError, match=rf"metrics\['best'\]=.* rank {0 if value is None else 1}"):
            hvd.average_metrics({"loss": 1.0, "best": value})
    with pytest.raises(TypeError, match=r"metrics=\[1.0\]: must be a dict"):
        hvd.average_metrics([1.0])  # type: ignore[arg-type]
    for compression in (Int8, "int8"):
        with pytest.raises(TypeError, match=r"compression=.*: must be one of"):
            hvd.allreduce(w, compression=compression)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"compression=.*: must be one of"):
            hvd.GradientAverager(compression=compression)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="weight=None"):
        hvd.average_metrics({"loss": 1.0}, weight=None if rank else 1.0)
    for weight in (0, np.inf, np.nan):
        with pytest.raises(ValueError, match=r"weight: .*0 or more, finite"):
            hvd.average_metrics({"loss": 1.0}, weight=weight)
    frozen = np.ones(2)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"tree\['w'\]: .*read-only"):
        hvd.broadcast_parameters({"w": frozen})
    with pytest.raises(TypeError, match=r"tree\['a/0'\]: .*array.* not str"):
        hvd.allreduce({"a": ["text"]})
    with pytest.raises(ValueError, match="op='median'"):
        hvd.allreduce(w, op="median")
    with pytest.raises(ValueError, match=r"compression: .*prescale_factor"):
        hvd.allreduce(w, compression=FP16(), prescale_factor=2.0)
    hvd.barrier()


@pytest.mark.parametrize(("transport", "size"), WORLDS)
def test_beginnings_and_metrics(worlds: Worlds, transport: str, size: int) -> None:
    worlds.get(transport, size).run(beginnings)


def in_the_background(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    averager = hvd.GradientAverager()
    names = [f"layer{number}" for number in range(30)]
    for step in range(5):
        random.Random(100 * rank + step).shuffle(names)
        given = {name: np.full(1 + 50 * int(name[5:]), rank + step + int(name[5:]), np.float32) for name in names}
        for name in names:
            averager.add(name, given[name])
        found = averager.wait()
        assert found.keys() == given.keys()
        for name, gradient in found.items():
            np.testing.assert_array_equal(gradient, np.full_like(gradient, (size - 1) / 2 + step + int(name[5:])))
            assert given[name][0] == rank + step + int(name[5:])
    tree = {"w": [np.full((2, 3), 1.0 * rank)], "b": 2.0 * rank}
    found = averager.average(tree)
    np.testing.assert_array_equal(found["w"][0], np.full((2, 3), (size - 1) / 2))
    assert found["b"] == size - 1
    assert averager.wait() == {}
    if size > 1:
        uneven = hvd.GradientAverager(backward_passes_per_step=2 - (rank == 0), name="uneven")
        for _ in range(rank > 0):
            assert uneven.average({"x": np.ones(2)}) is None
        with pytest.raises(ValueError, match="backward_passes_per_step"):
            uneven.average({"x": np.ones(2)})
    own = hvd.GradientAverager(op=hvd.Sum, in_place=True, name="own")
    own.begin(tree)
    averager.begin({"x": np.ones(3)})
    np.testing.assert_array_equal(averager.wait()["x"], np.ones(3))
    assert own.wait()["w"][0] is tree["w"][0]
    np.testing.assert_array_equal(tree["w"][0], np.full((2, 3), sum(range(size))))
    shared = np.ones(3)
    own.add("a", shared)
    with pytest.raises(ValueError, match=r"name='b': its array .*'a'"):  # it would be added up twice
        own.add("b", shared)
    with pytest.raises(ValueError, match=r"name='b': .*'a'"):
        own.add("b", {"x": np.ones(1), "y": shared[1:]})
    own.add("c", shared.copy())
    np.testing.assert_array_equal(own.wait()["a"], np.full(3, 1.0 * size))
    averager.add("a", np.ones(2))
    with pytest.raises(ValueError, match=r"name='a': .*wait\(\)"):
        averager.add("a", np.ones(2))
    with pytest.raises(ValueError, match=r"tree: 'a' .*wait\(\)"):
        averager.begin({"b": np.ones(2)})
    np.testing.assert_array_equal(averager.wait()["a"], np.ones(2))
    averager.add("right", np.ones(2) * rank)
    averager.add("wrong", np.ones(2 + rank))
    with pytest.raises(hvd.HorovodInternalError, match=r"(?s)gradients.wrong.*rank 0: .*rank 1: ") as caught:
        averager.wait()
    assert isinstance(caught.value.__cause__, MismatchError)
    np.testing.assert_array_equal(averager.average([np.ones(2) * rank])[0], np.full(2, (size - 1) / 2))


@pytest.mark.parametrize(("transport", "size"), WORLDS)
def test_averaging_in_the_background_in_any_order(worlds: Worlds, transport: str, size: int) -> None:
    worlds.get(transport, size).run(in_the_background)


def passes(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    averager = hvd.GradientAverager(backward_passes_per_step=3)
    for step in range(2):
        for turn in range(3):
            gradient = np.full(4, 1.0 * rank + turn + 10 * step)
            found = averager.average({"w": gradient})
            assert (found is None) == (turn < 2)
            np.testing.assert_array_equal(gradient, np.full(4, 1.0 * rank + turn + 10 * step))
        np.testing.assert_allclose(found["w"], np.full(4, (size - 1) / 2 + 1 + 10 * step))
    with pytest.raises(TypeError, match=r"'w': .*int64 .*passes"):
        averager.add("w", np.ones(3, np.int64))
    for compression in (Int8(), TopK(0.1), PowerSGD(2)):
        squeezed = hvd.GradientAverager(compression=compression, name=str(compression))
        rng = np.random.default_rng(rank)
        total, exact = np.zeros((50, 40)), np.zeros((50, 40))
        for _ in range(60):
            gradient = rng.normal(size=(50, 40)) + 1
            exact += hvd.allreduce(gradient)
            total += squeezed.average({"w": gradient})["w"]
        assert squeezed.state.nbytes > 0
        lost = hvd.allreduce(squeezed.state.memories["w"].residual).reshape(total.shape)
        np.testing.assert_allclose(total + lost, exact, atol=1e-6)  # what was not sent is kept, and nothing else
    for wrong in (
        {"op": "median"},
        {"op": hvd.Max, "compression": FP16()},
        {"backward_passes_per_step": 0},
        {"backward_passes_per_step": 2.5},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            hvd.GradientAverager(**wrong)


@pytest.mark.parametrize(("transport", "size"), [("local", 2), ("local", 3)])
def test_passes_and_compression(worlds: Worlds, transport: str, size: int) -> None:
    worlds.get(transport, size).run(passes)


def uneven_passes(comm: Communicator) -> None:
    rank = comm.rank
    averager = hvd.GradientAverager(backward_passes_per_step=2)
    # a gradient that only some passes have is zeros in the others
    averager.add("first", np.full(2, 4.0))
    averager.add("number", 8.0)
    averager.add("both", np.full(2, 2.0))
    assert averager.wait() is None
    averager.add("both", np.full(2, 4.0))
    found = averager.wait()
    assert {name: np.asarray(value).tolist() for name, value in found.items()} == {
        "both": [3.0, 3.0],
        "first": [2.0, 2.0],
        "number": 4.0,
    }
    assert type(found["number"]) is float
    # a pass that is refused is not in the sums
    with pytest.raises(TypeError, match=r"'b': .*int64 .*passes"):
        averager.begin({"a": np.ones(2), "b": np.ones(2, np.int64)})
    averager.average({"a": np.ones(2)})
    for other in ({"a": np.ones(3)}, {"a": np.ones(2, np.float32)}, {"b": np.ones(2)}, {}):
        with pytest.raises(ValueError, match=r"'[ab]': is (missing|float\d\d of shape \(., *\)) in this pass|'a': is"):
            averager.begin(other)
    np.testing.assert_array_equal(averager.average({"a": np.full(2, 3.0)})["a"], np.full(2, 2.0))
    # a step in which the ranks disagree is not in the sums of the next
    averager.average({"a": np.ones(2 + rank)})
    with pytest.raises(hvd.HorovodInternalError):
        averager.average({"a": np.ones(2 + rank)})
    averager.average({"a": np.ones(2)})
    np.testing.assert_array_equal(averager.average({"a": np.ones(2)})["a"], np.ones(2))


def averages_in_range(comm: Communicator) -> None:
    """The average of passes is in the range of the gradients, also where their sum is not; of halves it is exact."""
    for count in (2, 3):
        averager = hvd.GradientAverager(backward_passes_per_step=count)
        for dtype, large in (
            (np.float16, 60000.0),
            (ml_dtypes.bfloat16, 3e38),
            (np.float32, 3e38),
            (np.float64, 1e308),
        ):
            given = {"large": np.full(3, large, dtype), "small": np.full(3, 6e-8, dtype), "one": dtype(large)}
            for turn in range(count):
                found = averager.average(given)
                assert (found is None) == (turn < count - 1)
            for name, array in given.items():
                assert found[name].dtype == dtype
                np.testing.assert_allclose(found[name].astype(float), array.astype(float), rtol=1e-6)


def test_averages_of_passes_stay_in_range(worlds: Worlds) -> None:
    worlds.get("local", 2).run(averages_in_range)


def other_keys(comm: Communicator) -> None:
    averager = hvd.GradientAverager()
    call: Any
    for call in (hvd.allreduce, hvd.allgather, hvd.broadcast_parameters, averager.average):
        for mine, other in (
            ({"a": np.ones(2), "b": np.ones(2)}, {"a": np.ones(2), "c": np.ones(2)}),
            ({"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 2.0}),
            ({"a": np.ones(2)}, {"a": np.ones(2), "c": 3.0}),
        ):
            with pytest.raises(ValueError, match=r"'c': rank 0 .*not .*, rank 1 "):
                call(other if comm.rank else mine)
        call({"a": np.ones(2)})
    with pytest.raises(ValueError, match=r"tree\['1'\]: .*path"):
        hvd.allreduce({1: 1.0, "1": 2.0})


@pytest.mark.parametrize("body", [uneven_passes, other_keys])
def test_gradients_of_different_names_are_not_mixed(worlds: Worlds, body: Callable[[Communicator], None]) -> None:
    worlds.get("local", 2).run(body)


def parameters_of_other_forms(comm: Communicator) -> None:
    """A number on one rank and an array on the other would be those of another key, which has them as well."""
    trees = [{"a": np.ones(2), "b": 1.0}, {"a": 5.0, "b": np.zeros(2)}]
    turned = [{"a": np.ones((2, 3))}, {"a": np.ones((3, 2))}]
    for mine in (trees[comm.rank], turned[comm.rank]):
        with pytest.raises(ValueError, match=r"'a': rank 0 .*float64"):
            hvd.broadcast_parameters(mine)
    assert hvd.broadcast_parameters({"a": comm.rank, "b": np.ones(1)})["a"] == 0


def test_parameters_of_other_forms_are_refused(worlds: Worlds) -> None:
    worlds.get("local", 2).run(parameters_of_other_forms)


def out_of_data(comm: Communicator) -> None:
    averager = hvd.GradientAverager(op=hvd.Sum)
    for _ in range(2 + comm.rank):
        found = averager.average({"w": np.ones(3)})
    if comm.rank == comm.size - 1:
        np.testing.assert_array_equal(found["w"], np.ones(3))  # all others have joined by now
    assert hvd.join() == comm.size - 1
    np.testing.assert_array_equal(averager.average({"w": np.ones(3)})["w"], np.full(3, comm.size))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_may_run_out_of_data(worlds: Worlds, size: int) -> None:
    worlds.get("local", size).run(out_of_data)


def misfits(comm: Communicator) -> None:
    x = np.ones(2 + comm.rank)
    with pytest.raises(hvd.HorovodInternalError, match=r"(?s)rank 0: .*rank 1: ") as caught:
        hvd.allreduce({"x": x}, in_place=True)
    assert isinstance(caught.value.__cause__, MismatchError)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allgather(x)


@pytest.mark.parametrize(("transport", "size"), WORLDS)
def test_all_ranks_raise_on_disagreement(worlds: Worlds, transport: str, size: int) -> None:
    worlds.get(transport, size).run(misfits)


@given(
    st.integers(1, 60), st.integers(1, 7), st.booleans(), st.sampled_from(["pad", "drop", "uneven"]), st.integers(0, 9)
)
def test_shards_cover_the_dataset(count: int, size: int, shuffle: bool, remainder: str, epoch: int) -> None:
    parts = [np.arange(count)[_rows(count, rank, size, shuffle, 1, epoch, remainder)] for rank in range(size)]
    lengths = [len(part) for part in parts]
    seen = Counter(np.concatenate(parts).tolist())
    if remainder == "uneven":
        assert seen == Counter(range(count))
        assert max(lengths) - min(lengths) <= 1
    elif remainder == "drop":
        assert set(lengths) == {count // size}
        assert set(seen.values()) <= {1}
    else:
        assert set(lengths) == {-(-count // size)}
        assert set(seen) == set(range(count))
        assert max(seen.values()) - min(seen.values()) <= 1
    order = [row for rows in itertools.zip_longest(*parts) for row in rows if row is not None]
    if not shuffle:
        assert order[:count] == list(range(len(order)))[:count]  # batches are those of one process
    elif remainder == "uneven":
        assert order == np.random.default_rng([1, epoch]).permutation(count).tolist()


def parts(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    x, y = np.arange(20.0).reshape(10, 2), [str(row) for row in range(10)]
    mine, labels = hvd.shard(x, y, shuffle=True, seed=4, epoch=2)
    assert [str(int(row) // 2) for row in mine[:, 0]] == labels
    assert len(labels) == -(-10 // size)
    everyone = hvd.allgather_object(labels)
    assert set(itertools.chain(*everyone)) == set(y)
    assert hvd.shard(y, shuffle=True, seed=4, epoch=3) != labels
    tree = hvd.shard({"x": x, "pair": Layer(x, np.arange(10))}, remainder="uneven")
    assert tree["pair"].bias.tolist() == list(range(rank, 10, size))
    assert isinstance(tree["pair"], Layer)
    assert np.shares_memory(tree["x"], x)
    assert hvd.shard(y, remainder="drop") == y[rank : 10 - 10 % size : size]
    assert hvd.shard(range(10), remainder="uneven") == range(rank, 10, size)
    with pytest.raises(ValueError, match=r"datasets\[1\]: .*9 rows, datasets\[0\] .*10"):
        hvd.shard(x, y[1:])
    with pytest.raises(ValueError, match=r"datasets\[0\]\['b'\]: .*9 rows"):
        hvd.shard({"a": x, "b": y[1:]})
    with pytest.raises(ValueError, match=r"datasets: 1 rows .*remainder="):
        hvd.shard(x[:1], remainder="drop")
    for name, number in (("seed", -1), ("seed", 1.5), ("epoch", -2), ("epoch", None)):
        with pytest.raises(ValueError, match=rf"{name}={number}: .* int"):
            hvd.shard(x, **{"shuffle": True, name: number})
    with pytest.raises(TypeError, match=r"datasets\[0\]: .*array .* not dia_array"):
        hvd.shard(scipy.sparse.dia_array(x))
    with pytest.raises(ValueError, match=r"remainder='keep': .*pad, drop, uneven"):
        hvd.shard(x, remainder="keep")
    with pytest.raises(TypeError, match=r"datasets\[0\]: .*array .* not int"):
        hvd.shard(3)
    with pytest.raises(ValueError, match="at least one"):
        hvd.shard()


@pytest.mark.parametrize("size", [2, 3])
def test_shards_of_all_kinds(worlds: Worlds, size: int) -> None:
    worlds.get("local", size).run(parts)


def test_shards_of_sparse_arrays_and_tables(worlds: Worlds) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    matrix = sparse.csr_matrix(np.arange(12).reshape(6, 2))

    def cut(comm: Communicator) -> None:
        assert hvd.shard(matrix)[:, 0].toarray().ravel().tolist() == list(range(0, 12, 2))[comm.rank :: 2]
        shuffled = hvd.shard(matrix, shuffle=True)
        assert shuffled.shape == (3, 2)

    worlds.get("local", 2).run(cut)


def trained(comm: Communicator, background: bool) -> None:
    """Softmax regression, batches of 12 rows, against one process."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(120, 6)), rng.integers(0, 3, 120)

    def gradients(w: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
        scores = np.exp(x @ w["weights"] + w["bias"])
        error = scores / scores.sum(1, keepdims=True) - np.eye(3)[y]
        return {"weights": x.T @ error / len(x), "bias": error.mean(0)}

    def run(x: Any, y: Any, batch: int, average: Any) -> dict[str, Any]:
        w = hvd.broadcast_parameters({"weights": np.full((6, 3), 1.0 * comm.rank), "bias": np.zeros(3)})
        for start in range(0, len(x), batch):
            for name, gradient in average(gradients(w, x[start : start + batch], y[start : start + batch])).items():
                w[name] -= 0.5 * gradient
        return w

    averager = hvd.GradientAverager(in_place=True)
    mine = hvd.shard(x, y)
    found = run(*mine, 12 // comm.size, averager.average if background else hvd.allreduce)
    alone = run(x, y, 12, lambda gradients: gradients)
    for name, array in found.items():
        assert len(set(hvd.allgather_object(array.tobytes()))) == 1
        np.testing.assert_allclose(array, alone[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("transport", "size"), WORLDS)
def test_training_is_that_of_one_process(worlds: Worlds, transport: str, size: int, background: bool) -> None:
    worlds.get(transport, size).run(trained, background)


def test_importing_it_imports_no_framework() -> None:
    code = (
        "import sys, frontends.numpy; print([n for n in ('torch', 'tensorflow', 'keras', 'jax') if n in sys.modules])"
    )
    assert output("-c", code) == "[]\n"


@pytest.mark.parametrize("index", range(4))
def test_the_page(pool: Callable[[int], Pool], tmp_path: Path, index: int) -> None:
    """The first program as a user starts it, the others in ranks that have scikit-learn already."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    script = tmp_path / "script.py"
    script.write_text(snippets("docs/numpy.md")[index])
    if index == 0:
        output(*ronde_run(2), script)
    else:
        pool(2).run_script(script)
    for size in (1, 4):
        pool(size).run_script(script)


@pytest.mark.parametrize(("size", "options"), [(2, []), (3, ["--partial-fit"]), (1, [])])
def test_the_example(pool: Callable[[int], Pool], size: int, options: list[str]) -> None:
    """On two ranks as a user starts it."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    script = ROOT / "examples/numpy_sgd_digits.py"
    text = output(*ronde_run(2), script) if size == 2 else pool(size).run_script(script, *options)
    found = re.search(r"accuracy ([\d.]+)% on (\d) ranks, parameters identical", text)
    assert found is not None, text
    assert "epoch 8: loss" in text
    assert float(found[1]) > 90
    assert int(found[2]) == size


def test_loosely_coupled_workers(pool: Callable[[int], Pool]) -> None:
    """The example as it is; tests/test_examples.py kills a worker of it."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    text = pool(2).run_script(ROOT / "examples/diloco_digits.py", "--steps", 300)
    assert "parameters bit-identical on 2 ranks: yes" in text
    found = re.search(r"with gradients [\d,]+: (\d+) times as many", text)
    assert found is not None, text
    assert 150 < int(found[1]) < 220, "50 steps a round, times 3.94, and one round more in the end"


@pytest.mark.parametrize(
    ("script", "options", "ranks"),
    [
        ("pipeline_digits.py", [], "with 4 layers on 4 ranks"),
        ("tensor_parallel_digits.py", [], "on 1 x 4 ranks"),
        ("tensor_parallel_digits.py", ["--tensor", "2"], "on 2 x 2 ranks"),
    ],
)
def test_model_parallelism_is_one_process(
    pool: Callable[[int], Pool], script: str, options: list[str], ranks: str
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    text = pool(4).run_script(ROOT / "examples" / script, "--steps", 40, *options)
    assert ranks in text
    found = re.search(r"loss (\S+) to (\S+) .*\nlargest difference of a loss to one process: (\S+)", text)
    assert found is not None, text
    assert float(found[2]) < float(found[1])
    assert float(found[3]) < 1e-8
