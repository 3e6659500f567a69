"""The ranks on the host of the calling process: started, watched, their output read. The launcher uses it for its own
host, and an agent for the host where it runs."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from signal import Signals
from typing import Final

from collectives.launch.hosts.host import Facts, Here, Host, Start, cannot_start
from collectives.launch.hosts.parts import DividedHost, divided
from collectives.launch.processes import STDERR, STDOUT, RankProcesses, rank_environment
from collectives.launch.store_keeper import WayToStore
from transports import launchers, registry

DRAIN_SECONDS: Final = 0.5
"""Silence after which output counts as complete, though some process still holds a rank's pipe open."""

_READ: Final = 1 << 16


class LocalHost(Host):
    """The ranks are children of this process. Errors are raised if they come at once."""

    def __init__(self, name: str, here: Here) -> None:
        super().__init__(name)
        self._here = here
        self._processes = RankProcesses(here.guardian)
        self._store: WayToStore | None = None
        self._streams: dict[tuple[int, int], int] = {}  # rank and stream -> pipe
        self._wanted = {STDOUT: True, STDERR: True}
        self._last_activity = 0.0
        self._failed = False
        self._closed = False

    def open(self) -> None:
        self.facts = Facts.own()

    def with_room(self, room: int) -> Host:
        """Before the first ranks: agents, if one process may not open enough descriptors for all of them."""
        rooms = divided(room) if self._store is None else []
        if not rooms:
            return self
        host = DividedHost(self.name, self._here, rooms, self._notice)
        host.open()
        for stream, wanted in self._wanted.items():
            host.want_output(stream, wanted)
        return host

    def start(self, start: Start) -> None:
        """Raises OSError when a rank cannot be started; those before it run. A newcomer that cannot be started has
        ended. Raises RendezvousError if the store cannot be reached."""
        if self._store is None:
            self._store = self._here.way_to_store(start)
        start = replace(start, store=self._store.url, local_size=start.local_size or len(start.ranks))
        with open(os.devnull, "rb") as null:
            for local_rank, rank in enumerate(start.ranks, start.first_local):
                job = launchers.Job(
                    rank, start.size, start.store, start.secret, local_rank, start.local_size, start.name, start.joins
                )
                variables = rank_environment(job, self._here.variables, start.torch)
                stdin = self._here.stdin if rank == 0 else null.fileno()
                try:
                    self._start(rank, start.command, variables, stdin)
                except OSError as error:
                    if not start.joins:
                        raise
                    failure = cannot_start(start.command, error)
                    self._here.listener.output(rank, STDERR, f"{failure.text}\n".encode())  # the other ranks here go on
                    self._here.listener.ended(rank, failure.exit_code, 0)
        self.running = True

    def _start(self, rank: int, command: Sequence[str], variables: Mapping[str, str], stdin: int) -> None:
        with contextlib.ExitStack() as ours:
            ends = {}
            for stream in (STDOUT, STDERR):
                pipe, end = os.pipe()
                ours.callback(os.close, end)
                ends[stream] = end
                self._streams[rank, stream] = pipe
                if self._wanted[stream]:
                    self._register(rank, stream)
            pid = self._processes.start(rank, command, variables, (stdin, ends[STDOUT], ends[STDERR]))
        self._here.listener.started(rank, pid)

    def signal_groups(self, number: Signals) -> None:
        self._processes.signal_groups(number)

    def signal_rank(self, rank: int, number: Signals) -> None:
        self._processes.signal_group(rank, number)

    def signal_ranks(self, number: Signals) -> None:
        self._processes.signal_ranks(number)

    def want_output(self, stream: int, wanted: bool) -> None:
        """Read the pipes, or let the ranks wait that write to them."""
        if wanted != self._wanted[stream]:
            self._wanted[stream] = wanted
            self._last_activity = time.monotonic()
            for (rank, other), pipe in self._streams.items():
                if other == stream and wanted:
                    self._register(rank, stream)
                elif other == stream:
                    self._here.selector.unregister(pipe)

    def give_up(self) -> None:
        self._processes.give_up()

    def on_child_exit(self) -> None:
        """Collect the ranks that have ended."""
        for process in self._processes.collect():
            assert process.status is not None
            self._failed = self._failed or process.status != 0
            self._here.listener.ended(process.rank, process.status, process.last_signal)

    @property
    def gone(self) -> bool:
        return self._processes.all_gone

    @property
    def drained_at(self) -> float:
        """Infinite while some output is not wanted."""
        if not self._streams:
            return 0.0
        return self._last_activity + DRAIN_SECONDS if all(self._wanted.values()) else float("inf")

    def finish(self, code: int) -> None:
        self._processes.kill()
        self._processes.give_up()  # the system may use the numbers again

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._processes.close()
            for rank, stream in list(self._streams):
                self._remove(rank, stream)
            if self._store is not None:
                self._store.close()
            if self._failed:
                registry.remove_abandoned()

    def _register(self, rank: int, stream: int) -> None:
        self._here.selector.register(
            self._streams[rank, stream], selectors.EVENT_READ, partial(self._read, rank, stream)
        )

    def _read(self, rank: int, stream: int) -> None:
        if self._wanted[stream] and (rank, stream) in self._streams:  # nothing changed since the selector said so
            self._last_activity = time.monotonic()
            data = os.read(self._streams[rank, stream], _READ)
            if not data:
                self._remove(rank, stream)
            self._here.listener.output(rank, stream, data)

    def _remove(self, rank: int, stream: int) -> None:
        pipe = self._streams.pop((rank, stream))
        if self._wanted[stream]:
            self._here.selector.unregister(pipe)
        os.close(pipe)
