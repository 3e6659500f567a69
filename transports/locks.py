"""Reentrant locks, and steps that must be whole, in the presence of interrupts.

Python runs signal handlers between any two instructions of the main thread, and a handler may raise: an error may leave
a function right behind the call that takes or releases a lock. A `with` statement on a lock itself is safe, since no
handler runs between the call and the statement; `Condition.wait` and code that releases a lock for a while are not.
Such code ends by one of these functions, which ask the lock for its owner. So they may be called again if an interrupt
comes in the middle of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def is_mine(lock: threading.RLock) -> bool:
    """True if the calling thread holds the lock."""
    return lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # as threading.Condition does


def hold(lock: threading.RLock) -> None:
    """Take the lock unless the calling thread holds it."""
    if not is_mine(lock):
        lock.acquire()


def let_go(lock: threading.RLock) -> None:
    """Release the lock as often as the calling thread has taken it."""
    while is_mine(lock):
        lock.release()


def unlocked(lock: threading.RLock, function: Callable[[], T]) -> T:
    """Call a function while the lock, which the calling thread may hold, is released."""
    if not is_mine(lock):
        return function()
    taken = lock._release_save()  # type: ignore[attr-defined]  # as threading.Condition does
    try:
        return function()
    finally:
        lock._acquire_restore(taken)  # type: ignore[attr-defined]


def to_the_end(step: Callable[[], None]) -> None:
    """Call a function that may be repeated. If an interrupt leaves it, call it again, and raise the interrupt then."""
    try:
        step()
    except BaseException:
        step()
        raise
