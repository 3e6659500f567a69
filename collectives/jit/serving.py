"""The progress thread in machine code: it runs the jobs of a ring one after the other, and sleeps where it has to wait.

A job is a table with the addresses of its arrays, run as a plain call is, but for other waits (waits.BEHIND). What is
left to Python, `serve` returns. Numba is needed to import this module.
"""

from __future__ import annotations

from collectives.jit import layout as at
from collectives.jit.atomics import (
    compiled,
    field,
    futex_wait,
    futex_wake,
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
from collectives.jit.interpreter import begin, data_of, end_call, fits_table, interpret
from collectives.jit.waits import BEHIND

_ALL = 1 << 30


@compiled
def run_job(table: int, source: int, target: int) -> int:
    """Run a new call of a table. Returns DONE, or what is left to Python, as `run_table` does. The times of a call stay
    in the table for whoever sees its end, unless every call is to be timed: this thread does not need Python's lock."""
    if not fits_table(table, source, target):
        return at.UNFIT
    state, rows = field(table, at.STATE), field(table, at.ROWS)
    answer = begin(table, state)
    if answer != at.OVER:
        timed = answer == at.OBSERVED
        answer = interpret(table, state, source, target, 0, rows, BEHIND, timed)
        if answer == at.DONE:
            answer = end_call(table, state, timed)
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
