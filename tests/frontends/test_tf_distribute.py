"""tf.distribute users: ranks from TF_CONFIG, and MirroredStrategy between processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ronde
from tests.frontends.pool import ROOT, Framework, Pool, run_as_main

for needed in ("tensorflow", "keras"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip("tensorflow is not installed: pip install 'ronde[tensorflow]'", allow_module_level=True)

SECRET = "5a" * 32
ROWS = 24


@pytest.fixture(scope="module")
def pool(frameworks: Callable[[str], Framework]) -> Iterator[Pool]:
    """Two ranks with TensorFlow, which have two CPUs: TensorFlow must have run nothing before."""
    ranks = frameworks("tensorflow").fresh(2)
    yield ranks
    ranks.close()


# What ranks do


def from_tf_config(ports: list[int], tasks: list[tuple[str, int]]) -> tuple[int, int, float]:
    """Meets as TF_CONFIG says, twice; the task is that of the rank in the pool."""
    import frontends.keras as hvd

    two_cpus()
    addresses = [f"127.0.0.1:{port}" for port in ports]
    cluster = {"chief": addresses[:1], "worker": addresses[1:]} if ("chief", 0) in tasks else {"worker": addresses}
    with task_of(cluster, *tasks[int(os.environ["RONDE_RANK"])]):
        with pytest.raises(hvd.HorovodInternalError, match=r"TF_CONFIG.*RONDE_SECRET or RONDE_SECRET_FILE"):
            hvd.init()
        os.environ["RONDE_SECRET"] = SECRET
        for _ in range(2):
            hvd.init()
            found = hvd.rank(), hvd.size(), float(hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum))
            hvd.shutdown()
    return found


@contextlib.contextmanager
def task_of(cluster: dict[str, list[str]], kind: str, index: int) -> Iterator[None]:
    """The environment of a task that only TF_CONFIG tells its rank."""
    for name in [name for name in os.environ if name.startswith("RONDE_") and name != "RONDE_TRANSPORT"]:
        del os.environ[name]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    try:
        yield
    finally:
        del os.environ["TF_CONFIG"]


def meet(ports: list[int]) -> None:
    """Joins a job of two workers by TF_CONFIG, and leaves it."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    with task_of(cluster, "worker", int(os.environ["RONDE_RANK"])):
        os.environ["RONDE_SECRET"] = SECRET
        ronde.init()
        ronde.shutdown()


def parameter_servers(ports: list[int]) -> str:
    """Runs the example as a task of chief, worker and ps; what it has written."""
    cluster = {kind: [f"127.0.0.1:{port}"] for kind, port in zip(("ps", "worker", "chief"), ports, strict=True)}
    with task_of(cluster, list(cluster)[int(os.environ["RONDE_RANK"])], 0):
        os.environ["RONDE_SECRET"] = SECRET
        return run_as_main([str(ROOT / "examples/tensorflow_parameter_server_digits.py"), "--steps", "100"])


def two_cpus() -> None:
    """Before TensorFlow does anything else in the process."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def strategy(devices: int) -> Any:
    """A MirroredStrategy of so many logical CPUs of each process."""
    import tensorflow as tf

    from frontends.tensorflow.distribute import RondeCrossDeviceOps

    two_cpus()
    names = [f"/cpu:{index}" for index in range(devices)]
    return tf.distribute.MirroredStrategy(names, cross_device_ops=RondeCrossDeviceOps())


def operations(devices: int) -> None:
    """reduce, batch_reduce and broadcast, eager and in a function."""
    import tensorflow as tf

    import frontends.tensorflow as hvd
    from frontends.tensorflow.distribute import RondeCrossDeviceOps

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    mirrored = strategy(devices)
    sum_, mean = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

    def value(context: Any) -> Any:  # 1 to size * devices, over all replicas of all ranks
        return tf.fill([3], float(rank * devices + context.replica_id_in_sync_group + 1))

    values = mirrored.experimental_distribute_values_from_function(value)
    whole = size * devices
    total = whole * (whole + 1) / 2

    def all_of(ops: Any, op: Any) -> list[list[float]]:
        first = ops.reduce(op, values, values)
        results = [first, *ops.batch_reduce(op, [(values, values), (values, values)])]
        return [mirrored.experimental_local_results(result) for result in results]

    for run in (lambda function: function, tf.function):
        for options, op, expected in (
            ({}, sum_, total / size),
            ({"op": hvd.Sum}, sum_, total),
            ({}, mean, total / whole),
            ({"op": hvd.Sum, "compression": hvd.Compression.fp16}, mean, total / whole),
        ):
            ops = RondeCrossDeviceOps(**options)
            for result in run(lambda ops=ops, op=op: all_of(ops, op))():
                assert [one.numpy().tolist() for one in result] == [[expected] * 3] * devices
    spread = RondeCrossDeviceOps().broadcast(tf.constant([7.0]), values)
    assert [one.numpy().tolist() for one in mirrored.experimental_local_results(spread)] == [[7.0]] * devices
    slices = tf.IndexedSlices(tf.fill([1, 2], rank + 1.0), tf.constant([rank]), tf.constant([3, 2]))
    combined = RondeCrossDeviceOps(op=hvd.Sum).reduce(sum_, slices, "/cpu:0")
    (own,) = mirrored.experimental_local_results(combined)
    assert tf.convert_to_tensor(own).numpy().tolist() == [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]
    compressed = RondeCrossDeviceOps(op=hvd.Sum, compression=hvd.Compression.topk(0.01))
    for count in (2000, 3000):  # each list of shapes has a memory
        compressed.reduce(sum_, tf.linspace(1.0, 2.0, count), "/cpu:0")
    with pytest.raises(ValueError, match="op='min'"):
        RondeCrossDeviceOps(op=hvd.Min)
    hvd.shutdown()


def fit(devices: int) -> None:
    """model.fit under the strategy, against one process with all the rows."""
    import keras

    import frontends.keras as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    random = np.random.default_rng(3)
    x = random.normal(size=(3, size, ROWS // size, 4)).astype(np.float32)
    y = random.normal(size=(3, size, ROWS // size, 1)).astype(np.float32)

    def model(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        built = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        built.compile(keras.optimizers.Adam(0.05), "mse")
        return built

    with strategy(devices).scope():
        mirrored = model(rank)
    mirrored.fit(
        x[:, rank].reshape(-1, 4),
        y[:, rank].reshape(-1, 1),
        batch_size=ROWS // size,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    alone = model(0)
    alone.fit(x.reshape(-1, 4), y.reshape(-1, 1), batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
    found = [np.array(weight) for weight in mirrored.get_weights()]
    every = hvd.allgather_object([array.tobytes() for array in found])
    assert all(one == every[0] for one in every)
    for own, expected in zip(found, alone.get_weights(), strict=True):
        np.testing.assert_allclose(own, expected, rtol=2e-4, atol=2e-5)
    hvd.shutdown()


def from_the_page(script: str) -> str:
    """Runs a program; what it has written."""
    import keras

    two_cpus()
    keras.backend.clear_session()  # names begin anew, as in a new process
    return run_as_main([script])


def strategy_of_all_ranks(devices: int) -> None:
    """Variables, batches, reduce and gather of MirroredStrategy over the devices of all ranks."""
    import tensorflow as tf

    import frontends.tensorflow as hvd
    from frontends.tensorflow.distribute import MirroredStrategy

    two_cpus()
    everywhere = MirroredStrategy([f"/cpu:{index}" for index in range(devices)])
    rank, size = hvd.rank(), hvd.size()
    whole = size * devices
    assert everywhere.num_replicas_in_sync == whole
    with everywhere.scope():
        made = [tf.Variable([rank + 5.0, 1.0]), tf.Variable(lambda: tf.constant(rank + 5)), tf.Variable(rank == 0)]
    assert [variable.numpy().tolist() for variable in made] == [[5.0, 1.0], 5, True]

    rows = tf.data.Dataset.range(8).map(lambda number: {"x": number}).batch(4)
    seen = everywhere.gather(next(iter(everywhere.experimental_distribute_dataset(rows)))["x"], axis=0)
    assert sorted(seen.numpy()) == [0, 1, 2, 3]
    few = everywhere.experimental_distribute_dataset(rows.unbatch().batch(whole - 1))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{whole} rows .*drop_remainder=True"):
        next(iter(few))
    off = tf.data.Options()
    off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    with pytest.raises(ValueError, match=r"AutoShardPolicy\.OFF"):
        everywhere.experimental_distribute_dataset(rows.with_options(off))

    def shards(context: Any) -> Any:
        assert (context.num_input_pipelines, context.input_pipeline_id) == (size, rank)
        batch = context.get_per_replica_batch_size(8)
        return tf.data.Dataset.range(8).shard(size, context.input_pipeline_id).batch(batch)

    seen = everywhere.gather(next(iter(everywhere.distribute_datasets_from_function(shards))), axis=0)
    assert sorted(seen.numpy()) == list(range(8))

    def value(context: Any) -> Any:  # rows of 1 to whole
        number = rank * devices + context.replica_id_in_sync_group + 1
        return tf.fill([1, number], float(number))

    values = everywhere.experimental_distribute_values_from_function(value)
    numbers = np.arange(1, whole + 1)
    squares = float((numbers**2).sum())
    for run in (lambda function: function, tf.function):
        assert run(lambda: everywhere.reduce("SUM", values, axis=1))().numpy() == [squares]
        assert run(lambda: everywhere.reduce("mean", values, axis=1))().numpy() == pytest.approx(
            [squares / numbers.sum()]
        )
        assert run(lambda: everywhere.gather(values, axis=1))().numpy().tolist() == [
            np.repeat(numbers, numbers).tolist()
        ]
    both = everywhere.run(lambda: {"a": tf.constant([rank, 7]), "b": tf.constant(2.0 * rank)})
    means = everywhere.reduce(tf.distribute.ReduceOp.MEAN, both, axis=None)
    assert (means["a"].numpy().tolist(), means["b"].numpy()) == ([0, 7], 1.0)
    hvd.shutdown()


# Tests


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        listeners = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def test_reduce_over_devices_and_ranks(pool: Pool) -> None:
    pool.run(operations, 1)
    pool.run(operations, 2, transport="tcp")


def test_fit_under_mirrored_strategy(pool: Pool) -> None:
    pool.run(fit, 2)


@pytest.mark.parametrize("tasks", [[("worker", 0), ("worker", 1)], [("worker", 0), ("chief", 0)]])
def test_ranks_meet_by_tf_config(pool: Pool, tasks: list[tuple[str, int]]) -> None:
    found = pool.run(from_tf_config, free_ports(2), tasks, transport="tcp")
    ranks = [0, 1] if ("chief", 0) not in tasks else [1, 0]
    assert found == [(rank, 2, 3.0) for rank in ranks]


def test_parameter_servers_by_tf_config(frameworks: Callable[[str], Framework]) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    pool = frameworks("tensorflow")(3)
    pool.run(meet, free_ports(2), ranks=2)  # the third rank has met less often then
    server, worker, chief = pool.run(parameter_servers, free_ports(3))
    assert server == "rank 2 of 3 was a server and pushed 0 changes\n"
    first, second = (
        re.match(r"rank (\d) of 3 was a worker and pushed (\d+) changes", text) for text in (chief, worker)
    )
    assert first is not None
    assert second is not None
    assert (first[1], second[1]) == ("0", "1")
    found = re.search(r"accuracy ([\d.]+)% after (\d+) changes", chief)
    assert found is not None
    assert int(found[2]) == int(first[2]) + int(second[2])
    assert float(found[1]) > 90


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs/tf-distribute.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def changed(script: str, diff: str) -> str:
    """The script with the hunks of a diff applied, each of which must fit in one place."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in " " + sign) for sign in "-+")
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    return script


@pytest.mark.parametrize("number", [0, 1])
def test_one_changed_line(pool: Pool, number: int, tmp_path: Path) -> None:
    """The scripts of the page: as they are in one process, and changed on two ranks."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    diff, script, other = blocks("diff")[number], tmp_path / "script.py", tmp_path / "changed.py"
    assert sum(line.startswith("-") for line in diff.splitlines()) == 1
    script.write_text(blocks("python")[number])
    other.write_text(changed(script.read_text(), diff))
    (alone,) = pool.run(from_the_page, str(script), ranks=1)
    first, second = pool.run(from_the_page, str(other))
    assert first == second
    losses, expected = (re.findall(r"loss ([\d.]+)", text) for text in (first, alone))
    assert losses
    np.testing.assert_allclose(np.array(losses, float), np.array(expected, float), rtol=1e-3)


def test_mirrored_strategy_of_all_ranks(pool: Pool) -> None:
    pool.run(strategy_of_all_ranks, 2)


def test_the_example_of_the_page_runs(pool: Pool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(blocks("python")[2])
    pool.run(from_the_page, str(script))
