"""The agreement of the survivors, through the store of the group that failed.

    arrive ----> look for arrivals and losses ----> no rank is missing: propose a decision ----> read the decision
                        ^            |
                        +------------+ until then

The first proposal becomes the decision of all (transports/rendezvous/once.py).

Store keys, in the part of the old group
    shrink/here/RANK   the rank has arrived
    shrink/lost/RANK   reason why it cannot continue, written by a rank that knows for certain
    shrink/decision    survivors, ranks left out with reasons, and the rank that proposed it
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Final

from collectives.survivors.decision import Blame, Decision, Knowledge, decide_survivors
from collectives.watchdog import HostHeartbeat, has_closed, ranks_by_host
from transports.base import Group
from transports.errors import DeadlineExceeded, PeerLost, RendezvousError, RondeError
from transports.liveness import STOPPED_SECONDS, Watch
from transports.packed import pack, unpack
from transports.rendezvous import Causes, decide, decided

LOST_SECONDS: Final = 0.5
LATE_SECONDS: Final = 2.0
"""Time for a rank to arrive that the failure is blamed on, as lost or as late."""
STORE_SECONDS: Final = 5.0
"""Time for the store to answer."""
FIRST_PAUSE: Final = 0.01
LAST_PAUSE: Final = 0.1
"""Seconds between two looks at the other ranks. The last rank to arrive does not pause; its decision wakes the rest."""


class SurvivorAgreement:
    """One rank's part in the agreement on the survivors of a group.

    failure     the failure of the group, as this rank knows it; None if there was none
    heartbeat   the setting
    """

    def __init__(self, group: Group, failure: RondeError | None, heartbeat: float) -> None:
        self._group = group
        self._rank = group.rank
        store = group.store.with_timeout(STORE_SECONDS)
        self._watchdogs = store.prefixed("watch")
        self._store = store.prefixed("shrink")
        self._causes = Causes(store)
        self._failure = failure
        self._here = {self._rank}
        self._lost: dict[int, str] = {}
        self._watch = Watch()
        self._far: list[tuple[list[int], HostHeartbeat]] = []
        for host, (name, ranks) in enumerate(ranks_by_host(group).items()):
            if name == group.members[self._rank].host:
                for rank in ranks:
                    self._watch.add(rank, group.members[rank].process)
            elif heartbeat:
                self._far.append((ranks, HostHeartbeat(self._watchdogs, host, heartbeat)))

    def arrive(self) -> None:
        """Tell the other ranks that this rank has arrived. Raises RendezvousError."""
        self._store.set(f"here/{self._rank}", b"")

    def withdraw(self, reason: str) -> None:
        """Tell the other ranks that this rank does not continue. Never raises."""
        with contextlib.suppress(RendezvousError):  # the other ranks will miss it
            self._store.set(f"lost/{self._rank}", reason.encode(errors="replace"))

    def close(self) -> None:
        """Release descriptors. Idempotent."""
        self._watch.close()

    def decide(self, begun: float, timeout: float) -> tuple[Decision, int]:
        """Wait for the other ranks; the decision, and the rank that proposed it. Raises RendezvousError.

        begun     when this rank began to wait (monotonic seconds)
        timeout   seconds from then on
        """
        pause = FIRST_PAUSE
        while True:
            with contextlib.suppress(DeadlineExceeded):
                return _read(decided(self._store, "decision", time.monotonic()))
            self._look()
            known = Knowledge(self._group.size, frozenset(self._here), self._lost, self._blamed())
            decision, _ = decide_survivors(known, time.monotonic() - begun, timeout)
            if decision is not None:
                proposal = pack([self._rank, decision.survivors, list(decision.left_out.items())])
                return _read(decide(self._store, "decision", proposal, time.monotonic() + STORE_SECONDS))
            with contextlib.suppress(DeadlineExceeded):
                return _read(decided(self._store, "decision", time.monotonic() + pause))
            pause = min(2 * pause, LAST_PAUSE)

    def _look(self) -> None:
        """Find arrivals and losses."""
        for rank in range(self._group.size):
            if rank in self._lost:
                continue
            if rank not in self._here:
                closed = has_closed(self._watchdogs, rank)  # asked first: a rank that shrinks arrives, then closes
                if self._store.peek(f"here/{rank}") is not None:
                    self._here.add(rank)
                elif closed:
                    self._lose(rank, "it closed the communicator")
            reason = self._store.peek(f"lost/{rank}")
            if reason is not None:
                self._lost[rank] = reason.decode(errors="replace")
        for rank in self._watch.dead():
            self._lose(rank, "its process ended")
        blamed = self._blamed()
        for rank in self._watch.stopped(0.0):
            if rank in blamed:
                self._lose(rank, blamed[rank].reason)
        for rank in self._watch.stopped():
            self._lose(rank, f"its process has been stopped for {STOPPED_SECONDS:g} s")
        for ranks, heartbeat in self._far:
            missing = [rank for rank in ranks if rank not in self._here and rank not in self._lost]
            silence = heartbeat.silence() if missing else None
            for rank in missing if silence else []:
                self._lose(rank, str(silence))

    def _lose(self, rank: int, reason: str) -> None:
        """Note that a rank is lost, and tell the other ranks."""
        if rank not in self._lost:
            self._lost[rank] = reason
            self._store.set(f"lost/{rank}", reason.encode())

    def _blamed(self) -> Mapping[int, Blame]:
        cause = self._causes.fetch(0.0) or self._failure
        if not isinstance(cause, PeerLost | DeadlineExceeded) or cause.peer is None or cause.peer == self._rank:
            return {}
        return {cause.peer: Blame(cause.message, LOST_SECONDS if isinstance(cause, PeerLost) else LATE_SECONDS)}


def _read(decision: bytes) -> tuple[Decision, int]:
    """A decision and the rank that proposed it. Raises RendezvousError."""
    try:
        match unpack(decision):
            case [int(by), [*survivors], [*left_out]]:
                return Decision(tuple(survivors), dict(left_out)), by
    except (ValueError, TypeError) as error:
        raise RendezvousError(f"the store holds a decision on the survivors that cannot be read: {error}") from error
    raise RendezvousError("the store holds a value that is not a decision on the survivors")
