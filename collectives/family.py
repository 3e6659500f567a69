"""The state that a communicator shares with those split from it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import zlib
from collections.abc import Iterable

from collectives.config import Config
from collectives.execution import CallPositions
from collectives.failure import AbortSignal
from collectives.flight import Door, FlightRecord, load_of
from collectives.membership import Fence, Standby
from collectives.metering import Endpoint, Recorder
from collectives.operations import OWN_CHANNEL
from collectives.resources import Dropped, Resources
from collectives.watchdog import Watchdog, ranks_by_host
from transports import forking
from transports.base import Transport
from transports.errors import TransportError
from transports.numbers import Numbers


class Family:
    """A world communicator and its splits: they share a transport, an abort signal, a watchdog and
    a timeline.

    communicators   the resources of those that are open, in the order in which they were made
    dropped         those of them that nobody refers to any more
    fence           the agreement on the next change of ranks
    flight          the record of this rank's last calls
    standby         the stores that may take over; those of the family's successor once there is one
    positions       the calls in which this rank is, for the watchdog
    recorder        the timeline of this rank
    endpoint        the HTTP server of this rank's metrics, None until it is asked for
    """

    def __init__(self, transport: Transport, config: Config, standby: Standby | None = None) -> None:
        self.transport = transport
        self.standby = Standby() if standby is None else standby
        self.flight = _flight_record(transport, config)
        self.abort_signal = AbortSignal(transport, self.flight)
        self.positions = CallPositions()
        self.watchdog = Watchdog(
            transport.group,
            self.abort_signal,
            self.positions,
            heartbeat=config.heartbeat,
            stall=config.stall,
            records=self.flight.path and self.flight.path.parent,
        )
        self.fence = Fence(transport.group, config.terms, lambda: transport.failure)
        self.communicators: list[Resources] = []
        self.dropped = Dropped()
        self._counts = Numbers()
        self.recorder = Recorder()
        self.endpoint: Endpoint | None = None
        forking.register(self)

    def new_context(self) -> int:
        """A number for a communicator or a channel, which no rank of the family gives again, in no thread. The world's
        is 0. Raises TransportError if there are no more."""
        rank, count = self.transport.rank, next(self._counts)
        context = 1 + count * self.transport.size + rank
        if context >= OWN_CHANNEL:
            raise TransportError(f"rank {rank} has numbered {count} communicators and channels: there are no more")
        return context

    def forget(self, gone: Iterable[Resources]) -> None:
        """Take communicators out of the list. Threads may do so, and make others, at the same time."""
        for resources in gone:
            with contextlib.suppress(ValueError):  # another thread has taken it out
                self.communicators.remove(resources)

    def release_dropped(self) -> None:
        """Release the communicators that nobody refers to any more, if nothing of them is in flight."""
        self.forget(self.dropped.release())

    def close(self, deadline: float) -> None:
        """Close the transport and everything else that the communicators share, also after an error or an interrupt of
        one of them. Raises as Transport.close."""
        endpoint, self.endpoint = self.endpoint, None
        with contextlib.ExitStack() as steps:  # the last of them first
            steps.callback(self.standby.close)
            steps.callback(self.watchdog.close)
            steps.callback(self.fence.close)
            steps.callback(self.transport.close, deadline)
            steps.callback(self.watchdog.leave)
            steps.callback(self.flight.close)
            if endpoint is not None:
                steps.callback(endpoint.close)
            steps.callback(self.recorder.stop)

    def after_fork(self) -> None:
        """In a forked child: stop watching and recording."""
        self.watchdog.after_fork()
        self.recorder.after_fork()
        if self.endpoint is not None:
            self.endpoint.after_fork()


def _flight_record(transport: Transport, config: Config) -> FlightRecord:
    """The record of this rank: a file where the setting asks for one and each rank is a process."""
    group = transport.group
    here, first = group.members[group.rank], group.members[0]
    alone = len({(member.host, member.pid) for member in group.members}) < group.size
    if not config.flight_record or alone or group.size == 1:
        return FlightRecord()
    digest = zlib.crc32(repr([(member.host, member.pid, member.start) for member in group.members]).encode())
    facts = {
        "size": group.size,
        "host": here.host,
        "hostname": here.hostname,
        "pid": os.getpid(),
        "thread": threading.main_thread().native_id,
        "generation": group.generation,
        "number": group.numbers[group.rank],
        "transport": transport.name,
        "program": " ".join(sys.argv).encode(errors="replace")[:300].decode(errors="ignore"),
        "clock": time.perf_counter_ns(),
        "date": time.time(),
    }
    load = load_of(os.getpid())
    if load is not None:  # for viewers, which tell what has come since
        facts["delayed"] = load.delayed
    record = FlightRecord.create(f"{first.hostname}-{first.pid}-{digest:08x}", group.rank, facts)
    hosts, place = ranks_by_host(group), group.store.place()
    if place is not None and hosts[here.host][0] == group.rank:
        tls = group.tls.files if group.tls is not None else ()
        record.open_door(Door(place, group.secret, tls, tuple(map(tuple, hosts.values()))))
    return record
