"""Ranks in a real Ray cluster of two raylets. `make engines` installs Ray and runs these tests."""

from __future__ import annotations

import json
import math
import os
import re
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
from examples import ray_digits
from tests.engines.conftest import ROOT
from transports.errors import DeadlineExceeded

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ronde[ray]'")

import ronde.ray as engine  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Ray's own
    pytest.mark.usefixtures("ray_cluster"),
]

EXAMPLE = Path(ray_digits.__file__)
SECONDS = 60.0


def ended(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return True


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until Ray's raylet, another process, has done what it was asked for."""
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def all_is_free() -> bool:
    return bool(ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])


@pytest.mark.parametrize("size", [2, 4])
def test_the_digits_are_those_of_ronde_run(size: int) -> None:
    with engine.RayExecutor(num_hosts=2, num_workers_per_host=size // 2) as executor:
        results = executor.run(ray_digits.train, [3])
    assert len(set(results)) == 1
    assert len(results) == size
    assert results == collectives.run(ray_digits.train, size, [3])


def test_ranks_of_a_node_are_neighbours_and_get_what_they_need() -> None:
    def seen(x: int, *, y: int) -> tuple[Any, ...]:
        context = ray.get_runtime_context()
        secret = os.environ["RONDE_SECRET"]
        place = (
            collectives.rank(),
            collectives.size(),
            os.environ["LOCAL_RANK"],
            context.get_assigned_resources()["CPU"],
        )
        return *place, context.get_node_id(), os.environ["COLOUR"], secret, x + y

    executor = engine.RayExecutor(num_hosts=2, num_workers_per_host=2, cpus_per_worker=0.5)
    executor.start(extra_env_vars={"COLOUR": "green"})
    try:
        found = executor.run(seen, [1], {"y": 2})
        assert [row[:4] for row in found] == [(0, 4, "0", 0.5), (1, 4, "1", 0.5), (2, 4, "0", 0.5), (3, 4, "1", 0.5)]
        nodes = [row[4] for row in found]
        assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
        assert {row[5] for row in found} == {"green"}
        assert {row[7] for row in found} == {3}
        secret = found[0][6]
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert secret.encode() not in process.read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
        logs = list(Path(ray._private.worker.global_worker.node.get_logs_dir_path()).rglob("*"))
        assert not [path for path in logs if path.is_file() and secret.encode() in path.read_bytes()]
    finally:
        executor.shutdown()
    eventually(all_is_free)


def test_an_executable_stays_between_calls() -> None:
    class Counter:
        def __init__(self, start: int) -> None:
            self.value = start + collectives.rank()

    def add(counter: Counter) -> float:
        counter.value += 1
        return float(collectives.allreduce(np.array([counter.value]))[0])

    executor = engine.RayExecutor(num_workers=2)
    with pytest.raises(RuntimeError, match=r"executor .*start"):
        executor.run(int)
    executor.start(Counter, [10])
    try:
        assert executor.execute(add) == [23, 23]
        assert executor.execute(add) == [25, 25]
        assert executor.execute_single(lambda counter: counter.value) == 12
        assert ray.get(executor.run_remote(collectives.size)) == [2, 2]
        with pytest.raises(RuntimeError, match=r"start: .*shutdown"):
            executor.start()
    finally:
        executor.shutdown()
    executor.shutdown()


def odd_error() -> type[Exception]:
    """A class whose errors cannot be unpickled. cloudpickle takes it along."""

    class OddError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"odd {one} {two}")

    return OddError


def test_the_error_of_a_function_is_that_of_its_rank() -> None:
    def fails() -> None:
        if collectives.rank() == 1:
            raise LookupError("no such thing")
        collectives.barrier()

    def ends() -> None:
        if collectives.rank() == 1:
            sys.exit(3)
        collectives.barrier()

    executor = engine.RayExecutor(num_workers=2)
    for function, kind, text in [(fails, LookupError, "no such thing"), (ends, RuntimeError, "SystemExit: 3")]:
        executor.start()
        pids = executor.pids
        with pytest.raises(kind, match=text) as caught:
            executor.run(function)
        notes = "\n".join(caught.value.__notes__)
        assert "raised on rank 1" in notes
        assert f"in {function.__name__}" in notes
        assert "\x1b" not in notes
        eventually(lambda pids=pids: all(map(ended, pids)))
        with pytest.raises(RuntimeError, match=r"executor .*start"):
            executor.run(function)
    eventually(all_is_free)


@pytest.mark.parametrize("way", ["run", "run_remote", "execute", "elastic"])
def test_e4_an_error_that_cannot_be_unpickled_keeps_its_name(way: str) -> None:
    def fails(kind: Any) -> None:
        if collectives.rank() == 1:
            raise kind(1, 2)
        collectives.barrier()

    kind = odd_error()
    executor: Any = (
        engine.ElasticRayExecutor(min_workers=2, max_workers=2)
        if way == "elastic"
        else engine.RayExecutor(num_workers=2)
    )
    calls: dict[str, Callable[[], Any]] = {
        "execute": lambda: executor.execute(lambda _: fails(kind)),
        "run_remote": lambda: ray.get(executor.run_remote(fails, [kind])[1]),
    }
    with (
        pytest.raises(RuntimeError, match=r"rank 1 raised OddError: odd 1 2") as caught,
        executor,
    ):
        calls.get(way, lambda: executor.run(fails, [kind]))()
    if way != "run_remote":
        assert any("raised on rank 1" in note and "in fails" in note for note in caught.value.__notes__)


def test_results_that_cannot_be_sent() -> None:
    with (
        pytest.raises(TypeError, match=r"result of rank 0 .*pickled"),
        engine.RayExecutor(num_workers=1) as executor,
    ):
        executor.run(threading.Lock)


class OnlyHere:
    """It can be unpickled in this process alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        return in_process, (os.getpid(),)


def in_process(pid: int) -> OnlyHere:
    if os.getpid() != pid:
        raise ImportError("no such module")
    return OnlyHere()


def test_an_argument_that_a_rank_cannot_read() -> None:
    with (
        pytest.raises(TypeError, match=r"call of rank 0 .*no such module"),
        engine.RayExecutor(num_workers=1) as executor,
    ):
        executor.run(len, [OnlyHere()])


def test_a_killed_worker_is_named() -> None:
    def waits() -> None:
        if collectives.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        collectives.barrier()

    executor = engine.RayExecutor(num_hosts=2)
    executor.start()
    pids = executor.pids
    begun = time.monotonic()
    with pytest.raises(engine.WorkerLost, match=rf"rank 1 \(node .*, pid {pids[1]}\)"):
        executor.run(waits)
    assert time.monotonic() - begun < SECONDS
    eventually(lambda: all(map(ended, pids)))
    eventually(all_is_free)


def test_a_lost_node_is_named(ray_cluster: Any, tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / f"{collectives.rank()}-{os.getpid()}").touch()
        while True:
            collectives.barrier()

    def lose() -> None:
        eventually(lambda: len(list(tmp_path.iterdir())) == 3)
        ray_cluster.remove_node(node, allow_graceful=False)  # kills its raylet

    node = ray_cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
    executor = engine.RayExecutor(num_hosts=3)
    executor.start()
    pids = executor.pids
    raylet = node.all_processes["raylet"][0].process.pid
    rank = next(rank for rank, pid in enumerate(pids) if parent(pid) == raylet)
    thread = threading.Thread(target=lose)
    thread.start()
    with pytest.raises(engine.WorkerLost, match=rf"rank {rank} \(node .*, pid {pids[rank]}\)"):
        executor.run(waits)
    thread.join()
    eventually(lambda: all(map(ended, [raylet, *pids])))
    eventually(lambda: ray.cluster_resources()["CPU"] == 4)
    eventually(all_is_free)


@pytest.mark.usefixtures("interruptible")
def test_cancelling_ends_the_ranks(tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / str(collectives.rank())).touch()
        if collectives.rank() == 1:
            time.sleep(SECONDS)
        collectives.barrier()

    executor = engine.RayExecutor(num_workers=2)
    executor.start()
    pids = executor.pids

    def interrupt() -> None:
        eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        executor.run(waits)
    thread.join()
    eventually(lambda: all(map(ended, pids)))
    eventually(all_is_free)


def test_two_jobs_at_once_do_not_meet() -> None:
    def sums(x: int) -> tuple[str, str, list[float]]:
        values = [float(collectives.allreduce(np.full(100, x + step))[0]) for step in range(50)]
        return os.environ["RONDE_JOB"], os.environ["RONDE_STORE"], values

    with engine.RayExecutor(num_workers=2) as one, engine.RayExecutor(num_workers=2) as two:
        first, second = one.run_remote(sums, [1]), two.run_remote(sums, [1000])
        (job, store, values), (other, strange, others) = ray.get([first[0], second[0]])
        assert ray.get(first[1]) == (job, store, values)
    assert job != other
    assert store != strange
    assert values == [2.0 * (1 + step) for step in range(50)]
    assert others == [2.0 * (1000 + step) for step in range(50)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: engine.RayExecutor(engine.RayExecutor.create_settings(math.inf, math.inf), num_workers=3),
        lambda: engine.ElasticRayExecutor(min_workers=3, max_workers=3, env_vars={"COLOUR": 5}),
    ],
)
def test_calls_of_several_threads_meet_in_one_order(make: Callable[[], Any]) -> None:
    def total(x: int) -> float:
        return float(collectives.allreduce(np.float64(x)))

    with make() as executor, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda x: executor.run(total, [x]), range(40)))
        left = threads.submit(executor.run_remote, total, [40]).result()
        assert ray.get(left) == [120.0] * 3
    assert results == [[3.0 * x] * 3 for x in range(40)]


def test_twenty_jobs_in_turn_leave_nothing() -> None:
    def job() -> int:
        return int(collectives.allreduce(np.ones(1 << 16))[0])

    def here() -> tuple[int, int, set[str]]:
        segments = {path.name for path in Path("/dev/shm").glob("ronde*")}
        return threading.active_count(), len(os.listdir("/proc/self/fd")), segments

    pids: list[int] = []
    for number in range(20):
        with engine.RayExecutor(num_workers=2) as executor:
            pids += executor.pids
            assert executor.run(job) == [2, 2]
        if number == 0:
            before = here()
    eventually(lambda: all(map(ended, pids)))
    threads, descriptors, segments = here()
    assert threads <= before[0]
    assert descriptors <= before[1] + 2  # Ray opens connections when it likes
    assert segments <= before[2]
    eventually(all_is_free)


def test_workers_that_do_not_fit() -> None:
    settings = engine.RayExecutor.create_settings(placement_group_timeout_s=0.5)
    with pytest.raises(DeadlineExceeded, match=r"9 workers .*1 CPU .*0\.5 s; .* 4 CPU"):
        engine.RayExecutor(settings, num_workers=9).start()
    eventually(all_is_free)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "num_workers, num_hosts"),
        ({"num_workers": 2, "num_hosts": 2}, "num_workers, num_hosts"),
        ({"num_workers": 0}, "num_workers=0"),
        ({"num_hosts": 1, "num_workers_per_host": 0}, "num_workers_per_host=0"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "use_gpu=True"),
        ({"num_workers": 1, "cpus_per_worker": -1}, "cpus_per_worker=-1"),
        ({"num_workers": 1, "cpus_per_worker": 0}, "cpus_per_worker=0: .*GPUs"),
    ],
)
def test_bad_arguments(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        engine.RayExecutor(**options)


def test_inside_a_placement_group_its_bundles_are_used() -> None:
    @ray.remote(num_cpus=1)
    def trial() -> list[int]:
        executor = engine.RayExecutor(num_workers=2)
        with executor:
            return executor.run(collectives.rank)

    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = ray.util.placement_group([{"CPU": 1}] * 3, strategy="PACK")
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    try:
        assert ray.get(trial.options(scheduling_strategy=strategy).remote(), timeout=SECONDS) == [0, 1]
    finally:
        ray.util.remove_placement_group(group)
    eventually(all_is_free)


def test_inside_a_placement_group_bundles_that_are_taken_are_named() -> None:
    @ray.remote(num_cpus=1)
    class Trial:  # a task would give its CPU back while it waits
        def run(self) -> str:
            settings = engine.RayExecutor.create_settings(placement_group_timeout_s=5)
            try:
                with engine.RayExecutor(settings, num_workers=2):
                    return "started"
            except DeadlineExceeded as error:
                return str(error)

    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = ray.util.placement_group([{"CPU": 1}] * 2, strategy="PACK")
    strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    try:
        told = ray.get(Trial.options(scheduling_strategy=strategy).remote().run.remote(), timeout=SECONDS)
        assert "bundles without room: 0" in told or "bundles without room: 1, 0" in told
    finally:
        ray.util.remove_placement_group(group)
    eventually(all_is_free)


def test_elastic_starts_again_without_the_lost_worker(tmp_path: Path) -> None:
    def trains() -> tuple[int, int]:
        marker = tmp_path / "begun"
        begun = marker.exists()
        collectives.barrier()
        if not begun:
            marker.touch()
            if collectives.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            collectives.barrier()
        return collectives.rank(), collectives.size()

    with engine.ElasticRayExecutor(min_workers=2, max_workers=3, reset_limit=1) as executor:
        assert executor.num_workers == 3
        assert executor.run(trains) == [(0, 3), (1, 3), (2, 3)]
        (tmp_path / "begun").unlink()
        with pytest.raises(engine.WorkerLost, match="rank 1"):
            executor.run(trains)
    with pytest.raises(ValueError, match=r"max_workers=1: .*min_workers"):
        engine.ElasticRayExecutor(min_workers=2, max_workers=1)
    eventually(all_is_free)


def test_elastic_ranks_go_on_and_a_replacement_joins_them(tmp_path: Path) -> None:
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

    with engine.ElasticRayExecutor(min_workers=2, max_workers=3, reset_limit=1) as executor:
        found = executor.run(work)
        assert [rank for _, rank, _ in found] == [0, 1, 2]
        assert len({steps for steps, _, _ in found}) == 1
        lost = int((tmp_path / "killed").read_text())
        began = {int(path.name.removeprefix("began-")) for path in tmp_path.glob("began-*")}
        assert began == {lost, *(pid for _, _, pid in found)}  # the others were not started again
        assert executor.run(collectives.size) == [3, 3, 3]
    eventually(all_is_free)


def test_elastic_a_replacement_that_cannot_join_ends_the_ranks_that_wait_for_it(tmp_path: Path) -> None:
    def begin() -> None:
        if (tmp_path / "killed").exists():
            raise LookupError("no such disk")

    def work() -> None:
        @elastic.run
        def train(state: elastic.State) -> None:
            collectives.barrier()
            if collectives.rank() == 1:
                (tmp_path / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            collectives.barrier()

        train(elastic.State())

    with engine.ElasticRayExecutor(min_workers=2, max_workers=2) as executor:
        executor.shutdown()
        executor.start(begin)
        with pytest.raises(LookupError, match="no such disk"):
            executor.run(work)
    eventually(all_is_free)


def test_elastic_a_replacement_that_is_lost_is_replaced_too(tmp_path: Path) -> None:
    def begin() -> None:
        for name in ("first", "second"):
            if (tmp_path / "killed").exists() and not (tmp_path / name).exists():
                (tmp_path / name).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def work() -> int:
        @elastic.run
        def train(state: elastic.State) -> int:
            collectives.barrier()
            if collectives.rank() == 1 and not (tmp_path / "killed").exists():
                (tmp_path / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            collectives.barrier()
            return collectives.size()

        return train(elastic.State())

    with engine.ElasticRayExecutor(min_workers=2, max_workers=2) as executor:
        executor.shutdown()
        executor.start(begin)
        assert executor.run(work) == [2, 2]
    eventually(all_is_free)


def test_elastic_does_not_repeat_an_error(tmp_path: Path) -> None:
    def fails() -> None:
        (tmp_path / f"{time.monotonic_ns()}").touch()
        raise ArithmeticError("wrong")

    with engine.ElasticRayExecutor(max_workers=1) as executor, pytest.raises(ArithmeticError, match="wrong"):
        executor.run(fails)
    assert len(list(tmp_path.iterdir())) == 1


def test_output_has_the_rank(capfd: pytest.CaptureFixture[str]) -> None:
    with engine.RayExecutor(num_workers=2) as executor:
        executor.run(lambda: print(f"this is number {collectives.rank()}", flush=True))
        seen = ""

        def shown() -> bool:
            nonlocal seen
            read = capfd.readouterr()
            seen += re.sub(r"\x1b\[[0-9;]*m", "", read.out + read.err)
            return all(re.search(rf"\(rank {n} pid=\d+.*\) this is number {n}", seen) for n in (0, 1))

        eventually(shown)


def test_backend_of_ray_util_collective() -> None:
    from ray.util import collective

    @ray.remote(num_cpus=1)
    class Member:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def join(self, name: str) -> None:
            engine.register()
            engine.register()
            collective.init_collective_group(2, self.rank, backend="ronde", group_name=name)
            self.name = name

        def work(self) -> dict[str, Any]:
            import torch

            rank, name = self.rank, self.name
            summed, tensor = np.arange(4.0) + rank, torch.ones(3) * (rank + 1)
            collective.allreduce(summed, name)
            collective.allreduce(tensor, name, collective.types.ReduceOp.MAX)
            reduced = np.full(2, rank + 1)
            collective.reduce(reduced, 1, name)
            spread = np.full(2, rank + 5)
            collective.broadcast(spread, 1, name)
            gathered = [np.zeros((2, 1)) for _ in range(2)]
            collective.allgather(gathered, np.full((2, 1), float(rank)), name)
            scattered = np.zeros(2)
            collective.reducescatter(scattered, [np.full(2, 1.0 + rank), np.full(2, 10.0 * (1 + rank))], name)
            message = np.full(3, 7.0 if rank == 0 else 0.0)
            collective.send(message, 1, name) if rank == 0 else collective.recv(message, 0, name)
            collective.barrier(name)
            with pytest.raises(TypeError, match=r"tensor .*NumPy array"):
                collective.get_group_handle(name).allreduce([[1.0]])
            found = [summed, tensor.numpy(), reduced, spread, *gathered, scattered, message]
            collective.destroy_collective_group(name)
            return {"values": [array.ravel().tolist() for array in found]}

        def again(self, name: str) -> list[float]:
            """Groups of one name, each made as soon as this member has left the one before."""
            import torch

            sums = []
            for _ in range(4):
                self.join(name)
                half = torch.ones(1, dtype=torch.bfloat16)
                collective.allreduce(half, name)
                sums.append(half.item())
                collective.destroy_collective_group(name)
            return sums

    members = [Member.remote(rank) for rank in range(2)]
    for name in ("first", "second", "first"):
        ray.get([member.join.remote(name) for member in members], timeout=SECONDS)
        one, two = ray.get([member.work.remote() for member in members], timeout=SECONDS)
        common = [[1.0, 3.0, 5.0, 7.0], [2.0] * 3]
        gathered = [[0.0, 0.0], [1.0, 1.0]]
        assert one["values"] == [*common, [1, 1], [6, 6], *gathered, [3.0, 3.0], [7.0] * 3]
        assert two["values"] == [*common, [3, 3], [6, 6], *gathered, [30.0, 30.0], [7.0] * 3]
    assert ray.get([member.again.remote("first") for member in members], timeout=SECONDS) == [[2.0] * 4] * 2
    for member in members:
        ray.kill(member)


def test_the_example(tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_ADDRESS": "", "RAY_AUTH_MODE": "disabled"}
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, str(EXAMPLE), "--workers", "2", "--epochs", "2", "--address", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on 2 ranks, parameters identical" in done.stdout


def test_top_shows_the_ranks(tmp_path: Path) -> None:
    def steps() -> None:
        while collectives.allreduce(float((tmp_path / "stop").exists()), op="max") == 0:
            time.sleep(0.05 if collectives.rank() == 2 else 0.001)
            (tmp_path / "ready").touch()

    (tmp_path / "run").mkdir(mode=0o700)
    variables = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "TMPDIR": str(tmp_path)}  # other programs have jobs, too
    executor = engine.RayExecutor(num_workers=3)
    executor.start(extra_env_vars=variables)
    pids, calls = executor.pids, executor.run_remote(steps)
    try:
        eventually((tmp_path / "ready").exists)
        time.sleep(2.0)  # the time of which the look tells
        done = subprocess.run(
            [sys.executable, "-m", "ronde", "top", "--once", "--json"],
            env=os.environ | variables | {"PYTHONPATH": ROOT},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        assert [row["pid"] for row in figures["ranks"]] == pids
        assert [one["ranks"]["first"] for one in figures["culprits"]] == [[2]]
    finally:
        (tmp_path / "stop").touch()
        ray.get(calls)
        executor.shutdown()
