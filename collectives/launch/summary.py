"""The launcher's report on a failed job: the cause first, then the state of the other ranks."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from collectives.launch.rank_processes import RankProcess


def summarize(reason: str, first: RankProcess | None, processes: Iterable[RankProcess]) -> str:
    """The report for stderr.

    reason      the cause of the job's end, if no rank failed
    first       the rank that failed first, with the end of its stderr
    processes   ranks to report on, one line each; a rank that failed with the last line of its stderr
    """
    lines = []
    if first is None:
        lines.append(f"ronde: {reason}")
    else:
        lines.append(
            f"ronde: rank {first.rank} failed: {first.describe()} (host {socket.gethostname()}, pid {first.pid})"
        )
        tail = first.tail.lines()
        lines.append(f"ronde: end of its stderr:{'' if tail else ' (nothing)'}")
        lines += [f"    {line}" for line in tail]
    for process in processes:
        if process is not first:
            when = " afterwards" if first else ""
            text = f"ronde: rank {process.rank}{when}: {process.describe()}, pid {process.pid}"
            last = process.tail.lines()[-1:] if process.status and not process.last_signal else []
            lines.append(f"{text}: {last[0]}" if last else text)
    return "\n".join(lines)
