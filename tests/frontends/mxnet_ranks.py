"""The programs of the ranks of test_mxnet.py: they import MXNet, the process of the tests does not."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.elastic import State

ROWS, STEPS, INPUTS = 12, 5, 6
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64")


def in_world(body: Callable[..., Any], *args: Any) -> Any:
    """The program of a rank: body(hvd, mx, *args) between init and shutdown."""
    hvd, mx = importlib.import_module("frontends.mxnet"), importlib.import_module("mxnet")
    hvd.init()
    try:
        return body(hvd, mx, *args)
    finally:
        hvd.shutdown()


def same(found: Any, expected: Any, dtype: Any = "float32") -> None:
    """Raises unless an array of MXNet has this dtype and exactly these elements."""
    found = found.asnumpy()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.asarray(expected).astype(dtype))


def states(hvd: Any, mx: Any) -> None:
    """An array that model and optimizer share is one array after a commit is restored, and on a rank that gets it."""
    weights = mx.nd.ones((3,)) * hvd.rank()
    state: Any = State(model={"w": weights}, opt=[weights], step=0)
    state.sync()
    state.commit()
    state.restore()
    state.opt[0][:] += 5
    same(state.model["w"], [5, 5, 5])


def of_rank(mx: Any, rank: int, dtype: str = "float32", shape: tuple[int, ...] = (3, 4)) -> Any:
    """The array of a rank: (i + 1) * (rank + 1) for element i."""
    return mx.nd.array((np.arange(np.prod(shape)).reshape(shape) + 1) * (rank + 1), dtype=dtype)


def reductions(hvd: Any, mx: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) // 2
    ones = np.arange(12).reshape(3, 4) + 1
    rows = np.arange(size * 4).reshape(size * 2, 2) + 1
    for dtype in DTYPES:
        x = of_rank(mx, rank, dtype)
        same(hvd.allreduce(x, op=hvd.Sum), ones * total, dtype)
        same(hvd.allreduce(x, average=False, name="named", priority=3), ones * total, dtype)
        same(hvd.allreduce(x, op=hvd.Max), ones * size, dtype)
        same(hvd.allreduce(x, op=hvd.Min), ones, dtype)
        same(x, ones * (rank + 1), dtype)
        assert hvd.allreduce_(x, op=hvd.Sum) is x
        same(x, ones * total, dtype)
        scattered = hvd.reducescatter(of_rank(mx, rank, dtype, (size * 2, 2)), hvd.Sum)
        same(scattered, rows[rank * 2 : rank * 2 + 2] * total, dtype)
    x = of_rank(mx, rank)
    same(hvd.allreduce(x), ones * (total / size))
    product = np.prod([2.0 * ones * (r + 1) for r in range(size)], axis=0)
    same(hvd.allreduce(x, op=hvd.Product, prescale_factor=2.0), product)
    same(hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5), ones * total * 0.5)
    same(hvd.allreduce(mx.nd.array(ones), op=hvd.Adasum), ones)
    pair = [of_rank(mx, rank), of_rank(mx, rank, "int64", (5,))]
    found = hvd.grouped_allreduce(pair, op=hvd.Sum, name="pair")
    same(found[0], ones * total)
    same(found[1], (np.arange(5) + 1) * total, "int64")
    same(pair[1], (np.arange(5) + 1) * (rank + 1), "int64")
    assert all(a is b for a, b in zip(hvd.grouped_allreduce_(pair, op=hvd.Sum), pair, strict=True))
    same(pair[1], (np.arange(5) + 1) * total, "int64")
    assert hvd.grouped_allreduce([]) == []
    halves = hvd.grouped_reducescatter([of_rank(mx, rank, shape=(size, 2)), of_rank(mx, rank, shape=(size,))])
    same(halves[1], [(rank + 1) * total / size])
    # an operation waits for a computation that MXNet has only begun, and later computations see its result
    lazy = mx.nd.dot(mx.nd.ones((300, 300)), mx.nd.ones((300, 300))) * (rank + 1)
    hvd.allreduce_(lazy, op=hvd.Sum)
    same(lazy + 1, np.full((300, 300), 300 * total + 1))
    same(hvd.allreduce(of_rank(mx, rank)[1:], op=hvd.Sum), ones[1:] * total)
    sent, context = hvd.Compression.bf16.compress(of_rank(mx, rank))
    assert sent.dtype == np.dtype([("bfloat16", np.uint16)])
    same(hvd.Compression.bf16.decompress(hvd.allreduce(sent, op=hvd.Sum), context), ones * total)
    same(hvd.Compression.fp16.compress(x)[0], ones * (rank + 1), "float16")
    same(hvd.Compression.fp16.compress(of_rank(mx, rank, "int32"))[0], ones * (rank + 1), "int32")


def movements(hvd: Any, mx: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    ones = np.arange(12).reshape(3, 4) + 1
    rows = mx.nd.full((rank + 1, 2), rank)
    gathered = np.repeat(np.arange(size), np.arange(size) + 1)[:, None].repeat(2, 1)
    same(hvd.allgather(rows), gathered)
    found = hvd.grouped_allgather([rows, rows.astype("int32")], name="both")
    same(found[0], gathered)
    same(found[1], gathered, "int32")
    x = of_rank(mx, rank)
    same(hvd.broadcast(x, size - 1), ones * size)
    same(x, ones * (rank + 1))
    assert hvd.broadcast_(x, 0, priority=1) is x
    same(x, ones)
    same(hvd.alltoall(mx.nd.arange(size) + 10 * rank), [10 * other + rank for other in range(size)])
    # rank r sends nothing to rank 0, and r + 1 rows to each other one
    splits = [0] + [rank + 1] * (size - 1)
    came, counts = hvd.alltoall(mx.nd.full((sum(splits), 2), rank), mx.nd.array(splits, dtype="int32"))
    same(came, gathered if rank else np.zeros((0, 2)))
    same(counts, np.arange(size) + 1 if rank else np.zeros(size), "int32")
    assert hvd.broadcast_object({"of": rank}, size - 1) == {"of": size - 1}
    assert hvd.allgather_object(rank) == list(range(size))
    hvd.barrier()
    mx.npx.set_np()
    try:
        assert type(hvd.allgather(mx.np.ones((2, 3)))) is mx.np.ndarray
        scalar = hvd.allreduce(mx.np.array(rank + 1.0), op=hvd.Sum)
        assert (scalar.shape, scalar.item()) == ((), size * (size + 1) / 2)
        assert hvd.allgather(mx.np.zeros((0, 3))).shape == (0, 3)
    finally:
        mx.npx.reset_np()


def process_sets(hvd: Any, mx: Any) -> None:
    """On three ranks: 0 and 2 are a set."""
    rank = hvd.rank()
    ends = hvd.add_process_set([0, 2])
    if rank != 1:
        ones, x = np.arange(12).reshape(3, 4) + 1, of_rank(mx, rank)
        same(hvd.allreduce(x, op=hvd.Sum, process_set=ends), ones * 4)
        same(hvd.broadcast(x, 2, process_set=ends), ones * 3)
        same(hvd.allgather(mx.nd.array([rank]), process_set=ends), [0, 2])
        same(hvd.alltoall(mx.nd.array([10, 20]) + rank, process_set=ends), [10, 12] if rank == 0 else [20, 22])
        same(hvd.reducescatter(mx.nd.ones((2, 1)), hvd.Sum, process_set=ends), [[2]])
        with pytest.raises(ValueError, match="root_rank=1"):
            hvd.broadcast(mx.nd.ones((1,)), 1, process_set=ends)
    net = network(mx, seed=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, process_set=ends)
    learn(mx, net, trainer, [slice(rank, None, 3)] * STEPS, ROWS // 3)
    digests = hvd.allgather_object(digest(net))
    assert (digests[0] == digests[2], digests[0] == digests[1]) == (True, False)


def beginnings(hvd: Any, mx: Any) -> None:
    """Parameters that are broadcast later, told twice; and dicts with different keys."""
    rank = hvd.rank()
    net = mx.gluon.nn.Dense(2)
    net.initialize(mx.init.Constant(rank + 1))
    hvd.broadcast_parameters(net.collect_params())
    hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    net(mx.nd.ones((1, 3)))
    same(net.weight.data(), np.full((2, 3), 2))
    net.weight.set_data(mx.nd.full((2, 3), rank))  # nothing is broadcast any more
    net(mx.nd.ones((1, 3)))
    same(net.weight.data(), np.full((2, 3), rank))
    with pytest.raises(ValueError, match=r"'c': rank 0 .*not"):
        hvd.broadcast_parameters({"a": mx.nd.ones((2,)), "c" if rank else "b": mx.nd.ones((2,))})
    with pytest.raises(ValueError, match=r"'a': .*rank 1 .*cannot be sent"):
        hvd.broadcast_parameters({"a": 5 if rank == 1 else mx.nd.ones((2,))})
    with pytest.raises(TypeError, match=r"params\['a'\]: .*NDArray"):
        hvd.broadcast_parameters({"a": 5})


def stale_gradients(hvd: Any, mx: Any) -> None:
    """A rank that computes no gradient of a parameter would keep it as it was, while the other ranks change it."""
    rank = hvd.rank()
    params = mx.gluon.ParameterDict()
    used, skipped = params.get("used", shape=(2,), init="ones"), params.get("skipped", shape=(2,), init="ones")
    params.initialize()
    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})

    def step(with_both: bool, **options: Any) -> list[float]:
        with mx.autograd.record():
            loss = used.data().sum() + (skipped.data().sum() if with_both else 0)
        loss.backward()
        trainer.step(1, **options)
        found: list[float] = skipped.data().asnumpy().tolist()
        return found

    assert step(True) == [0.0, 0.0]
    for options in ({}, {"ignore_stale_grad": True}):
        with pytest.raises(ValueError, match=r"'skipped': rank 0 .* rank 1 .*stale"):
            step(rank == 0, **options)
        assert skipped.data().asnumpy().tolist() == [0.0, 0.0]
        assert step(True) == [-1.0, -1.0]
        skipped.set_data(mx.nd.zeros((2,)))
    assert step(False, ignore_stale_grad=True) == [0.0, 0.0]
    with pytest.raises(UserWarning, match="skipped"):
        step(False)


def errors(hvd: Any, mx: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    x = of_rank(mx, rank)
    for call, kind, text in (
        (lambda: hvd.allreduce(np.ones(3)), TypeError, "tensor: .*NDArray .*not ndarray"),
        (
            lambda: hvd.allreduce_(mx.nd.ones((2, 2)).tostype("row_sparse")),
            TypeError,
            "tensor: .*row_sparse",
        ),
        (lambda: hvd.grouped_allreduce([x, 1.0]), TypeError, r"tensors\[1\]: .*NDArray"),
        (lambda: hvd.grouped_allreduce_([x, 1.0]), TypeError, r"tensors\[1\]: .*NDArray"),
        (lambda: hvd.allreduce(x, op="sideways"), ValueError, "op='sideways'"),
        (lambda: hvd.allreduce(x, average=True, op=hvd.Sum), ValueError, "op and average"),
        (lambda: hvd.alltoall(x, mx.nd.ones((size,))), ValueError, "splits="),
        (lambda: hvd.alltoall(mx.nd.ones((size + 1,))), ValueError, "splits"),
        (lambda: hvd.broadcast(x, size), ValueError, f"root_rank={size}"),
        (lambda: hvd.reducescatter(x, hvd.Max), hvd.HorovodInternalError, "Average and Sum only"),
        (lambda: hvd.broadcast_parameters([x]), ValueError, "params: .*dict"),
        (lambda: hvd.DistributedOptimizer("sgd"), TypeError, "optimizer='sgd'"),
        (lambda: hvd.DistributedTrainer({}, "sgd", num_groups=-1), ValueError, "num_groups=-1"),
        (lambda: hvd.DistributedTrainer(5, "sgd"), TypeError, "params=5"),
        (
            lambda: hvd.DistributedTrainer({}, "sgd", gradient_predivide_factor=0),
            ValueError,
            "gradient_predivide_factor=0",
        ),
        (lambda: hvd.Ronde().set_gradient_compression({"type": "2bit"}), ValueError, "2bit"),
        (lambda: hvd.Ronde.is_capable("flight"), ValueError, "capability='flight'"),
    ):
        with pytest.raises(kind, match=text):
            call()
    wide = mx.gluon.nn.Dense(2, in_units=2)
    wide.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ValueError, match=r"params: .*one device"):
        hvd.DistributedTrainer(wide.collect_params(), "sgd")
    for ranks, error in ((range(hvd.size()), TypeError), ([0], ValueError)):
        net = mx.gluon.nn.Embedding(3, 2, sparse_grad=hvd.rank() in ranks, prefix="table_")
        net.initialize()
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
        with mx.autograd.record():
            loss = net(mx.nd.array([1])).sum()
        loss.backward()
        with pytest.raises(error) as caught:
            trainer.step(1)
        assert error is TypeError or "table_weight" in str(caught.value)
    # an error of MXNet's engine is raised by the operation that waits for the array
    with pytest.raises(mx.base.MXNetError):
        hvd.allreduce_(mx.nd.random.normal(0, -1, shape=(3,)))
    # ranks that disagree all raise, and go on
    with pytest.raises(hvd.HorovodInternalError, match="shape"):
        hvd.allreduce(mx.nd.ones((2 + rank,)), name="shapes")
    with pytest.raises(hvd.HorovodInternalError, match="dtype"):
        hvd.allreduce(mx.nd.ones((2,), dtype=("float32", "int32")[rank % 2]), name="dtypes")
    same(hvd.allreduce(x, op=hvd.Max), (np.arange(12).reshape(3, 4) + 1) * size)


def removed_names(hvd: Any, mx: Any) -> None:
    """MXNet has the names that NumPy 2 has removed; NumPy itself does not have them any more."""
    assert [name for name in ("NaN", "PINF", "sometrue", "product", "mirr", "msort") if hasattr(np, name)] == []
    assert (np.isnan(mx.np.NaN), mx.np.NINF) == (True, -np.inf)
    mx.npx.set_np()
    try:
        assert mx.np.pad(mx.np.ones((1, 2)), ((1, 0), (0, 0)), mode="constant").shape == (2, 2)
        assert np.sum(mx.np.ones((2, 2))).item() == 4  # NumPy's function, dispatched to MXNet's
        assert mx.np.alltrue(mx.np.ones((2,))).item() is True
        assert mx.np.msort(mx.np.array([2.0, 1.0])).asnumpy().tolist() == [1, 2]
        with pytest.raises(NotImplementedError, match="numpy-financial"):
            mx.np.npv(mx.np.array(0.1), mx.np.ones((2,)))
    finally:
        mx.npx.reset_np()
    handler = mx.gluon.contrib.estimator.EarlyStoppingHandler(mx.metric.Loss(), mode="min")
    handler.train_begin(None)
    assert handler.best == np.inf


# training


def network(mx: Any, seed: int, *, deferred: bool = False, scope: bool = False) -> Any:
    """A net. Without a scope its parameters have other names on each rank, as in ranks that have made other nets."""
    mx.random.seed(seed)
    net = mx.gluon.nn.HybridSequential(prefix="net_" if scope else None)
    with net.name_scope() if scope else contextlib.nullcontext():
        net.add(mx.gluon.nn.Dense(7, activation="tanh", in_units=0 if deferred else INPUTS))
        net.add(mx.gluon.nn.Dense(3, in_units=0 if deferred else 7))
    net.initialize(mx.init.Normal(0.3))
    return net


def batches() -> list[tuple[Any, Any]]:
    random = np.random.default_rng(3)
    return [(random.normal(size=(ROWS, INPUTS)).astype("f"), random.integers(0, 3, ROWS)) for _ in range(STEPS)]


LEARNING: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("sgd", {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.01}),
    "adam": ("adam", {"learning_rate": 0.02}),
}


def learn(mx: Any, net: Any, trainer: Any, parts: list[slice], rows: int) -> None:
    """Train on these parts of the batches; `rows` is the argument of `step`."""
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for (x, y), part in zip(batches(), parts, strict=True):
        with mx.autograd.record():
            error = loss(net(mx.nd.array(x[part])), mx.nd.array(y[part]))
        error.backward()
        trainer.step(rows)


def values(net: Any) -> list[Any]:
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def digest(net: Any) -> bytes:
    return b"".join(array.tobytes() for array in values(net))


def alone(mx: Any, name: str) -> list[Any]:
    """The parameters of one process that trains on whole batches."""
    net = network(mx, seed=0)
    kind, options = LEARNING[name]
    trainer = mx.gluon.Trainer(net.collect_params(), kind, dict(options), kvstore=None)
    learn(mx, net, trainer, [slice(None)] * STEPS, ROWS)
    return values(net)


def compare(hvd: Any, net: Any, expected: list[Any], atol: float = 1e-6) -> None:
    """The same bits on all ranks, near the parameters of one process."""
    assert len(set(hvd.allgather_object(digest(net)))) == 1
    for one, other in zip(values(net), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=atol)


def trainers(hvd: Any, mx: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    for _ in range(9 - rank):  # names with 9 and with 10, which MXNet sorts
        mx.gluon.nn.Dense(1)
    mine = [slice(rank, None, size)] * STEPS
    for name, (kind, options) in LEARNING.items():
        expected = alone(mx, name)
        for arguments, atol in (
            ({}, 1e-6),
            ({"num_groups": 2, "gradient_predivide_factor": 2.0, "prefix": "grouped."}, 1e-6),
            ({"compression": hvd.Compression.fp16}, 5e-3),
            ({"compression": hvd.Compression.bf16, "num_groups": 1}, 5e-2),
        ):
            if name == "adam" and "compression" in arguments:
                continue  # it scales small differences up
            net = network(mx, seed=rank)
            hvd.broadcast_parameters(net.collect_params(), prefix=name)
            trainer = hvd.DistributedTrainer(net.collect_params(), kind, dict(options), **arguments)
            learn(mx, net, trainer, mine, ROWS // size)
            compare(hvd, net, expected, atol)
    net = network(mx, seed=0)
    compression = hvd.Compression.topk(0.5)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.2}, compression=compression)
    learn(mx, net, trainer, mine, ROWS // size)
    compare(hvd, net, values(net))
    with pytest.raises(ValueError, match=r"compression=.*one for each"):
        hvd.DistributedTrainer(network(mx, seed=1).collect_params(), "sgd", compression=compression)
    # after allreduce_grads the gradients are the averages
    for parameter in net.collect_params().values():
        parameter.grad()[:] = rank + 1
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    trainer.allreduce_grads()
    same(net[1].bias.grad(), np.full(3, (size + 1) / 2))
    # parameters whose shapes are found in the first forward pass are broadcast then, on a hybridized net
    net = network(mx, seed=rank, deferred=True)
    net.hybridize()
    hvd.broadcast_parameters(net.collect_params())
    kind, options = LEARNING["momentum"]
    learn(mx, net, hvd.DistributedTrainer(net.collect_params(), kind, dict(options)), mine, ROWS // size)
    assert len(set(hvd.allgather_object(digest(net)))) == 1


def uneven(hvd: Any, mx: Any) -> None:
    """Rank r has r + 1 batches; ranks without data contribute zeros."""
    rank, size = hvd.rank(), hvd.size()
    weight = mx.gluon.Parameter("weight", shape=(3,), init="zeros")
    weight.initialize()
    trainer = hvd.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0})
    for _ in range(rank + 1):
        with mx.autograd.record():
            loss = (weight.data() * (rank + 1)).sum()
        loss.backward()
        trainer.step(1)
    assert hvd.join() == size - 1
    sums = [sum(other + 1 for other in range(step, size)) / size for step in range(rank + 1)]
    np.testing.assert_allclose(weight.data().asnumpy(), -sum(sums), rtol=1e-6)


def optimizers(hvd: Any, mx: Any, directory: str) -> None:
    """DistributedOptimizer in Gluon's trainer, saved and loaded on the way."""
    rank, size = hvd.rank(), hvd.size()
    kind, options = LEARNING["momentum"]
    for groups in (0, 1):
        net = network(mx, seed=rank, scope=True)
        hvd.broadcast_parameters({key: value.data() for key, value in net.collect_params().items()})
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create(kind, **options), 2.0, num_groups=groups)
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
        mine = [slice(rank, None, size)] * STEPS
        loss, file = mx.gluon.loss.SoftmaxCrossEntropyLoss(), str(Path(directory) / f"{rank}.{groups}")
        for step, ((x, y), part) in enumerate(zip(batches(), mine, strict=True)):
            with mx.autograd.record():
                error = loss(net(mx.nd.array(x[part])), mx.nd.array(y[part]))
            error.backward()
            trainer.step(ROWS // size)
            if step == 1:
                trainer.save_states(file)
                trainer = mx.gluon.Trainer(net.collect_params(), mx.optimizer.create("sgd"), kvstore=None)
                trainer.load_states(file)
        assert isinstance(trainer.optimizer, hvd.DistributedOptimizer)
        compare(hvd, net, alone(mx, "momentum"))
    trainer.set_learning_rate(0.5)
    assert (trainer.optimizer.wrapped.lr, trainer.learning_rate) == (0.5, 0.5)
    again = pickle.loads(pickle.dumps(optimizer))
    assert (again.momentum, again.wrapped.wd) == (0.9, 0.01)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer = hvd.DistributedTrainer(network(mx, seed=0, scope=True).collect_params(), optimizer)
    assert trainer.optimizer is optimizer.wrapped
    assert "DistributedOptimizer" in str(told[0].message)


def stores(hvd: Any, mx: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    store = mx.kv.create("ronde")
    assert (store.rank, store.num_workers, store.is_capable("optimizer")) == (rank, size, False)
    total = size * (size + 1) // 2
    x, out = of_rank(mx, rank), [mx.nd.zeros((3, 4), ctx=mx.cpu(device)) for device in (0, 1)]
    ones = np.arange(12).reshape(3, 4) + 1
    store.pushpull("w", x, out=out)
    same(x, ones * (rank + 1))
    for one in out:
        same(one, ones * total)
    store.pushpull(3, out, priority=-3)  # on two devices of each rank
    for one in out:
        same(one, ones * total * 2 * size)
    store.broadcast(["a", "b"], [x, x], [x, out])
    same(x, ones)
    same(out[1], ones)
    store.init("w", x)
    with pytest.raises(ValueError, match=r"key='w'.*broadcast_parameters"):
        store.init("w", of_rank(mx, rank))
    for name, (kind, options) in LEARNING.items():
        expected = alone(mx, name)
        for given in (store, "dist_ronde"):
            net = network(mx, seed=0, scope=True)
            trainer = mx.gluon.Trainer(net.collect_params(), kind, dict(options), kvstore=given)
            learn(mx, net, trainer, [slice(rank, None, size)] * STEPS, ROWS)
            compare(hvd, net, expected)
    # Trainer gives all ranks the parameters of rank 0 in its first step, when the first gradients are there
    net = network(mx, seed=rank, scope=True)
    learn(
        mx, net, mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=store), [slice(rank, None, size)] * STEPS, ROWS
    )
    compare(hvd, net, values(net))
    kind, options = LEARNING["momentum"]
    for compression, atol in (("fp16", 5e-3), ("int8", 0.1)):
        net = network(mx, seed=0, scope=True)
        trainer = mx.gluon.Trainer(
            net.collect_params(), kind, dict(options), kvstore="dist_ronde", compression_params={"type": compression}
        )
        learn(mx, net, trainer, [slice(rank, None, size)] * STEPS, ROWS)
        compare(hvd, net, alone(mx, "momentum"), atol)


def modules(hvd: Any, mx: Any) -> None:
    """Module, the interface before Gluon, with the store."""
    rank, size = hvd.rank(), hvd.size()
    x, y = batches()[0]

    def trained(part: slice, store: Any, seed: int) -> dict[str, Any]:
        data = mx.io.NDArrayIter(x[part], y[part].astype("f"), batch_size=len(x[part]), label_name="softmax_label")
        symbol = mx.sym.SoftmaxOutput(
            mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="softmax"
        )
        module = mx.mod.Module(symbol)
        module.bind(data.provide_data, data.provide_label)
        mx.random.seed(seed)
        module.init_params(mx.init.Normal(0.3))
        if store is not None:
            with pytest.raises(ValueError, match=r"key=.*broadcast_parameters"):
                module.init_optimizer(kvstore=store)
            found = module.get_params()
            hvd.broadcast_parameters(found[0])
            module.set_params(*found)
        module.init_optimizer(kvstore=store, optimizer_params={"learning_rate": 0.5}, force_init=True)
        for _ in range(3):
            data.reset()
            for batch in data:
                module.forward_backward(batch)
                module.update()
        return {name: array.asnumpy() for name, array in module.get_params()[0].items()}

    found = trained(slice(rank, None, size), mx.kv.create("ronde"), rank)
    expected = trained(slice(None), None, 0)
    for name, array in expected.items():
        assert len(set(hvd.allgather_object(found[name].tobytes()))) == 1
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)
