"""The epochs of a window, as Numba compiles them: what Controls (transports.onesided) says. Numba is needed to import
this module.
"""

from __future__ import annotations

from collectives.jit import layout as at
from collectives.jit.atomics import (
    compiled,
    field,
    futex_wake,
    half_word,
    load_acquire,
    load_ordered,
    put,
    store_ordered,
    store_release,
)
from collectives.jit.waits import rises, rouse
from transports.compiled import BY_FUTEX
from transports.onesided import ASKED, CHECKS, EPOCH, KEPT

_ALL = 1 << 30
NO_CHECK = -1
"""In place of a check: the epoch has none."""


@compiled
def published(state: int, epoch: int, check: int) -> bool:
    """Do what Window.publish does, without a check if that is NO_CHECK. False if it is left to Python to wake a rank
    that sleeps."""
    own, notes = field(state, at.OWN), field(state, at.PUBLISHED)
    put(notes, epoch)
    if check != NO_CHECK:
        count = field(notes, 1)
        kept = own + 8 * (CHECKS + 2 * (count % KEPT))
        store_release(kept, epoch)
        store_release(kept + 8, check)
        put(notes + 8, count + 1)
    store_ordered(own + 8 * EPOCH, epoch)
    return load_ordered(own + 8 * ASKED) == 0 or woken(state, own)


@compiled
def woken(state: int, own: int) -> bool:
    """Wake all ranks that sleep until this one publishes: what `Controls.wake` does. False, with nothing done, if one
    sleeps on a descriptor, or if there is no futex(2)."""
    bells, count = field(state, at.BELLS), field(state, at.BELL_COUNT)
    if count == 0:
        return False
    for index in range(count):
        if half_word(field(bells, index)) > BY_FUTEX:
            return False
    store_ordered(own + 8 * ASKED, 0)
    for index in range(count):
        rouse(field(bells, index))
    futex_wake(own + 8 * EPOCH, _ALL)
    return True


@compiled
def reached(state: int, control: int, epoch: int, thread: int) -> bool:
    """Wait until a rank has published `epoch`; False if that takes too long."""
    return rises(state, control + 8 * EPOCH, epoch, 0, control + 8 * ASKED, thread)


@compiled
def agrees(state: int, control: int, epoch: int, check: int) -> bool:
    """True if a rank has published `check` with `epoch`, as far as it is kept; in most calls it has the place of this
    rank's own newest one. The publisher writes a pair's epoch first: a check that was read before the epoch belongs to
    that epoch."""
    count = field(field(state, at.PUBLISHED), 1)
    for pair in range(count + KEPT - 1, count - 1, -1):
        kept = control + 8 * (CHECKS + 2 * (pair % KEPT))
        if load_acquire(kept + 8) == check and load_acquire(kept) == epoch:
            return True
    return False
