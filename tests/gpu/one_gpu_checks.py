"""The checks of run_one_gpu.py: each check is a function of a rank's communicator, CuPy and the rig, and may return a
line of detail."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from collectives import AbortedError, Communicator, Config, DeadlineExceeded, PeerLost, RondeError, connect
from tests.gpu import bodies
from tests.gpu.bodies import host, same
from transports.rendezvous.bootstrap import join
from transports.rendezvous.memory import MemoryStore

SECRET = b"a secret for tests only"
ALONE: dict[str, Any] = {"transport": "nccl", "nccl": {"host": "local"}, "timeout": 60.0}
"""The settings of a world of one over NCCL."""


class Rig(Protocol):
    """The differences between a real GPU and a simulated one."""

    fake: bool

    def occupy(self, cupy: Any, seconds: float) -> None:
        """Keep the current stream busy for so long."""

    def die(self, comm: Communicator) -> None:
        """End this rank without a word."""


class RealRig:
    fake = False

    def occupy(self, cupy: Any, seconds: float) -> None:
        code = r"""
        extern "C" __global__ void spin(long long nanoseconds) {
            unsigned long long begin, now;
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
            do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < nanoseconds);
        }
        """
        cupy.RawKernel(code, "spin")((1,), (1,), (np.int64(seconds * 1e9),))

    def die(self, comm: Communicator) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def alone(**settings: Any) -> Iterator[Communicator]:
    """A world of one over NCCL, beside whatever there is."""
    deadline = time.monotonic() + 60
    store = MemoryStore()
    group = join(0, 1, store, secret=SECRET, deadline=deadline)
    comm = connect(group, Config.load({**ALONE, **settings}, environment={}), deadline)
    try:
        yield comm
    finally:
        comm.close(20)
        store.close()


def versions(comm: Communicator, cupy: Any, rig: Rig) -> str:
    """Making the communicator; its seconds."""
    x = cupy.asarray(np.arange(5, dtype=np.float32))
    began = time.monotonic()
    same(host(comm.allreduce(x, algorithm="native")), np.arange(5, dtype=np.float32) * np.float32(comm.size))
    return f"first call, with non-blocking init: {time.monotonic() - began:.2f} s"


def _of(body: Callable[[Communicator, Any], None]) -> Callable[[Communicator, Any, Rig], None]:
    return lambda comm, cupy, rig: body(comm, cupy)


def streams(comm: Communicator, cupy: Any, rig: Rig) -> None:
    """The current stream, a given one, an asynchronous call, and buffers that are forgotten at once."""
    ones = np.ones(1 << 16, np.float32)
    size, native = np.float32(comm.size), comm.transport.name == "nccl"
    stream, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    comm.allreduce(cupy.asarray(ones))
    cupy.cuda.Device().synchronize()
    with stream:
        x = cupy.asarray(ones)
        rig.occupy(cupy, 0.1)
        y = comm.allreduce(x)
        assert not (native and stream.done), "the call waited for the GPU"
        z = y + y
    with stream:
        same(host(z), ones * 2 * size)
    same(host(comm.allreduce(x, stream=stream, blocking=True)), ones * size)
    same(host(comm.allreduce(x, stream=stream.ptr, blocking=True)), ones * size)
    with stream:
        x = cupy.asarray(ones)
        rig.occupy(cupy, 0.1)
        work = comm.allreduce_async(x)
    with other:
        y = work.wait(30)
        z = y * np.float32(3)
        same(host(z), ones * 3 * size)
    with stream:
        works = [comm.allreduce_async(cupy.asarray(np.full((1000, 2), n, np.float32))[:, 0]) for n in range(20)]
        for n, work in enumerate(works):
            same(host(work.wait(30)), np.full(1000, n, np.float32) * size)


def torch_tensors(comm: Communicator, cupy: Any, rig: Rig) -> str:
    """Tensors of torch, on its current stream, also bfloat16."""
    if rig.fake:
        return "skipped: no torch without a GPU"
    try:
        import torch
    except ImportError:
        return "skipped: torch is not installed"
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool):
        x = torch.ones(1000, device="cuda").to(dtype)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = comm.allreduce(x, "max" if dtype is torch.bool else "sum")
            assert isinstance(y, torch.Tensor)
            assert y.dtype is dtype
            assert comm.allreduce(x, "max", out=x) is x
        stream.synchronize()
        assert bool((y == (x if dtype is torch.bool else x * comm.size)).all())
    strided = torch.arange(20, device="cuda").reshape(4, 5)[:, ::2]
    assert bool((comm.allreduce(strided) == strided * comm.size).all())
    return f"torch {torch.__version__}"


def split(comm: Communicator, cupy: Any, rig: Rig) -> None:
    """Two communicators on one GPU, in turns."""
    half = comm.split(0, -comm.rank)
    assert half is not None
    x = cupy.asarray(np.full(100, comm.rank + 1, np.float32))
    total = np.full(100, sum(range(1, comm.size + 1)), np.float32)
    for _ in range(3):
        same(host(half.allreduce(x)), total)
        same(host(comm.allreduce(x)), total)
    root = cupy.asarray(np.full(3, comm.rank, np.int32))
    same(host(half.broadcast(root, 0)), np.full(3, comm.size - 1, np.int32))
    half.close(20)
    same(host(comm.allreduce(x)), total)


def named(comm: Communicator, cupy: Any, rig: Rig) -> None:
    """Named calls in any order."""
    order = range(6) if comm.rank else reversed(range(6))
    works = {n: comm.allreduce_async(cupy.asarray(np.full(500, n, np.float32)), name=f"x{n}") for n in order}
    for n in range(6):
        same(host(works[n].wait(30)), np.full(500, n, np.float32) * np.float32(comm.size))


def late(comm: Communicator, cupy: Any, rig: Rig) -> str:
    """A call whose time is over: the communicator is aborted, the GPU goes on, and a new communicator works."""
    x = cupy.asarray(np.ones(1000, np.float32))
    comm.allreduce(x, blocking=True)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        rig.occupy(cupy, 2.0)
        comm.allreduce(x, timeout=0.3)
        failure = _await_failure(comm, 10)
        assert isinstance(failure, DeadlineExceeded), failure
        stream.synchronize()
    _refused(comm, x, DeadlineExceeded)
    with alone() as again:
        same(host(again.allreduce(x)), np.ones(1000, np.float32))
    return failure.message


def abort(comm: Communicator, cupy: Any, rig: Rig) -> None:
    """An abort on purpose, and a new communicator."""
    x = cupy.asarray(np.ones(1000, np.float32))
    comm.allreduce(x, blocking=True)
    comm.abort("on purpose")
    assert "on purpose" in _refused(comm, x, AbortedError)
    with alone() as again:
        same(host(again.allreduce(x)), np.ones(1000, np.float32))


def large(comm: Communicator, cupy: Any, rig: Rig) -> str:
    """Arrays of many segments, and how fast they go."""
    count = (1 << 18 if rig.fake else 1 << 24) + 7
    x = cupy.asarray(np.full(count, comm.rank + 1, np.float32))
    total = np.full(count, sum(range(1, comm.size + 1)), np.float32)
    same(host(comm.allreduce(x)), total)
    times = []
    for _ in range(5):
        comm.barrier()
        began = time.perf_counter()
        comm.allreduce(x, out=x, op="max", blocking=True)
        times.append(time.perf_counter() - began)
    return f"allreduce of {4 * count >> 20} MiB: {4 * count / min(times) / 1e9:.2f} GB/s"


def dies(comm: Communicator, cupy: Any, rig: Rig) -> str | None:
    """Rank 1 is killed while rank 0 waits for it on the GPU: an error there, an abort, and a new communicator."""
    x = cupy.asarray(np.ones(1000, np.float32))
    comm.allreduce(x, blocking=True)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.5)
        rig.die(comm)
        return None
    began = time.monotonic()
    y = comm.allreduce(x)
    failure = _await_failure(comm, 30)
    seconds = time.monotonic() - began
    assert isinstance(failure, PeerLost), failure
    cupy.cuda.Device().synchronize()  # whatever waited for rank 1 has been ended
    del y
    said = _refused(comm, x, RondeError)
    assert "rank 1" in said, said
    with alone() as again:
        same(host(again.allreduce(x)), np.ones(1000, np.float32))
    return f"{type(failure).__name__} after {max(0.0, seconds - 0.5):.2f} s"


def dies_and_shrinks(comm: Communicator, cupy: Any, rig: Rig) -> str | None:
    """The same, and the survivor goes on by `shrink`."""
    said = dies(comm, cupy, rig)
    if comm.rank == 0:
        with comm.shrink(timeout=30) as rest:
            assert rest.size == 1
            same(host(rest.allreduce(cupy.asarray(np.ones(1000, np.float32)))), np.ones(1000, np.float32))
    return said


def overhead(comm: Communicator, cupy: Any, rig: Rig) -> str:
    """Microseconds of an allreduce by Ronde, by its NCCL group alone, and by NCCL's bindings alone, by CUDA events."""
    from collectives.gpu.devices import cuda

    lines = []
    for nbytes in (4, 1 << 10, 1 << 16, 1 << 20, 1 << 26):
        if rig.fake and nbytes > 1 << 16:
            continue
        x, out = cupy.asarray(np.ones(nbytes // 4, np.float32)), cupy.empty((nbytes // 4,), np.float32)
        comm.allreduce(x, out=out, blocking=True)
        calls: dict[str, Callable[[], object]] = {"ronde": lambda x=x, out=out: comm.allreduce(x, out=out)}  # type: ignore[misc]
        group = comm.devices.bare_allreduce(x, out, "sum")
        if group is not None:
            calls["group"] = group
        with _bindings(cupy, x, out, rig) as bare:
            if bare is not None:
                calls["nccl"] = bare
            found = {name: _microseconds(cuda(), call, rig) for name, call in calls.items()}
        lines.append(f"{nbytes} B: " + ", ".join(f"{name} {us:.1f}" for name, us in found.items()))
    return "; ".join(lines)


def _microseconds(cuda: Any, call: Callable[[], object], rig: Rig) -> float:
    times = [cuda.time(call, 50, time.monotonic() + 30) for _ in range(3 if rig.fake else 20)]
    return float(np.median(times)) * 1e6


@contextlib.contextmanager
def _bindings(cupy: Any, x: Any, out: Any, rig: Rig) -> Iterator[Callable[[], object] | None]:
    """An allreduce by the bindings and nothing else, on a blocking communicator of its own."""
    if rig.fake:
        yield None
        return
    from nccl.bindings import nccl

    comm = nccl.comm_init_rank_config(1, nccl.get_unique_id(), 0, nccl.Config())
    stream = cupy.cuda.get_current_stream().ptr
    try:
        yield lambda: nccl.all_reduce(x.data.ptr, out.data.ptr, x.size, 7, 0, comm, stream)
        cupy.cuda.Device().synchronize()
    finally:
        nccl.comm_destroy(comm)


def _refused(comm: Communicator, x: Any, kind: type[RondeError]) -> str:
    """The error of a call after the abort."""
    try:
        comm.allreduce(x)
    except kind as error:
        return str(error)
    raise AssertionError("a call went on after the abort")


def _await_failure(comm: Communicator, seconds: float) -> RondeError:
    deadline = time.monotonic() + seconds
    while comm.failure is None:
        if time.monotonic() >= deadline:
            raise AssertionError(f"nothing failed within {seconds} s")
        time.sleep(0.01)
    return comm.failure


@dataclass(frozen=True)
class Check:
    """One line of the table.

    seconds   what it may take, with the start of its processes
    dying     ranks that end without a word
    """

    name: str
    body: Callable[[Communicator, Any, Rig], str | None]
    size: int
    settings: dict[str, Any]
    seconds: float = 120.0
    dying: tuple[int, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def checks(nccl_version: int | None) -> list[Check]:
    """All of them. `nccl_version` as NCCL numbers it; None if it is not there."""
    found: list[Check] = []
    if nccl_version is not None:
        single = {
            "init": versions,
            "reductions": _of(bodies.reductions),
            "factors": _of(bodies.factors),
            "movements": _of(bodies.movements),
            "groups": _of(bodies.groups_of_arrays),
            "reproducible": _of(bodies.reproducible),
            "averages": _of(bodies.averages),
            "schedules": _of(bodies.schedules),
            "layouts": _of(bodies.layouts),
            "messages": _of(bodies.messages),
            "streams": streams,
            "torch": torch_tensors,
            "split": split,
            "named": named,
            "late": late,
            "abort": abort,
            "large": large,
            "overhead": overhead,
        }
        found += [Check(f"nccl, 1 rank: {name}", body, 1, ALONE) for name, body in single.items()]
    shared = {
        "reductions": _of(bodies.reductions),
        "factors": _of(bodies.factors),
        "movements": _of(bodies.movements),
        "groups": _of(bodies.groups_of_arrays),
        "layouts": _of(bodies.layouts),
        "messages": _of(bodies.messages),
        "mixed": _of(bodies.mixed),
        "streams": streams,
        "torch": torch_tensors,
        "named": named,
        "large": large,
    }
    for transport in ("shm", "tcp"):
        settings = {"transport": transport, "timeout": 60.0}
        found += [Check(f"{transport}, 2 ranks on the GPU: {name}", body, 2, settings) for name, body in shared.items()]
    auto = {"transport": "auto", "timeout": 60.0}
    found.append(Check("auto, 2 ranks on the GPU: reductions", _of(bodies.reductions), 2, auto))
    if nccl_version is not None:
        environment = two_on_one(nccl_version)
        pair = {
            "init": versions,
            "reductions": _of(bodies.reductions),
            "movements": _of(bodies.movements),
            "groups": _of(bodies.groups_of_arrays),
            "reproducible": _of(bodies.reproducible),
            "averages": _of(bodies.averages),
            "schedules": _of(bodies.schedules),
            "streams": streams,
            "split": split,
            "named": named,
        }
        settings = {"transport": "nccl", "timeout": 60.0}
        found += [
            Check(f"nccl, 2 ranks on the GPU: {name}", body, 2, settings, 150.0, environment=environment)
            for name, body in pair.items()
        ]
        endings = {"one dies": dies, "one dies, shrink": dies_and_shrinks}
        found += [
            Check(f"nccl, 2 ranks on the GPU: {name}", body, 2, settings, 150.0, dying=(1,), environment=environment)
            for name, body in endings.items()
        ]
    return found


def two_on_one(nccl_version: int) -> dict[str, str]:
    """The environment in which two ranks may use one GPU; {rank} stands for the rank."""
    shared = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MAX_CTAS": "1"}
    if nccl_version >= 23000:
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", **shared}
    return {"NCCL_HOSTID": "ronde-{rank}", **shared}


def explain(error: BaseException) -> str:
    """The first line of an error, and where it was raised by the check."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return text if len(text) <= 200 else text[:197] + "..."


if __name__ == "__main__":
    sys.exit("this is what run_one_gpu.py tries; run that")
