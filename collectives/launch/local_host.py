"""The ranks on the host of the calling process: started, watched, their output read. The launcher uses it for its own
host, and an agent for the host where it runs."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Final

from collectives.launch import environment
from collectives.launch.host import Facts, Failure, RankListener, Start, cannot_start
from collectives.launch.messages import STDERR, STDOUT
from collectives.launch.parts import Parts, divided
from collectives.launch.processes import Guardian
from collectives.launch.rank_processes import RankProcesses
from collectives.launch.store_keeper import Question, StoreKeeper, proxy, reach
from transports import launchers
from transports.rendezvous import TcpStoreServer

DRAIN_SECONDS: Final = 0.5
"""Silence after which output counts as complete, though some process still holds a rank's pipe open."""

NOTICE_SECONDS: Final = 1.0
"""Time between two looks for the file that says that the host is about to go. No event tells that a file appears on
every file system."""

_READ: Final = 1 << 16


class LocalHost:
    """Implements `Host`. Errors are raised if they come at once. Where one process may not open enough descriptors for
    all ranks, it divides them among agents (`parts`).

    variables  the environment of the ranks, to which each rank's own variables are added
    keeper     serves the store already; None: one that begins to with `serve`
    stdin      descriptor that rank 0 reads if it is here; may be set until `start`
    grace      seconds that agents give their ranks if they must end them on their own; may be set until `start`
    has_store  True if this process serves the store without `serve`, so that its ranks need no proxy
    """

    def __init__(
        self,
        name: str,
        selector: selectors.BaseSelector,
        guardian: Guardian,
        listener: RankListener,
        *,
        variables: Mapping[str, str],
        stdin: int,
        grace: float = 0.0,
        keeper: StoreKeeper | None = None,
        has_store: bool = False,
    ) -> None:
        self.name = name
        self.facts: Facts | None = None
        self.serving: tuple[str, tuple[str, int]] | None = None
        self.reached = False
        self.running = False
        self.failure: Failure | None = None
        self._selector = selector
        self._guardian = guardian
        self._parts: Parts | None = None
        self._processes = RankProcesses(guardian)
        self._listener = listener
        self._variables = variables
        self.stdin = stdin
        self.grace = grace
        self._has_store = has_store
        self._prepared = False
        self._keeper = keeper or StoreKeeper(variables)
        self._proxy: TcpStoreServer | None = None
        self._streams: dict[tuple[int, int], int] = {}  # rank and stream -> pipe
        self._wanted = {STDOUT: True, STDERR: True}
        self._last_activity = 0.0
        self._closed = False
        self._notice: Path | None = None
        self._tell: Callable[[str], None] = lambda _: None
        self._look_at = float("inf")

    def open(self) -> None:
        """Nothing needs to be reached."""
        self.facts = Facts.own()

    def serve(self, secret: bytes, interface: str, hints: Sequence[str]) -> None:
        """Serve the store. Raises ConfigError, RendezvousError."""
        self.serving = self._keeper.serve(secret, interface, hints)

    def reach(self, url: str, secret: bytes) -> None:
        """Try whether the store can be reached. Raises RendezvousError."""
        reach(url, secret, self._variables)
        self.reached = True

    def start(self, start: Start) -> None:
        """Start ranks, newcomers beside those that run as well.

        Raises OSError when one cannot be started; those before it run. A newcomer that cannot be started has ended.
        RendezvousError if the store cannot be reached, ConfigError if there are too few descriptors.
        """
        if not self._prepared:
            self._prepare(start, max(start.room, len(start.ranks)))
            self._prepared = True
        store = start.store if self._proxy is None else self._proxy.url
        start = replace(start, store=store, local_size=start.local_size or len(start.ranks))
        if self._parts is not None:
            self._parts.start(start)
            return
        with open(os.devnull, "rb") as null:
            for local_rank, rank in enumerate(start.ranks, start.first_local):
                job = launchers.Job(
                    rank, start.size, store, start.secret, local_rank, start.local_size, start.name, start.joins
                )
                variables = environment.of_rank(job, self._variables, start.torch)
                stdin = self.stdin if rank == 0 else null.fileno()
                try:
                    self._start(rank, start.command, variables, stdin)
                except OSError as error:
                    if not start.joins:
                        raise
                    failure = cannot_start(start.command, error)
                    self._listener.output(rank, STDERR, f"{failure.text}\n".encode())  # the other ranks here go on
                    self._listener.ended(rank, failure.exit_code, 0)
        self.running = True

    def _prepare(self, start: Start, room: int) -> None:
        """Make what `room` ranks need: a proxy of the store if it is elsewhere, and agents if one process cannot have
        all their descriptors."""
        if self.serving is None and not self._has_store and room > 1:
            self._proxy = proxy(start.store, start.secret, self._variables, room)
        rooms = divided(room)
        if rooms:
            self._parts = Parts(
                self._selector,
                self._guardian,
                self._listener,
                rooms=rooms,
                variables=self._variables,
                grace=self.grace,
                stdin=self.stdin,
            )
            for stream, wanted in self._wanted.items():
                self._parts.want_output(stream, wanted)

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
        self._listener.started(rank, pid)

    def signal_groups(self, number: Signals) -> None:
        """Send a signal to all ranks and everything that they started."""
        self._processes.signal_groups(number)
        if self._parts is not None:
            self._parts.signal_groups(number)

    def signal_rank(self, rank: int, number: Signals) -> None:
        """Send a signal to one rank and everything that it started, if it runs."""
        self._processes.signal_group(rank, number)
        if self._parts is not None:
            self._parts.signal_rank(rank, number)

    def heed(self, notice: str, seconds: float, tell: Callable[[str], None]) -> None:
        """Look for a file that says that this host is about to go. Signals are the business of the process."""
        if notice:
            self._notice, self._tell, self._look_at = Path(notice), tell, 0.0

    def signal_ranks(self, number: Signals) -> None:
        """Send a signal to the processes of the ranks alone."""
        self._processes.signal_ranks(number)
        if self._parts is not None:
            self._parts.signal_ranks(number)

    def want_output(self, stream: int, wanted: bool) -> None:
        """Read the pipes of STDOUT or STDERR, or let the ranks wait that write to them."""
        if wanted != self._wanted[stream]:
            self._wanted[stream] = wanted
            if self._parts is not None:
                self._parts.want_output(stream, wanted)
            self._last_activity = time.monotonic()
            for (rank, other), pipe in self._streams.items():
                if other == stream and wanted:
                    self._register(rank, stream)
                elif other == stream:
                    self._selector.unregister(pipe)

    def ask(self, question: Question, ranks: Sequence[int]) -> None:
        """Ask the store that this host serves."""
        self._listener.answered(question, self._keeper.ask(question, ranks))

    def announce_end(self, rank: int) -> None:
        """Tell the ranks that wait in this host's store for a rank that its process has ended."""
        self._keeper.announce_end(rank)

    def give_up(self) -> None:
        """Wait for no process any more."""
        self._processes.give_up()
        if self._parts is not None:
            self._parts.give_up()

    def on_child_exit(self) -> None:
        """Collect the ranks that have ended."""
        for process in self._processes.collect():
            assert process.status is not None
            self._listener.ended(process.rank, process.status, process.last_signal)
        if self._parts is not None:
            self._parts.on_child_exit()

    def tick(self) -> None:
        """Notice the end of agents, and the file that says that the host is about to go."""
        if self._notice is not None and time.monotonic() >= self._look_at:
            found = self._notice.exists()
            self._look_at = float("inf") if found else time.monotonic() + NOTICE_SECONDS
            if found:
                self._tell(f"there is a file {self._notice}")
        if self._parts is not None:
            self._parts.tick()
            self.running = self._parts.running
            self.failure = self._parts.failure

    @property
    def wake_at(self) -> float:
        """For agents, and for the next look at the file. All else that happens here is an event."""
        return self._look_at if self._parts is None else min(self._look_at, self._parts.wake_at)

    @property
    def gone(self) -> bool:
        """True once no process is left."""
        return self._processes.all_gone and (self._parts is None or self._parts.gone)

    @property
    def drained_at(self) -> float:
        """Moment at which the output counts as complete; infinite while some of it is not wanted."""
        if self._parts is not None:
            return self._parts.drained_at
        if not self._streams:
            return 0.0
        return self._last_activity + DRAIN_SECONDS if all(self._wanted.values()) else float("inf")

    def finish(self, code: int) -> None:
        """Kill what is left. The store stays: other hosts may still need it."""
        self._processes.kill()
        self._processes.give_up()  # the system may use the numbers again
        if self._parts is not None:
            self._parts.finish(code)

    @property
    def closed(self) -> bool:
        """True once no agent is left."""
        return self._parts is None or self._parts.closed

    def close(self) -> None:
        """Kill what is left, release the pipes and the store. Idempotent."""
        if not self._closed:
            self._closed = True
            self.finish(0)
            self._processes.close()
            for rank, stream in list(self._streams):
                self._remove(rank, stream)
            if self._parts is not None:
                self._parts.close()
            if self._proxy is not None:
                self._proxy.close()
            self._keeper.close()

    def _register(self, rank: int, stream: int) -> None:
        self._selector.register(self._streams[rank, stream], selectors.EVENT_READ, partial(self._read, rank, stream))

    def _read(self, rank: int, stream: int) -> None:
        if self._wanted[stream] and (rank, stream) in self._streams:  # nothing changed since the selector said so
            self._last_activity = time.monotonic()
            data = os.read(self._streams[rank, stream], _READ)
            if not data:
                self._remove(rank, stream)
            self._listener.output(rank, stream, data)

    def _remove(self, rank: int, stream: int) -> None:
        pipe = self._streams.pop((rank, stream))
        if self._wanted[stream]:
            self._selector.unregister(pipe)
        os.close(pipe)
