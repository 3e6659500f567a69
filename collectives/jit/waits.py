"""Waits of machine code for a word that another process raises, and what wakes its sleepers.

A wait looks again for a moment, yields the core between its looks, lets go of Python's lock, and sleeps, bound to its
rank's part of the cores (transports/cores.py): it would wake on the core of its waker. That takes some milliseconds
at most, since this rank serves no other peer meanwhile, and a peer that has failed wakes nobody. Then the wait is left
to Python. Numba is needed to import this module.
"""

from __future__ import annotations

from collectives.jit import layout as at
from collectives.jit.atomics import (
    compiled,
    field,
    futex_wait,
    futex_wake,
    half_word,
    load_acquire,
    load_ordered,
    now,
    pause,
    put_half,
    put_half_ordered,
    restore_thread,
    save_thread,
    sched_getaffinity,
    sched_setaffinity,
    sched_yield,
    store_ordered,
)
from transports.compiled import BY_FUTEX
from transports.onesided import MASK_BYTES

LOCKED = 0
"""The thread has Python's lock, and lets go of it if a wait takes longer."""
UNLOCKED = 1
"""It does not have it."""
BEHIND = 2
"""Nor does the progress thread, behind the threads of the program: it yields to none of them, since a thread that wakes
from a sleep gets a core at once; and it sleeps for longer, since no caller waits for what it could do meanwhile."""
_SLEEPS_BEHIND = 30
_KEPT = 150_000
"""Nanoseconds of yields for which Python's lock is kept: where another thread takes it, it comes back after 5 ms."""
_YIELDED = 10_000_000
"""Nanoseconds from the first yield of a wait to the last one."""
_MILLISECOND = 1_000_000
"""Nanoseconds: the longest sleep. A process that raises a word by functions of Python may miss that another one is
about to sleep (transports/shm/doorbell.py)."""


@compiled
def rises(state: int, place: int, least: int, bell: int, asked: int, thread: int) -> bool:
    """Wait until the word at an address is at least `least`; False if that takes too long.

    bell    address of the doorbell of this rank, which is rung when the word has risen: the wait sleeps there; or 0
    asked   else the wait sleeps at the word itself; this is the address of a word that it sets to 1 before
    thread  LOCKED, UNLOCKED or BEHIND
    """
    spins, yields, sleeps = field(state, at.SPINS), field(state, at.YIELDS), field(state, at.SLEEPS)
    lock, since, binds = 0, 0, False
    if thread == BEHIND:
        yields, sleeps = 0, _SLEEPS_BEHIND
    while load_acquire(place) < least and spins + yields + sleeps > 0:
        if spins > 0:
            spins -= 1
            pause()
            continue
        since = now(state + 8 * at.CLOCK) if since == 0 else since
        if lock == 0 and thread == LOCKED:
            lock = unlocked(state, since, yields)
        if yields > 0:
            yields = yielded(state, since, yields)
        elif load_acquire(field(state, at.STOPPED)) != 0:
            sleeps = 0
        else:
            sleeps -= 1
            binds = binds or bound(state, 0, at.CORE_WORDS)
            if bell != 0:
                sleep_at_bell(place, least, bell)
            else:
                sleep_at_word(place, least, asked)
    if binds:
        bound(state, at.CORE_WORDS, 0)
    if lock != 0:
        restore_thread(lock)
    return load_acquire(place) >= least


@compiled
def unlocked(state: int, since: int, yields: int) -> int:
    """Let go of Python's lock if no yields are left, or some time after the first one: each may take milliseconds.
    Returns what `restore_thread` wants; 0 if the lock is kept."""
    if yields > 0 and now(state + 8 * at.CLOCK) < since + _KEPT:
        return 0
    return save_thread()


@compiled
def yielded(state: int, since: int, yields: int) -> int:
    """Yield the core; returns the yields that are left: none some time after the first one. On a core that other
    programs use too, each may take milliseconds, and threads that abort the rank wait for the lock of its transport."""
    sched_yield()
    return yields - 1 if now(state + 8 * at.CLOCK) < since + _YIELDED else 0


@compiled
def bound(state: int, before: int, after: int) -> bool:
    """Bind this thread to the mask at word `after` of the masks of the state, if it is bound to the one at `before`.
    Else False: it may use other cores than at the start, or other code has bound it since; or there are no masks."""
    cores = field(state, at.CORES)
    if cores == 0:
        return False
    room = cores + 2 * MASK_BYTES
    sched_getaffinity(0, MASK_BYTES, room)
    for index in range(at.CORE_WORDS):
        if field(room, index) != field(cores, before + index):
            return False
    sched_setaffinity(0, MASK_BYTES, cores + 8 * after)
    return True


@compiled
def sleep_at_bell(place: int, least: int, bell: int) -> None:
    """Sleep until the doorbell of this rank is rung, unless the word has risen."""
    put_half_ordered(bell, BY_FUTEX)
    if load_ordered(place) < least:
        futex_wait(bell, BY_FUTEX, _MILLISECOND)
    put_half(bell, 0)


@compiled
def sleep_at_word(place: int, least: int, asked: int) -> None:
    """Sleep until whoever raises the word has woken those that sleep there, unless it has risen."""
    store_ordered(asked, 1)
    found = load_ordered(place)
    if found < least:
        futex_wait(place, found, _MILLISECOND)


@compiled
def rouse(bell: int) -> bool:
    """Wake the rank of a doorbell if it sleeps by futex(2). False, with nothing done, if it sleeps otherwise."""
    state = half_word(bell)
    if state == BY_FUTEX:
        put_half(bell, 0)
        futex_wake(bell, 1)
    return state <= BY_FUTEX
