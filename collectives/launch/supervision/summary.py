"""The state of each rank, and the launcher's report on a failed job: the cause first, then the other ranks."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from collectives.launch.hosts import LOST
from collectives.launch.processes import Tail, describe_status, exit_code


@dataclass
class Rank:
    """A rank, and how it ended.

    host         the name of its host
    pid          its process id; 0 until it has started
    tail         last lines of its stderr
    status       its status as of `os.waitstatus_to_exitcode`; None while it runs
    last_signal  the last signal that the launcher sent it while it ran; 0 if none
    lost         True if it was lost with its host; then its status is unknown
    """

    rank: int
    host: str
    pid: int = 0
    tail: Tail = field(default_factory=Tail)
    status: int | None = None
    last_signal: int = 0
    lost: bool = False

    @property
    def running(self) -> bool:
        """True unless it has ended or was lost."""
        return self.status is None and not self.lost

    @property
    def failed(self) -> bool:
        """True if it was lost, or ended with another code than 0."""
        return self.lost or bool(self.status)

    @property
    def ended_by_launcher(self) -> bool:
        """True if it ended by a signal that the launcher sent."""
        return self.status is not None and self.last_signal != 0 and self.status == -self.last_signal

    @property
    def exit_code(self) -> int:
        """The exit code of a job that ends because of it."""
        return LOST if self.status is None else exit_code(self.status)

    def describe(self) -> str:
        """Format its end for the report: 'exited with 3'."""
        if self.lost:
            return "lost with its host"
        if self.status is None:
            return "still runs after SIGKILL"
        if self.ended_by_launcher:
            return f"ended by the launcher ({signal.Signals(self.last_signal).name})"
        return describe_status(self.status)


def summarize(reason: str, first: Rank | None, ranks: Iterable[Rank], *, several_hosts: bool = False) -> str:
    """The report for stderr.

    reason         the cause of the job's end, if no rank failed
    first          the rank that failed first, with the end of its stderr
    ranks          ranks to report on, one line each; a rank that failed with the last line of its stderr
    several_hosts  True to name the host of every rank
    """
    lines = []
    if first is None:
        lines.append(f"ronde: {reason}")
    else:
        lines.append(f"ronde: rank {first.rank} failed: {first.describe()} (host {first.host}, pid {first.pid})")
        tail = first.tail.lines()
        lines.append(f"ronde: end of its stderr:{'' if tail else ' (nothing)'}")
        lines += [f"    {line}" for line in tail]
    for rank in ranks:
        if rank is not first:
            when = " afterwards" if first else ""
            where = f" on {rank.host}" if several_hosts else ""
            text = f"ronde: rank {rank.rank}{when}: {rank.describe()}, pid {rank.pid}{where}"
            last = rank.tail.lines()[-1:] if rank.status and not rank.last_signal else []
            lines.append(f"{text}: {last[0]}" if last else text)
    return "\n".join(lines)
