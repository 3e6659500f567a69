"""The number of cores that a process may use: its affinity, and the limits of its control groups."""

from __future__ import annotations

import contextlib
import math
import os
from functools import cache
from pathlib import Path


def usable_cores() -> int:
    """The number of cores that this process may use at a time: those that it may run on, and no more than its control
    groups allow on average, as in a container with a limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, _allowance())))


@cache
def _allowance(membership: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> float:
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
