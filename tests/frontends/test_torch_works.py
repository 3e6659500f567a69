"""Every torch Work and Future ends and tells, and a rank that ends normally is not lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.frontends.launch import TORCHRUN, output, python
from tests.frontends.pool import Pool, bound
from tests.frontends.test_torch_distributed import free_port, group

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import torch.distributed as dist  # noqa: E402

Pools = Callable[[int], Pool]
TRANSPORTS = ("shm", "tcp", "auto")


@pytest.fixture
def meeting() -> str:
    """A free address for the rendezvous of a process group."""
    return free_port()


LARGE = 1 << 24
"""Elements of a message that no transport takes before it is received."""


def forms() -> dict[str, Callable[[], object]]:
    """Waits of rank 0 for rank 1, which does not come. Messages have tags of their own."""
    x = torch.ones(4)

    def callback() -> None:
        told = threading.Event()
        dist.irecv(torch.ones(4), 1, tag=4).get_future().add_done_callback(lambda _: told.set())
        assert told.wait(bound())
        raise dist.DistBackendError("the callback was called")

    return {
        "recv": lambda: dist.recv(torch.ones(4), 1, tag=1),
        "irecv": dist.irecv(torch.ones(4), 1, tag=2).wait,
        "future": dist.irecv(torch.ones(4), 1, tag=3).get_future().wait,
        "callback of a future": callback,
        "future after a future": dist.irecv(torch.ones(4), 1, tag=5)
        .get_future()
        .then(lambda future: future.value())
        .wait,
        "send": lambda: dist.send(torch.zeros(LARGE), 1, tag=6),
        "future of a send": dist.isend(torch.zeros(LARGE), 1, tag=7).get_future().wait,
        "batch": dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, 1, tag=8), dist.P2POp(dist.irecv, torch.ones(4), 1, tag=8)]
        )[-1].wait,
        "objects": lambda: dist.recv_object_list([None], 1),
        "all_reduce": lambda: dist.all_reduce(torch.ones(4)),
    }


def waits_that_end(path: str, event: str) -> None:
    with group(path) as (rank, _), ThreadPoolExecutor(20) as threads:
        world = dist.group.WORLD
        store = world.get_group_store()
        if rank == 1:
            store.wait(["begun"], timedelta(seconds=bound()))
            if event == "abort by the other rank":
                world.abort()
            elif event == "end of the other rank":
                world.shutdown()
            store.wait(["over"], timedelta(seconds=bound()))
            return
        calls = forms()
        begun = threading.Barrier(1 + len(calls))
        waiting = {
            name: threads.submit(lambda call=call: (begun.wait(bound()), call())) for name, call in calls.items()
        }
        polled = dist.irecv(torch.ones(4), 1, tag=10)
        begun.wait(bound())
        time.sleep(0.2)
        assert not any(future.done() for future in waiting.values())
        store.set("begun", "")
        if event == "abort":
            world.abort()
        for name, future in waiting.items():
            error = future.exception(bound())
            assert isinstance(error, dist.DistBackendError), (name, error)
        while not polled.is_completed():
            time.sleep(0.01)
        assert not polled.is_success()
        assert polled.exception() is not None
        store.set("over", "")


@pytest.mark.parametrize("event", ["abort", "abort by the other rank", "end of the other rank"])
@pytest.mark.parametrize("transport", TRANSPORTS[:2])
def test_every_wait_ends_t1_abort_recv(pool: Pools, meeting: str, event: str, transport: str) -> None:
    pool(2).run(waits_that_end, meeting, event, transport=transport)


def wait_after_destroy(path: str) -> None:
    with group(path) as (rank, _):
        store = dist.group.WORLD.get_group_store()
        if rank == 1:
            store.wait(["over"], timedelta(seconds=bound()))
            return
        works = [dist.irecv(torch.ones(4), 1, tag=tag) for tag in range(4)]
        awaited = ThreadPoolExecutor(2)
        in_a_thread = [awaited.submit(works[2].wait), awaited.submit(works[3].get_future().wait)]
        time.sleep(0.2)
        dist.group.WORLD.shutdown()
        for end in (works[0].wait, works[1].get_future().wait, *(future.result for future in in_a_thread)):
            with pytest.raises(dist.DistBackendError):
                end()
        awaited.shutdown()
        store.set("over", "")


@pytest.mark.parametrize("transport", TRANSPORTS[:2])
def test_messages_of_a_destroyed_group_have_ended(pool: Pools, meeting: str, transport: str) -> None:
    pool(2).run(wait_after_destroy, meeting, transport=transport)


def timeouts(path: str) -> None:
    brief = timedelta(seconds=0.5)
    with group(path) as (rank, _):
        store = dist.group.WORLD.get_group_store()
        if rank == 0:
            work = dist.irecv(torch.ones(4), 1)
            with pytest.raises(dist.DistBackendError):
                work.wait(brief)
            assert not work.is_completed()
            dist.group.WORLD.set_timeout(brief)
            for late in (
                dist.irecv(torch.ones(4), 1, tag=1).get_future().wait,
                lambda: dist.recv(torch.ones(4), 1, tag=2),
            ):
                with pytest.raises(dist.DistBackendError):
                    late()
            with pytest.raises(dist.DistBackendError):
                work.wait()
        store.set(f"over {rank}", "")
        store.wait(["over 0"], timedelta(seconds=bound()))


def test_timeouts_of_messages_hold(pool: Pools, meeting: str) -> None:
    pool(2).run(timeouts, meeting)


def interrupted(path: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with group(path) as (rank, _):
        store = dist.group.WORLD.get_group_store()
        if rank == 0:
            before = signal.signal(signal.SIGALRM, interrupt)
            for future in (
                dist.all_reduce(torch.ones(4), async_op=True).get_future(),
                dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda future: future.value()),
                dist.irecv(torch.ones(4), 1).get_future(),
            ):
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(KeyboardInterrupt):
                    future.wait()
            signal.signal(signal.SIGALRM, before)
            store.set("over", "")
        store.wait(["over"], timedelta(seconds=bound()))
        if rank == 1:  # nothing has happened to the operations
            dist.all_reduce(torch.ones(4))
            dist.all_reduce(torch.ones(4))
            dist.send(torch.ones(4), 0)
        dist.barrier()


def test_the_wait_for_a_future_can_be_interrupted(pool: Pools, meeting: str) -> None:
    pool(2).run(interrupted, meeting)


class OwnError(Exception):
    pass


def failing_hook(path: str, way: str) -> None:
    def fail(*_: object) -> Any:
        raise OwnError("the reason")

    def hook(bucket: Any) -> Any:
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        if way == "then":
            return future.then(fail)
        if way == "then then":
            return future.then(lambda done: done.value()[0]).then(fail)
        return future.then(fail).then(lambda done: done.value()[0])

    with group(path):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
        model.register_comm_hook(None, lambda state, bucket: hook(bucket))
        loss = model(torch.ones(2, 4)).sum()
        with pytest.raises(OwnError) as caught:
            loss.backward()
        assert str(caught.value) == "the reason"
        assert any(entry.name.endswith("fail") for entry in caught.traceback)
        with pytest.raises(OwnError):
            dist.all_reduce(torch.ones(4), async_op=True).get_future().then(fail).wait()
        dist.barrier()


@pytest.mark.parametrize("way", ["then", "then then", "then and on"])
def test_an_error_in_a_callback_is_that_error_t6_hook_error(pool: Pools, meeting: str, way: str) -> None:
    pool(2).run(failing_hook, meeting, way)


def callbacks_after_messages(path: str) -> None:
    """Rank 0 receives more messages than the others send. Then the callbacks of two operations begin one each."""
    with group(path) as (rank, size):
        if rank:
            dist.send(torch.ones(1), 0)
        else:
            for source in range(1, size):
                dist.recv(torch.empty(1), source)

        def again(future: torch.futures.Future[Any]) -> Any:
            tensor = future.value()[0]
            dist.all_reduce(tensor)
            return tensor[0]

        works = [dist.all_reduce(torch.full((2,), float(factor)), async_op=True) for factor in (1, 10)]
        ends = [work.get_future().then(again) for work in works]
        assert [float(end.wait()) for end in ends] == [size**2, 10 * size**2]
        numbers: list[Any] = [None] * size
        dist.all_gather_object(numbers, dist.group.WORLD._get_sequence_number_for_group())
        assert len(set(numbers)) == 1


def test_callbacks_meet_after_uneven_messages(pool: Pools, meeting: str) -> None:
    pool(3).run(callbacks_after_messages, meeting)


def one_after_the_other(path: str) -> None:
    """Enter four groups. torch's store outlives them, as under torchrun: without that it ends with rank 0's group."""
    rank, size = int(os.environ["RONDE_RANK"]), int(os.environ["RONDE_SIZE"])
    where = urlsplit(path)
    assert where.hostname is not None
    assert where.port is not None
    store = dist.TCPStore(where.hostname, where.port, is_master=rank == 0, wait_for_workers=False, multi_tenant=True)
    for turn in range(4):
        with group(path):
            x = torch.ones(2)
            dist.all_reduce(x)
            assert x[0] == size
            time.sleep(0.2 * ((rank + turn) % size == 0))
        time.sleep(0.15 * ((rank + turn) % size == 1))
    del store


def test_the_next_group_waits_for_the_store_of_the_one_before(pool: Pools, meeting: str) -> None:
    pool(3).run(one_after_the_other, meeting)


ENDS = """
import os, select, sys, time, torch, torch.distributed as dist
dist.init_process_group("ronde")
rank, size, x = dist.get_rank(), dist.get_world_size(), torch.zeros(1000)
pids = [None] * size
dist.all_gather_object(pids, os.getpid())
if rank:
    before = os.pidfd_open(pids[rank - 1])
    dist.recv(x, rank - 1)
    assert select.select([before], [], [], 60)[0], "the rank before does not end"
    time.sleep(0.2)
x += 1
if rank < size - 1:
    dist.send(x, rank + 1)
sys.stdout.write(f"{rank} {x[0].item()}" + chr(10))
"""

SENDS = f"""
import sys, time, torch, torch.distributed as dist
dist.init_process_group("ronde")
other = dist.new_group([0, 1])
dist.barrier()
store = dist.group.WORLD.get_group_store()
if dist.get_rank() == 0:
    dist.isend(torch.full(({LARGE // 4},), 3.0), 1)
    dist.isend(torch.full(({LARGE // 4},), 4.0), 1, tag=1, group=other)
    store.set("rank 0 ends", "")
else:
    store.wait(["rank 0 ends"])
    time.sleep(0.2)
    for tag, where in ((1, other), (0, None)):
        x = torch.zeros({LARGE // 4})
        dist.recv(x, 0, tag=tag, group=where)
        sys.stdout.write(f"all {{x.min().item()}} {{x.max().item()}}" + chr(10))
"""

FAILS = """
import sys, torch, torch.distributed as dist
dist.init_process_group("ronde")
dist.barrier()
if dist.get_rank() == 1:
    {}
try:
    dist.all_reduce(torch.ones(1))
except dist.DistBackendError as error:
    cause = error.__cause__
    sys.stdout.write(f"{{type(cause).__name__}} {{cause.peer}} {{cause.message}}" + chr(10))
"""


def script(folder: Path, text: str) -> Path:
    made = folder / "script.py"
    made.write_text(text)
    return made


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_has_done_its_part_is_not_lost_t3_ends_without_destroy(tmp_path: Path, transport: str) -> None:
    text = output(*TORCHRUN, 4, script(tmp_path, ENDS), RONDE_TRANSPORT=transport)
    assert sorted(text.split("\n")) == ["", "0 1.0", "1 2.0", "2 3.0", "3 4.0"]


@pytest.mark.parametrize("transport", TRANSPORTS[:2])
def test_messages_of_a_rank_that_has_ended_arrive(tmp_path: Path, transport: str) -> None:
    text = output(*TORCHRUN, 2, script(tmp_path, SENDS), RONDE_TRANSPORT=transport)
    assert sorted(text.split("\n")) == ["", "all 3.0 3.0", "all 4.0 4.0"]


def test_a_rank_that_is_needed_after_its_end_is_named(tmp_path: Path) -> None:
    text = output(*TORCHRUN, 2, script(tmp_path, FAILS.format("sys.exit(0)")))
    assert text.startswith("PeerLost 1 ")
    assert "its program ended" in text


def test_an_uncaught_exception_is_the_cause_on_the_other_ranks(tmp_path: Path) -> None:
    done = python(*TORCHRUN, 2, script(tmp_path, FAILS.format("raise KeyError('the reason')")))
    assert "AbortedError" in done.stdout, done.stdout + done.stderr
    assert "KeyError: 'the reason'" in done.stdout
