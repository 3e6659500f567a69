"""Epochs: the times at which a rank may access a window, as its calls of synchronization begin and end them."""

from __future__ import annotations

from collections.abc import Collection

from frontends.mpi.constants import MODE_NOSUCCEED
from frontends.mpi.errors import Exception as MPIException
from frontends.mpi.errors import error


class Epochs:
    """The epochs of one rank and window. Each method is that of the call with its name, before it does anything: it
    raises Exception with the class ERR_RMA_SYNC if the call is wrong here.

    held      the ranks whose parts this rank has locked
    of_all    True if `Lock_all` has locked them
    started   the ranks whose parts this rank accesses, after Start; None before it
    posted    True between Post and Wait
    """

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.of_all = False
        self.started: Collection[int] | None = None
        self.posted = False
        self._fenced = False
        """True after a fence that access may follow. It is no epoch until access does."""
        self._used = False
        """True once it has."""

    def access(self, rank: int) -> None:
        """Access to the part of a rank."""
        if self._fenced:
            self._used = True
        elif rank not in self.held and (self.started is None or rank not in self.started):
            raise _wrong(f"access to the part of rank {rank} needs Fence, Start or Lock before it")

    def flush(self, rank: int | None = None) -> None:
        """`Flush` of a rank; None: of all."""
        if not self.held or (rank is not None and rank not in self.held):
            raise _wrong("this rank has locked no part" if rank is None else f"this rank has not locked rank {rank}'s")

    def fence(self, assertion: int) -> None:
        """`Fence`."""
        self._check_unlocked()
        self._check_not_started()
        self._check_not_posted()
        self._fenced, self._used = not assertion & MODE_NOSUCCEED, False

    def lock(self, rank: int) -> None:
        """`Lock`."""
        if self.of_all or rank in self.held:
            raise _wrong(f"this rank has locked the part of rank {rank} already")
        self._begin_access()

    def lock_all(self) -> None:
        """`Lock_all`."""
        self._check_unlocked()
        self._begin_access()

    def unlock(self, rank: int) -> None:
        """`Unlock`."""
        if self.of_all:
            raise _wrong("this rank has called Lock_all: Unlock_all ends it")
        if rank not in self.held:
            raise _wrong(f"this rank has not locked the part of rank {rank}")

    def unlock_all(self) -> None:
        """`Unlock_all`."""
        if not self.of_all:
            raise _wrong("this rank has not called Lock_all")

    def start(self) -> None:
        """`Start`."""
        self._check_unlocked()
        self._begin_access()

    def complete(self) -> Collection[int]:
        """`Complete`; the ranks whose parts were accessed."""
        if self.started is None:
            raise _wrong("Start was not called")
        started, self.started = self.started, None
        return started

    def post(self) -> None:
        """`Post`."""
        self._check_unused()
        self._check_not_posted()

    def wait(self) -> None:
        """`Wait` or `Test`."""
        if not self.posted:
            raise _wrong("Post was not called")

    def _begin_access(self) -> None:
        self._check_unused()
        self._check_not_started()
        self._fenced = False

    def _check_unused(self) -> None:
        if self._used:
            raise _wrong("there was access since the last Fence: another one ends it")

    def _check_not_started(self) -> None:
        if self.started is not None:
            raise _wrong("Start was called before, and not yet Complete")

    def _check_not_posted(self) -> None:
        if self.posted:
            raise _wrong("Post was called before, and not yet Wait")

    def _check_unlocked(self) -> None:
        if self.held:
            raise _wrong(f"this rank has locked the parts of ranks {sorted(self.held)}")


def _wrong(text: str) -> MPIException:
    return error("ERR_RMA_SYNC", text)
