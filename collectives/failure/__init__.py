"""The way of a failure to every rank: the abort signal, mismatch errors, and reports to the launcher.

All of it goes through the store, so it works when the transport does not. The first cause wins, and every rank raises
it.
"""

from __future__ import annotations

from collectives.failure.abort import (
    AbortSignal,
    wake,
)
from collectives.failure.launcher_reports import (
    are_left_out,
    culprit,
    is_consequence,
    report_exit,
    report_left_out,
    withdraw_left_out,
)
from collectives.failure.mismatched_calls import (
    find_mismatch,
    mismatch,
)

__all__ = [
    "AbortSignal",
    "are_left_out",
    "culprit",
    "find_mismatch",
    "is_consequence",
    "mismatch",
    "report_exit",
    "report_left_out",
    "wake",
    "withdraw_left_out",
]
