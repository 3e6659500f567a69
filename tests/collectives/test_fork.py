"""Forked children of a rank: every call raises in them, and neither the rank nor its peers notice them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import collectives as ronde
from collectives import ConfigError, ForkedError, run
from collectives.communicator import Communicator
from collectives.operations.call_turn import HOLDER
from tests.worlds import executor_of, world_of
from transports import forking
from transports.lifecycle import Lifecycle

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

BOUND: Final = 30.0
"""Seconds for a child; it is killed after them."""
PROCESSES: Final = ("tcp", "shm", "auto")
THREADS: Final = (("local", ()), ("faulty", ()), ("tcp", ()), ("shm", ()), ("auto", ("a", "a", "b")))
COUNT: Final = 5000
RANK_PROCESS: Final = os.getpid()
"""The process that imports this module; a forked child has its number too."""

Ending = Callable[[], object]


def raises(call: Callable[[], object]) -> None:
    """Check that a call raises ForkedError with the process of the rank."""
    with pytest.raises(ForkedError, match=rf"\b(pid|process) {RANK_PROCESS}\b"):
        call()


def probe(comm: Communicator, pending: ronde.Work[Any] | None = None) -> None:
    """Check, in a child, that every call raises ForkedError and every end does nothing."""
    x = np.ones(COUNT)
    assert not ronde.is_initialized()
    for call in (ronde.world, ronde.rank, ronde.barrier, lambda: ronde.allreduce(x), lambda: ronde.split(0)):
        raises(call)
    raises(lambda: comm.allreduce(x))
    raises(lambda: comm.allreduce(x[:1]))
    raises(lambda: comm.allreduce_async(x))
    raises(lambda: comm.allreduce_async(x, name="in a child"))
    raises(lambda: comm.join())
    raises(lambda: comm.broadcast_object("x"))
    raises(lambda: comm.send(x, (comm.rank + 1) % comm.size))
    raises(lambda: comm.recv(x, (comm.rank + 1) % comm.size))
    raises(lambda: comm.sendrecv_async(x, comm.rank))
    raises(lambda: comm.empty(3))
    raises(lambda: comm.plan("allreduce", x, out=x).run())
    raises(lambda: comm.split(0))
    raises(lambda: comm.shrink())
    raises(lambda: comm.abort("no"))
    raises(lambda: comm.start_timeline("/nonexistent/timeline.json"))
    if pending is not None:
        assert pending.test()
        raises(pending.wait)
    comm.metrics()
    assert isinstance(comm.failure, ForkedError)
    comm.close()
    with contextlib.suppress(ValueError), comm:
        raise ValueError("within the communicator")
    ronde.shutdown()


def fork(act: Ending, end: Ending = lambda: os._exit(0)) -> int:
    """Call `act` in a child, which ends by `end`, or with code 99 after a traceback. Returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        act()
    except BaseException:
        traceback.print_exc()
        os._exit(99)
    end()
    os._exit(98)


def await_end(pid: int) -> int:
    """The exit code of a child."""
    end = time.monotonic() + BOUND
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the child did not end")
        time.sleep(0.005)


def check_calls(comm: Communicator, tag: int) -> None:
    """Calls of every kind with bit-right results, on all ranks."""
    x = np.arange(COUNT, dtype=np.float64) * (comm.rank + 1) + tag
    total = np.arange(COUNT, dtype=np.float64) * (comm.size * (comm.size + 1) // 2) + tag * comm.size
    assert (comm.allreduce(x) == total).all()
    assert comm.allreduce(comm.rank) == comm.size * (comm.size - 1) // 2
    works = [comm.allreduce_async(x), comm.allreduce_async(x, name="named")]
    for work in works:
        assert (work.wait() == total).all()
    after = comm.sendrecv(np.array([comm.rank]), (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
    assert after[0] == (comm.rank - 1) % comm.size
    assert comm.failure is None


@contextlib.contextmanager
def locked(comm: Communicator) -> Iterator[None]:
    """Another thread holds every lock that a call of the rank takes, while the body runs."""
    locks: list[Any] = [owner.lock for owner in list(forking._inherited) if isinstance(owner, Lifecycle)]
    locks += [comm._queue._turn.lock, comm._engine._lock, comm.meter._lock, executor_of(comm).planning]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in dict.fromkeys(locks):
                stack.enter_context(lock)
            turn, me = comm._queue._turn, threading.get_ident()
            assert turn.take(HOLDER, me) is me
            stack.callback(turn.clear)
            held.set()
            done.wait(BOUND)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(BOUND)
        yield
    finally:
        done.set()
        thread.join()


def forks(comm: Communicator, ends: dict[int, Ending]) -> None:
    """Fork in every state of the rank, end the children in every way, and call with the other ranks in between.

    ends   exit code -> end of a child with it
    """
    rank, check = comm.rank, functools.partial(probe, comm)
    check_calls(comm, 1)
    for code, end in ends.items():  # every end, by every rank in turn and by all at once
        for who in (0, comm.size - 1, None):
            pid = fork(check, end) if who in (rank, None) else 0
            check_calls(comm, 2)
            if pid:
                assert await_end(pid) == code
            check_calls(comm, 3)

    def suffer() -> None:
        check()
        signal.pause()

    pid = fork(suffer) if rank == 0 else 0  # alive meanwhile, then killed
    check_calls(comm, 4)
    if pid:
        os.kill(pid, signal.SIGKILL)
        assert await_end(pid) == -signal.SIGKILL
    check_calls(comm, 5)

    x = np.full(COUNT, float(rank + 1))
    for name in (None, "late"):  # an operation in flight, in another thread
        comm.barrier()
        if rank == 0:
            work = comm.allreduce_async(x, name=name)
            time.sleep(0.05)
            pid = fork(functools.partial(probe, comm, work))
            assert await_end(pid) == 0
            comm.send(x, 1)
        else:
            if rank == 1:
                comm.recv(x.copy(), 0)
            work = comm.allreduce_async(x, name=name)
        assert (work.wait() == comm.size * (comm.size + 1) / 2).all()
        check_calls(comm, 6)

    if rank == 0:  # from another thread, and a child of a child
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(await_end(fork(functools.partial(grandchild, comm)))))
        thread.start()
        thread.join(BOUND)
        assert codes == [0]
    check_calls(comm, 7)

    comm.barrier()
    if rank == 0:
        with locked(comm):
            pid = fork(check)
        assert await_end(pid) == 0
    check_calls(comm, 8)


def grandchild(comm: Communicator) -> None:
    def act() -> None:
        raises(lambda: comm.allreduce(1))  # its parent is no rank either

    assert await_end(fork(act)) == 0


def raise_error() -> None:
    raise RuntimeError("a child of a rank ends by an exception")


def rank_process() -> None:
    """A rank that is a process."""
    forks(
        ronde.world(),
        {
            0: lambda: os._exit(0),
            3: lambda: sys.exit(3),
            1: raise_error,
            -signal.SIGTERM: lambda: os.kill(os.getpid(), 15),
        },
    )


@pytest.mark.processes
@pytest.mark.parametrize("transport", PROCESSES)
def test_forked_by_processes(transport: str) -> None:
    run(rank_process, np=2, transport=transport)


@pytest.mark.processes
@pytest.mark.parametrize(("transport", "hosts"), THREADS)
def test_forked_by_threads(transport: str, hosts: tuple[str, ...]) -> None:
    """Several ranks in the forked process; with hosts, two transports in each."""
    with world_of(transport, len(hosts) or 2, hosts=hosts) as world:
        world.run(forks, {0: lambda: os._exit(0)})


# ---- processes by the standard library


def own_world() -> float:
    """In a process that a rank has started: the rank is taken, and a world of its own works."""
    assert not ronde.is_initialized()
    with pytest.raises(ConfigError, match=f"is process {os.environ['PARENT_OF_TEST']} already") as caught:
        ronde.init(transport="tcp")
    assert "rank=0, size=1 and store='memory:'" in str(caught.value)
    ronde.init(rank=0, size=1, store="memory:", transport="tcp")
    try:
        return float(ronde.allreduce(2.5))
    finally:
        ronde.shutdown()


def square(x: int) -> int:
    return x * x


def rank_with_children() -> None:
    comm = ronde.world()
    os.environ["PARENT_OF_TEST"] = str(os.getpid())
    check_calls(comm, 1)
    for method in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(method)
        if comm.rank == 0:
            process = context.Process(target=own_world)
            process.start()
            check_calls(comm, 2)
            process.join(BOUND)
            assert process.exitcode == 0, method
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
                assert list(executor.map(square, range(4))) == [0, 1, 4, 9]
                check_calls(comm, 3)
        else:
            check_calls(comm, 2)
            check_calls(comm, 3)
        check_calls(comm, 4)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
        check_calls(comm, 5)
        assert pool.apply(own_world) == 2.5
    check_calls(comm, 6)
    text = "from tests.collectives.test_fork import own_world; assert own_world() == 2.5"
    process = subprocess.Popen(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    check_calls(comm, 7)
    assert process.wait(BOUND) == 0
    check_calls(comm, 8)


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_processes_of_the_standard_library(transport: str) -> None:
    run(rank_with_children, np=2, transport=transport)


# ---- a world of one, the timeline, init again


def test_init_again_after_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note that a rank is taken is gone after shutdown, and does not concern another job."""
    for name, value in (("RONDE_RANK", "0"), ("RONDE_SIZE", "1")):
        monkeypatch.setenv(name, value)
    for _ in range(2):
        ronde.init(transport="tcp")
        assert os.environ["RONDE_RANK_PROCESS"].startswith(f"{os.getpid()} 0 ")
        ronde.shutdown()
        assert "RONDE_RANK_PROCESS" not in os.environ
    monkeypatch.setenv("RONDE_RANK_PROCESS", f"{os.getppid()} 0 tcp://another.job:1")
    ronde.init(transport="tcp")
    ronde.shutdown()


@pytest.mark.processes
def test_world_of_one(tmp_path: Path) -> None:
    """Also without peers a child is no rank, and it writes nothing into the timeline of its parent."""
    path = tmp_path / "timeline.json"
    comm = ronde.init(transport="tcp", config={"timeline": str(path)})
    try:
        for _ in range(100):
            ronde.allreduce(np.ones(3))
        pid = fork(functools.partial(probe, comm))
        assert await_end(pid) == 0
        assert ronde.allreduce(2.0) == 2.0
    finally:
        ronde.shutdown()
    events = json.loads(path.with_name("timeline.rank0.json").read_text())
    numbers = [event["args"]["number"] for event in events if event.get("cat") == "collectives"]
    assert numbers == list(range(1, 102))


# ---- workers that load data


class Data:
    """Ten rows, made in the workers, where no call may be made."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        import torch

        try:
            ronde.allreduce(1)
        except ForkedError:
            return torch.full((3,), float(index))
        raise AssertionError("a worker's call was answered")


def rank_with_loader() -> None:
    import torch

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for step, batch in enumerate(loader):
            total = ronde.allreduce(batch)
            assert (total == 2 * batch).all(), step
    check_calls(ronde.world(), 1)


def rank_with_work_in_flight(path: str) -> None:
    import torch
    import torch.distributed as dist

    import frontends.torch  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    dist.init_process_group("ronde", store=dist.FileStore(path, 2), rank=ronde.rank(), world_size=2)
    try:
        x = torch.ones(1000)
        held = dist.get_rank() == 1  # so that the operation of rank 0 cannot end before it forks
        if held:
            ronde.barrier()
        work = dist.all_reduce(x, async_op=True)
        if not held:
            future = work.get_future()
            calls = (work.wait, future.wait, lambda: dist.all_reduce(torch.ones(2)), dist.barrier)
            assert await_end(fork(functools.partial(all_raise, calls))) == 0
            ronde.barrier()
            assert future.wait()[0] is x
        work.wait()
        assert (x == 2).all()
        dist.all_reduce(x)
        assert (x == 4).all()
    finally:
        dist.destroy_process_group()


def all_raise(calls: Sequence[Callable[[], Any]]) -> None:
    """In a child of a rank: every call is an error of torch that names the fork."""
    import torch.distributed as dist

    for call in calls:
        with pytest.raises(dist.DistBackendError, match="fork"):
            call()


@pytest.mark.frameworks
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_work_of_torch_in_flight(transport: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(functools.partial(rank_with_work_in_flight, str(tmp_path / "store")), np=2, transport=transport)


@pytest.mark.frameworks
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_data_loader_of_torch(transport: str) -> None:
    pytest.importorskip("torch")
    run(rank_with_loader, np=2, transport=transport)
