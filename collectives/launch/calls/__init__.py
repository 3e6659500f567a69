"""A call of a function on several ranks: `run` starts them as processes or threads of this machine, and has their
results.

An outcome is a `Success` or a `Failure`, in a form that can be sent between processes; the engines of frontends use it
as well.
"""

from __future__ import annotations

from collectives.launch.calls.function import run
from collectives.launch.calls.outcome import (
    REPORT_SECONDS,
    Failure,
    Outcomes,
    Success,
    dump,
    failure,
    load,
    root_cause,
    unreadable,
)

__all__ = [
    "REPORT_SECONDS",
    "Failure",
    "Outcomes",
    "Success",
    "dump",
    "failure",
    "load",
    "root_cause",
    "run",
    "unreadable",
]
