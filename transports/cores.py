"""The cores on which the ranks of a host wait.

Linux often wakes a process on the core of its waker, and on virtual machines nearly always: there it considers hardly
any core idle (`available_idle_cpu` calls `vcpu_is_preempted`, which is true of a sleeping virtual core). Then two ranks
share a core for milliseconds while another core is idle, and run one after the other instead of in parallel. MPI
launchers bind each process to a core to prevent this; but a bound process cannot use idle cores. Here a rank whose core
is shared moves to its own part of the cores, and is unbound immediately: the system may move it again.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Final

from transports.base import Group
from transports.core_count import are_apart
from transports.onesided import MASK_BYTES

_SHARED: Final = 10e-6
"""Seconds of a yield after which the core counts as shared. A yield of an unshared core takes a tenth of this."""
_MOVE_PAUSE: Final = 1e-3
_LONGEST_PAUSE: Final = 0.1
"""Minimum seconds between moves: the pause doubles while the core is found shared soon after a move, since then there
are fewer cores than threads that run. A move takes some 50 us, and 6 us if the thread is on its core already."""
_TOPOLOGY: Final = Path("/sys/devices/system/cpu")
_FREE: Final = contextlib.nullcontext()
_CAN_MOVE: Final = hasattr(os, "sched_setaffinity")
_yield_core: Final[Callable[[], None]] = getattr(os, "sched_yield", partial(time.sleep, 0))


class Cores:
    """The cores on which the threads of one rank wait.

    affinity   False: never change the affinity of a thread
    ranks      number of ranks of this host
    """

    def __init__(self, group: Group, affinity: bool = True) -> None:
        own = group.members[group.rank]
        here = [rank for rank, member in enumerate(group.members) if member.host == own.host]
        self.shares_process = sum(group.members[rank].pid == own.pid for rank in here) > 1
        """True if ranks of this host are threads of one process, for which Python's lock is scarcer than cores."""
        self._masks = [group.members[rank].cores for rank in here]
        self.ranks = len(here)
        self._place = here.index(group.rank)
        self._moves = affinity and _CAN_MOVE and self.ranks > 1 and not self.shares_process
        self._move_at = 0.0
        self._pause = _MOVE_PAUSE

    @property
    def suffice(self) -> bool:
        """True if there is a core for each rank of this host, and each rank is a process of its own."""
        return not self.shares_process and are_apart(self._masks)

    def leave(self) -> float:
        """Yield this thread's core; the seconds that this took. If another thread used it for long, move to this rank's
        own part of the cores."""
        began = time.monotonic()
        _yield_core()
        now = time.monotonic()
        if now - began > _SHARED and now >= self._move_at:
            soon = now < self._move_at + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE) if soon else _MOVE_PAUSE
            self._move_at = now + self._pause
            with self.kept():
                pass
        return now - began

    def part(self, cores: Collection[int]) -> set[int]:
        """This rank's part of `cores`. If there are enough, ranks share neither a core nor its hardware threads."""
        start, stop = (place * len(cores) // self.ranks for place in (self._place, self._place + 1))
        return set(sorted(cores, key=by_physical_core)[start : max(stop, start + 1)])

    def masks(self) -> bytes:
        """For compiled code that does what `kept` does: two masks of MASK_BYTES for sched_setaffinity(2), of the cores
        that this thread may use and of this rank's part of them. A thread is bound to the part while it sleeps, if it
        may use the former cores. Empty if threads are not to be bound, or if a core has too great a number."""
        if not self._moves:
            return b""
        allowed = os.sched_getaffinity(0)
        if max(allowed) >= 8 * MASK_BYTES:
            return b""
        masks = [sum(1 << core for core in cores) for cores in (allowed, self.part(allowed))]
        return b"".join(mask.to_bytes(MASK_BYTES, "little") for mask in masks)

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """Bind this thread to this rank's part of the cores within the context."""
        return self._bound() if self._moves else _FREE

    @contextlib.contextmanager
    def _bound(self) -> Iterator[None]:
        allowed = os.sched_getaffinity(0)
        part = self.part(allowed)
        try:
            with contextlib.suppress(OSError):  # these cores have just become unavailable
                os.sched_setaffinity(0, part)
            yield
        finally:
            if os.sched_getaffinity(0) == part:  # no other code has bound the thread
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(0, allowed)


@cache
def by_physical_core(core: int) -> tuple[int, int]:
    """Sort key that puts the hardware threads of one core next to each other. Systems often number all first threads
    before all second ones."""
    try:
        siblings = (_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text("ascii")
        return int(re.split("[,-]", siblings)[0]), core
    except (OSError, ValueError):  # the system does not publish it
        return core, core
