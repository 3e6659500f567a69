"""The public conformance kit: checks that a transport keeps its contract. It needs no test framework.

    report = check_transport(lambda group: MyTransport(group))

Each check tries one promise: order, matching, receives from any source, sizes, deadlines, aborts, closing, errors that
name ranks, leaks.
`exercise` runs the checks that one rank can run in a process of its own; `run_threads` and `run_processes` run ranks
with a time limit and return their tracebacks; `Leaks` finds threads, descriptors, files and processes that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from transports.base import Group, Transport
from transports.testing import endings, exchanges, frames, sources, windows
from transports.testing.bench import Bench
from transports.testing.kit import Check, ConformanceError, Outcome, Report, try_checks
from transports.testing.leaks import LeakError, Leaks, foreign_files
from transports.testing.ranks import run_processes, run_threads

__all__ = [
    "CHECKS",
    "Check",
    "ConformanceError",
    "LeakError",
    "Leaks",
    "Outcome",
    "Report",
    "check_transport",
    "exercise",
    "foreign_files",
    "run_processes",
    "run_threads",
]

CHECKS: Final[tuple[Check, ...]] = frames.CHECKS + exchanges.CHECKS + sources.CHECKS + endings.CHECKS + windows.CHECKS


def check_transport(
    make: Callable[[Group], Transport],
    *,
    sizes: Sequence[int] = (1, 2, 3, 5),
    deadline: float = 30.0,
    only: Collection[str] | None = None,
) -> Report:
    """Try every promise of the contracts on a transport; ranks are threads that share a store in memory.

    make      a transport of this group, not opened
    sizes     the numbers of ranks to try; promises that need more ranks than the largest of them are not tried
    deadline  seconds that one check with one size may take
    only      names of checks, to try just these

    Raises ConformanceError listing every broken promise; ValueError for an unknown name of a check.
    """
    if unknown := set(only or ()) - {check.name for check in CHECKS}:
        raise ValueError(f"only={sorted(unknown)}: must be among {', '.join(check.name for check in CHECKS)}")
    checks = [check for check in CHECKS if only is None or check.name in only]
    report = try_checks(checks, make, sizes, deadline)
    if report.broken:
        raise ConformanceError(report)
    return report


def exercise(transport: Transport, deadline: float) -> None:
    """Run, as one rank, the checks that leave a transport usable. All ranks call it, in processes or threads.

    transport  an open transport; the caller closes it
    deadline   absolute monotonic seconds, for all checks together

    Raises the error of the first broken promise, with a note that names the promise. Abort the other ranks then.
    """
    for check in CHECKS:
        if check.opens and not check.ends and transport.size >= check.least:
            try:
                check.run(Bench(transport, check.name, deadline))
            except BaseException as error:
                error.add_note(f"promise: {check.promise} [{check.name}]")
                raise
