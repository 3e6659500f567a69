"""The ranks of a host, divided among agents beside this process: for more ranks than one process has descriptors for.

An agent of this kind is the same program as that of another host. It has the pipes of its ranks and a proxy of the
store for them, and divides them again if they are too many for it, too. So the processes of a host form a tree.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from collectives.launch.hosts.agent_commands import agent_arguments, folder_here
from collectives.launch.hosts.connection import CommandConnection
from collectives.launch.hosts.host import Facts, Failure, Here, Host, Hosts, Notice, Start
from collectives.launch.hosts.remote_host import RemoteHost
from collectives.launch.processes import STDERR, STDOUT, signal_group
from collectives.launch.store_keeper import Question, WayToStore
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


@dataclass
class _Part:
    """An agent. `room`: number of ranks for which it is meant; `ranks`: those that have not ended."""

    host: RemoteHost
    room: int
    ranks: set[int] = field(default_factory=set)

    @property
    def free(self) -> int:
        """The number of ranks that may be added."""
        return 0 if self.host.failure is not None else self.room - len(self.ranks)


class DividedHost(Host):
    """The ranks are children of agents beside this process. `running` is True once the ranks of the first `start` have
    started.

    rooms   number of ranks for which each agent has room. An agent is started with its first ranks
    notice  the file that says that the host is about to go; None: there is no such file
    """

    def __init__(self, name: str, here: Here, rooms: Sequence[int], notice: Notice | None) -> None:
        super().__init__(name)
        self._notice = notice
        self._here = here
        self._rooms = rooms
        self._stdin = os.dup(here.stdin)
        self._store: WayToStore | None = None
        self._wanted = {STDOUT: True, STDERR: True}
        self._parts: list[_Part] = []
        self._together = Hosts(self._hosts)
        self._pids: dict[int, int] = {}

    def open(self) -> None:
        self.facts = Facts.own()

    def start(self, start: Start) -> None:
        """The first ranks are divided evenly among the agents, later ones start where there is most room. Raises
        OSError, RendezvousError."""
        if self._store is None:
            self._store = self._here.way_to_store(start)
        start = replace(start, store=self._store.url, local_size=start.local_size or len(start.ranks))
        first = 0
        for part, count in self._divided(len(start.ranks)):
            ranks = start.ranks[first : first + count]
            part.ranks.update(ranks)
            first_local = start.first_local + first
            part.host.start(replace(start, ranks=ranks, first_local=first_local, room=part.room))
            first += count

    def _divided(self, ranks: int) -> Iterator[tuple[_Part, int]]:
        """Agents, and the number of ranks that each is to start."""
        if not self._parts:
            for place, room in enumerate(self._rooms):
                count = ranks // len(self._rooms) + (place < ranks % len(self._rooms))
                if count:
                    yield self._open(room), count
            return
        while ranks:
            part = max(self._parts, key=lambda part: part.free)
            if part.free <= 0:
                part = self._open(self._rooms[-1])
            count = min(ranks, part.free)
            yield part, count
            ranks -= count

    def _open(self, room: int) -> _Part:
        """Start an agent. Raises OSError, ConfigError."""
        here, command = self._here, [sys.executable, *agent_arguments(folder_here())]
        connection = CommandConnection(command, None, here.selector, here.guardian, here.variables)
        # A pipe ends with the process at its other end. Silence means nothing: this process may be stopped (Ctrl-Z)
        never, name = float("inf"), f"part {len(self._parts)}"
        host = RemoteHost(name, connection, here.selector, self, limit=never, grace=here.grace, stdin=self._stdin)
        part = _Part(host, room)
        self._parts.append(part)
        host.open()
        for stream, wanted in self._wanted.items():
            host.want_output(stream, wanted)
        return part

    def _hosts(self) -> list[RemoteHost]:
        return [part.host for part in self._parts]

    def want_output(self, stream: int, wanted: bool) -> None:
        self._wanted[stream] = wanted
        self._together.want_output(stream, wanted)

    def signal_groups(self, number: signal.Signals) -> None:
        self._together.signal_groups(number)

    def signal_ranks(self, number: signal.Signals) -> None:
        self._together.signal_ranks(number)

    def signal_rank(self, rank: int, number: signal.Signals) -> None:
        for host in self._hosts():
            host.signal_rank(rank, number)

    def give_up(self) -> None:
        self._together.give_up()

    def on_child_exit(self) -> None:
        self._together.on_child_exit()

    def tick(self) -> None:
        super().tick()
        for part in self._parts:
            part.host.tick()
            if part.host.failure is not None:
                self._lose(part, part.host.failure)
        self.running = self.running or (bool(self._parts) and all(part.host.running for part in self._parts))

    @property
    def wake_at(self) -> float:
        return min([super().wake_at, *(host.wake_at for host in self._hosts())])

    @property
    def gone(self) -> bool:
        return all(host.gone for host in self._hosts())

    @property
    def drained_at(self) -> float:
        return max((host.drained_at for host in self._hosts()), default=0.0)

    def finish(self, code: int) -> None:
        for host in self._hosts():
            host.finish(code)

    @property
    def closed(self) -> bool:
        return all(host.closed for host in self._hosts())

    def close(self) -> None:
        for host in self._hosts():
            host.close()
        if self._store is not None:
            self._store.close()
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def _lose(self, part: _Part, failure: Failure) -> None:
        """An agent has ended, or ends its ranks on its own. Before all ranks run, the start has failed."""
        if not self.running:
            self.failure = self.failure or failure
            return
        for rank in sorted(part.ranks):
            if part.host.closed and rank in self._pids:
                self._bury(self._pids[rank])
            self._here.listener.output(rank, STDERR, f"ronde: {failure.text}\n".encode())
            self.ended(rank, -signal.SIGKILL, 0)

    def _bury(self, pid: int) -> None:
        """Kill a rank whose agent has ended, and collect it where this process adopts orphans (Linux)."""
        signal_group(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    # What the agents tell

    def started(self, rank: int, pid: int) -> None:
        """See Listener."""
        self._pids[rank] = pid
        self._here.listener.started(rank, pid)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """See Listener."""
        self._here.listener.output(rank, stream, data)

    def ended(self, rank: int, status: int, last_signal: int) -> None:
        """See Listener."""
        for part in self._parts:
            if rank in part.ranks:  # otherwise its agent was lost, and this has been said
                part.ranks.remove(rank)
                self._here.listener.ended(rank, status, last_signal)

    def answered(self, question: Question, value: int | bool) -> None:
        """Agents are not asked: the store is not theirs."""

    def stderr_line(self, host: Host, line: bytes) -> None:
        """Nothing: the failure of the host has the last lines."""
