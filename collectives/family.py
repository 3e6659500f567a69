"""The state that a communicator shares with those split from it."""

from __future__ import annotations

import itertools

from collectives.config import Config
from collectives.execution import CallPositions
from collectives.failure import AbortSignal
from collectives.membership import Fence, Standby, terms_of
from collectives.metrics import Endpoint, Recorder
from collectives.resources import Dropped, Resources
from collectives.watchdog import Watchdog
from transports import forking
from transports.base import Transport


class Family:
    """A world communicator and its splits: they share a transport, an abort signal, a watchdog and
    a timeline.

    communicators   the resources of those that are open, in the order in which they were made
    dropped         those of them that nobody refers to any more
    newest_context  the highest number that a communicator of the family was given on this rank; the world's is 0
    channel_counter  counts the channels that this rank has numbered
    fence           the agreement on the next change of ranks
    standby         the stores that may take over; those of the family's successor once there is one
    positions       the calls in which this rank is, for the watchdog
    recorder        the timeline of this rank
    endpoint        the HTTP server of this rank's metrics, None until it is asked for
    """

    def __init__(self, transport: Transport, config: Config, standby: Standby | None = None) -> None:
        self.transport = transport
        self.standby = Standby() if standby is None else standby
        self.abort_signal = AbortSignal(transport)
        self.positions = CallPositions()
        self.watchdog = Watchdog(
            transport.group, self.abort_signal, self.positions, heartbeat=config.heartbeat, stall=config.stall
        )
        self.fence = Fence(transport.group, terms_of(config.transport, config.standbys), lambda: transport.failure)
        self.communicators: list[Resources] = []
        self.dropped = Dropped()
        self.newest_context = 0
        self.channel_counter = itertools.count()
        self.recorder = Recorder()
        self.endpoint: Endpoint | None = None
        forking.register(self)

    def release_dropped(self) -> None:
        """Release the communicators that nobody refers to any more, if nothing of them is in flight."""
        released = self.dropped.release()
        self.communicators = [resources for resources in self.communicators if resources not in released]

    def after_fork(self) -> None:
        """In a forked child: stop watching and recording."""
        self.watchdog.after_fork()
        self.recorder.after_fork()
        if self.endpoint is not None:
            self.endpoint.after_fork()
