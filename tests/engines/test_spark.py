"""Ranks in a real Spark cluster of two workers. `make engines` installs PySpark and runs these tests."""

from __future__ import annotations

import io
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import elastic
from collectives.config import Config
from collectives.launch import ElasticOutcomes, Failure, GuestJob, Place, Success
from collectives.launch.calls.outcome import dump
from examples import spark_digits
from transports.errors import DeadlineExceeded
from transports.testing import foreign_files

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ronde[spark]'")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java, which is not installed", allow_module_level=True)

import ronde.spark as engine
from frontends.spark.desk import Arrival, Desk, Gone, Result
from frontends.spark.elastic import _serve as serve_elastic

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Spark's own
    pytest.mark.timeout(180),  # the first job starts two Java machines
]
SECONDS = 90.0


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until another process has done its part."""
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """The process runs and is no zombie, which Spark leaves to its daemon."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def segments() -> set[str]:
    """The segments of shared memory, but for those of worlds that are not of this test."""
    return set(map(str, Path("/dev/shm").glob("ronde*"))) - foreign_files()


@pytest.mark.parametrize("size", [2, 4])
def test_the_digits_are_those_of_ronde_run(spark: Any, size: int) -> None:
    def train() -> tuple[tuple[float, str], str]:
        return spark_digits.train(3), os.environ.get("SPARK_EXECUTOR_DIRS", "")

    found = engine.run(train, num_proc=size, start_timeout=SECONDS)
    results = [result for result, _ in found]
    assert len(set(results)) == 1
    assert size == 2 or len({folders for _, folders in found}) == 2  # both workers
    command = [sys.executable, "-m", "ronde", "run", "-np", str(size), sys.executable]
    command += [str(Path(spark_digits.__file__)), "--here", "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert results[0][1][:16] in done.stdout, done.stdout + done.stderr
    assert "identical" in done.stdout


def test_output_has_the_rank_and_variables_hold_for_the_job(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> str | None:
        print(f"this is number {collectives.rank()}")
        return os.environ.get("OF_THE_JOB")

    assert engine.run(work, num_proc=2, env={"OF_THE_JOB": "1"}) == ["1", "1"]
    assert engine.run(work, num_proc=2) == [None, None]
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted([f"[rank {n}] this is number {n}" for n in (0, 1)] * 2)


def test_output_that_the_terminal_cannot_show_is_no_error(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with io.TextIOWrapper(io.BytesIO(), "ascii") as shown:
        monkeypatch.setattr(sys, "stdout", shown)
        assert engine.run(lambda: print("\xfc"), num_proc=1, start_timeout=math.inf) == [None]
        shown.flush()
        assert shown.buffer.getvalue() == b"[rank 0] \\xfc\n"  # type: ignore[attr-defined]


def test_the_error_of_a_function_is_that_of_its_rank(spark: Any) -> None:
    class Own(Exception):
        pass

    def fails() -> None:
        if collectives.rank() == 1:
            raise Own("no such thing")
        collectives.barrier()

    with pytest.raises(Own, match="no such thing") as caught:
        engine.run(fails, num_proc=3)
    notes = "\n".join(caught.value.__notes__)
    assert "raised on rank 1" in notes
    assert "in fails" in notes
    assert engine.run(collectives.size) == [4] * 4


def odd_error() -> type[Exception]:
    """A class whose errors cannot be unpickled. cloudpickle takes it along."""

    class OddError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"odd {one} {two}")

    return OddError


@pytest.mark.parametrize("way", ["run", "run_elastic"])
def test_e4_an_error_that_cannot_be_unpickled_keeps_its_name(spark: Any, way: str) -> None:
    def fails(kind: Any) -> None:
        if collectives.rank() == 1:
            raise kind(1, 2)
        collectives.barrier()

    kind = odd_error()
    with pytest.raises(RuntimeError, match=r"rank 1 raised OddError: odd 1 2") as caught:
        getattr(engine, way)(fails, [kind], num_proc=2)
    assert any("raised on rank 1" in note and "in fails" in note for note in caught.value.__notes__)


def test_a_worker_is_left_in_its_folder(spark: Any, tmp_path: Path) -> None:
    """Spark uses a process again for other tasks."""

    def moves(folder: str) -> tuple[int, str]:
        before = os.getcwd()
        os.chdir(folder)
        return os.getpid(), before

    first = dict(engine.run(moves, [str(tmp_path)], num_proc=4))
    second = dict(engine.run(moves, [str(tmp_path)], num_proc=4))
    assert first.keys() & second.keys(), "no process was used again"
    assert str(tmp_path) not in second.values()


def test_two_jobs_at_once_do_not_meet(spark: Any) -> None:
    def sums(x: int) -> list[float]:
        return [float(collectives.allreduce(np.full(100, x + step))[0]) for step in range(50)]

    with ThreadPoolExecutor(2) as pool:
        jobs = {x: pool.submit(engine.run, sums, [x], num_proc=2) for x in (1, 1000)}
        for x, job in jobs.items():
            assert job.result(SECONDS) == [[2.0 * (x + step) for step in range(50)]] * 2


def test_a_job_waits_for_slots_and_not_for_ever(spark: Any, tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / f"rank-{collectives.rank()}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    with pytest.raises(DeadlineExceeded, match=r"num_proc=5: .*4 tasks"):
        engine.run(collectives.size, num_proc=5, start_timeout=1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(engine.run, waits, num_proc=3)
        eventually(lambda: len(list(tmp_path.iterdir())) == 3)
        with pytest.raises(DeadlineExceeded, match="2 of 2 tasks"):
            engine.run(collectives.size, num_proc=2, start_timeout=2)
        second = pool.submit(engine.run, collectives.size, num_proc=2)
        (tmp_path / "go").touch()
        assert first.result(SECONDS) == [None] * 3
        assert second.result(SECONDS) == [2, 2]


def test_cancelling_the_job_ends_the_ranks(spark: Any, tmp_path: Path) -> None:
    def computes() -> None:
        (tmp_path / f"rank-{collectives.rank()}").write_text(str(os.getpid()))
        while True:
            time.sleep(0.01)

    def cancel() -> None:
        eventually(lambda: [path.read_text() for path in tmp_path.iterdir()].count("") == 0)
        eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        spark.cancelAllJobs()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(RuntimeError, match="Spark ended"):
        engine.run(computes, num_proc=2)
    thread.join()
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    eventually(lambda: not any(map(alive, pids)))
    assert engine.run(collectives.size, num_proc=2) == [2, 2]


def test_twenty_jobs_in_turn_leave_nothing(spark: Any) -> None:
    def state() -> tuple[int, int, int]:
        return os.getpid(), threading.active_count(), len(os.listdir("/proc/self/fd"))

    def job() -> tuple[float, tuple[int, int, int]]:
        return float(collectives.allreduce(np.ones(1 << 16))[0]), state()

    begun = segments()
    seen: dict[int, list[tuple[int, int]]] = {}
    for number in range(21):
        for total, (pid, threads, descriptors) in engine.run(job, num_proc=2):
            assert total == 2.0
            seen.setdefault(pid, []).append((threads, descriptors))
        if number == 2:
            before = state()
    for counts in seen.values():
        assert max(counts)[0] <= counts[0][0] + 1
        assert counts[-1][1] <= counts[0][1] + 4
    assert any(len(counts) > 1 for counts in seen.values())  # Spark used a process again
    assert sum(map(alive, seen)) <= 4  # one for each slot
    after = state()  # of the driver
    assert after[1] <= before[1] + 1
    assert after[2] <= before[2] + 4  # fewer than one a job
    assert segments() <= begun


def test_a_killed_worker_is_named(spark: Any) -> None:
    def waits() -> None:
        if collectives.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        collectives.barrier()

    with pytest.raises(engine.WorkerLost, match=r"rank 1 \(host .*, pid \d+\)"):
        engine.run(waits, num_proc=2)
    assert engine.run(collectives.size) == [4] * 4


def test_a_lost_executor_is_named(spark: Any, tmp_path: Path) -> None:
    def waits() -> None:
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()  # of PySpark's daemon, a child of the executor
        executor = int(stat.rpartition(")")[2].split()[1])
        assert Path(f"/proc/{executor}/exe").resolve().name == "java"
        (tmp_path / f"{collectives.rank()}-{os.getpid()}-{executor}").touch()
        collectives.barrier()
        if collectives.rank() == 1:
            os.kill(executor, signal.SIGKILL)
        while True:
            collectives.barrier()

    begun = segments()
    with pytest.raises(engine.WorkerLost, match=r"rank \d \(host .*, pid \d+\)") as caught:
        engine.run(waits, num_proc=4, start_timeout=SECONDS)
    ranks = [tuple(map(int, path.name.split("-"))) for path in tmp_path.iterdir()]
    assert len(ranks) == 4
    executor = next(executor for rank, _, executor in ranks if rank == 1)
    eventually(lambda: not alive(executor))
    assert any(
        f"rank {rank} (" in str(caught.value) and f"pid {pid})" in str(caught.value)
        for rank, pid, of in ranks
        if of == executor
    )
    eventually(lambda: not any(alive(pid) for _, pid, of in ranks if of == executor))
    assert engine.run(collectives.size, num_proc=4, start_timeout=SECONDS) == [4] * 4  # on a new executor
    assert segments() <= begun


def test_the_example() -> None:
    command = [sys.executable, spark_digits.__file__, "--workers", "2", "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert "on 2 ranks, parameters identical" in done.stdout


def test_elastic_ranks_go_on_and_a_replacement_joins_them(spark: Any, tmp_path: Path) -> None:
    def work() -> tuple[int, int, int]:
        @elastic.run
        def train(state: elastic.State) -> int:
            while state.step < 20 or collectives.size() < 3:
                if state.step == 10 and collectives.rank() == 1 and not (tmp_path / "killed").exists():
                    (tmp_path / "killed").write_text(str(os.getpid()))
                    os.kill(os.getpid(), signal.SIGKILL)
                state.total += float(collectives.allreduce(np.ones(8), op="average")[0])
                state.step += 1
                state.commit()
            return state.step

        (tmp_path / f"began-{os.getpid()}").touch()
        state = elastic.State(step=0, total=0.0)
        steps = train(state)
        assert state.total == steps
        return steps, collectives.rank(), os.getpid()

    found = engine.run_elastic(work, num_proc=3, min_num_proc=2, start_timeout=SECONDS)
    assert [rank for _, rank, _ in found] == [0, 1, 2]
    assert len({steps for steps, _, _ in found}) == 1
    lost = int((tmp_path / "killed").read_text())
    began = {int(path.name.removeprefix("began-")) for path in tmp_path.glob("began-*")}
    assert began == {lost, *(pid for _, _, pid in found)}  # the others were not started again
    assert engine.run(collectives.size) == [4] * 4


def test_elastic_ranks_are_added_while_there_are_slots(spark: Any) -> None:
    def work() -> int:
        @elastic.run
        def train(state: elastic.State) -> int:
            while collectives.size() < 4:
                collectives.barrier()
                state.commit()
            return collectives.size()

        return train(elastic.State())

    assert engine.run_elastic(work, num_proc=2, max_num_proc=4, start_timeout=SECONDS) == [4] * 4


@pytest.mark.parametrize("minimum", [1, 2])
def test_elastic_a_task_that_cannot_join_ends_the_ranks_that_wait_for_it(
    minimum: int, caplog: pytest.LogCaptureFixture
) -> None:
    place, address = Place("here", "127.0.0.1"), ("127.0.0.1", 1)
    arrivals = {task: Arrival(task, place, 100 + task, address) for task in (0, 1)}
    outcomes = ElasticOutcomes(arrivals, None, minimum)
    with GuestJob() as job, Desk("127.0.0.1", "127.0.0.1", Config.load()) as desk:
        seats = dict(zip(arrivals, job.seats([place, place]), strict=True))
        for event in (
            (1, Gone()),
            (2, Arrival(2, place, 102, address)),
            (2, Result(dump(Failure(2, ImportError("no such module"))), 2)),
            (0, Result(dump(Success(0, 5)), 0)),
        ):
            desk.events.put(event)
        serve_elastic(job, desk, arrivals, seats, outcomes)
    if minimum == 1:
        assert outcomes.values() == {0: 5}
        assert "rank 2 (host 127.0.0.1, pid 102)" in caplog.text
    else:
        with pytest.raises(ImportError, match="no such module"):
            outcomes.values()


def test_elastic_ends_after_an_error_and_beyond_its_limit(spark: Any) -> None:
    def fails() -> None:
        if collectives.rank() == 1:
            raise LookupError("no such thing")
        collectives.barrier()

    def dies() -> None:
        if collectives.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        elastic.run(lambda state: collectives.barrier())(elastic.State())

    with pytest.raises(LookupError, match="no such thing") as caught:
        engine.run_elastic(fails, num_proc=2)
    assert "raised on rank 1" in "\n".join(caught.value.__notes__)
    with pytest.raises(engine.WorkerLost, match=r"rank 1 \(host .*, pid \d+\)"):
        engine.run_elastic(dies, num_proc=2, reset_limit=0)
    with pytest.raises(ValueError, match="min_num_proc=3, num_proc=2, max_num_proc=2"):
        engine.run_elastic(collectives.size, num_proc=2, min_num_proc=3)
    assert engine.run(collectives.size) == [4] * 4


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"num_proc": 0}, ValueError, "num_proc=0: .* integer"),
        ({"start_timeout": 0}, ValueError, "start_timeout=0"),
        ({"env": {"A": None}}, TypeError, "env: 'A': None"),
        ({"args": "abc"}, TypeError, "args='abc': .*sequence"),
        ({"function": 3}, TypeError, "function=3: .*callable"),
        ({"args": [1, threading.Lock()]}, TypeError, r"args\[1\] \(lock\): .*pickled"),
        ({"spark_context": 3}, TypeError, "spark_context=3: .*pyspark.SparkContext"),
    ],
)
def test_bad_arguments(spark: Any, arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        engine.run(**{"function": collectives.size, **arguments})
