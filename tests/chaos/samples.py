"""The resources of a process over time, and their growth."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

MIB: Final = 1 << 20
WARM_UP: Final = 0.25
"""The part of the time, at the beginning, that does not count: caches fill, the allocator finds its size."""
TOLERANCES: Final[Mapping[str, float]] = {"memory": 8 * MIB, "descriptors": 1.0, "threads": 1.0, "segments": 0.5}
"""The greatest rise of the line through the samples from the end of the warm-up to the end. A leak, even a small one in
each world, rises by far more in half an hour; the allocator and the moment of the sample make up for the rest."""


@dataclass(frozen=True)
class Sample:
    """At `at` (monotonic seconds): resident memory in bytes, open descriptors, threads, files in shared memory."""

    at: float
    memory: float
    descriptors: float
    threads: float
    segments: float = 0.0


def take() -> Sample:
    """A sample of this process, which first gives back what it holds but does not use."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(
        time.monotonic(),
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(os.listdir("/proc/self/fd")) - 1,
        threading.active_count(),
    )


def growth(samples: Sequence[Sample], what: str) -> float:
    """Rise of the least-squares line through the samples after the warm-up; 0 for fewer than three."""
    begin, end = samples[0].at, samples[-1].at
    later = [sample for sample in samples if sample.at >= begin + WARM_UP * (end - begin)]
    if len(later) < 3:
        return 0.0
    times = np.array([sample.at for sample in later])
    slope = np.polyfit(times - times[0], [getattr(sample, what) for sample in later], 1)[0]
    return float(slope * (times[-1] - times[0]))


def grown(samples: Mapping[str, Sequence[Sample]]) -> list[str]:
    """Descriptions of resources that grow beyond the tolerance, by the name of the process."""
    found = []
    for name, series in samples.items():
        for what, tolerance in TOLERANCES.items():
            rise = growth(series, what)
            if rise > tolerance:
                unit = (MIB, " MiB") if what == "memory" else (1, "")
                found.append(
                    f"{name}: {what} rose by {rise / unit[0]:.1f}{unit[1]} over {len(series)} samples, "
                    f"{tolerance / unit[0]:g}{unit[1]} are tolerated"
                )
    return found
