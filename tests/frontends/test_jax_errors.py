"""frontends.jax: mistakes and interrupts, the ways into the runtime, other worlds, and what it needs and does not."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'ronde[jax]'")

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

import frontends.jax as hvd  # noqa: E402
from frontends.jax.call_frames import MINOR, Api, Frame, Version  # noqa: E402
from frontends.jax.handler import obstacle_of, registered  # noqa: E402
from tests.frontends.launch import output, python, ronde_run  # noqa: E402
from tests.frontends.test_jax_ops import Pools, in_world, same  # noqa: E402
from transports.errors import ConfigError  # noqa: E402


def mistakes(rank: int, size: int) -> None:
    x = jnp.ones(3)
    for wrong in (
        lambda: hvd.allreduce(jnp.ones(3 + rank), name="shape"),
        lambda: hvd.allreduce(jnp.ones(3, [jnp.float32, jnp.int32][rank]), name="dtype"),
        lambda: hvd.allreduce(x, name="op", op=[hvd.Sum, hvd.Min][rank]),
        lambda: hvd.broadcast(x, rank, name="root"),
        lambda: hvd.allgather(jnp.ones((2, 3 + rank)), name="rest"),
        lambda: hvd.allgather(jnp.ones((2 + rank, 2)), name="rows"),
        lambda: jax.jit(hvd.grouped_allreduce)([jnp.ones(2), jnp.ones(2 + rank)]),
        lambda: [hvd.allreduce, hvd.allgather][rank](x),
        lambda: jax.jit(lambda x: jnp.tanh(x @ x) + hvd.allreduce(jnp.ones(1 + rank)).sum())(jnp.ones((500, 500))),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)MismatchError.*rank 0: .*rank 1: "):
            jax.block_until_ready(wrong())
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # it may have been raised already
            hvd.settle()
        same(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(x), np.full(3, size, np.float32))
    sgd = hvd.distributed(optax.sgd(1.0))
    for wrong, kind, text in (
        (lambda: hvd.allreduce(x, op="median"), ValueError, "op='median'"),
        (lambda: hvd.allreduce(jnp.ones(3, bool), op=hvd.Sum), TypeError, "op='sum': .*bool"),
        (lambda: hvd.allreduce({"a": "text"}), TypeError, "x, leaf 0: .*array.* not str"),
        (lambda: hvd.allreduce("b"), TypeError, "x: .*array.* not str"),  # the name of a type
        (lambda: hvd.allreduce(np.ones(2, ">f4")), TypeError, "x: .*ndarray of >f4"),
        *(
            (functools.partial(call, beyond), OverflowError, "int32, .*JAX .*int64")
            for call in (hvd.allreduce, hvd.allgather, hvd.reduce_scatter, hvd.alltoall, lambda x: hvd.broadcast(x, 0))
            for beyond in (np.array([1, 2**40]), np.array([-(2**31) - 1, 0]))
        ),
        (lambda: hvd.allreduce({"a": np.uint64(2**32)}), OverflowError, "x, leaf 0: .*uint32"),
        (lambda: hvd.allreduce(jax.random.key(0)), TypeError, "key_data"),
        (lambda: hvd.allreduce(np.zeros(2, jax.dtypes.float0)), TypeError, "x: .*float0"),
        (lambda: hvd.allreduce(x, process_set=3), TypeError, "process_set=3"),
        (lambda: hvd.broadcast(x, 7), ValueError, "root_rank=7"),
        (lambda: hvd.reduce_scatter(x, op=hvd.Max), ValueError, "Average and Sum only"),
        (lambda: hvd.reduce_scatter(jnp.float32(1)), ValueError, "dimension"),
        (lambda: hvd.alltoall(jnp.ones(3)), ValueError, "divisible by 2 ranks"),
        (lambda: hvd.alltoall(x, [[1, 1], [1, 1]]), ValueError, "3 rows"),
        (lambda: hvd.alltoall(x, [[1, 1, 1]]), ValueError, r"splits\[0\]"),
        (lambda: hvd.alltoall(x, [[1, 2]]), ValueError, "must have 2"),
        (lambda: hvd.alltoall(x, 5), TypeError, "splits=5: must be"),
        (lambda: hvd.grouped_allreduce(None), TypeError, "tensors=None: must be"),
        (lambda: hvd.allreduce(x, name=5), TypeError, "name=5: must be"),
        (lambda: hvd.reduce_scatter(x, compression=5), TypeError, "compression=5: must be"),
        (lambda: hvd.broadcast_parameters({}, 9), ValueError, "root_rank=9: must be"),
        (lambda: hvd.broadcast_parameters({"a": np.array(["b"])}), TypeError, "'a': must be an array"),
        (lambda: sgd.update({"a": np.array(["b"])}, sgd.init({"a": x})), TypeError, "'a': must be an array"),
        (lambda: hvd.distributed(optax.sgd), TypeError, "optimizer=.*optax.*not function"),
        (lambda: hvd.distributed(optax.sgd(1.0), op=5), ValueError, "op=5: must be"),
        (lambda: hvd.distributed(optax.sgd(1.0), process_set=5), TypeError, "process_set=5: must be"),
        (lambda: hvd.distributed(optax.sgd(1.0), prescale_factor="2"), TypeError, "prescale_factor='2'"),
        (lambda: hvd.distributed(optax.sgd(1.0), compression=5), TypeError, "compression=5: must be"),
        (lambda: hvd.allgather(x, rows=[1, 1]), ValueError, "x has 3"),
        (lambda: hvd.allgather(x, rows=[3, -1]), ValueError, "0 or more"),
        (
            lambda: jax.jit(jax.vmap(lambda one: hvd.allreduce(one, hvd.Adasum)))(jnp.ones((2, 2))),
            NotImplementedError,
            "allreduce: Adasum .*vmap",
        ),
        (
            lambda: jax.vmap(lambda one: hvd.allreduce(one, compression=hvd.Compression.int8()))(jnp.ones((2, 2))),
            NotImplementedError,
            "allreduce: .*compression .*vmap",
        ),
    ):
        with pytest.raises(kind, match=text):
            wrong()
    same(hvd.allreduce(np.array([2**31 - 1, -(2**31)]), op=hvd.Max), np.array([2**31 - 1, -(2**31)], np.int32))
    same(hvd.allreduce(np.zeros((0, 2), np.int64)), np.zeros((0, 2), np.int32))


def other_order(rank: int, size: int) -> None:
    x = jnp.ones(3)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"named 'jax.allreduce.[ab]'.*rank . "):
        jax.block_until_ready([hvd.allreduce(x, name=name) for name in ("ab" if rank == 0 else "ba")])


@pytest.mark.parametrize("path", ["ffi", "callback"])
def test_mistakes_raise_everywhere_and_nothing_is_lost(pool: Pools, path: str) -> None:
    pool(2).run(in_world, mistakes, jax_path=path)
    pool(2).run(in_world, other_order, jax_path=path, timeout=3)


def interrupted(rank: int, size: int) -> None:
    same(hvd.allreduce(jnp.ones(2)), np.ones(2, np.float32))
    if rank == 0:
        threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        with pytest.raises(jax.errors.JaxRuntimeError, match="KeyboardInterrupt"):
            hvd.allreduce(jnp.ones(2)).block_until_ready()
    else:
        with pytest.raises(hvd.HorovodInternalError, match="KeyboardInterrupt in MainThread"):
            hvd.broadcast_object(None)


def test_an_interrupt_ends_the_operation_on_all_ranks(pool: Pools) -> None:
    pool(2).run(in_world, interrupted)


def ways_in(rank: int, size: int) -> None:
    x = jnp.ones(3) * rank
    total = np.full(3, sum(range(size)), np.float32)
    with jax.disable_jit():
        same(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(x), total)
    with pytest.raises(NotImplementedError, match=r"allreduce: .*CPU only, not on"):
        jax.jit(hvd.allreduce).trace(x).lower(lowering_platforms=("cuda",))
    frame, api = Frame(), Api()
    api.version.struct_size = ctypes.sizeof(Version)
    api.version.minor = MINOR + 1
    frame.struct_size = ctypes.sizeof(Frame) + 8
    frame.args.struct_size = ctypes.sizeof(type(frame.args))
    frame.attributes.struct_size = ctypes.sizeof(type(frame.attributes))
    frame.api = ctypes.pointer(api)
    assert obstacle_of(frame) == ""
    frame.struct_size = ctypes.sizeof(Frame) - 8
    assert "call frame structure has" in obstacle_of(frame)
    api.version.minor = MINOR - 1
    assert f"has version 0.{MINOR - 1}, must be" in obstacle_of(frame)
    handler = registered()
    handler.obstacle = obstacle_of(frame)
    with pytest.raises(ConfigError, match=r"RONDE_JAX_PATH='ffi': .*version"):
        hvd.path()
    os.environ["RONDE_JAX_PATH"] = "auto"
    assert hvd.path() == "callback"
    same(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(x), total)
    handler.obstacle = ""
    assert hvd.path() == "ffi"


def test_ways_into_the_runtime(pool: Pools) -> None:
    pool(2).run(in_world, ways_in, jax_path="ffi")


def another_world(rank: int, size: int) -> None:
    compiled = jax.jit(hvd.allreduce)
    same(compiled(jnp.ones(2)), np.ones(2, np.float32))
    hvd.shutdown()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"ronde\.init\(\)"):
        compiled(jnp.ones(2)).block_until_ready()
    kept = {name: os.environ.pop(name) for name in ("RONDE_RANK", "RONDE_SIZE", "RONDE_STORE")}
    hvd.init()
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"rank {rank} of 2, .*rank 0 of 1"):
        compiled(jnp.ones(2)).block_until_ready()
    jax.clear_caches()
    same(jax.jit(hvd.allreduce)(jnp.ones(2) * 7), np.full(2, 7, np.float32))
    os.environ.update(kept)
    os.environ["RONDE_JAX_PATH"] = "teleport"
    with pytest.raises(ConfigError, match=r"RONDE_JAX_PATH='teleport': .*auto, ffi or callback"):
        hvd.allreduce(jnp.ones(2))


def test_a_program_of_another_world_tells_so(pool: Pools) -> None:
    pool(2).run(in_world, another_world)


def test_without_jax_the_error_names_the_extra() -> None:
    done = python("-c", "import sys; sys.modules['jax'] = None; import frontends.jax")
    assert "ModuleNotFoundError: ronde.jax needs jax: pip install 'ronde[jax]'" in done.stderr


def test_importing_it_imports_no_other_framework() -> None:
    done = python(
        "-c",
        "import sys, frontends.jax; print([n for n in ('torch', 'tensorflow', 'keras', 'optax') if n in sys.modules])",
    )
    assert done.stdout == "[]\n", done.stderr


SEVERAL_DEVICES = """
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import frontends.jax as hvd
hvd.init()
mesh, cut = Mesh(jax.devices(), ("x",)), PartitionSpec("x")
one = jnp.ones(4)
divided, copied = (jax.device_put(one, NamedSharding(mesh, how)) for how in (cut, PartitionSpec()))
mapped = jax.shard_map(hvd.allreduce, mesh=mesh, in_specs=cut, out_specs=cut)
for call, x in (
    (hvd.jit(mapped), one), (jax.jit(mapped), one), (hvd.jit(hvd.allreduce), divided),
    (hvd.allreduce, divided), (hvd.allreduce, copied), (hvd.allgather, copied), (hvd.broadcast_parameters, copied),
):
    try:
        print(call(x, 0) if call is hvd.broadcast_parameters else call(x))
    except ValueError as error:
        print(type(error).__name__)
there = jax.device_put(one, jax.devices()[1])
print(hvd.allreduce(there), hvd.jit(hvd.allreduce)(divided.addressable_data(1)))
hvd.shutdown()
"""


def test_a_program_of_several_devices_is_refused() -> None:
    """Nothing orders the calls of one device among those of another: ranks would add different parts."""
    text = output("-c", SEVERAL_DEVICES, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert text == "ValueError\n" * 7 + "[1. 1. 1. 1.] [1. 1.]\n"


ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # XLA gets one thread
import jax, jax.numpy as jnp
import frontends.jax as hvd
hvd.init()
@jax.jit
def step(x):
    parts = [hvd.allreduce(x * number, op=hvd.Sum) for number in range(8)]
    return sum(parts) + jnp.tanh(jnp.outer(x, x)).sum()
for _ in range(50):
    x = step(jnp.ones(300))
print(float(x[0]) - float(jnp.tanh(1.0)) * 300 * 300)
hvd.shutdown()
"""


def test_one_thread_suffices() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("processes cannot be bound to a core here")
    text = output(*ronde_run(2), sys.executable, "-c", ONE_CORE)
    assert all(abs(float(line.split()[-1]) - 2 * sum(range(8))) < 1 for line in text.splitlines()), text
