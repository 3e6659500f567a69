"""The fence: the boundary at which all ranks of a group regroup, agreed in the background.

Every rank counts its boundaries, the calls of `passed`, which are as many on all ranks. A thread of rank 0 waits for
requests (registry.py). If one is due, it asks the ranks. A thread of each rank tells the last boundary that the rank
has reached, and holds the rank at its next one until the fence is known: the boundary after the furthest that any rank
has told. No rank can have passed it.

Store keys, in the part of the group
    fence/asked   set when the ranks are to agree on a fence
    fence/at      table; the row of a rank is the boundary that it has reached
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable
from typing import Final

from collectives.membership.admission import Candidates
from collectives.membership.registry import Registry
from transports.base import Group, runs
from transports.errors import DeadlineExceeded, RendezvousError, RondeError
from transports.store import Awaited, read_table

_SLICE_SECONDS: Final = 0.1
"""Time after which the thread looks whether it is to end."""
_STORE_SECONDS: Final = 5.0
"""Time for the store to answer."""
_RETRY_SECONDS: Final = 1.0
"""Time to the next attempt if the store cannot be reached, which is no failure by itself."""
_NEVER: Final = 1 << 62


class Fence:
    """One rank's part in the fence of a group.

    failure  returns the failure of the group; None while it works
    terms    version and transport of the group
    """

    def __init__(self, group: Group, terms: str, failure: Callable[[], RondeError | None]) -> None:
        self._group = group
        self._terms = terms
        self._failure = failure
        self._store = group.store.with_timeout(_STORE_SECONDS)
        self._boundary = 0
        self._hold_at = 0
        """The boundary from which on `passed` looks closer. The first one starts the thread."""
        self._outcome: int | RondeError | None = None
        """The fence, or the reason why there is none."""
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def passed(self, timeout: float) -> bool:
        """Reach the next boundary; True from the fence on. Costs no message, and waits only for a fence that is being
        agreed.

        timeout  seconds for that

        Raises the failure of the group, DeadlineExceeded, RendezvousError.
        """
        self._boundary += 1
        return self._boundary >= self._hold_at and self._look(timeout)

    def close(self) -> None:
        """End the thread. Idempotent; never raises."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_STORE_SECONDS + _SLICE_SECONDS)

    def _look(self, timeout: float) -> bool:
        if self._thread is None:
            self._hold_at = _NEVER
            name = f"ronde fence of rank {self._group.rank}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
            return False
        deadline = time.monotonic() + timeout
        with self._changed:
            while (outcome := self._outcome) is None:
                if not self._changed.wait(min(deadline - time.monotonic(), threading.TIMEOUT_MAX)):
                    raise self._overdue(timeout)
        if isinstance(outcome, RondeError):
            raise copy.copy(outcome)
        self._hold_at = outcome
        return self._boundary >= outcome

    def _overdue(self, timeout: float) -> DeadlineExceeded:
        rows = self._store.rows("fence/at")
        late = [rank for rank, row in enumerate(rows) if row is None]
        text = f"ranks {runs(late)} did not reach a boundary (changes_pending) within {timeout:g} s"
        return DeadlineExceeded(text, rank=self._group.rank, peer=late[0] if late else None)

    # ---- the thread

    def _run(self) -> None:
        held = False
        while True:
            try:
                if self._group.rank == 0:
                    self._await_change()
                self._wait(self._store.awaited("fence/asked"))
                held, self._hold_at = True, 0  # before the boundary is read: a rank at a later one is held there
                self._store.put_row("fence/at", self._group.rank, self._group.size, b"%d" % self._boundary)
                self._tell(1 + max(map(int, read_table(self._wait(self._store.awaited("fence/at"))))))
            except _Closed:
                pass
            except RendezvousError as error:
                if held:
                    self._tell(error)
                elif not self._closing.wait(_RETRY_SECONDS):
                    continue
            except (ValueError, TypeError) as error:
                self._tell(RendezvousError(f"the store holds boundaries that cannot be read: {error}"))
            except RondeError as error:
                self._tell(error)
            return

    def _await_change(self) -> None:
        """Ask for a fence when a rank is to leave or a newcomer has room, for rank 0. Raises RendezvousError."""
        assert self._group.parent_store is not None
        job = self._group.parent_store.with_timeout(_STORE_SECONDS)
        while True:
            candidates = Candidates(job, self._terms, self._group.numbers)
            if candidates.are_due(self._check):
                self._store.set_default("fence/asked", b"")
                return
            self._wait(Registry(job).news(candidates.roster))

    def _wait(self, awaited: Awaited) -> bytes:
        """The value of a key. Raises the failure of the group, and _Closed."""
        with contextlib.closing(awaited):
            while True:
                found = awaited.wait(time.monotonic() + _SLICE_SECONDS)
                if found is not None:
                    return found[1]
                self._check()

    def _check(self) -> None:
        """Raise the failure of the group, or _Closed."""
        if self._closing.is_set():
            raise _Closed
        failure = self._failure()
        if failure is not None:
            raise failure

    def _tell(self, outcome: int | RondeError) -> None:
        """Let the rank go on to the fence, or fail."""
        with self._changed:
            self._outcome = outcome
            self._hold_at = 0
            self._changed.notify_all()


class _Closed(Exception):
    """The fence was closed."""
