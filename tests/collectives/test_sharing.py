"""Arrays that are born shared."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator, ConfigError, PeerLost, SharedArrays, share_arrays, sharing
from collectives.jit import obstacle
from tests.collectives.ranks import meeting_place, member
from tests.processes import run_processes
from tests.worlds import BOUND, World, executor_of, world_of
from transports import arenas

pytestmark = [
    pytest.mark.skipif(obstacle() is not None, reason="needs the compiled allocator"),
    pytest.mark.skipif(not arenas.supported(), reason="needs memfd_create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

MIB: Final = 1 << 20
COLLECTIVES: Final = ("allreduce", "reduce_scatter", "broadcast", "allgather", "alltoall")
SECONDS: Final = 120.0


def is_shared(array: np.ndarray[Any, Any]) -> bool:
    """True if an array lies in the arena of this process."""
    return bool(arenas.OWN[arenas.BEGIN] <= array.ctypes.data < arenas.OWN[arenas.END])


def mappings() -> list[str]:
    """The lines of this process's map that are arenas."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "ronde-arrays" in line]


def taken() -> int:
    """Bytes of memory of the arena of this process."""
    return os.stat(f"/proc/self/fd/{arenas.OWN[arenas.DESCRIPTOR]}").st_blocks * 512


@contextlib.contextmanager
def in_child() -> Iterator[bool]:
    """Fork: True in the child, which ends with the block, and must not fail there."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            yield True
            code = 0
        finally:
            os._exit(code)
    yield False
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ---- the arrays of one process


def test_large_arrays_are_shared_within_the_context_alone() -> None:
    before = np.ones(MIB)
    with share_arrays(64 * MIB):
        large, zeros = np.ones(MIB, np.float32), np.zeros(MIB, np.uint8)
        shared = [large, zeros, large * 2, np.sort(large), large.copy(), large[5:], large.astype(np.float64)]
        assert all(map(is_shared, shared))
        assert not zeros.any()
        assert all(array.ctypes.data % 64 == 0 for array in shared[:5])
        assert not is_shared(np.ones(100))
        assert not is_shared(before)
    after = np.ones(MIB)
    assert not any(map(is_shared, (after, large)))
    large += before.astype(np.float32)
    assert (large == 2).all()
    del large, zeros, shared


@pytest.mark.long
def test_contents_survive_any_order_of_making_resizing_and_dropping() -> None:
    rng = random.Random(7)
    kept: list[tuple[np.ndarray[Any, Any], int]] = []
    with share_arrays(48 * MIB):
        for number in range(3000):
            if kept and rng.random() < 0.5:
                array, value = kept.pop(rng.randrange(len(kept)))
                assert (array == value).all()
                continue
            count = int(2 ** rng.uniform(12, 19))
            array = np.zeros(count, np.int64) if rng.random() < 0.5 else np.empty(count, np.int64)
            if rng.random() < 0.3:
                assert not np.zeros(count, np.int64).any()
            array[:] = number
            if rng.random() < 0.2:
                new = int(2 ** rng.uniform(10, 20))
                array.resize(new, refcheck=False)
                assert (array[: min(count, new)] == number).all()
                array[:] = number
            kept.append((array, number))
            if len(kept) > 40:
                kept.clear()
        assert all((array == value).all() for array, value in kept)
        kept.clear()


def test_zeros_are_zeros_where_other_arrays_were() -> None:
    with share_arrays(64 * MIB):
        for count in (MIB, 3 * MIB, 5 * MIB + 8, 17 * MIB):
            for _ in range(3):
                np.empty(count, np.uint8)[:] = 7
                assert not np.zeros(count, np.uint8).any()


def test_arrays_beyond_the_limit_are_ordinary_and_counted() -> None:
    with world_of("local", 1) as world, share_arrays(4 * MIB):
        (comm,) = world.communicators
        assert "arrays_not_shared" not in comm.metrics()["events"]
        first, second = np.ones(3 * MIB, np.uint8), np.ones(3 * MIB, np.uint8)
        assert (is_shared(first), is_shared(second)) == (True, False)
        assert comm.metrics()["events"]["arrays_not_shared"] == 1
        assert 'event="arrays_not_shared"' in comm.metrics_text()
        comm.reset_metrics()
        assert "arrays_not_shared" not in comm.metrics()["events"]
        del first
        assert is_shared(np.ones(3 * MIB, np.uint8))
        del second


@pytest.mark.long
def test_memory_is_given_back_to_the_system() -> None:
    with share_arrays(1024 * MIB):
        arrays = [np.ones(48 * MIB, np.uint8) for _ in range(8)]
        assert taken() >= 8 * 48 * MIB
        arrays.clear()
        assert taken() <= 300 * MIB
        assert not np.zeros(48 * MIB, np.uint8).any()


def test_sparse_arrays_take_no_memory() -> None:
    with share_arrays(4096 * MIB):
        sparse = np.zeros(2048 * MIB, np.uint8)
        sparse[:: 256 * MIB] = 1
        assert is_shared(sparse)
        assert taken() <= 64 * MIB
        del sparse


def test_bad_limits_are_refused() -> None:
    for limit in ("1", 1.5, True):
        with pytest.raises(TypeError, match="limit"):
            share_arrays(limit)  # type: ignore[arg-type]
    for limit in (-1, 0, MIB - 1, 1 << 70):
        with pytest.raises(ValueError, match="limit"):
            share_arrays(limit)
    with share_arrays(16 * MIB):
        with pytest.raises(ValueError, match="limit"):
            share_arrays(32 * MIB)
        with share_arrays(), share_arrays(16 * MIB), share_arrays(np.int64(16 * MIB)):
            assert is_shared(np.ones(MIB))
        assert is_shared(np.ones(MIB))


def test_no_mapping_and_no_descriptor_is_left() -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        handle = share_arrays(64 * MIB)
        array = np.ones(MIB)
        assert mappings()
        del array
        handle.close()
        handle.close()
        gc.collect()
        assert not mappings()
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_arrays_of_threads() -> None:
    wrong: list[str] = []

    def make(seed: int, found: list[bool]) -> None:
        rng = random.Random(seed)
        with share_arrays():
            for _ in range(300):
                array = np.full(int(2 ** rng.uniform(13, 17)), seed, np.int64)
                found.append(is_shared(array))
                if not (array == seed).all():
                    wrong.append(f"thread {seed}")

    with share_arrays(256 * MIB):
        found: list[bool] = []
        threads = [threading.Thread(target=make, args=(seed, found)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
    assert not wrong
    assert all(found)
    assert len(found) == 1800


def test_without_machine_code_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing._PROCESS, "_sharing", None)
    monkeypatch.setattr(sharing, "load", lambda until: "Numba is not installed")
    with pytest.raises(ConfigError, match=r"ronde\[jit\]"):
        share_arrays()


def test_a_system_without_memory_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigError, match="memfd_create"):
        share_arrays()


def test_a_first_call_after_init_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def share(comm: Communicator) -> None:
        share_arrays().close()

    with world_of("local", 1) as world:
        with share_arrays():
            world.run(share)
        assert not caplog.messages
        world.run(share)
    share_arrays().close()
    [text] = caplog.messages
    assert text.startswith("share_arrays: to be called before init")


@pytest.mark.processes
def test_the_setting_shares_until_shutdown() -> None:
    program = (
        "import numpy as np, ronde; from transports.arenas import OWN\n"
        "shared = lambda: bool(OWN[0] <= np.ones(1 << 20).ctypes.data < OWN[3])\n"
        "ronde.init(); inside = shared(); ronde.shutdown(); print(inside, shared())\n"
    )
    environment = {**os.environ, "RONDE_SHARE_ARRAYS": "1", "RONDE_LAUNCHER": "none"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ended.stdout.split() == ["True", "False"], ended.stderr


@pytest.mark.processes
def test_arrays_may_outlive_everything() -> None:
    program = (
        "import numpy as np, ronde, sys\n"
        "ronde.init(); ronde.share_arrays(); sys.kept = np.ones(1 << 20); ronde.shutdown()\n"
        "class Late:\n"
        "    def __init__(self): self.array = np.ones(1 << 20)\n"
        "    def __del__(self): self.array = None\n"
        "sys.late = Late()\n"
    )
    environment = {**os.environ, "RONDE_LAUNCHER": "none"}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=SECONDS, check=True)


def test_memory_of_dead_arrays_does_not_stay_with_those_that_become_ordinary() -> None:
    handle = share_arrays(256 * MIB)
    file = os.dup(int(arenas.OWN[arenas.DESCRIPTOR]))
    try:
        first = np.ones(MIB, np.uint8)
        np.ones(16 * MIB, np.uint8)
        last = np.ones(MIB, np.uint8)
        handle.close()
        assert os.fstat(file).st_blocks * 512 < 8 * MIB
        assert first.all()
        assert last.all()
    finally:
        os.close(file)
        handle.close()


def test_arrays_that_cannot_be_made_private_stay_and_nothing_is_left_after_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any, **options: Any) -> int:
        raise OSError(12, "Cannot allocate memory")

    descriptors = set(os.listdir("/proc/self/fd"))
    with share_arrays(16 * MIB):
        array = np.ones(MIB, np.uint8)
        monkeypatch.setattr(arenas, "map_memory", refuse)
    monkeypatch.undo()
    assert "Cannot allocate memory" in caplog.text
    array += 1
    assert (array == 2).all()
    assert set(os.listdir("/proc/self/fd")) == descriptors
    del array
    assert not mappings()


@pytest.mark.processes
def test_the_bytes_in_use_are_counted_while_arenas_are_released() -> None:
    """A fork reads it while a thread drops the last array of a former arena."""
    program = (
        "import sys, threading, numpy as np; from collectives import share_arrays, sharing\n"
        "sys.setswitchinterval(1e-6); share_arrays(1 << 24).close(); keeper = sharing._PROCESS.get().keeper\n"
        "def churn():\n"
        "    for _ in range(150):\n"
        "        with share_arrays(1 << 24): array = np.ones(1 << 16)\n"
        "        del array\n"
        "thread = threading.Thread(target=churn); thread.start()\n"
        "while thread.is_alive(): assert keeper.used >= 0\n"
        "thread.join(); print(keeper.used)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert ended.stdout.split() == ["0"]


# ---- calls


def expected_of(name: str, parts: list[np.ndarray[Any, Any]], op: str, rank: int) -> Any:
    size = len(parts)
    if name == "broadcast":
        return parts[size - 1]
    if name == "allgather":
        return np.concatenate(parts)
    if name == "alltoall":
        width = len(parts[0]) // size
        return np.concatenate([part[rank * width : (rank + 1) * width] for part in parts])
    total = parts[0].copy()
    for part in parts[1:]:
        total = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op](total, part)
    width = len(total) // size
    return total if name == "allreduce" else total[rank * width : (rank + 1) * width]


def call(comm: Communicator, name: str, x: Any, out: Any, op: str, algorithm: str | None = None) -> Any:
    if name == "broadcast":
        return comm.broadcast(x, comm.size - 1, out=out, algorithm=algorithm)
    if name in ("allreduce", "reduce_scatter"):
        return getattr(comm, name)(x, op, out=out, algorithm=algorithm)
    return getattr(comm, name)(x, out=out, algorithm=algorithm)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["shm", "auto", "local"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_shared_and_private_arrays_give_the_same_on_any_ranks(transport: str, size: int) -> None:
    dtypes = [np.float32, np.float64, np.int8, np.uint16, np.int64, np.float16, ml_dtypes.bfloat16, np.complex64, bool]

    def body(comm: Communicator) -> None:
        order = random.Random(3)
        for number in range(90):
            dtype, name = np.dtype(order.choice(dtypes)), order.choice(COLLECTIVES)
            op = {"c": "sum", "b": "max"}.get(dtype.kind) or order.choice(("sum", "max", "min"))
            count = order.choice((1, 64, 40_000, 200_000)) * size
            sharing_ranks = order.randrange(1 << size)
            in_place = name in ("allreduce", "broadcast") and order.random() < 0.4
            algorithm = "single_copy" if order.random() < 0.7 else None
            parts = [((np.arange(count) % 7 + rank + number) % 2).astype(dtype) for rank in range(size)]
            with contextlib.ExitStack() as stack:
                if sharing_ranks >> comm.rank & 1:
                    stack.enter_context(share_arrays())
                x = parts[comm.rank].copy()
                expected = expected_of(name, parts, op, comm.rank)
                out = x if in_place else np.zeros_like(expected) if order.random() < 0.5 else np.empty_like(expected)
                for _ in range(3):
                    if in_place:
                        x[:] = parts[comm.rank]
                    got = call(comm, name, x, out, op, algorithm)
                    assert got is out
                    np.testing.assert_array_equal(got, expected, err_msg=f"{name} {dtype} {count} {op}")

    with share_arrays(), world_of(transport, size) as world:
        world.run(body)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_bits_are_those_of_private_arrays(size: int) -> None:
    def body(comm: Communicator) -> None:
        rng = np.random.default_rng(comm.rank)
        for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
            for op in ("sum", "average", "prod", "max"):
                private = rng.standard_normal(70_001).astype(dtype)
                with share_arrays():
                    shared = private.copy()
                    results = [comm.allreduce(x, op, algorithm="single_copy") for x in (shared, private)]
                    halves = comm.allreduce(shared, op, prescale=0.5, postscale=3.0, algorithm="single_copy")
                same = comm.allreduce(private, op, algorithm="direct")
                for result in results:
                    assert result.tobytes() == same.tobytes(), (dtype, op)
                expected = comm.allreduce(private, op, prescale=0.5, postscale=3.0, algorithm="single_copy")
                assert halves.tobytes() == expected.tobytes()

    with share_arrays(), world_of("shm", size) as world:
        world.run(body)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_no_call_on_shared_arrays_reads_by_the_kernel(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, start: int, target: Any) -> None:
        raise OSError(1, "not by the kernel")

    def body(comm: Communicator) -> None:
        assert executor_of(comm).planner.single_copy
        with share_arrays():
            for name in COLLECTIVES:
                parts = [np.arange(400_000, dtype=np.float32) % 5 + rank for rank in range(size)]
                x = parts[comm.rank].copy()
                for timed in (False, True):
                    if timed:
                        comm.meter.every_call()
                    expected = expected_of(name, parts, "sum", comm.rank)
                    np.testing.assert_array_equal(call(comm, name, x, np.empty_like(expected), "sum"), expected)
                    work = getattr(comm, f"{name}_async")(x, *([size - 1] if name == "broadcast" else []))
                    np.testing.assert_array_equal(work.wait(), expected)
                assert set(comm.metrics()["collectives"][name]["algorithms"]) == {"single_copy"}

    with share_arrays():
        kept = np.ones(MIB)  # the arena stays
        world = World("shm", size)
        try:
            monkeypatch.setattr("transports.shm.remote.copy_from", refuse)
            world.run(body)
        finally:
            world.close()
        del kept


@pytest.mark.processes
@pytest.mark.parametrize("all_of_them", [False, True])
def test_ranks_agree_on_the_way_though_only_some_may_share(all_of_them: bool) -> None:
    with meeting_place() as url:
        results = run_processes(_share_if, 2, url, all_of_them, timeout=SECONDS)
    assert results == [["single_copy"]] * 2 if all_of_them else [["direct"]] * 2


def _share_if(rank: int, url: str, all_of_them: bool) -> list[str]:
    with contextlib.ExitStack() as stack:
        if rank == 0 or all_of_them:
            stack.enter_context(share_arrays())
        with member(rank, 2, url, transport="shm") as comm:
            x = np.full(100_000, rank + 1.0)
            assert (comm.allreduce(x) == 3).all()
            return list(comm.metrics()["collectives"]["allreduce"]["algorithms"])


@pytest.mark.long
def test_two_worlds_and_splits_share_one_arena() -> None:
    def body(comm: Communicator) -> None:
        with share_arrays():
            x = np.full(300_000, comm.rank + 1.0)
            half = comm.split(comm.rank % 2)
            assert (half.allreduce(x) == sum(rank + 1 for rank in range(comm.rank % 2, 4, 2))).all()
            assert (comm.allreduce(x, algorithm="single_copy") == 10).all()
            half.close()

    with share_arrays(), world_of("shm", 4) as first, world_of("auto", 4) as second:
        for world in (first, second, first):
            world.run(body)


# ---- processes


def _work(rank: int, url: str, size: int) -> int:
    """Calls on arrays, with forks between them."""
    with share_arrays(256 * MIB), member(rank, size, url, transport="shm") as comm:
        x = np.full(300_000, rank + 1.0)
        assert is_shared(x)
        total = size * (size + 1) / 2
        assert (comm.allreduce(x) == total).all()
        came, went = os.pipe()
        with in_child() as child:
            if child:
                os.close(went)
                os.read(came, 1)  # the parent has changed the array by now
                assert (x == rank + 1).all()
                x[:] = 77
                assert (x == 77).all()
                assert not is_shared(np.ones(MIB))
                y = np.zeros(MIB)
                y += 1
                del x, y
            else:
                os.close(came)
                x[:] = 10 * (rank + 1)
                os.close(went)
                for _ in range(3):
                    assert (comm.allreduce(x) == 10 * total).all()
                    assert (comm.allgather(x[:70_000]) == np.repeat(10.0 * np.arange(1, size + 1), 70_000)).all()
        assert (x == 10 * (rank + 1)).all()
        y = x.copy()
        assert is_shared(y)
        assert (comm.allreduce(y, out=y) == 10 * total).all()
        assert (comm.allreduce(x, out=x) == 10 * total).all()
        z = np.ones(200_000)
        for _ in range(5):  # only some ranks fork
            if rank == 0:
                with in_child() as child:
                    if child:
                        z[:] = 5
            assert (comm.allreduce(z) == size).all()
        before = len(mappings())
        del x, y, z
        gc.collect()
        return len(mappings()) <= before and len(mappings()) <= 2 + 2 * size


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
def test_a_fork_parts_the_arrays_of_parent_and_child(size: int) -> None:
    with meeting_place() as url:
        assert all(run_processes(_work, size, url, size, timeout=SECONDS))


def _fork_meanwhile(rank: int, url: str) -> int:
    """Forks in another thread while calls run."""
    with share_arrays(256 * MIB), member(rank, 2, url, transport="shm") as comm:
        over = threading.Event()

        def forks() -> None:
            while not over.is_set():
                with in_child():
                    pass
                time.sleep(0.002)

        thread = threading.Thread(target=forks)
        if rank == 0:
            thread.start()
        try:
            x, gathered = np.empty(150_000), np.empty(300_000)
            for number in range(200):
                x[:] = number + rank
                result = comm.allreduce(x)
                assert (result == 2 * number + 1).all()
                result[:] = rank
                comm.allgather(x, out=gathered)
                assert (gathered[:150_000] == number).all()
                assert (gathered[150_000:] == number + 1).all()
                comm.allreduce(x, out=x)
                assert (x == 2 * number + 1).all()
                x = x.copy()
        finally:
            over.set()
            if rank == 0:
                thread.join(SECONDS)
    return 1


@pytest.mark.processes
def test_contexts_of_the_parent_do_not_count_in_a_child() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(share_arrays(16 * MIB))
        with in_child() as child:
            if child:
                stack.close()
                with share_arrays(16 * MIB):
                    share_arrays().close()
                    assert arenas.OWN[arenas.BEGIN] != 0
                assert arenas.OWN[arenas.BEGIN] == 0


@pytest.mark.processes
def test_no_thread_begins_an_arena_while_another_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    end, began, handles = sharing._Sharing._end_arena, threading.Event(), list[SharedArrays]()

    def share() -> None:
        handles.append(share_arrays(16 * MIB))
        began.set()

    def end_and_let_others_in(self: sharing._Sharing) -> None:
        end(self)
        thread.start()
        began.wait(0.2)  # for as long as that thread would take

    thread = threading.Thread(target=share)
    with share_arrays(16 * MIB):
        monkeypatch.setattr(sharing._Sharing, "_end_arena", end_and_let_others_in)
        with in_child() as child:
            if child:
                assert np.ones(MIB).all()
            monkeypatch.undo()
        thread.join(BOUND)
        assert is_shared(np.ones(MIB))
    for handle in handles:
        handle.close()
    assert not mappings()


@pytest.mark.processes
def test_forks_while_calls_run() -> None:
    with meeting_place() as url:
        assert run_processes(_fork_meanwhile, 2, url, timeout=SECONDS) == [1, 1]


def _fork_in_c(rank: int) -> int:
    with share_arrays():
        x = np.ones(MIB)
        address = x.ctypes.data
        libc = ctypes.PyDLL(None)
        pid = libc.fork()
        if pid == 0:
            libc.memset(ctypes.c_void_p(address), 255, 4096)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGSEGV
        assert (x == 1).all()
    return 1


@pytest.mark.processes
def test_a_fork_that_python_does_not_know_of_cannot_change_the_parents_arrays() -> None:
    assert run_processes(_fork_in_c, 1, timeout=SECONDS) == [1]


def _double(x: np.ndarray[Any, Any]) -> float:
    x *= 2
    return float(x.sum())


def _started() -> None:
    with share_arrays(256 * MIB), ronde.world().split(0) as comm:
        x = np.full(100_000, comm.rank + 1.0)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(_double, [x, x]) == [x.sum() * 2] * 2
        ended = subprocess.run([sys.executable, "-c", "print(5)"], capture_output=True, check=True, timeout=SECONDS)
        assert ended.stdout.split() == [b"5"]
        subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None, check=True, timeout=SECONDS)
        assert (comm.allreduce(x, algorithm="single_copy") == 3).all()
        assert (x == comm.rank + 1).all()


@pytest.mark.processes
def test_pools_and_programs() -> None:
    ronde.run(_started, np=2, transport="shm")


def _load() -> None:
    import torch
    from torch.utils.data import DataLoader, Dataset

    with share_arrays(512 * MIB), ronde.world().split(0) as comm:
        table = np.arange(400_000, dtype=np.float32).reshape(1000, 400)
        assert is_shared(table)

        class Rows(Dataset[Any]):
            def __len__(self) -> int:
                return len(table)

            def __getitem__(self, index: int) -> Any:
                table[index] += 1  # in the worker alone
                return torch.from_numpy(table[index].copy())

        gradient = torch.from_numpy(np.zeros(100_000, np.float32))
        for epoch in range(2):
            loader = DataLoader(Rows(), batch_size=100, num_workers=2, multiprocessing_context="fork")
            for number, batch in enumerate(loader):
                expected = np.arange(400_000, dtype=np.float32).reshape(1000, 400)[100 * number : 100 * number + 100]
                np.testing.assert_array_equal(batch.numpy(), expected + 1)
                gradient.fill_(number + epoch + comm.rank)
                total = comm.allreduce(gradient.numpy(), algorithm="single_copy")
                assert (total == 2 * (number + epoch) + 1).all()
        np.testing.assert_array_equal(table.reshape(-1), np.arange(400_000, dtype=np.float32))


@pytest.mark.frameworks
def test_workers_of_a_data_loader() -> None:
    pytest.importorskip("torch")
    ronde.run(_load, np=2, transport="shm")


def _die(rank: int, url: str) -> int:
    with share_arrays(64 * MIB):
        x = np.full(500_000, 1.0)
        with contextlib.suppress(ronde.RondeError), member(rank, 3, url, transport="shm", heartbeat=0) as comm:
            assert (comm.allreduce(x) == 3).all()
            if rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            with pytest.raises(PeerLost):
                [comm.allreduce(x) for _ in range(1000)]
        assert (x == 1).all()
        del x
    return 1


@pytest.mark.processes
def test_a_rank_that_is_killed_is_noticed() -> None:
    with meeting_place() as url:
        results = run_processes(_die, 3, url, timeout=SECONDS, dying=[2])
    assert results[:2] == [1, 1]


def _repeat(rank: int, url: str) -> int:
    descriptors = len(os.listdir("/proc/self/fd"))
    handle: SharedArrays
    for generation in range(3):
        with share_arrays(64 * MIB) as handle, member(rank, 2, url, generation=generation, transport="shm") as comm:
            x = np.ones(MIB)
            assert (comm.allreduce(x) == 2).all()
            del x
        handle.close()
        del comm
        gc.collect()
        assert not mappings()
    return len(os.listdir("/proc/self/fd")) - descriptors


@pytest.mark.processes
def test_worlds_leave_no_mapping_of_another_rank() -> None:
    with meeting_place() as url:
        assert max(run_processes(_repeat, 2, url, timeout=SECONDS)) <= 1
