"""The progress thread in machine code: it runs the jobs of a ring one after the other, and sleeps where it has to wait.

A job is a table with the addresses of its arrays. Two things that a plain call leaves to Python, this thread does
itself: it wakes ranks that sleep, and it sleeps until a peer's epoch comes. Everything else, and a peer that stays
late, is Python's as ever: `serve` returns the answer of the interpreter. Numba is needed to import this
module.
"""

from __future__ import annotations

from collectives.jit import layout as at
from collectives.jit.atomics import (
    compiled,
    field,
    futex_wait,
    futex_wake,
    half_word,
    int_value,
    keep,
    load_acquire,
    load_ordered,
    new_int,
    put,
    restore_thread,
    save_thread,
    store_ordered,
)
from collectives.jit.interpreter import (
    agrees,
    begin,
    data_of,
    end_call,
    fits_table,
    interpret,
    note_time,
    number_of,
)
from collectives.jit.lanes import rouse
from transports.compiled import BY_FUTEX
from transports.onesided import ASKED, EPOCH

_ALL = 1 << 30
_SLEEP = 10_000_000
"""Nanoseconds: the longest sleep for an epoch. A rank that publishes by functions of Python may miss that this one is
about to sleep (transports/shm/doorbell.py)."""
_SLEEPS = 3
"""Sleeps for an epoch, before the wait is left to Python, which looks whether the peer lives."""


@compiled
def wake(state: int) -> bool:
    """Wake all ranks that sleep until this one publishes: what `Controls.wake` does. False, with nothing done, if one
    sleeps on a descriptor: that is for Python."""
    own, bells, count = field(state, at.OWN), field(state, at.BELLS), field(state, at.BELL_COUNT)
    for index in range(count):
        if half_word(field(bells, index)) > BY_FUTEX:
            return False
    store_ordered(own + 8 * ASKED, 0)
    for index in range(count):
        rouse(field(bells, index))
    futex_wake(own + 8 * EPOCH, _ALL)
    return True


@compiled
def comes(state: int, control: int, epoch: int) -> bool:
    """Sleep until a rank has published `epoch`; False if it does not soon, or if the window is closed."""
    for _ in range(_SLEEPS):
        store_ordered(control + 8 * ASKED, 1)
        newest = load_ordered(control + 8 * EPOCH)
        if newest >= epoch:
            return True
        if load_acquire(field(state, at.STOPPED)) != 0:
            return False
        futex_wait(control + 8 * EPOCH, newest, _SLEEP)
    return load_acquire(control + 8 * EPOCH) >= epoch


@compiled
def run_rows(table: int, source: int, target: int, timed: bool) -> int:
    """Run the rows of the newest call. Returns DONE or OBSERVED, or the row that is left to Python."""
    state = field(table, at.STATE)
    number = number_of(state)
    epoch, check = number * field(state, at.EPOCHS), field(table, at.CHECK) ^ (number & 0xFFFFFFFF)
    first, rows = 0, field(table, at.ROWS)
    while True:
        left = interpret(table, state, source, target, first, rows, timed)
        if left == at.DONE:
            return end_call(table, state, timed)
        if left == rows:  # a rank has failed
            return left
        row = table + 8 * (at.HEAD_WORDS + left * at.ROW_WORDS)
        opcode = field(row, at.OPCODE)
        if opcode == at.SIGNAL:
            if not wake(state):
                return left
        elif opcode != at.WAIT:
            return left
        else:
            control, phase = field(row, at.CONTROL), field(row, at.COUNT)
            if not comes(state, control, epoch + phase):
                return left
            if phase == 1 and not agrees(control, epoch + phase, check):
                return left
        first = left + 1
        if timed:
            note_time(table, state, first)


@compiled
def run_job(table: int, source: int, target: int) -> int:
    """Run a new call of a table. Returns DONE, or what is left to Python, as `run_table` does. The times of a call stay
    in the table for whoever sees its end, unless every call is to be timed: this thread does not need Python's lock."""
    if not fits_table(table, source, target):
        return at.UNFIT
    answer = begin(table, field(table, at.STATE))
    if answer != at.OVER:
        answer = run_rows(table, source, target, answer == at.OBSERVED)
    return at.DONE if answer == at.OBSERVED and field(field(table, at.TALLY), at.TALLY_NEXT) != 0 else answer


@compiled
def end_job(ring: int) -> None:
    """Count the oldest job as ended, and wake those that wait for it."""
    store_ordered(ring + 8 * at.ENDED, field(ring, at.ENDED) + 1)
    if load_ordered(ring + 8 * at.WAITERS) != 0:
        futex_wake(ring + 8 * at.ENDED, _ALL)


@compiled
def serve_ring(ring: int) -> int:
    """Run jobs until the server is called. Returns DONE, or what the oldest job leaves to Python."""
    while True:
        rung, number = load_acquire(ring + 8 * at.BELL), field(ring, at.ENDED)
        if load_acquire(ring + 8 * at.SUBMITTED) != number:
            job = ring + 8 * (at.JOBS + number % at.CAPACITY * at.JOB_WORDS)
            answer = run_job(field(job, at.JOB_TABLE), field(job, at.JOB_SOURCE), field(job, at.JOB_TARGET))
            if answer != at.DONE:
                return answer
            end_job(ring)
        elif load_ordered(ring + 8 * at.CALLED) == 0:
            store_ordered(ring + 8 * at.ASLEEP, 1)
            if load_ordered(ring + 8 * at.BELL) == rung:
                futex_wait(ring + 8 * at.BELL, rung, -1)
            put(ring + 8 * at.ASLEEP, 0)
        if load_ordered(ring + 8 * at.CALLED) != 0:
            return at.DONE


@compiled
def ring_bell(ring: int) -> None:
    """Have the server look at its ring again. Python's lock is held, so no two threads do this at once."""
    store_ordered(ring + 8 * at.BELL, field(ring, at.BELL) + 1)
    if load_ordered(ring + 8 * at.ASLEEP) != 0:
        futex_wake(ring + 8 * at.BELL, 1)


@compiled
def none_of(ring: int) -> int:
    """The object None, for Python."""
    none = field(ring, at.RING_NONE)
    keep(none)
    return none


@compiled
def serve(owner: int, arguments: int, count: int) -> int:
    """serve()   run the jobs of the ring without Python's lock, until the server is called. Returns None; or an int,
    what the oldest job leaves to Python (see run_table): `end` must follow"""
    ring = data_of(owner)
    thread = save_thread()
    answer = serve_ring(ring)
    restore_thread(thread)
    if answer != at.DONE:
        return new_int(answer)
    return none_of(ring)


@compiled
def submit(owner: int, arguments: int, count: int) -> int:
    """submit(table, source, target)   add a job, for which there must be room"""
    ring = data_of(owner)
    number = field(ring, at.SUBMITTED)
    job = ring + 8 * (at.JOBS + number % at.CAPACITY * at.JOB_WORDS)
    for index in range(at.JOB_WORDS):
        put(job + 8 * index, data_of(field(arguments, index)))
    store_ordered(ring + 8 * at.SUBMITTED, number + 1)
    ring_bell(ring)
    return none_of(ring)


@compiled
def end(owner: int, arguments: int, count: int) -> int:
    """end()   Python has done what the oldest job had left to it"""
    ring = data_of(owner)
    end_job(ring)
    return none_of(ring)


@compiled
def call(owner: int, arguments: int, count: int) -> int:
    """call(wanted)   1: the server is to come back to Python, after its present job; 0: not any more"""
    ring, wanted = data_of(owner), int_value(field(arguments, 0))
    store_ordered(ring + 8 * at.CALLED, wanted)
    if wanted != 0:
        ring_bell(ring)
    return none_of(ring)


@compiled
def ended(owner: int, arguments: int, count: int) -> int:
    """ended(number, nanoseconds)   True if `number` jobs have ended; sleeps that long until then, or less"""
    ring = data_of(owner)
    number, nanoseconds = int_value(field(arguments, 0)), int_value(field(arguments, 1))
    if load_acquire(ring + 8 * at.ENDED) < number and nanoseconds > 0:
        store_ordered(ring + 8 * at.WAITERS, field(ring, at.WAITERS) + 1)
        thread = save_thread()
        newest = load_ordered(ring + 8 * at.ENDED)
        if newest < number:
            futex_wait(ring + 8 * at.ENDED, newest, nanoseconds)
        restore_thread(thread)
        put(ring + 8 * at.WAITERS, field(ring, at.WAITERS) - 1)
    over = load_acquire(ring + 8 * at.ENDED) >= number
    answer = field(ring, at.RING_TRUE) if over else field(ring, at.RING_FALSE)
    keep(answer)
    return answer


METHODS = {"serve": serve, "submit": submit, "end": end, "call": call, "ended": ended}
