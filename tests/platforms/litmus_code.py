"""The litmus tests of machine code: both sides of each are loops around the interpreter's own functions. Numba is
needed to import this module.

A side gets the addresses of its words, and a place for what it has found. It ends after `rounds`, or at a time.
"""

from __future__ import annotations

from typing import Any

from collectives.jit import layout as at
from collectives.jit.atomics import (
    compiled,
    field,
    load_acquire,
    load_ordered,
    now,
    pause,
    put,
    sched_yield,
    store_ordered,
    word,
)
from collectives.jit.lanes import read_frame, write_frame
from collectives.jit.waits import UNLOCKED
from collectives.jit.windows import agrees, published, reached
from transports.compiled import IN, READ, WRITTEN
from transports.onesided import ASKED, EPOCH

LINE = 64
CELLS = 8
"""Words of data of a round, each on a line of its own."""
SLOTS = 4
"""Places for the data of successive rounds: a rank is one round ahead of its peer at most."""
CONTROL = 256
BLOCK = 256
"""Rounds between two meetings of the sides of `sleepers`."""
PAYLOAD_WORDS = 13
SPINS, YIELDS = 300, 20
_PACE = 200
_MASK = 0xFFFFFFFF

DONE, WRONG, IN_STEP = 0, 1, 2
"""Words of a result: rounds that ended, wrong ones, and those in which the other side was known to run."""


@compiled
def epochs(state: int, other: int, data: int, found: int, rounds: int, clock: int, until: int) -> None:
    """Publish data by an epoch, as a rank of a collective does, and look at the data of the other rank.

    state  of the interpreter: its own control words and note, and how long it waits
    other  the control words of the other rank
    data   two words: the addresses of the data of this rank and of the other one
    """
    own, theirs = field(data, 0), field(data, 1)
    for epoch in range(1, rounds + 1):
        slot = epoch % SLOTS * CELLS * LINE
        for cell in range(CELLS):
            put(own + slot + LINE * cell, epoch)
        published(state, epoch, epoch & _MASK)
        while not reached(state, other, epoch, UNLOCKED):
            if now(clock) > until:
                return
        wrong = 0 if agrees(state, other, epoch, epoch & _MASK) else 1
        for cell in range(CELLS):
            if word(theirs + slot + LINE * cell) != epoch:
                wrong = 1
        put(found + 8 * WRONG, field(found, WRONG) + wrong)
        put(found + 8 * IN_STEP, epoch)
        put(found + 8 * DONE, epoch)


@compiled
def sends(lanes: int, payload: int, found: int, rounds: int, clock: int, until: int) -> None:
    """Write frames into a ring that holds a few of them: it waits for the room of frames that were read."""
    for number in range(1, rounds + 1):
        for index in range(PAYLOAD_WORDS):
            put(payload + 8 * index, number)
        tries = 0
        while write_frame(lanes, 7, number & _MASK, payload, 8 * PAYLOAD_WORDS) == 0:
            tries += 1
            if tries % SPINS == 0:
                sched_yield()
                if now(clock) > until:
                    return
            pause()
        put(found + 8 * DONE, number)


@compiled
def receives(lanes: int, state: int, payload: int, found: int, rounds: int, clock: int, until: int) -> None:
    """Read the frames of `sends`. One whose head is not that of its number is wrong, and ends it.

    state  of the interpreter: how long it waits
    """
    control = field(lanes, IN)
    for number in range(1, rounds + 1):
        while not read_frame(lanes, state, 7, number & _MASK, payload, 8 * PAYLOAD_WORDS, UNLOCKED):
            if load_acquire(control + 8 * WRITTEN) != field(control, READ):
                if read_frame(lanes, state, 7, number & _MASK, payload, 8 * PAYLOAD_WORDS, UNLOCKED):
                    break
                put(found + 8 * WRONG, field(found, WRONG) + 1)
                return
            if now(clock) > until:
                return
        for index in range(PAYLOAD_WORDS):
            if word(payload + 8 * index) != number:
                put(found + 8 * WRONG, field(found, WRONG) + 1)
        put(found + 8 * IN_STEP, number)
        put(found + 8 * DONE, number)


@compiled
def meet(gates: int, side: int, number: int, clock: int, until: int) -> bool:
    """Wait until the other side has come to the same meeting; False if the time is over."""
    store_ordered(gates + LINE * side, number)
    tries = 0
    while load_ordered(gates + LINE * (1 - side)) < number:
        tries += 1
        if tries % SPINS == 0:
            sched_yield()
            if now(clock) > until:
                return False
        pause()
    return True


@compiled
def in_step(paces: int, side: int, number: int) -> int:
    """Wait a moment for the other side to begin the same round: 1 if it has."""
    store_ordered(paces + LINE * side, number)
    for _ in range(_PACE):
        if load_acquire(paces + LINE * (1 - side)) >= number:
            return 1
        pause()
    return 0


@compiled
def sleepers(ordered: bool, side: int, state: int, words: int, found: int, rounds: int, clock: int, until: int) -> None:
    """Side 0 publishes an epoch and looks whether a rank sleeps; side 1 says that it sleeps and looks at the epoch. A
    round is wrong if both miss the other: then side 1 would sleep on.

    ordered  False: both by plain stores and loads, without a barrier between them
    state    of the interpreter, without doorbells: it leaves a rank that sleeps to Python
    words    meeting gates, paces, a table of what each side saw, and BLOCK control words
    """
    gates, paces, seen, controls = words, words + 4 * LINE, words + 8 * LINE, words + 8 * LINE + 16 * BLOCK
    meetings, done = 0, 0
    while done < rounds:
        meetings += 1
        if not meet(gates, side, meetings, clock, until):
            return
        steps = 0
        for index in range(BLOCK):
            control = controls + CONTROL * index
            put(state + 8 * at.OWN, control)
            steps += in_step(paces, side, done + index + 1)
            if side == 0:
                if ordered:
                    saw = 0 if published(state, 1, 0) else 1
                else:
                    put(control + 8 * EPOCH, 1)
                    saw = word(control + 8 * ASKED)
            elif ordered:
                store_ordered(control + 8 * ASKED, 1)
                saw = load_ordered(control + 8 * EPOCH)
            else:
                put(control + 8 * ASKED, 1)
                saw = word(control + 8 * EPOCH)
            put(seen + 8 * (2 * index + side), saw)
        meetings += 1
        if not meet(gates, side, meetings, clock, until):
            return
        done += BLOCK
        put(found + 8 * DONE, done)
        put(found + 8 * IN_STEP, field(found, IN_STEP) + steps)
        if side == 0:
            for index in range(BLOCK):
                if field(seen, 2 * index) == 0 and field(seen, 2 * index + 1) == 0:
                    put(found + 8 * WRONG, field(found, WRONG) + 1)
                put(controls + CONTROL * index + 8 * EPOCH, 0)
                put(controls + CONTROL * index + 8 * ASKED, 0)


def warm(memory: Any) -> None:
    """Compile all of it, in memory that may be written."""
    start = memory.ctypes.data
    epochs(start, start, start, start, 0, start, 0)
    sends(start, start, start, 0, start, 0)
    receives(start, start, start, start, 0, start, 0)
    sleepers(True, 0, start, start, start, 0, start, 0)
