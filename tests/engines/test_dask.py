"""Ranks in a real Dask cluster of four worker processes. `make engines` installs Dask and runs these tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives
from collectives.launch import Failure, GuestJob, Place, load
from examples import dask_digits
from transports.errors import DeadlineExceeded
from transports.testing import foreign_files

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'ronde[dask]'")

from distributed import Client, Future, LocalCluster

import ronde.dask as engine
from frontends.dask.task import call

pytestmark = pytest.mark.filterwarnings("default")  # Dask's own
SECONDS = 60.0


@pytest.fixture(scope="module")
def dask_client() -> Iterator[Any]:
    """A cluster of four worker processes with a thread each."""
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None, protocol="tcp") as cluster,
        Client(cluster) as found,
    ):
        yield found


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until another process has done its part."""
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("size", [2, 4])
def test_the_digits_are_those_of_ronde_run(dask_client: Any, size: int) -> None:
    results = engine.run(dask_client, dask_digits.train, [3], np=size)
    assert len(set(results)) == 1
    command = [sys.executable, "-m", "ronde", "run", "-np", str(size), sys.executable]
    command += [str(Path(dask_digits.__file__)), "--here", "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert results[0][1][:16] in done.stdout, done.stdout + done.stderr
    assert "identical" in done.stdout


def test_output_and_progress_have_the_rank(dask_client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        print(f"this is number {collectives.rank()}")
        engine.report_progress(collectives.rank() + 1, 3)
        return os.getpid()

    seen: list[tuple[int, float, float]] = []
    pids = engine.run(dask_client, work, np=2, on_progress=lambda *event: seen.append(event))
    assert len(set(pids)) == 2
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[rank {n}] this is number {n}" for n in (0, 1)]
    assert sorted(seen) == [(0, 1, 3), (1, 2, 3)]

    def numbers_of_numpy() -> None:
        engine.report_progress(np.int64(2**60), np.float32(0.5))

    seen.clear()
    engine.run(dask_client, numbers_of_numpy, np=1, on_progress=lambda *event: seen.append(event))
    assert seen == [(0, 2.0**60, 0.5)]

    def no_number() -> None:
        engine.report_progress(1, "many")  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"report_progress: total='many': .*number"):
        engine.run(dask_client, no_number, np=1)
    with pytest.raises(RuntimeError, match=r"report_progress: .*ronde\.dask\.run"):
        engine.report_progress(1, 2)


def test_partitions_go_to_the_rank_that_holds_them(dask_client: Any) -> None:
    array = pytest.importorskip("dask.array").arange(80, chunks=10).persist()
    workers = sorted(dask_client.scheduler_info(n_workers=-1)["workers"])

    def work(parts: list[Any], factor: float) -> tuple[str, int, float]:
        from distributed import get_worker

        total = collectives.allreduce(float(sum(part.sum() for part in parts)))
        return get_worker().address, sum(len(part) for part in parts), factor * float(total)

    found = engine.run(dask_client, work, [2.0], data=array)
    assert {total for _, _, total in found} == {2.0 * sum(range(80))}
    held: dict[str, int] = dict.fromkeys(workers, 0)
    for addresses in dask_client.who_has(array).values():
        held[addresses[0]] += 10
    assert {address: count for address, count, _ in found} == held
    two = engine.run(dask_client, work, [1.0], data=array, workers=workers[:2])
    assert sum(count for _, count, _ in two) == 80


def test_partitions_of_a_dataframe_go_to_the_rank_that_holds_them(dask_client: Any) -> None:
    frames = pytest.importorskip("dask.dataframe", reason="pip install 'dask[dataframe]'")
    import pandas

    rows = pandas.DataFrame({"x": range(60), "y": [number % 3 for number in range(60)]})
    frame = frames.from_pandas(rows, npartitions=6).persist()

    def work(parts: list[Any]) -> tuple[str, list[int], list[float]]:
        from distributed import get_worker

        assert all(type(part) is pandas.DataFrame for part in parts)
        sums = [float(part.loc[part.y == group, "x"].sum()) for part in parts for group in range(3)]
        total = collectives.allreduce(np.array(sums).reshape(-1, 3).sum(axis=0))
        return get_worker().address, sorted(int(part.x.min()) for part in parts), total.tolist()

    found = engine.run(dask_client, work, data=frame)
    expected = [float(rows[rows.y == group].x.sum()) for group in range(3)]
    assert [totals for _, _, totals in found] == [expected] * 4
    assert sorted(start for _, starts, _ in found for start in starts) == list(range(0, 60, 10))
    for key, addresses in dask_client.who_has(frame).items():
        start = 10 * int(str(key).rpartition(",")[2].strip(" )"))
        assert start in next(starts for address, starts, _ in found if address == addresses[0])


def test_the_error_of_a_function_is_that_of_its_rank(dask_client: Any) -> None:
    class Own(Exception):
        pass

    def fails() -> None:
        if collectives.rank() == 1:
            raise Own("no such thing")
        collectives.barrier()

    def ends() -> None:
        if collectives.rank() == 1:
            sys.exit(3)
        collectives.barrier()

    for function, kind, text in [(fails, Own, "no such thing"), (ends, RuntimeError, "SystemExit: 3")]:
        with pytest.raises(kind, match=text) as caught:
            engine.run(dask_client, function, np=3)
        notes = "\n".join(caught.value.__notes__)
        assert "raised on rank 1" in notes
        assert f"in {function.__name__}" in notes
    assert engine.run(dask_client, collectives.size) == [4] * 4


def odd_error() -> type[Exception]:
    """A class whose errors cannot be unpickled. cloudpickle takes it along."""

    class OddError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"odd {one} {two}")

    return OddError


def test_e4_an_error_that_cannot_be_unpickled_keeps_its_name(dask_client: Any) -> None:
    def fails(kind: Any) -> None:
        if collectives.rank() == 1:
            raise kind(1, 2)
        collectives.barrier()

    kind = odd_error()
    with pytest.raises(RuntimeError, match=r"rank 1 raised OddError: odd 1 2") as caught:
        engine.run(dask_client, fails, [kind], np=2)
    assert any("raised on rank 1" in note and "in fails" in note for note in caught.value.__notes__)


def test_e3_the_given_client_is_used(dask_client: Any) -> None:
    address = dask_client.scheduler.address
    with Client(address, set_as_default=False) as given:
        assert engine.run(given, collectives.size, np=2) == [2, 2]
        import dask.array

        data = dask.array.ones((4, 2), chunks=(1, 2))
        shares = engine.run(given, len, np=2, data=data)
        assert sum(shares) == 4
        others: list[Any] = []

        def made_meanwhile(rank: int, done: float, total: float) -> None:
            others.append(Client(address))

        def reports() -> int:
            if collectives.rank() == 0:
                engine.report_progress(1, 2)
            time.sleep(1.5)
            return collectives.rank()

        try:
            assert engine.run(given, reports, np=2, on_progress=made_meanwhile) == [0, 1]
            assert others
        finally:
            for other in others:
                other.close()


def test_e3_the_timeout_holds_for_the_whole_start(dask_client: Any, tmp_path: Path) -> None:
    """The workers are free of other jobs, and busy with other tasks."""

    def busy(file: str) -> None:
        until = time.monotonic() + SECONDS
        while not os.path.exists(file) and time.monotonic() < until:
            time.sleep(0.05)

    addresses = list(dask_client.scheduler_info(n_workers=-1)["workers"])
    tasks = [dask_client.submit(busy, str(tmp_path / "go"), workers=[one], pure=False) for one in addresses[:2]]
    try:
        begun = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="timeout"):
            engine.run(dask_client, collectives.size, np=2, workers=addresses[:2], timeout=2.0)
        with pytest.raises(DeadlineExceeded, match="timeout"):
            engine.run(dask_client, collectives.size, np=2, workers=addresses[1:3], timeout=2.0)
        assert time.monotonic() - begun < SECONDS
    finally:
        (tmp_path / "go").touch()
    for task in tasks:
        task.result(SECONDS)
    assert engine.run(dask_client, collectives.size, np=4, timeout=SECONDS) == [4] * 4


def test_a_worker_is_left_in_its_folder(dask_client: Any, tmp_path: Path) -> None:
    before = dask_client.run(os.getcwd)
    engine.run(dask_client, os.chdir, [str(tmp_path)], np=4)
    assert dask_client.run(os.getcwd) == before


def test_two_jobs_at_once_do_not_meet(dask_client: Any) -> None:
    def sums(x: int) -> list[float]:
        return [float(collectives.allreduce(np.full(100, x + step))[0]) for step in range(50)]

    with ThreadPoolExecutor(3) as pool:
        jobs = {x: pool.submit(engine.run, dask_client, sums, [x], np=2) for x in (1, 1000, 5000)}
        for x, job in jobs.items():  # the third one waits until one of the others has ended
            assert job.result(SECONDS) == [[2.0 * (x + step) for step in range(50)]] * 2


def test_all_at_once_or_not_at_all(dask_client: Any, tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / f"rank-{collectives.rank()}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(engine.run, dask_client, waits, np=3)
        eventually(lambda: len(list(tmp_path.iterdir())) == 3)
        with pytest.raises(DeadlineExceeded, match="other jobs: tcp://"):
            engine.run(dask_client, collectives.size, np=2, timeout=0.3)
        (tmp_path / "go").touch()
        job.result(SECONDS)
    assert engine.run(dask_client, collectives.size, np=2) == [2, 2]


@pytest.mark.usefixtures("interruptible")
def test_interrupting_the_caller_ends_the_ranks(dask_client: Any, tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / f"rank-{collectives.rank()}").touch()
        while True:
            collectives.barrier()

    def interrupt() -> None:
        eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        engine.run(dask_client, waits, np=2)
    thread.join()
    assert engine.run(dask_client, collectives.size) == [4] * 4


def segments() -> set[str]:
    """The segments of shared memory, but for those of worlds that are not of this test."""
    return set(map(str, Path("/dev/shm").glob("ronde*"))) - foreign_files()


def test_twenty_jobs_in_turn_leave_nothing(dask_client: Any) -> None:
    def state() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    def job() -> float:
        return float(collectives.allreduce(np.ones(1 << 16))[0])

    begun = segments()
    for number in range(21):
        assert engine.run(dask_client, job, np=2) == [2.0, 2.0]
        if number == 5:  # until then Dask opens connections that it keeps
            before = [*dask_client.run(state).values(), state()]
    after = [*dask_client.run(state).values(), state()]
    for (threads, descriptors), (threads_now, descriptors_now) in zip(before, after, strict=True):
        assert threads_now <= threads + 1  # Dask starts threads of its own when it likes
        assert descriptors_now <= descriptors + 4  # fewer than one a job
    assert segments() <= begun


def test_a_killed_worker_is_named(dask_client: Any) -> None:
    def waits() -> None:
        if collectives.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        collectives.barrier()

    begun = time.monotonic()
    with pytest.raises(engine.WorkerLost, match=r"rank 1 \(worker tcp://.*, pid \d+\)"):
        engine.run(dask_client, waits, np=2)
    assert time.monotonic() - begun < SECONDS
    dask_client.wait_for_workers(4, timeout=SECONDS)
    assert engine.run(dask_client, collectives.size) == [4] * 4


def test_a_worker_that_is_killed_from_outside_is_named(dask_client: Any, tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / f"{collectives.rank()}-{os.getpid()}").touch()
        while True:
            collectives.barrier()

    begun = segments()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(engine.run, dask_client, waits, np=3)
        eventually(lambda: len(list(tmp_path.iterdir())) == 3)
        pid = next(int(path.name.partition("-")[2]) for path in tmp_path.glob("2-*"))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(engine.WorkerLost, match=rf"rank 2 \(worker tcp://.*, pid {pid}\)"):
            job.result(SECONDS)
    dask_client.wait_for_workers(4, timeout=SECONDS)
    assert engine.run(dask_client, collectives.size) == [4] * 4
    assert segments() <= begun


def test_a_worker_that_comes_back_at_its_address_does_not_repeat_the_rank(dask_client: Any) -> None:
    """Dask gives it the task of the process that was lost: there it would wait for ranks that have ended."""
    with GuestJob() as job:
        seat = job.seats([Place("node", "127.0.0.1")])[0]
        outcome = load(0, dask_client.submit(call, seat, 1, b"", None, pure=False).result(SECONDS))
    assert isinstance(outcome, Failure)
    with pytest.raises(engine.WorkerLost, match="pid 1"):
        outcome.reraise()


def test_a_rank_whose_task_is_cancelled_is_named(dask_client: Any, tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / str(collectives.rank())).touch()
        while True:
            collectives.barrier()

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(engine.run, dask_client, waits, np=2)
        eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        tasks = [Future(key, client=dask_client) for key in dask_client.futures if key.endswith("rank-1")]
        dask_client.cancel(tasks, force=True)
        with pytest.raises(RuntimeError, match="rank 1: its task was"):
            job.result(SECONDS)
    assert engine.run(dask_client, collectives.size) == [4] * 4


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"np": 0}, ValueError, "np=0: .* integer"),
        ({"np": 9}, ValueError, "np=9: .*4 workers"),
        ({"workers": ["tcp://127.0.0.1:1"]}, ValueError, "no tcp://127.0.0.1:1"),
        ({"workers": []}, ValueError, r"workers=\[\]"),
        ({"workers": 3}, ValueError, "workers=3"),
        ({"workers": ["tcp://127.0.0.1:1"] * 2}, ValueError, "tcp://127.0.0.1:1 twice"),
        ({"env": {"A": None}}, TypeError, "env: 'A': None"),
        ({"timeout": 0}, ValueError, "timeout=0"),
        ({"args": "abc"}, TypeError, "args='abc': .*sequence"),
        ({"function": 3}, TypeError, "function=3: .*callable"),
        ({"args": [1, threading.Lock()]}, TypeError, r"args\[1\] \(lock\): .*pickled"),
        ({"client": 3}, TypeError, "client=3: .*distributed.Client"),
    ],
)
def test_bad_arguments(dask_client: Any, arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        engine.run(**{"client": dask_client, "function": collectives.size, **arguments})
