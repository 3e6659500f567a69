"""The cores that the ranks of a host wait on.

Linux often wakes a process on the core of the one that wakes it, and on virtual machines nearly always: there it takes
hardly any core for idle (`available_idle_cpu` asks `vcpu_is_preempted`, which a core that sleeps is). Then two ranks
share a core for milliseconds while another has nothing to do, and take turns instead of working side by side. Launchers
of MPI bind each process to a core against that; but what is bound cannot use cores that others leave idle. Here a rank
that finds its core shared moves to its own part of the cores, and is free again at once: the system may move it on.
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

_LONG: Final = 10e-6
"""Seconds. To leave the core when nobody else wants it takes a tenth of that."""
_EVERY: Final = 1e-3
"""Seconds between moves. One takes some 50 us, and 6 where the thread is there already."""
_TOPOLOGY: Final = Path("/sys/devices/system/cpu")
_CAN_MOVE: Final = hasattr(os, "sched_setaffinity")
_give_way: Final[Callable[[], None]] = getattr(os, "sched_yield", partial(time.sleep, 0))


class Cores:
    """The cores on which the threads of one rank wait.

    affinity   False: never change the affinity of a thread
    """

    def __init__(self, group: Group, affinity: bool = True) -> None:
        own = group.members[group.rank]
        here = [rank for rank, member in enumerate(group.members) if member.host == own.host]
        self.shares_process = sum(group.members[rank].pid == own.pid for rank in here) > 1
        """True if ranks of this host are threads of one process, which wait for Python's lock before any core."""
        self._count = len(here)
        self._place = here.index(group.rank)
        self._moves = affinity and _CAN_MOVE and self._count > 1 and not self.shares_process
        self._move_at = 0.0

    @property
    def suffice(self) -> bool:
        """True if there is a core for each rank of this host, and each is a process of its own."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cores >= self._count and not self.shares_process

    def leave(self) -> None:
        """Let another thread or process have this thread's core. If one takes it for long, go to an own one."""
        began = time.monotonic()
        _give_way()
        now = time.monotonic()
        if now - began > _LONG and now >= self._move_at:
            self._move_at = now + _EVERY
            with self.kept():
                pass

    def part(self, cores: Collection[int]) -> set[int]:
        """This rank's part of `cores`: ranks share none as long as there are enough, nor hardware threads of one."""
        start, stop = (place * len(cores) // self._count for place in (self._place, self._place + 1))
        return set(sorted(cores, key=_whole)[start : max(stop, start + 1)])

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Bind this thread to this rank's part of the cores meanwhile."""
        if not self._moves:
            yield
            return
        allowed = os.sched_getaffinity(0)
        part = self.part(allowed)
        try:
            with contextlib.suppress(OSError):  # these cores have just been taken away
                os.sched_setaffinity(0, part)
            yield
        finally:
            if os.sched_getaffinity(0) == part:  # nobody else has bound it
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(0, allowed)


@cache
def _whole(core: int) -> tuple[int, int]:
    """Brings those next to each other that are hardware threads of one core. Often the system numbers all first threads
    before all second ones."""
    try:
        siblings = (_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text("ascii")
        return int(re.split("[,-]", siblings)[0]), core
    except (OSError, ValueError):  # it does not tell
        return core, core
