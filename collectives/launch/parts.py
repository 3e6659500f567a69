"""The ranks of a host, divided among agents beside this process: for more ranks than one process has descriptors for.

An agent of this kind is the same program as that of another host. It has the pipes of its ranks and a proxy of the
store for them, and divides them again if they are too many for it, too. So the processes of a host form a tree.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from collectives.launch import agent_commands
from collectives.launch.connection import CommandConnection
from collectives.launch.host import Failure, Host, Hosts, Listener, RankListener, Start
from collectives.launch.messages import STDERR
from collectives.launch.processes import Guardian, signal_group
from collectives.launch.remote_host import RemoteHost
from collectives.launch.store_keeper import Question
from transports.descriptors import allow_many
from transports.errors import ConfigError

PER_RANK: Final = 6
"""Descriptors for a rank: two pipes, its process, and three connections to the store or its proxy."""

PER_PART: Final = 5
"""Descriptors for an agent: three pipes, the connection of its proxy, and one more while that is made."""

SPARE: Final = 24
"""Descriptors for all else: signals, the store's listener, requests of a moment."""

_OF_AN_AGENT: Final = 16
"""Descriptors that an agent has open before its ranks start."""


def divided(ranks: int) -> list[int]:
    """The number of ranks of each agent; empty if this process has descriptors for all of them.

    Raises ConfigError if its limit is too low even for agents.
    """
    limit = allow_many()
    if limit == float("inf"):
        return []
    left = int(limit) - _open_now() - SPARE
    if ranks <= left // PER_RANK:
        return []
    most = left // PER_PART
    if most < 2:
        needed = int(limit) - left + 2 * PER_PART
        raise ConfigError(
            f"the limit of open descriptors is {limit:.0f} (ulimit -Hn): too low for {ranks} ranks on a host; at least "
            f"{needed} are needed to start more than {max(0, left // PER_RANK)}"
        )
    each = max(1, (int(limit) - SPARE - _OF_AN_AGENT) // PER_RANK)
    parts = min(most, -(-ranks // each))
    return [ranks // parts + (part < ranks % parts) for part in range(parts)]


def _open_now() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.is_dir() else _OF_AN_AGENT


class Parts(Hosts, Listener):
    """The agents of this host. What happens to ranks reaches `listener`. The methods are those of `Host`.

    variables  the environment of the agents, and so of the ranks
    grace      seconds that an agent gives its ranks if it must end them on its own
    stdin      descriptor that rank 0 reads if it is here
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        guardian: Guardian,
        listener: RankListener,
        *,
        variables: Mapping[str, str],
        grace: float,
        stdin: int,
    ) -> None:
        super().__init__(lambda: self._hosts)
        self.failure: Failure | None = None
        self._selector = selector
        self._guardian = guardian
        self._listener = listener
        self._variables = variables
        self._grace = grace
        self._stdin = os.dup(stdin)
        self._hosts: list[RemoteHost] = []
        self._running: dict[Host, set[int]] = {}  # ranks that have not ended
        self._pids: dict[int, int] = {}

    def start(self, start: Start, sizes: Sequence[int]) -> None:
        """Start the agents, and through them the ranks. Raises OSError."""
        command = [sys.executable, "-m", agent_commands.MODULE]
        first = 0
        for size in sizes:
            connection = CommandConnection(command, None, self._selector, self._guardian, self._variables)
            # A pipe ends with the process at its other end. Silence means nothing: this process may be stopped (Ctrl-Z)
            host = RemoteHost(
                f"part {len(self._hosts)}",
                connection,
                self._selector,
                self,
                limit=float("inf"),
                grace=self._grace,
                stdin=self._stdin,
            )
            ranks = start.ranks[first : first + size]
            self._hosts.append(host)
            self._running[host] = set(ranks)
            host.open()
            host.start(replace(start, ranks=ranks, first_local=start.first_local + first))
            first += size

    @property
    def running(self) -> bool:
        """True once all ranks have started."""
        return all(host.running for host in self._hosts)

    def tick(self) -> None:
        for host in self._hosts:
            host.tick()

    @property
    def wake_at(self) -> float:
        return min(host.wake_at for host in self._hosts)

    @property
    def gone(self) -> bool:
        return all(host.gone for host in self._hosts)

    @property
    def drained_at(self) -> float:
        return max(host.drained_at for host in self._hosts)

    def finish(self, code: int) -> None:
        for host in self._hosts:
            host.finish(code)

    @property
    def closed(self) -> bool:
        return all(host.closed for host in self._hosts)

    def close(self) -> None:
        for host in self._hosts:
            host.close()
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    # What the agents tell

    def started(self, rank: int, pid: int) -> None:
        self._pids[rank] = pid
        self._listener.started(rank, pid)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self._listener.output(rank, stream, data)

    def ended(self, rank: int, status: int, last_signal: int) -> None:
        for ranks in self._running.values():
            if rank in ranks:  # otherwise its agent was lost, and this has been said
                ranks.remove(rank)
                self._listener.ended(rank, status, last_signal)

    def answered(self, question: Question, value: int | bool) -> None:
        """Agents are not asked: the store is not theirs."""

    def said(self, host: Host, line: bytes) -> None:
        """Nothing: `lost` tells the last lines."""

    def lost(self, host: Host, reason: str) -> None:
        """An agent has ended, or ends its ranks on its own. Before all ranks run, the start has failed."""
        if not self.running:
            self.failure = self.failure or host.failure
            return
        for rank in sorted(self._running[host]):
            if host.closed:
                self._bury(self._pids[rank])
            self._listener.output(rank, STDERR, f"ronde: {reason}\n".encode())
            self.ended(rank, -signal.SIGKILL, 0)

    def _bury(self, pid: int) -> None:
        """Kill a rank whose agent has ended, and collect it where this process adopts orphans (Linux)."""
        signal_group(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
