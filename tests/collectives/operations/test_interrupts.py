"""A call is whole or not at all: an exception at every line and at every return from C of a call.

Rank 0 is interrupted, the others are in the same call. Afterwards every rank has the right result, or has the cause of
an abort. `make chaos` tries every point (RONDE_INTERRUPTS=long), the suite every so many.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

from collectives import AbortedError, Communicator, DeadlineExceeded, RondeError, Work
from collectives.execution import Table
from collectives.execution.binder import Binder
from collectives.execution.rows import BoundPlan
from collectives.jit import layout
from collectives.operations.work import Promise
from tests.points import LONG, Interrupt, Points, each_point
from tests.worlds import World, executor_of, kept_plans
from transports import shm
from transports.anysource import AnySource

PATIENCE = 30.0


class Outcome(NamedTuple):
    """The end of the call on one rank: the result, or the error."""

    result: Any = None
    error: BaseException | None = None


def value(comm: Communicator, step: int) -> Any:
    return np.full(4, float(10 * step + comm.rank + 1))


def total(comm: Communicator, step: int) -> list[float]:
    return [sum(10.0 * step + rank + 1 for rank in range(comm.size))] * 4


class Allreduce:
    """A call of all ranks, and its right result."""

    def prepare(self, comm: Communicator) -> None:
        """Make what the calls need. Collective."""

    def __call__(self, comm: Communicator, step: int) -> Any:
        return comm.allreduce(value(comm, step)).tolist()

    def right(self, comm: Communicator, step: int) -> Any:
        return total(comm, step)

    def begun(self, comm: Communicator) -> int:
        """Number of calls that have begun on this rank."""
        return executor_of(comm).calls


class Allgather(Allreduce):
    def __call__(self, comm: Communicator, step: int) -> Any:
        return comm.allgather(value(comm, step)).tolist()

    def right(self, comm: Communicator, step: int) -> Any:
        return [float(10 * step + rank + 1) for rank in range(comm.size) for _ in range(4)]


class Broadcast(Allreduce):
    def __call__(self, comm: Communicator, step: int) -> Any:
        return comm.broadcast(value(comm, step), 1).tolist()

    def right(self, comm: Communicator, step: int) -> Any:
        return [10.0 * step + 2] * 4


class Objects(Allreduce):
    def __call__(self, comm: Communicator, step: int) -> Any:
        return comm.allgather_object((step, comm.rank))

    def right(self, comm: Communicator, step: int) -> Any:
        return [(step, rank) for rank in range(comm.size)]


class Plan(Allreduce):
    def prepare(self, comm: Communicator) -> None:
        self.plans = getattr(self, "plans", {})
        x = np.zeros(4)
        self.plans[comm.rank] = comm.plan("allreduce", x, out=np.zeros(4)), x

    def __call__(self, comm: Communicator, step: int) -> Any:
        plan, x = self.plans[comm.rank]
        x[:] = value(comm, step)
        return plan.run().tolist()


class Async(Allreduce):
    """A wait that was interrupted may be repeated."""

    def __call__(self, comm: Communicator, step: int) -> Any:
        work = self.begin(comm, step)
        while True:
            try:
                return work.wait(PATIENCE).tolist()
            except Interrupt:
                continue

    def begin(self, comm: Communicator, step: int) -> Work[Any]:
        return comm.allreduce_async(value(comm, step))

    def begun(self, comm: Communicator) -> int:
        return 0  # an interrupted submission has no effect, or aborts


class Named(Async):
    def begin(self, comm: Communicator, step: int) -> Work[Any]:
        return comm.allreduce_async(value(comm, step), name=f"x{step}")


class Message(Allreduce):
    """A message from rank 0 to 1."""

    dst, src = 1, 0

    def __call__(self, comm: Communicator, step: int) -> Any:
        x = value(comm, step)
        if comm.rank == self.src:
            comm.send(x, self.dst)
            return None
        return comm.recv(x, self.src).tolist() if comm.rank == self.dst else None

    def right(self, comm: Communicator, step: int) -> Any:
        return [10.0 * step + self.src + 1] * 4 if comm.rank == self.dst else None

    def begun(self, comm: Communicator) -> int:
        return comm._messages._begun


class Answer(Message):
    """A message from rank 1 to 0."""

    dst, src = 0, 1


class Trial:
    """Interrupts one call of rank 0 at one point after another."""

    def __init__(self, call: Allreduce, make: Callable[[], World]) -> None:
        self._call = call
        self._make = make
        self._world: World | None = None
        self._step = 0

    def close(self) -> None:
        if self._world is not None:
            self._world.close()

    def interrupt(self, kind: str, number: int) -> bool:
        """Interrupt at one point; False if the call has ended before it."""
        if self._world is None:
            self._world = self._make()
            self._world.run(self._warm)
        points, world = Points(kind, number), self._world
        self._step += 1
        outcomes = world.run(self._on_rank, points, self._step)
        if any(comm.failure for comm in world.communicators):
            world.run(self._fails)
        broken = [comm.failure for comm in world.communicators]
        for rank, outcome in enumerate(outcomes):
            if outcome.error is not None:
                assert isinstance(outcome.error, RondeError | Interrupt), (points.place, rank, outcome.error)
                assert not isinstance(outcome.error, DeadlineExceeded), (points.place, rank, outcome.error)
                assert all(broken), (points.place, rank, outcome.error, broken)
            else:
                assert outcome.result == self._call.right(world.communicators[rank], self._step), (points.place, rank)
        self._unlocked(world, points.place)
        if any(broken):
            assert "rank 0" in str(broken[1]), (points.place, broken)
            self._world = None
            world.close()
        return points.fired

    def _warm(self, comm: Communicator) -> None:
        self._call.prepare(comm)
        for step in (10**6, 10**6 + 1, 10**6 + 2):
            assert self._call(comm, step) == self._call.right(comm, step)

    def _fails(self, comm: Communicator) -> None:
        """The next call of a rank raises the cause."""
        with pytest.raises(RondeError):
            comm.barrier()

    def _on_rank(self, comm: Communicator, points: Points, step: int) -> Outcome:
        call = self._call
        before = call.begun(comm)
        try:
            if comm.rank:
                return Outcome(call(comm, step))
            try:
                points.start()
                result = call(comm, step)
            finally:
                points.stop()
            return Outcome(result)
        except Interrupt as error:
            if comm.failure is not None:
                return Outcome(error=error)
            if call.begun(comm) != before:  # it came behind the end of the call
                return Outcome(call.right(comm, step))
            return Outcome(call(comm, step))  # nothing has happened
        except RondeError as error:
            return Outcome(error=error)

    def _unlocked(self, world: World, place: str) -> None:
        """Another thread can use the transport: no lock is held."""
        sources = world.communicators[0].transport.ability(AnySource)
        assert sources is not None
        look = threading.Thread(target=sources.reachable, args=(frozenset((0,)),))
        look.start()
        look.join(PATIENCE)
        assert not look.is_alive(), f"a lock is held: {place}"


CALLS = (Allreduce, Allgather, Broadcast, Objects, Plan, Async, Named, Message, Answer)
WORLDS = {
    "local": ("local", 2, {"compiled": ("off",)}),
    "local of 3": ("local", 3, {"compiled": ("off",)}),
    "shm": ("shm", 2, {"compiled": ("off",)}),
    "shm with jit": ("shm", 2, {"compiled": ("on",)}),
    "shm of 3": ("shm", 3, {"compiled": ("off",)}),
    "tcp": ("tcp", 2, {"compiled": ("off",)}),
    "tcp with jit": ("tcp", 2, {"compiled": ("on",)}),
    "auto on two hosts": ("auto", 3, {"compiled": ("off",), "hosts": ("a", "a", "b")}),
}


@pytest.fixture(params=WORLDS)
def make(request: pytest.FixtureRequest) -> Callable[[], World]:
    transport, size, settings = WORLDS[request.param]
    if transport in ("shm", "auto") and shm.usable() is not None:
        pytest.skip(str(shm.usable()))
    if settings["compiled"] == ("on",):
        pytest.importorskip("numba", reason="needs the compiled interpreter")
    return lambda: World(transport, size, timeout=10.0, **settings)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops those of finalizers
@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("kind", ["line", "instruction", "return"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__.lower())
def test_an_interrupt_at_every_point(make: Callable[[], World], call: type[Allreduce], kind: str) -> None:
    if kind == "instruction" and (issubclass(call, Async) or not (LONG or call is Allreduce)):
        pytest.skip("long, and nothing in Python can answer for a handle that is being returned")
    trial, number = Trial(call(), make), 0
    stride, until = (1, float("inf")) if LONG else ({"line": 61, "return": 23}.get(kind, 307), time.monotonic() + 2.0)
    try:
        while trial.interrupt(kind, number) and time.monotonic() < until:
            number += stride
    finally:
        trial.close()


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_c1_interrupt_before_publish(transport: str, error: type[BaseException], monkeypatch: Any) -> None:
    """A rank that is interrupted in a call and goes on with the next one gives no rank a wrong value."""
    if transport == "shm" and shm.usable() is not None:
        pytest.skip(str(shm.usable()))
    failing, warmed = threading.local(), threading.Barrier(2)
    bind = BoundPlan.__init__

    def interrupted(self: BoundPlan, *arguments: Any) -> None:
        if getattr(failing, "now", False):
            failing.now = False
            raise error
        bind(self, *arguments)

    monkeypatch.setattr(BoundPlan, "__init__", interrupted)

    def body(comm: Communicator) -> list[Any]:
        warm = np.ones(4, np.float32)
        for _ in range(20):
            comm.allreduce(warm, out=warm)
        warmed.wait(PATIENCE)  # an abort may overtake a message
        y, z = (np.full(5000, k * (comm.rank + 1)) for k in (10.0, 1000.0))
        failing.now = comm.rank == 0
        found: list[Any] = []
        for x in (y, z, z) if comm.rank == 0 else (y, z):
            try:
                found.append(float(comm.allreduce(x, timeout=8)[0]))
            except BaseException as one:
                found.append(type(one))
        return found

    world = World(transport, 2, compiled=("off",))
    try:
        first, second = world.run(body)
        assert first == [error, AbortedError, AbortedError]
        assert second == [AbortedError, AbortedError]
    finally:
        world.close()


@pytest.mark.parametrize(("transport", "compiled"), [("local", "off"), ("tcp", "off"), ("shm", "off"), ("shm", "on")])
@pytest.mark.parametrize("line", range(0, 60, 1 if LONG else 15))
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the engine raises it again
def test_an_interrupt_in_the_thread_of_asynchronous_calls(
    transport: str, compiled: str, line: int, named: bool
) -> None:
    """Also a thread without signal handlers may run out of memory: every Work ends, and all ranks hear of it."""
    if transport == "shm" and shm.usable() is not None:
        pytest.skip(str(shm.usable()))
    if compiled == "on":
        pytest.importorskip("numba", reason="needs the compiled interpreter")

    class Failing:
        left = line

        def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
            code = frame.f_code
            file = "engine.py" if named else "call_queue.py"
            here = code.co_filename.endswith(file) and code.co_name not in ("_serve", "_recover", "_fail_all")
            if event == "line" and here and threading.current_thread().name.endswith("rank 0"):
                self.left -= 1
                if self.left == -1:
                    raise MemoryError
            return self

    def body(comm: Communicator) -> list[Any]:
        x, works = np.ones(4), []
        comm.barrier()
        ready.wait(PATIENCE)  # an abort may overtake a message
        if comm.rank == 0:
            threading.settrace(Failing())  # for the thread that the first call starts
        found: list[Any] = []
        for number in range(17):
            try:
                works.append(comm.allreduce_async(x, ("sum", "prod")[number % 2], name=str(number) if named else None))
            except RondeError as error:
                found.append(error)
            finally:
                threading.settrace(None)  # type: ignore[arg-type]
        for work in works:
            try:
                found.append(float(work.wait(PATIENCE)[0]))
            except (RondeError, MemoryError) as error:
                found.append(error)
        assert not any(isinstance(value, DeadlineExceeded) for value in found), found
        return found

    ready = threading.Barrier(2)
    world = World(transport, 2, compiled=(compiled,), timeout=10.0)
    try:
        for found in world.run(body):
            values = [value for value in found if isinstance(value, float)]
            assert set(values) <= {1.0, 2.0}
        assert all(comm.failure is not None for comm in world.communicators) or len(values) == 17
    finally:
        world.close()


@pytest.mark.parametrize("kind", ["line", "instruction"])
def test_an_interrupt_while_an_operation_ends_leaves_nobody_waiting(kind: str) -> None:
    for points in each_point(kind):
        waits = threading.Event()
        work = Promise[int](waits.set)
        with ThreadPoolExecutor(1) as waiting:
            result = waiting.submit(work.wait, PATIENCE)
            assert waits.wait(PATIENCE)
            if points.interrupt(lambda: work.set_result(7)) and not work.test():  # noqa: B023 - it is called here
                work.set_result(7)
            assert (result.result(), work.wait(PATIENCE)) == (7, 7), points.place


@pytest.mark.parametrize("kind", ["line", "instruction"])
def test_an_interrupt_while_an_operation_ends_loses_no_callback_but_that_in_hand(kind: str) -> None:
    for points in each_point(kind):
        work, called = Promise[int](), list[int]()
        for number in range(3):
            work.add_done_callback(lambda _, number=number, called=called: called.append(number))
        if points.interrupt(lambda: work.set_result(7)) and not work.test():  # noqa: B023 - it is called here
            work.set_result(7)
        assert called in ([0, 1, 2], [0, 1], [0, 2], [1, 2]), points.place


def test_a_callback_that_is_interrupted_keeps_no_other_from_being_called() -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    work, called = Promise[int](), list[object]()
    work.add_done_callback(interrupted)
    work.add_done_callback(called.append)
    with pytest.raises(KeyboardInterrupt):
        work.set_result(7)
    assert called == [work]


def test_c3_planning_race() -> None:
    """Tables that several threads make at once belong to their own plans."""
    pytest.importorskip("numba", reason="needs the compiled interpreter")
    if shm.usable() is not None:
        pytest.skip(str(shm.usable()))

    def body(comm: Communicator) -> None:
        def work(thread: int) -> None:
            works = []
            for k in range(60):
                x = np.ones(8 + 2 * k + thread, np.float32)
                works.append(comm.allreduce_async(x, out=x, name=f"{thread}-{k}"))
            for one in works:
                one.wait(PATIENCE)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        planner = executor_of(comm, named=True).planner
        plans = [planner.plan(plan.call) for plan in kept_plans(comm, named=True)]
        tables = [(plan, plan.bound[Table]) for plan in plans if plan.bound.get(Table) is not None]
        assert tables
        for plan, table in tables:
            assert planner.numbered[int(table.words[layout.NUMBER])] is plan

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    world = World("shm", 2, compiled=("on",))
    try:
        world.run(body)
    finally:
        sys.setswitchinterval(interval)
        world.close()


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_the_worker_gives_back_the_locks_that_an_error_has_left(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: set[int] = set()
    bind = BoundPlan.__init__

    def left(self: BoundPlan, binder: Binder, *arguments: Any) -> None:
        if threading.get_ident() in callers:
            bind(self, binder, *arguments)
            return
        binder.transport.lock.acquire()  # type: ignore[attr-defined]  # as if it came at the end of a `with`
        raise MemoryError

    monkeypatch.setattr(BoundPlan, "__init__", left)

    def body(comm: Communicator) -> bool:
        callers.add(threading.get_ident())
        with pytest.raises((MemoryError, AbortedError)):
            comm.allreduce_async(np.ones(3)).wait(PATIENCE)
        lock = comm.transport.lock  # type: ignore[attr-defined]
        taken = lock.acquire(timeout=PATIENCE)
        if taken:
            lock.release()
        return bool(taken)

    world = World(transport, 2, compiled=("off",))
    try:
        assert world.run(body) == [True, True]
    finally:
        world.close()
