"""The processor's counter of cycles: whether it counts at one rate on all cores, so that it can stand for a clock."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

_STEADY: Final = {"constant_tsc", "nonstop_tsc"}
"""Linux' names of the two properties on x86 (Linux, arch/x86/include/asm/cpufeatures.h)."""


def counts_cycles() -> bool:
    """True if it does: on 64-bit ARM always, on x86 if Linux says so; False where nothing is known."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return True
    if machine not in ("x86_64", "amd64"):
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.split()) >= _STEADY
