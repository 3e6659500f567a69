"""The failure contract, with and without the compiled interpreter: the same tests, and ranks that differ in it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives import AbortedError, Communicator, DeadlineExceeded, MismatchError
from collectives.execution.executor import Executor
from collectives.operations.planned_call import PlannedCall
from tests.worlds import World, executor_of, host_of, living, newest_plan, world_of
from transports.errors import ClosedError, RondeError
from transports.shm.window import ShmWindow

pytest.importorskip("numba", reason="half of these tests need the compiled interpreter")

SETTINGS = [["on"], ["off"], ["on", "off"]]


@pytest.fixture(params=SETTINGS, ids="-".join)
def compiled(request: pytest.FixtureRequest) -> list[str]:
    setting: list[str] = request.param
    return setting


def world(compiled: list[str], size: int = 2, **settings: Any) -> Any:
    return world_of("shm", size, compiled=compiled, **settings)


def warm(comm: Communicator, x: Any) -> None:
    """Make the calls that follow use plans that are bound."""
    for _ in range(4):
        comm.allreduce(x, out=x.copy())


def test_which_calls_have_tables() -> None:
    def body(comm: Communicator, has: bool) -> None:
        x = np.ones(10, np.float32)
        for op, dtype in (("sum", "f4"), ("max", "i8"), ("average", "f8"), ("band", "u2"), ("prod", "f2")):
            comm.allreduce(x.astype(dtype), op)
            plan = newest_plan(comm)
            assert plan is not None
            assert (executor_of(comm).table(plan) is not None) == has
        comm.allreduce(x.astype(np.complex64), "prod")  # more than one loop of NumPy's
        plan = newest_plan(comm)
        assert plan is not None
        assert executor_of(comm).table(plan) is None

    for setting in ("on", "off"):
        with world([setting]) as ranks:
            ranks.run(body, setting == "on")


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "f2", "bfloat16", "i4"])
def test_scaled_results_are_the_same_bits(dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def body(comm: Communicator) -> list[bytes]:
        made, found = np.random.default_rng(comm.rank), []
        for number, scales in enumerate(({"prescale": 0.3}, {"postscale": 1.7}, {"prescale": -2.5, "postscale": 0.1})):
            for count in (1, 5, 3000):
                x = (made.normal(size=count) * 100).astype(kind)
                for op in ("sum", "average"):
                    if comm.rank == number:  # the others wait: a row is left to Python
                        time.sleep(0.002)
                    found.append(comm.allreduce(x, op, **scales).tobytes())
                    y = x.copy()
                    found.append(comm.allreduce(y, op, out=y, **scales).tobytes())
                    found.append(comm.allreduce_async(x, op, **scales).wait().tobytes())
                    assert found[-1] == found[-2]
                    odd = np.frombuffer(bytearray(x.nbytes + 1), np.uint8)[1:].view(kind)
                    odd[:] = x
                    found.append(comm.allreduce(odd, op, out=odd, **scales).tobytes())
                    assert found[-1] == found[-2] == found[-3]
        return found

    results = []
    for setting in SETTINGS:
        with world(setting, 3) as ranks:
            results += ranks.run(body)
    assert all(result == results[0] for result in results)


def planned_call(comm: Communicator, name: str, x: Any, out: Any, arguments: tuple[Any, ...]) -> Any:
    arrays = host_of(comm).arrays
    return arrays.calls.plain(arrays.collectives[name], x, out, arguments)


def test_which_scaled_calls_have_tables() -> None:
    def body(comm: Communicator) -> None:
        for dtype, op, expected in (
            ("f4", "sum", True),
            ("c8", "sum", True),
            ("f2", "average", True),
            ("i4", "sum", False),
        ):
            x = np.ones(4, dtype)
            for scales in ((0.5, None), (None, 0.5), (0.5, 0.5)):
                planned = planned_call(comm, "allreduce", x, x, (op, *scales, None, None))
                assert (planned.table is not None) == expected, (dtype, scales)

    with world(["on"]) as ranks:
        ranks.run(body)


def test_an_allgather_is_not_run_by_a_thread_without_python() -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(4, np.float32)
        for _ in range(2):
            comm.allgather(x)
        planned = planned_call(comm, "allgather", x, None, (None, False, None))
        assert planned.table is None  # a thread without Python cannot decide whether to speculate

    with world(["on"]) as ranks:
        ranks.run(body)


def test_another_call_is_a_mismatch(compiled: list[str]) -> None:
    def body(comm: Communicator) -> str:
        warm(comm, np.ones(3))
        with pytest.raises(MismatchError) as caught:
            comm.allreduce(np.ones(3 + comm.rank))
        with pytest.raises(MismatchError):
            comm.allreduce(np.ones(3))
        return str(caught.value)

    with world(compiled, 3) as ranks:
        texts = ranks.run(body)
    assert all("allreduce(float64, 4 elements, op=sum), its call 5" in text for text in texts)


def test_a_late_rank_is_awaited_until_the_deadline(compiled: list[str]) -> None:
    def body(comm: Communicator) -> str:
        x = np.ones(3)
        warm(comm, x)
        planned = comm.plan("allreduce", x, out=x, timeout=0.3)
        planned.run()
        if comm.rank == 1:
            with pytest.raises(RondeError):
                comm.recv(np.zeros(1), src=0, timeout=20)
            return ""
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            planned.run()
        assert 0.2 < time.monotonic() - began < 10
        return str(caught.value)

    with world(compiled) as ranks:
        text, _ = ranks.run(body)
    assert "in allreduce(float64, 3 elements, op=sum), call 6, direct: others staged; rank 0 waits for rank 1" in text
    assert "step 1 of call 6" in text, "epochs are told in the words of calls"


def test_a_rank_that_waits_tells_where(compiled: list[str]) -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(3)
        warm(comm, x)
        if comm.rank == 1:
            until = time.monotonic() + 20
            found: list[Any] = []
            while not (found and found[0].number == 5 and found[0].awaits == 1):
                assert time.monotonic() < until, found
                time.sleep(0.001)
                found = executor_of(other[0]).positions.now()
            assert "allreduce(float64, 3 elements, op=sum), call 5, direct: others staged" in found[0].text
            assert "waits for rank 1" in found[0].text
        comm.allreduce(x, out=x)
        assert executor_of(comm).position() is None

    with world(compiled) as ranks:
        other = ranks.communicators
        ranks.run(body)


def test_an_abort_ends_a_wait_and_all_later_calls(compiled: list[str]) -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(3)
        warm(comm, x)
        planned = comm.plan("allreduce", x, out=x)
        if comm.rank == 1:
            time.sleep(0.05)
            comm.abort("enough")
        for call in (lambda: comm.allreduce(x, out=x), planned.run, lambda: comm.allreduce(x), lambda: comm.barrier()):
            with pytest.raises(AbortedError, match="enough"):
                call()

    with world(compiled) as ranks:
        ranks.run(body)


def test_an_interrupt_in_the_middle_tells_the_others(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    other_left, wait, chosen = threading.Event(), ShmWindow.wait, set[int]()

    def interrupted(window: ShmWindow, *rest: Any) -> Any:
        if threading.get_ident() in chosen:
            raise KeyboardInterrupt
        return wait(window, *rest)

    monkeypatch.setattr(ShmWindow, "wait", interrupted)

    def body(comm: Communicator) -> None:
        x = np.ones(3)
        warm(comm, x)
        if comm.rank == 0:
            chosen.add(threading.get_ident())
            for begin in range(2):
                with pytest.raises(KeyboardInterrupt if not begin else AbortedError):
                    comm.allreduce(x, out=x)
            other_left.set()
        else:

            def both() -> None:  # rank 0 has staged its part of the first one
                comm.allreduce(x, out=x)
                comm.allreduce(x, out=x)

            assert other_left.wait(20)
            with pytest.raises(AbortedError, match="rank 0 left allreduce"):
                both()

    with world(compiled) as ranks:
        ranks.run(body)


@pytest.mark.parametrize("algorithm", [None, "direct", "ring"])
def test_unequal_parts_of_an_allgather_are_found_without_harm(compiled: list[str], algorithm: str | None) -> None:
    def body(comm: Communicator) -> None:
        for number in range(40):
            mine = np.full(2 + comm.rank * (number % 20 == 2), float(comm.rank))
            gathered = comm.allgather(mine, algorithm=algorithm)
            assert gathered.sum() == sum(rank * (2 + rank * (number % 20 == 2)) for rank in range(comm.size))

    with world(compiled, 3) as ranks:
        ranks.run(body)


def test_unequal_parts_of_a_persistent_allgather_are_found(compiled: list[str]) -> None:
    def body(comm: Communicator) -> None:
        even, uneven = np.full(2, float(comm.rank)), np.ones(6 if comm.rank == 2 else 2)
        gathered = np.zeros(2 * comm.size)
        planned = comm.plan("allgather", even, out=gathered)
        wrong = comm.plan("allgather", uneven, out=np.zeros(uneven.size * comm.size))
        for _ in range(20):  # more than the number of gatherings that are not speculative after the first one
            with pytest.raises(MismatchError):
                wrong.run()
            gathered[:] = -1
            assert planned.run() is gathered
            assert gathered.tolist() == [0, 0, 1, 1, 2, 2]
        comm.allgather(even) if comm.rank else planned.run()

    with world(compiled, 3) as ranks:
        ranks.run(body)


def test_arrays_that_are_not_aligned(compiled: list[str]) -> None:
    def body(comm: Communicator) -> None:
        warm(comm, np.ones(4))
        odd = np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float64)
        odd[:] = comm.rank + 1
        for _ in range(3):
            assert comm.allreduce(odd).tolist() == [3] * 4
        out = np.ones(4)
        assert comm.allreduce(out, out=out).tolist() == [2] * 4

    with world(compiled) as ranks:
        ranks.run(body)


def test_all_calls_and_steps_are_in_the_metrics_and_the_timeline(compiled: list[str], tmp_path: Path) -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(3)
        comm.start_timeline(tmp_path / "timeline-{rank}.json")
        for _ in range(4):
            comm.allreduce(x, out=x)
        assert comm.allreduce(np.ones(3), prescale=3.0, postscale=0.5).tolist() == [3.0] * 3
        comm.stop_timeline()
        for _ in range(95):
            comm.allreduce(x, out=x)
        assert comm.metrics()["collectives"]["allreduce"]["calls"] == 100
        assert executor_of(comm).calls == 100

    with world(compiled) as ranks:
        ranks.run(body)
    events = json.loads((tmp_path / "timeline-0.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert sum("stage" in name and "staged" not in name for name in names) == 5
    assert sum("others staged" in name for name in names) == 5


def test_reproducible_results_are_the_same_bits(compiled: list[str]) -> None:
    def body(comm: Communicator) -> list[bytes]:
        made = np.random.default_rng(comm.rank)
        return [
            comm.allreduce(made.normal(size=1000).astype(dtype), op, reproducible=True).tobytes()
            for dtype in ("f2", "f4", "f8", "c8")
            for op in ("sum", "average")
        ]

    found = []
    for setting in (compiled, ["off"]):
        with world(setting, 3) as ranks:
            found += ranks.run(body)
    assert all(result == found[0] for result in found)


def test_a_closed_communicator_runs_nothing(compiled: list[str]) -> None:
    ranks = World("shm", 2, compiled=compiled)
    x = np.ones(3)
    planned = ranks.run(lambda comm: (warm(comm, x), comm.plan("allreduce", np.ones(3), out=np.ones(3)))[1])
    ranks.close()
    for each in planned:
        with pytest.raises(ClosedError):
            each.run()


def test_the_plans_are_forgotten_with_their_tables() -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(3)
        warm(comm, x)
        executor: Executor = executor_of(comm)
        assert executor.recent()
        executor.forget_plans()
        assert executor.recent() == []
        warm(comm, x)
        assert [text for _, _, text in executor.recent()][-4:] == ["allreduce(float64, 3 elements, op=sum)"] * 4

    with world(["on"]) as ranks:
        ranks.run(body)


def test_the_kinds_of_calls_that_are_kept_are_bounded(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectives.operations.planned_call._MOST_CALLS", 8)

    def body(comm: Communicator, step: int) -> None:
        assert comm.allreduce(np.ones(3), prescale=1 / step).tolist() == [comm.size * (1 / step)] * 3

    before = living(PlannedCall)
    with world(compiled) as ranks:
        for step in range(1, 40):
            ranks.run(body, step)
            assert 1 <= living(PlannedCall) - before <= 8 * ranks.size
