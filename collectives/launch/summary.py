"""What the launcher says when a job did not end well: the cause first, its consequences after it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from collectives.launch.processes import describe_status
from collectives.launch.relay import Tail


@dataclass
class Fate:
    """What became of a rank. `status` is None while it runs; `here` says that some of its processes may be left;
    `sent` is the last signal that the launcher sent it while it ran."""

    rank: int
    pid: int
    tail: Tail = field(default_factory=Tail)
    status: int | None = None
    here: bool = True
    sent: int = 0

    def describe(self) -> str:
        """What happened, in a few words."""
        if self.status is None:
            return "does not end, even on SIGKILL"
        if self.sent and self.status == -self.sent:
            return f"ended by the launcher ({signal.Signals(self.sent).name})"
        return describe_status(self.status)


def summarize(reason: str, first: Fate | None, fates: Iterable[Fate]) -> str:
    """The report on stderr. `first` is the rank that failed first, if that was the reason."""
    lines = []
    if first is None:
        lines.append(f"ronde: {reason}")
    else:
        lines.append(
            f"ronde: rank {first.rank} failed: {first.describe()} (host {socket.gethostname()}, pid {first.pid})"
        )
        tail = first.tail.lines()
        lines.append(f"ronde: the end of its stderr:{'' if tail else ' (nothing)'}")
        lines += [f"    {line}" for line in tail]
    for fate in fates:
        if fate is not first:
            text = f"ronde: rank {fate.rank}{' after it' if first else ''}: {fate.describe()}, pid {fate.pid}"
            last = fate.tail.lines()[-1:] if fate.status and not fate.sent else []
            lines.append(f"{text}: {last[0]}" if last else text)
    return "\n".join(lines)
