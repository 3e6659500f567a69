"""The cores that a process may use: its affinity, and the limits of its control groups."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache, reduce
from operator import or_
from pathlib import Path


def usable_cores() -> int:
    """The number of cores that this process may use at a time: those that it may run on, and no more than its control
    groups allow on average, as in a container with a limit."""
    return core_mask().bit_count()


def core_mask() -> int:
    """The cores that this process may use at a time, as a mask: bit k stands for core k. Where its control groups allow
    fewer than it may run on, the first ones stand for these: processes with one limit have equal masks."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return sum(1 << core for core in sorted(cores)[: max(1, int(min(len(cores), allowance())))])


def count_together(masks: Collection[int]) -> int:
    """The number of cores that processes of a host may use together, from their masks; 0 if one of these is 0, which
    stands for an unknown one."""
    return 0 if 0 in masks else reduce(or_, masks, 0).bit_count()


def are_apart(masks: Iterable[int]) -> bool:
    """True if each process of a host can have a core of its own, from their masks; 0 stands for that of this
    process.

    This is Hall's condition (P. Hall, "On representatives of subsets", 1935) for each mask and for all together, which
    is exact where any two of the masks are equal, nested or apart, as launchers bind.
    """
    counts = Counter(mask or core_mask() for mask in masks)
    return all(
        sum(count for inner, count in counts.items() if inner | mask == mask) <= mask.bit_count()
        for mask in {*counts, reduce(or_, counts)}
    )


@cache
def allowance(membership: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """The cores that the control groups of this process allow, infinite if they do not limit it; see cgroups(7)."""
    least = math.inf
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # not Linux, or a sandbox
        return least
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = groups / controllers if controllers else groups
        group = top / name.lstrip("/")
        for folder in (group, *group.parents):
            least = min(least, _limit(folder))
            if folder == top:
                break
    return least


def _limit(group: Path) -> float:
    """The cores that a control group allows, in version 2 or 1."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):  # no such file; "max"
            quota, period = map(int, " ".join((group / file).read_text() for file in files).split())
            if quota > 0:
                return quota / period
    return math.inf
