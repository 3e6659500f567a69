"""The agreement of the survivors, through the store of the group that failed.

    arrive ----> wait for the decision
                 and meanwhile, as the scout of a host:   report processes of the host that have ended
                               as the coordinator:        read the arrivals and losses; propose a decision when no rank
                                                          is missing any more

The coordinator of a regroup also calls the newcomers that wait (admission.py). The first proposal becomes the decision
of all. Of the ranks that have arrived, one of each host is its scout, and one scout is the coordinator. Both are duties
(duty.py), which pass on when a rank ends. So every rank asks the store a few times, and only the coordinator reads what
grows with the number of ranks: five requests for each look.

Store keys, in the part of the old group
    shrink/here          table; the row of a rank tells that it has arrived
    shrink/lost          table; the row of a rank is the reason why it cannot continue, by a rank that knows for certain
    shrink/scout/HOST    the duty to watch a host
    shrink/coordinator   the duty to propose
    shrink/members       members of the group and their numbers, for the newcomers that are called
    shrink/decision      the verdict
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from collectives.failure import wake
from collectives.membership.admission import Candidates
from collectives.membership.decision import Blame, Decision, Knowledge, decide_survivors
from collectives.membership.duty import Duty
from collectives.membership.generation import DECISION, MEMBERS, pack_members
from collectives.membership.standby import has_majority
from collectives.membership.verdict import Verdict, verdict_from
from collectives.watchdog import FarHosts, have_closed, ranks_by_host
from transports.base import Group
from transports.errors import DeadlineExceeded, PeerLost, RendezvousError, RondeError
from transports.liveness import STOPPED_SECONDS, Watch
from transports.rendezvous import Causes

LOST_SECONDS: Final = 0.5
LATE_SECONDS: Final = 2.0
"""Time for a rank to arrive that the failure is blamed on, as lost or as late."""
STORE_SECONDS: Final = 5.0
"""Time for the store to answer."""
ABSENT_SECONDS: Final = 10.0
"""Time for a host to send its first heartbeat, or its first rank. It may be lost before the group has connected."""
MOVE_SECONDS: Final = STORE_SECONDS + LATE_SECONDS
"""The same in a standby. The store may have failed other hosts so much later than this one."""
FIRST_PAUSE: Final = 0.01
LAST_PAUSE: Final = 0.1
"""Seconds between two looks of a scout. The last rank to arrive does not pause; its decision wakes the rest."""
IDLE_SECONDS: Final = 1.0
"""Seconds between two looks of other ranks at their scout."""


_LONGEST_REASON: Final = 1 << 12
"""Bytes of a reason."""


class SurvivorAgreement:
    """One rank's part in the agreement on the survivors of a group.

    failure     the failure of the group, as this rank knows it; None if there was none
    heartbeat   the setting
    terms       version and transport that newcomers must have; None if nobody comes or leaves
    lost        ranks that certainly cannot continue, with reasons
    record      records the verdict by which the group was made, if that may not have been done; called by the
                coordinator, before it proposes the next one
    voters      groups, by the numbers of their members, of each of which a majority is needed to go on
    moved       True in a standby of the store, to which no heartbeats go
    """

    def __init__(
        self,
        group: Group,
        failure: RondeError | None,
        heartbeat: float,
        *,
        terms: str | None = None,
        lost: Mapping[int, str] | None = None,
        record: Callable[[], None] | None = None,
        voters: Sequence[Sequence[int]] = (),
        moved: bool = False,
    ) -> None:
        self._group = group
        self._voters = voters
        self._moved = moved
        self._terms = terms
        self._record = record
        self._rank = group.rank
        store = group.store.with_timeout(STORE_SECONDS)
        self._group_store = store
        self._watchdogs = store.prefixed("watch")
        self._store = store.prefixed("shrink")
        self._causes = Causes(store)
        self._failure = failure
        self._heartbeat = heartbeat
        self._scout = Duty(self._store.prefixed(f"scout/{group.members[self._rank].host}"), self._rank)
        self._coordinator = Duty(self._store.prefixed("coordinator"), self._rank)
        self._here = {self._rank}
        self._lost = dict(lost or {})
        self._watch: Watch | None = None
        self._far: FarHosts | None = None

    def arrive(self) -> None:
        """Tell the other ranks that this rank has arrived. Raises RendezvousError."""
        self._put("here", self._rank, b"")

    def withdraw(self, reason: str) -> None:
        """Tell the other ranks that this rank does not continue. Never raises."""
        with contextlib.suppress(RendezvousError):  # the other ranks will miss it
            self._put("lost", self._rank, reason.encode(errors="replace")[:_LONGEST_REASON])

    def close(self) -> None:
        """Release descriptors. Idempotent."""
        if self._watch is not None:
            self._watch.close()

    def decide(self, begun: float, timeout: float) -> Verdict:
        """Wait for the other ranks; the verdict. Raises RendezvousError.

        begun     when this rank began to wait (monotonic seconds)
        timeout   seconds from then on
        """
        with contextlib.closing(self._group_store.awaited(DECISION)) as awaited:
            pause = 0.0
            while True:
                found = awaited.wait(time.monotonic() + pause)
                if found is not None:
                    return verdict_from(found[1], self._group.size)
                if not self._scout.held(time.monotonic()):
                    pause = IDLE_SECONDS
                    continue
                pause = min(max(2 * pause, FIRST_PAUSE), LAST_PAUSE)
                self._look_at_processes()
                if self._coordinator.held(time.monotonic()):
                    self._look_at_reports(time.monotonic() - begun)
                    known = Knowledge(self._group.size, frozenset(self._here), self._lost, self._blamed())
                    decision, _ = decide_survivors(known, time.monotonic() - begun, timeout)
                    proposal = None if decision is None else self._propose(decision, time.monotonic() - begun, timeout)
                    if proposal is not None:
                        decided = self._group_store.set_default(DECISION, proposal.pack())
                        return verdict_from(decided, self._group.size)

    def _propose(self, decision: Decision, waited: float, timeout: float) -> Verdict | None:
        """The verdict that the coordinator proposes; None to wait for newcomers, since the ranks are too few."""
        if self._record is not None:
            self._record()
            self._record = None
        group, numbers = self._group, self._group.numbers
        present = [numbers[rank] for rank in decision.survivors]
        for members in self._voters:
            if not has_majority(members, present):
                refusal = (
                    f"{sum(number in members for number in present)} of {len(members)} ranks are left, no majority"
                )
                return Verdict(self._rank, (), decision.left_out, refusal=refusal)
        if self._terms is None:
            return Verdict(self._rank, decision.survivors, decision.left_out)
        assert group.parent_store is not None
        job = group.parent_store.with_timeout(STORE_SECONDS)
        ranks = {numbers[rank]: rank for rank in decision.survivors}
        candidates = Candidates(job, self._terms, list(ranks))
        admission = None
        if candidates.suffice():
            if candidates.roster.waiting:
                self._group_store.set_default(MEMBERS, pack_members(group))
            admission = candidates.admit(group.generation, self._keep_duties)
        if admission is None:
            if waited < timeout:
                return None
            least = candidates.roster.minimum
            refusal = f"{len(ranks)} ranks are left, {least} are needed, and too few came within {timeout:g} s"
            return Verdict(self._rank, (), decision.left_out, refusal=refusal)
        leaving = {ranks[number]: reason for number, reason in admission.leaving.items()}
        staying = tuple(rank for rank in decision.survivors if rank not in leaving)
        return Verdict(self._rank, staying, decision.left_out, leaving, admission.admitted, admission.roster)

    def _keep_duties(self) -> None:
        """Give signs as the scout and the coordinator."""
        self._scout.held(time.monotonic())
        self._coordinator.held(time.monotonic())

    def _look_at_processes(self) -> None:
        """Report the ranks of this host whose processes have ended or are stopped: the work of the scout."""
        if self._watch is None:
            self._watch = Watch()
            for rank in ranks_by_host(self._group)[self._group.members[self._rank].host]:
                self._watch.add(rank, self._group.members[rank].process)
        for rank in self._watch.dead():
            self._lose(rank, "its process ended")
        stopped = [rank for rank in self._watch.stopped(0.0) if rank not in self._lost]
        blamed = self._blamed() if stopped else {}
        for rank in stopped:
            if rank in blamed:
                self._lose(rank, blamed[rank].reason)
        for rank in self._watch.stopped():
            self._lose(rank, f"its process has been stopped for {STOPPED_SECONDS:g} s")

    def _look_at_reports(self, waited: float) -> None:
        """Find arrivals and losses, those of silent hosts as well: the work of the coordinator."""
        missing = [rank for rank in range(self._group.size) if rank not in self._here and rank not in self._lost]
        closed = have_closed(self._watchdogs, missing)  # asked first: a rank that shrinks arrives, then closes
        self._here.update(rank for rank, row in enumerate(self._store.rows("here")) if row is not None)
        for rank, reason in enumerate(self._store.rows("lost")):
            if reason is not None:
                self._lost[rank] = reason.decode(errors="replace")
        for rank in closed - self._here:
            self._lose(rank, "it closed the communicator")
        if self._heartbeat or self._moved:
            if self._far is None:
                self._far = FarHosts(
                    self._group, self._watchdogs, self._heartbeat, lambda ranks: wake(self._group_store, ranks)
                )
            all_could_come = waited >= (MOVE_SECONDS if self._moved else ABSENT_SECONDS)
            known, arrived = self._here | self._lost.keys(), self._here if all_could_come else None
            for rank, silence in self._far.silent(known, arrived).items():
                self._lose(rank, silence)

    def _lose(self, rank: int, reason: str) -> None:
        """Note that a rank is lost, and tell the coordinator."""
        if rank not in self._lost:
            self._lost[rank] = reason
            self._put("lost", rank, reason.encode())

    def _put(self, table: str, rank: int, row: bytes) -> None:
        with contextlib.suppress(ValueError):  # somebody has told it before
            self._store.put_row(table, rank, self._group.size, row)

    def _blamed(self) -> Mapping[int, Blame]:
        cause = self._causes.fetch(0.0) or self._failure
        if not isinstance(cause, PeerLost | DeadlineExceeded) or cause.peer is None or cause.peer == self._rank:
            return {}
        return {cause.peer: Blame(cause.message, LOST_SECONDS if isinstance(cause, PeerLost) else LATE_SECONDS)}
