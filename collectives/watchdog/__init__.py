"""Detection of failures that calls do not notice: dead processes, silent hosts, mismatched calls that wait, stalls.

Runs in threads of its own, reads call positions, and writes stall reports. Its only effect on calls is the abort
signal.
"""

from __future__ import annotations

from collectives.watchdog.liveness import (
    FarHosts,
    have_closed,
    ranks_by_host,
)
from collectives.watchdog.viewers import Viewer
from collectives.watchdog.watchdog import (
    Watchdog,
)

__all__ = ["FarHosts", "Viewer", "Watchdog", "have_closed", "ranks_by_host"]
