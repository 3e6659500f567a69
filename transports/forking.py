"""Forked children of a rank: each object that a child must not use as the rank does is registered here.

A fork copies the memory of the forking process, and the one thread that forks. The copy of a rank is no rank: its
connections, doorbells and locks belong to the parent, which goes on using them. So `after_fork` of every registered
object is called in the child before any other code runs there. The object becomes inert: it sends, unlinks, joins and
wakes nothing, closes inherited descriptors without a protocol, and raises ForkedError when it is used.

Children that are not made by a fork of the interpreter (multiprocessing's spawn and forkserver, subprocess) inherit
nothing: every descriptor of Ronde is closed when a program is executed.
"""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """An object that acts for the process which made it."""

    def after_fork(self) -> None:
        """Become inert. Called in the child by its only thread, also in a child of a child, so more than once. A thread
        that does not exist any more may hold any lock: acquire none, replace them."""


process = os.getpid()
"""The id of this process. Objects that are too small and short-lived to be registered store it to detect a fork."""
_inherited: Final[WeakSet[Inherited]] = WeakSet()


def register(owner: Inherited) -> None:
    """Call `owner.after_fork()` in every forked child, as long as `owner` exists."""
    _inherited.add(owner)


def _after_fork_in_child() -> None:
    global process
    process = os.getpid()
    errors = []
    for owner in list(_inherited):
        try:
            owner.after_fork()
        except Exception as error:  # noqa: BLE001 - the others must become inert all the same
            errors.append(error)
    if errors:  # Python prints it, and goes on
        raise ExceptionGroup("a forked child could not release everything that it inherited", errors)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
