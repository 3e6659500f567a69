"""The compiled interpreter, on tables and control words that a test writes."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from collectives.arrays import inner_loop
from collectives.flight import CALLS, FlightRecord
from collectives.jit import (
    ABSOLUTE,
    ANYWHERE,
    OUTSIDE,
    REFERRED,
    SOURCE,
    SOURCE_IS_READ,
    STAGED_SLOT,
    TARGET,
    TARGET_IS_READ,
    Answer,
    ArrayKind,
    CFunction,
    Extents,
    JobRing,
    Location,
    MachineCode,
    Operand,
    Scale,
    State,
    TableWriter,
    bind,
    fitting,
    layout,
    load,
    note_time,
    scaled,
    take_times,
)
from transports.compiled import BY_FUTEX
from transports.onesided import ARENA, ASKED, CHECKS, EPOCH, EXPOSED, KEPT, MASK_BYTES, OPENED, Controls, address
from transports.shm.doorbell import CAN_SLEEP, wake_all

pytest.importorskip("numba", reason="the compiled interpreter needs Numba")

EPOCHS = 1001
CHECK = 0xABCDEF01
FLOAT = np.dtype(np.float32)
NO_WINDOWS = Extents()
HIDDEN: list[mmap.mmap] = []
"""Memory that stays mapped."""


class Rig:
    """A state with the control words of two ranks, and a table; this rank is number 0."""

    def __init__(
        self,
        *,
        spins: int = 100,
        yields: int = 0,
        sleeps: int = 0,
        slots: int = 2,
        slot_stride: int = 0,
        bells: tuple[int, ...] = (),
        cores: bytes = b"",
    ) -> None:
        code = load(time.monotonic() + 600)
        assert isinstance(code, MachineCode), code
        self.code = code
        self.controls = np.zeros((2, 32), np.uint64)
        self.notes = np.zeros(3, np.int64)
        self.state = State(code, FlightRecord().call_log("0-0", 2, 0, ""), EPOCHS)
        words = tuple(address(row) for row in self.controls)
        notes = address(self.notes)
        controls = Controls(words, notes, notes + 8, spins, yields, sleeps, lambda: None, (), bells, cores=cores)
        self.state.use(controls, 0, 4096)
        self.tally = np.array([0, 1 << 60])
        self.writer = TableWriter()
        self.slots, self.slot_stride = slots, slot_stride
        self.peer = words[1]

    def bind(self, **options: Any) -> Any:
        return bind(self.state, self.table(**options))

    def table(self, **options: Any) -> Any:
        return self.writer.table(
            self.state,
            7,
            CHECK,
            self.slots,
            self.slot_stride,
            address(self.tally),
            **{"alignment": 4, "releases": False} | options,
        )

    def publish(self, epoch: int, check: int) -> None:
        """Act as rank 1."""
        slot = CHECKS + 2 * (epoch % KEPT)
        self.controls[1, slot : slot + 2] = epoch, check
        self.controls[1, EPOCH] = epoch


def kernel(ufunc: Any = np.add, dtype: Any = FLOAT) -> CFunction:
    loop = inner_loop(ufunc, dtype)
    assert loop is not None
    return CFunction(*loop)


@pytest.mark.parametrize("releases", [False, True])
def test_a_call_from_beginning_to_end(releases: bool) -> None:
    rig = Rig()
    stage, theirs = np.zeros(4, np.float32), np.arange(4, dtype=np.float32)
    writer = rig.writer
    writer.copy(16, Operand(ABSOLUTE, address(stage)), Operand(SOURCE, 0))
    writer.signal(1)
    writer.wait(1, rig.peer)
    writer.reduce(4, Operand(TARGET, 0), Operand(SOURCE, 0), Operand(ABSOLUTE, address(theirs)), kernel(), 4)
    run = rig.bind(releases=releases)
    x, out = np.full(4, 10, np.float32), np.zeros(4, np.float32)
    for number in (1, 2, 3):
        epoch, check = number * EPOCHS + 1, CHECK ^ number
        rig.publish(epoch, check)
        assert run(x, out) is None
        assert stage.tolist() == x.tolist()
        assert out.tolist() == (x + theirs).tolist()
        assert rig.state.log.words[CALLS] == rig.tally[0] == number
        slot = CHECKS + 2 * (number - 1)
        assert rig.controls[0, [EPOCH, slot, slot + 1]].tolist() == [epoch, epoch, check]
        assert rig.notes.tolist() == [0, epoch, number]
        x += 1


@pytest.mark.parametrize("releases", [False, True])
def test_a_wait_that_yields_the_core(releases: bool) -> None:
    """It lets go of Python's lock at last, also where the call keeps that at first: the peer is a thread. Its yields
    end in time, and it sleeps then."""
    rig = Rig(spins=0, yields=1 << 40, sleeps=20_000)
    rig.writer.signal(1)
    rig.writer.wait(1, rig.peer)
    run, x = rig.bind(releases=releases), np.ones(1, np.float32)

    def publish_later() -> None:
        while rig.controls[0, EPOCH] < EPOCHS + 1:  # the call has begun: it waits, or is about to
            time.sleep(0.001)
        rig.publish(EPOCHS + 1, CHECK ^ 1)

    peer = threading.Thread(target=publish_later)
    peer.start()
    assert run(x, np.zeros(1, np.float32)) is None
    peer.join()


@pytest.mark.parametrize(("spins", "yields"), [(100, 0), (0, 3), (0, 0)])
def test_what_it_leaves_to_python(spins: int, yields: int) -> None:
    rig = Rig(spins=spins, yields=yields)
    x = np.ones(1, np.float32)
    rig.writer.signal(1)
    rig.writer.wait(1, rig.peer)
    rig.writer.copy(4, Operand(TARGET, 0), Operand(SOURCE, 0))
    run, target = rig.bind(), np.zeros(1, np.float32)
    assert run(x, target) == 1  # the peer has not come
    assert target == 0
    assert run(x, target, 2, 3) is None
    assert target == 1
    rig.publish(2 * EPOCHS + 1, CHECK ^ 3)
    assert run(x, target) == 1  # its check differs
    rig.publish(3 * EPOCHS + 2, CHECK ^ 3)
    assert run(x, target) == 1  # it is ahead, and what it published with the awaited epoch is not there
    rig.publish(4 * EPOCHS + 1, CHECK ^ 4)
    rig.controls[0, ASKED] = 1
    assert run(x, target) == 0  # a rank sleeps: it is published, and to be woken
    assert rig.controls[0, EPOCH] == 4 * EPOCHS + 1
    assert run(x, target, 1, 3) is None


@pytest.mark.skipif(not CAN_SLEEP, reason="machine code sleeps by futex(2)")
@pytest.mark.parametrize("as_job", [False, True])
@pytest.mark.parametrize("asleep", [0, BY_FUTEX, 2])
def test_a_call_wakes_ranks_that_sleep_and_leaves_those_on_descriptors_to_python(asleep: int, as_job: bool) -> None:
    bell = np.array([asleep, 0], np.uint32)
    rig, x = Rig(bells=(address(bell),)), np.zeros(4, np.float32)
    rig.controls[0, ASKED] = asleep > 0
    rig.writer.signal(1)
    if as_job:
        ring, table = JobRing(rig.code), rig.table()
        ring.submit(table, x, x)
        ring.call(1)
        answer = ring.serve()
    else:
        answer = rig.bind()(x, x)
    assert rig.controls[0, EPOCH] == EPOCHS + 1
    if asleep == 2:  # nothing is done: Python wakes the rank by its descriptor
        assert (answer, bell[0], rig.controls[0, ASKED]) == (0, 2, 1)
    else:
        assert (answer, bell[0], rig.controls[0, ASKED]) == (None, 0, 0)


@pytest.mark.skipif(not CAN_SLEEP, reason="machine code sleeps by futex(2)")
@pytest.mark.parametrize("releases", [False, True])
def test_a_call_sleeps_until_a_late_rank_has_published(releases: bool) -> None:
    """Rank 1 publishes once this rank has asked to be woken."""
    rig, x = Rig(sleeps=20_000), np.zeros(4, np.float32)
    rig.writer.wait(1, rig.peer)
    run = rig.bind(releases=releases)

    def publish_once_it_sleeps() -> None:
        while not rig.controls[1, ASKED]:
            time.sleep(0)
        rig.publish(EPOCHS + 1, CHECK ^ 1)
        wake_all(rig.peer + 8 * EPOCH)

    peer = threading.Thread(target=publish_once_it_sleeps)
    peer.start()
    assert run(x, x) is None
    peer.join()


@pytest.mark.skipif(not CAN_SLEEP, reason="machine code sleeps by futex(2)")
@pytest.mark.parametrize("moves", [True, False])
def test_a_thread_that_sleeps_is_bound_to_its_part_of_the_cores(moves: bool) -> None:
    """Unless it may use other cores than those of the masks."""
    allowed, part, strange = os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}, {1000}
    masks = [sum(1 << core for core in cores) for cores in (allowed if moves else strange, part)]
    cores = b"".join(mask.to_bytes(MASK_BYTES, "little") for mask in masks)
    rig, x = Rig(sleeps=20_000, cores=cores), np.zeros(4, np.float32)
    rig.writer.wait(1, rig.peer)
    run, found, sleeper = rig.bind(), [], threading.get_native_id()

    def publish_once_it_sleeps() -> None:
        while not rig.controls[1, ASKED]:
            time.sleep(0)
        found.append(os.sched_getaffinity(sleeper))
        rig.publish(EPOCHS + 1, CHECK ^ 1)

    peer = threading.Thread(target=publish_once_it_sleeps)
    peer.start()
    assert run(x, x) is None
    peer.join()
    assert found == [part if moves else allowed]
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.skipif(not CAN_SLEEP, reason="machine code sleeps by futex(2)")
def test_a_call_does_not_sleep_in_a_window_that_is_closed_meanwhile() -> None:
    rig, x = Rig(sleeps=1 << 40), np.zeros(4, np.float32)
    rig.writer.wait(1, rig.peer)
    run = rig.bind(releases=True)

    def close_once_it_sleeps() -> None:
        while not rig.controls[1, ASKED]:
            time.sleep(0)
        rig.notes[0] = 1

    peer = threading.Thread(target=close_once_it_sleeps)
    peer.start()
    assert run(x, x) == 0
    peer.join()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_call_that_scales(in_place: bool) -> None:
    rig = Rig()
    twice, thrice = np.array([2], np.float32), np.array([3], np.float32)
    writer = rig.writer
    writer.reduce(4, Operand(TARGET, 0), Operand(SOURCE, 0), Operand(SOURCE, 0), kernel(), 4)
    writer.wait(2, rig.peer)
    multiply = kernel(np.multiply)
    plain = rig.table()
    table = scaled(plain, Scale(multiply, address(twice)), Scale(multiply, address(thrice)), 4, 4)
    run = bind(rig.state, table)
    given, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    x = out if in_place else given
    out[:] = given
    rig.publish(EPOCHS + 2, CHECK)
    assert run(x, out) is None
    assert out.tolist() == (given * 12).tolist()
    out[:] = given
    assert run(x, out) == 1  # the peer has not come: the last row is left, and the result not scaled yet
    assert out.tolist() == (given * 4).tolist()
    assert run(x, out, 2, 2) is None
    assert out.tolist() == (given * 12).tolist()
    out[:] = given
    rig.tally[1] = 1
    rig.publish(3 * EPOCHS + 2, CHECK)
    assert run(x, out) == Answer.OBSERVED
    assert out.tolist() == (given * 12).tolist()
    only_after = scaled(plain, None, Scale(multiply, address(thrice)), 4, 4)
    rig.tally[1] = 1 << 60
    rig.publish(4 * EPOCHS + 2, CHECK)
    out[:] = 1
    assert bind(rig.state, only_after)(given, out) is None
    assert out.tolist() == (given * 6).tolist()


def test_the_times_of_a_call() -> None:
    rig = Rig()
    rig.writer.copy(4, Operand(TARGET, 0), Operand(SOURCE, 0))
    rig.writer.wait(1, rig.peer)
    table, x, target = rig.table(), np.ones(1, np.float32), np.zeros(1, np.float32)
    run = bind(rig.state, table)
    rig.tally[1] = 2
    rig.publish(EPOCHS + 1, CHECK ^ 1)
    assert run(x, target) is None  # it is not its turn
    assert take_times(table) is None
    began = time.perf_counter_ns()
    rig.publish(2 * EPOCHS + 1, CHECK ^ 2)
    assert run(x, target) == Answer.OBSERVED
    rig.publish(3 * EPOCHS + 1, CHECK ^ 3)
    assert run(x, target) is None  # the times of the call before are still there
    number, times = take_times(table) or (0, [])
    assert number == 2
    assert len(times) == 4
    times = [began, *times, time.perf_counter_ns()]
    assert times == sorted(times)
    assert take_times(table) is None
    assert run(x, target) == 1  # Python does that row
    assert take_times(table) is None
    note_time(table, 4, 1)
    note_time(table, 5, 0)  # that is another call
    assert run(x, target, 2, 2) is None
    number, later = take_times(table) or (0, [])
    assert (number, len(later)) == (4, 4)
    assert later == sorted(later)
    assert run(x, target) == 1
    number, partly = take_times(table, failed=True) or (0, [])
    assert (number, len(partly)) == (5, 3)  # its begin, the first row, its end
    assert partly == sorted(partly)


def test_calls_that_do_not_begin() -> None:
    rig = Rig()
    rig.writer.copy(4, Operand(TARGET, 0), Operand(SOURCE, 0))
    run = rig.bind()
    x, target = np.ones(1, np.float32), np.zeros(1, np.float32)
    assert run(x, target) is None
    assert rig.state.log.words[CALLS] == 1
    target[:] = 0
    odd = np.frombuffer(b"\0" * 5, np.uint8)[1:].view(np.float32)
    assert run(odd, target) == Answer.UNFIT
    rig.notes[0] = 1
    assert run(x, target) == Answer.OVER
    assert rig.state.log.words[CALLS] == 1
    assert target == 0


def test_slots_move_the_stage() -> None:
    rig = Rig(slots=4, slot_stride=64)
    stage = np.zeros(8192, np.uint8)
    rig.writer.copy(1, Operand(STAGED_SLOT, address(stage)), Operand(SOURCE, 0))
    run, x = rig.bind(alignment=1), np.ones(1, np.uint8)
    for _ in range(4):
        assert run(x, x) is None
    assert np.flatnonzero(stage).tolist() == [0, 64, 4096, 4096 + 64]


def test_a_division_follows_its_reduction() -> None:
    rig = Rig()
    four = np.array([4], np.float32)
    rig.writer.reduce(3, Operand(TARGET, 0), Operand(SOURCE, 0), Operand(TARGET, 0), kernel(), 4)
    rig.writer.divide(kernel(np.divide), address(four))
    x, target = np.array([1, 2, 3], np.float32), np.array([7, 6, 5], np.float32)
    assert rig.bind()(x, target) is None
    assert target.tolist() == [2, 2, 2]


def fits(x: Any, result: tuple[Any, Any], *places: Any, in_place: bool) -> Any:
    """`places`: of fitting."""
    dtype, shape = result
    return fitting(Rig().code, x, ArrayKind(np.dtype(dtype), shape), *(places or (NO_WINDOWS,)), in_place=in_place)


def test_arrays_that_fit_in_place() -> None:
    like = np.zeros((3, 4), np.float32)
    plain = fits(like, (np.float32, (3, 4)), in_place=True)
    assert plain(like, like)
    other = np.ones((3, 4), np.float32)
    assert plain(other, other)
    assert not plain(like, other)
    assert not plain(like, None)
    fixed = like.copy()
    fixed.flags.writeable = False
    odd = np.frombuffer(bytearray(49), np.uint8)[1:].view(np.float32).reshape(3, 4)
    others = (
        fixed,
        odd,
        like.T,
        like.reshape(4, 3),
        like.reshape(-1),
        like.reshape(3, 4, 1),
        np.zeros((3, 8), np.float32)[:, ::2],
        like.astype(np.int32),
        np.ma.masked_array(like),
        like.view(np.recarray),
        None,
        3,
        [1],
    )
    assert not any(plain(each, each) for each in others)


def test_arrays_that_fit_apart() -> None:
    like = np.zeros(4, np.float32)
    gathers = fits(like, (np.float32, (8,)), in_place=False)
    assert gathers(like, None)
    assert gathers(like, np.zeros(8, np.float32))
    fixed = np.zeros(8, np.float32)
    fixed.flags.writeable = False
    for out in (like, fixed, np.zeros(8), np.zeros(4, np.float32), np.zeros(16, np.float32)[::2], 3):
        assert not gathers(like, out)
    memory = np.zeros(32, np.float32)
    assert gathers(memory[:4], memory[4:12])
    assert gathers(memory[12:16], memory[4:12])
    assert not gathers(memory[4:8], memory[4:12])
    assert not gathers(memory[2:6], memory[4:12])
    assert not gathers(memory[11:15], memory[4:12])
    fixed = like.copy()
    fixed.flags.writeable = False
    assert gathers(fixed, None)


def test_arrays_that_are_in_no_window() -> None:
    private, window = np.zeros(4, np.float32), np.zeros(12, np.float32)
    extents = Extents()
    both = fits(private, (np.float32, (4,)), extents, (OUTSIDE, OUTSIDE), in_place=False)
    result = fits(private, (np.float32, (4,)), extents, (ANYWHERE, OUTSIDE), in_place=False)
    own = fits(private, (np.float32, (4,)), extents, (OUTSIDE, OUTSIDE), in_place=True)
    assert both(window[:4], window[4:8])
    extents.set([(address(window), address(window) + window.nbytes)])
    for start in (0, 4, 8):
        inside = window[start : start + 4]
        assert not both(inside, private)
        assert not both(private, inside)
        assert not own(inside, inside)
        assert result(inside, private)
        assert not result(private, inside)
    assert both(private, None)
    assert both(private, private.copy())
    assert own(private, private)
    extents.set([])
    x = window[:4]
    assert own(x, x)


def test_arrays_that_are_at_a_place_in_a_window() -> None:
    window, private = np.zeros(12, np.float32), np.zeros(4, np.float32)
    here = Location(address(window) + 16, id(window))
    own = fits(private, (np.float32, (4,)), NO_WINDOWS, (here, here), in_place=True)
    x = window[4:8]
    assert own(x, x)
    assert not own(window[:4], window[:4])
    assert not own(private, private)
    through_a_buffer = np.frombuffer(memoryview(window), np.float32)[4:8]
    assert not own(through_a_buffer, through_a_buffer)
    given = fits(private, (np.float32, (4,)), NO_WINDOWS, (here, ANYWHERE), in_place=False)
    assert given(x, None)
    assert given(x, private)
    assert not given(private, None)
    taken = fits(private, (np.float32, (4,)), NO_WINDOWS, (ANYWHERE, here), in_place=False)
    assert taken(private, x)
    assert not taken(private, None)
    assert not taken(private, private.copy())


def test_shapes_of_any_dimensions() -> None:
    for shape in ((), (1,), (2, 0), (1, 2, 3, 4, 5)):
        x = np.zeros(shape, np.int64)
        assert fits(x, (np.int64, shape), in_place=True)(x, x)
        assert not fits(x, (np.int64, shape), in_place=True)(*[np.zeros((7, *shape), np.int64)] * 2)


class Reading(Rig):
    """A rig whose peer exposes an array that lies in its arena, `shift` bytes from the address that it tells."""

    def __init__(self, count: int = 8) -> None:
        super().__init__(slots=1)
        self.theirs = np.arange(count, dtype=np.float32)
        self.shared = np.ones(1, np.int64)
        shift = 1 << 30
        told = address(self.theirs) - shift
        self.located = np.array([told, told + self.theirs.nbytes, shift, address(self.shared)], np.int64)
        self.controls[1, EXPOSED] = told
        self.failed, self.opened = np.zeros(1, np.int64), np.full(1, OPENED, np.int64)
        self.checked = np.array([address(self.failed), 1, address(self.opened)], np.int64)
        self.reference, self.scratch = np.zeros(1, np.int64), np.zeros(count, np.float32)
        self.controls[1, ARENA] = told

    def read(self, result: Operand, *, reference: int = 0, process: int = 0) -> None:
        nbytes = self.theirs.nbytes
        self.writer.read(nbytes, result, Operand(0, 0), self.peer, address(self.located), reference, process)

    def add(self) -> None:
        """Add the array that was read with a reference to the source."""
        peer = Operand(REFERRED, address(self.reference))
        self.writer.reduce(8, Operand(TARGET, 0), Operand(SOURCE, 0), peer, kernel(), 4)

    def expose_private(self) -> None:
        """The peer has an arena, which is known, and exposes an array that lies elsewhere."""
        self.controls[1, EXPOSED] = address(self.theirs)


def test_a_read_copies_an_array_where_the_peer_has_it() -> None:
    rig = Reading()
    rig.read(Operand(TARGET, 0))
    run, target = rig.bind(), np.zeros(8, np.float32)
    assert run(target, target) is None
    np.testing.assert_array_equal(target, rig.theirs)
    rig.shared[0] = 0
    rig.theirs += 1
    assert run(target, target) == 0
    assert target[0] == 0


def test_a_combination_reads_a_peers_array_where_it_lies() -> None:
    rig = Reading()
    rig.read(Operand(ABSOLUTE, address(rig.scratch)), reference=address(rig.reference))
    rig.add()
    run, x, target = rig.bind(), np.ones(8, np.float32), np.zeros(8, np.float32)
    assert run(x, target) is None
    np.testing.assert_array_equal(target, rig.theirs + 1)
    assert not rig.scratch.any()
    rig.shared[0] = 0  # Python reads it into the scratch memory instead
    assert run(x, target) == 0
    rig.scratch[:] = 5
    assert run(x, target, 1, 2) is None
    assert (target == 6).all()


def test_the_system_reads_an_array_that_is_in_no_arena() -> None:
    rig = Reading()
    rig.expose_private()
    rig.read(Operand(TARGET, 0), process=os.getpid())
    run, target = rig.bind(), np.zeros(8, np.float32)
    assert run(target, target) is None
    np.testing.assert_array_equal(target, rig.theirs)
    rig.theirs += 1
    told, rig.controls[1, ARENA] = int(rig.controls[1, ARENA]), 4096  # another arena, of which Python has to learn
    assert run(target, target) == 0
    rig.controls[1, ARENA] = told
    rig.controls[1, EXPOSED] = 4096  # nothing is there: the error is Python's
    assert run(target, target) == 0
    rig.expose_private()
    assert run(target, target) is None
    np.testing.assert_array_equal(target, rig.theirs)
    rig.located[:] = rig.controls[1, ARENA] = 0  # it has no arena
    rig.theirs += 1
    assert run(target, target) is None
    np.testing.assert_array_equal(target, rig.theirs)


@pytest.mark.processes
def test_the_array_of_a_process_that_has_gone_is_left_to_python() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    rig = Reading()
    rig.expose_private()
    rig.read(Operand(TARGET, 0), process=gone.pid)
    run, target = rig.bind(), np.zeros(8, np.float32)
    assert run(target, target) == 0


def test_a_combination_reads_an_array_that_is_in_no_arena_into_the_scratch_memory() -> None:
    rig = Reading()
    rig.expose_private()
    rig.read(Operand(ABSOLUTE, address(rig.scratch)), reference=address(rig.reference), process=os.getpid())
    rig.add()
    run, x, target = rig.bind(), np.ones(8, np.float32), np.zeros(8, np.float32)
    assert run(x, target) is None
    np.testing.assert_array_equal(target, rig.theirs + 1)
    np.testing.assert_array_equal(rig.scratch, rig.theirs)


def test_a_signal_is_left_after_a_read_if_a_rank_has_failed() -> None:
    for failed, opened in ((1, OPENED), (0, OPENED + 1)):
        rig = Reading()
        rig.read(Operand(TARGET, 0))
        rig.writer.signal(2)
        run, target = rig.bind(checked=address(rig.checked)), np.zeros(8, np.float32)
        assert run(target, target) is None
        rig.failed[0], rig.opened[0] = failed, opened
        assert run(target, target) == 2
        assert int(rig.controls[0, EPOCH]) == EPOCHS + 2


def test_arrays_that_peers_read_must_be_readable() -> None:
    """A page without the right to read stands for the memory of a device."""
    rig, x = Reading(), np.zeros(8, np.float32)
    target = np.frombuffer((ctypes.c_char * 32).from_address(hidden_page()), np.float32)
    rig.writer.signal(1)
    rig.writer.expose()
    own = np.array([address(x), 7, 9, address(x) + x.nbytes], np.int64)
    rig.state.words[layout.ARENA] = address(own)
    both = rig.bind(exposes=SOURCE_IS_READ | TARGET_IS_READ)
    assert both(x, target) == Answer.UNFIT
    assert rig.bind(exposes=SOURCE_IS_READ)(x, target) is None
    private = np.zeros(8, np.float32)
    for second in (x, private):
        assert both(x, second) is None
        assert rig.controls[0, EXPOSED : EXPOSED + 2].tolist() == [address(x), address(second)]
        assert rig.controls[0, ARENA : ARENA + 3].tolist() == [address(x), 7, 9]


def hidden_page() -> int:
    """The address of memory that cannot be read."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), mmap.PAGESIZE, 0) == 0
    HIDDEN.append(page)
    return start
