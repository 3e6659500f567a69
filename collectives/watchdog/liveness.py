"""Peer liveness. The cost for a rank does not grow with the number of ranks, since there are two rings:

    processes   every rank watches the next process on its host, through the kernel
    hosts       the first rank of every host adds to a counter in the store, and watches that of the next host

A host that seems silent is asked before it is lost: its ranks are woken, and any of them answers with a heartbeat. So
one rank of a host beats, though any may die or close.

Store keys, in the part that the watchdogs of a group share
    left/RANK    the rank has closed, so its end is no failure
    beats/HOST   heartbeat counter
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from transports.base import Group
from transports.errors import AbortedError, PeerLost, RendezvousError
from transports.launchers import find_starter
from transports.liveness import STOPPED_SECONDS, Steady, Watch
from transports.packed import pack, unpack
from transports.store import Store


def has_closed(store: Store, rank: int) -> bool:
    """True if a rank has closed, so that its end is no failure. Raises RendezvousError."""
    return store.peek(f"left/{rank}") is not None


def have_closed(store: Store, ranks: Sequence[int]) -> set[int]:
    """The ranks of `ranks` that have closed. One request. Raises RendezvousError."""
    marks = store.peek_all([f"left/{rank}" for rank in ranks])
    return {rank for rank, mark in zip(ranks, marks, strict=True) if mark is not None}


def ranks_by_host(group: Group) -> dict[str, list[int]]:
    """Host -> its ranks, ascending. The hosts are in the order of their first ranks."""
    hosts: dict[str, list[int]] = {}
    for rank, member in enumerate(group.members):
        hosts.setdefault(member.host, []).append(rank)
    return hosts


class NextProcess:
    """The next process on this rank's host, in the ring of the host's ranks. One that has closed is skipped."""

    def __init__(self, group: Group, store: Store) -> None:
        me, rank = group.members[group.rank], group.rank
        ring = [*range(rank + 1, group.size), *range(rank)]
        near = [peer for peer in ring if group.members[peer].host == me.host]
        self._group = group
        self._store = store
        self._candidates = [peer for peer in near if group.members[peer].pid != me.pid]
        self._watch: Watch | None = None

    @property
    def exists(self) -> bool:
        """False if no process is left to watch."""
        return bool(self._candidates)

    def check(self) -> PeerLost | None:
        """The error if the process is lost; else None. Raises RendezvousError if the rank has ended, and the store
        does not tell whether it closed before: calls will. They would wait for one that is stopped; the store may be in
        it."""
        rank = self._candidates[0]
        if self._watch is None:
            self._watch = Watch()
            self._watch.add(rank, self._group.members[rank].process)
        dead, replaced = bool(self._watch.dead()), bool(self._watch.replaced())
        if dead:
            reason = "its process ended without closing"
        elif replaced:
            reason = "its process became another program (exec) without closing"
        elif self._watch.stopped():
            reason = f"its process has been stopped for {STOPPED_SECONDS:g} s, by SIGSTOP or Ctrl-Z"
        else:
            return None
        try:
            closed = has_closed(self._store, rank)
        except RendezvousError:
            if dead or replaced:
                raise
            closed = False
        if closed:
            self.close()
            del self._candidates[0]
            return None
        text = f"rank {self._group.rank} lost {self._group.describe(rank)}: {reason}"
        return PeerLost(text, rank=self._group.rank, peer=rank)

    def close(self) -> None:
        """Release descriptors. Idempotent."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class LauncherProcess:
    """The process of the launcher that has started this rank; `find_starter` tells which. Without it nobody would end
    the rank, or learn how it ended."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._starter = find_starter(os.environ) if group.size > 1 else None
        self._watch: Watch | None = None

    @property
    def exists(self) -> bool:
        """False if there is no such process to watch."""
        return self._starter is not None

    def check(self) -> AbortedError | None:
        """The error if the process has ended; else None."""
        if self._starter is None:
            return None
        rank = self._group.rank
        if self._watch is None:
            self._watch = Watch()
            self._watch.add(rank, self._starter.process)
        if not self._watch.dead():
            return None
        text = f"rank {rank} aborted: its launcher has ended on {self._group.members[rank].hostname} ({self._starter})"
        return AbortedError(text, rank=rank)

    def close(self) -> None:
        """Release descriptors. Idempotent."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


_ASK_SHARE: Final = 0.4
"""Part of the setting heartbeat after which a silent host is asked."""

_CREDIT_SHARE: Final = 0.6
"""Largest part of the setting heartbeat for which a rank believes that a host has been silent before its own first
look. The rest until the loss, 0.2, is time for an answer."""

Ask = Callable[[Iterable[int]], None]
"""Wakes the watchdogs of ranks. Raises RendezvousError."""


class HostHeartbeat:
    """The heartbeat of one host, as this rank sees it.

    host        number of the host, in the order of `ranks_by_host`
    heartbeat   the setting, in seconds
    """

    def __init__(self, host: int, heartbeat: float) -> None:
        self.key = f"beats/{host}"
        self.report_key = f"silent/{host}"
        self._asked = 0.0
        self._heartbeat = heartbeat
        self._counter = Steady(gap=heartbeat / 2)

    def restart(self) -> None:
        """Measure the silence from now on: this rank could not observe the host meanwhile."""
        self._counter.forget()

    def silence(self, beats: bytes | None, began: float, now: float) -> float | None:
        """Seconds for which the host has been silent; None if it is not watched, since it has never sent a heartbeat.

        beats        the counter as the store has it, None if there is none
        began, now   when the store was asked and has answered. To be called at least five times per heartbeat
        """
        if beats is None or now - began > self._heartbeat / 10:  # a slow store may delay the host's heartbeats too
            self.restart()
            return None
        return self._counter.seen(beats, now)

    def report(self, beats: bytes | None, silence: float | None) -> bytes:
        """The observation of this rank, for `reported` of another one."""
        return pack([beats, silence])

    def reported(self, beats: bytes | None, report: bytes | None) -> float:
        """Seconds for which the host was silent before this rank looked at it, as another rank has reported; 0 if it
        has sent a heartbeat since. Raises RendezvousError."""
        if report is None:
            return 0.0
        try:
            match unpack(report):
                case [bytes(seen), float(seconds)]:
                    return min(seconds, _CREDIT_SHARE * self._heartbeat) if seen == beats else 0.0
        except ValueError as error:
            raise RendezvousError(f"the store holds a report on a host that cannot be read: {error}") from error
        raise RendezvousError("the store holds a value that is not a report on a host")

    def to_ask(self, silence: float | None) -> bool:
        """True if the host is to be asked for a heartbeat. It has time for several answers until it is lost."""
        if silence is None or silence < _ASK_SHARE * self._heartbeat:
            self._asked = 0.0
            return False
        if silence < self._asked + self._heartbeat / 5:
            return False
        self._asked = silence
        return True

    def loss(self, silence: float | None) -> str | None:
        """The reason why the ranks of a host are lost that has been silent for so long; None if they are not."""
        if silence is None or silence < 0.8 * self._heartbeat:  # the rest is lost between two looks, at begin and end
            return None
        return f"no sign of life from its host for {silence:.1f} s (setting heartbeat: {self._heartbeat:g} s)"


class FarHosts:
    """The heartbeats of all hosts but this rank's."""

    def __init__(self, group: Group, store: Store, heartbeat: float, ask: Ask) -> None:
        own = group.members[group.rank].host
        self._store = store
        self._ask = ask
        self._hosts = [
            (ranks, HostHeartbeat(number, heartbeat))
            for number, (host, ranks) in enumerate(ranks_by_host(group).items())
            if host != own
        ]

    def silent(self, known: AbstractSet[int], arrived: AbstractSet[int] | None = None) -> dict[int, str]:
        """The lost ranks of hosts that are silent, with reasons, without those that are `known`. One request, or none
        if all are known, and one for each rank that is asked. Raises RendezvousError.

        arrived  ranks that have come. Hosts with none of them that have never sent a heartbeat are lost, too. None if
                 such hosts may still come
        """
        hosts = [(ranks, heartbeat) for ranks, heartbeat in self._hosts if not known >= set(ranks)]
        if not hosts:
            return {}
        began = time.monotonic()
        keys = [heartbeat.key for _, heartbeat in hosts] + [heartbeat.report_key for _, heartbeat in hosts]
        values = self._store.peek_all(keys)
        now, lost = time.monotonic(), {}
        for (ranks, heartbeat), beats, report in zip(hosts, values, values[len(hosts) :], strict=False):
            silence = heartbeat.silence(beats, began, now)
            if silence is not None:
                silence += heartbeat.reported(beats, report)
            reason = heartbeat.loss(silence)
            if arrived is not None and beats is None and arrived.isdisjoint(ranks):
                reason = "no rank of its host has come, and its host has given no sign of life"
            if heartbeat.to_ask(silence):
                self._ask(rank for rank in ranks if rank not in known)
            if reason is not None:
                lost.update({rank: reason for rank in ranks if rank not in known})
        return lost


class NextHost:
    """The next host in the ring of hosts. The first rank of each host sends heartbeats, and watches the next host.

    heartbeat   seconds of silence after which the ranks of a host are lost; 0: never
    ask         wakes ranks, which then call `send`
    """

    def __init__(self, group: Group, store: Store, heartbeat: float, ask: Ask) -> None:
        hosts = list(ranks_by_host(group).values())
        own = next(number for number, ranks in enumerate(hosts) if group.rank in ranks)
        watches = hosts[own][0] == group.rank
        ring = [*range(own + 1, len(hosts)), *range(own)]
        self._group = group
        self._store = store
        self._heartbeat = heartbeat
        self._own = HostHeartbeat(own, heartbeat)
        self._candidates = [(hosts[host], HostHeartbeat(host, heartbeat)) for host in ring if watches]
        self._ask = ask
        self._send_at = self._check_at = 0.0
        self.exists = len(hosts) > 1 and heartbeat > 0
        """False if the group has one host, or heartbeats are off: then no method is to be called."""
        self.beats = self.exists and watches
        """True if this rank sends heartbeats without being asked."""

    @property
    def due(self) -> float:
        """The time of the next `tick` (monotonic seconds)."""
        if not self.beats:
            return float("inf")
        return min(self._send_at, self._check_at) if self._candidates else self._send_at

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats; infinite if there are none."""
        return self._heartbeat / 5 if self.exists else float("inf")

    def send(self) -> None:
        """Send one heartbeat. The first of a host is due before the ranks compute, since a host that never sent one is
        not watched. Raises RendezvousError."""
        self._store.add(self._own.key, 1)

    def keep_beating(self, now: float) -> None:
        """Send a heartbeat if it is time at `now`. Any rank of the host may: it may be the last one that beats. Raises
        RendezvousError."""
        if now >= self._send_at:
            self._send_at = now + self.interval
            self.send()

    def tick(self, now: float) -> PeerLost | None:
        """Run the tasks that are due at `now`. Returns the error if the next host is lost. Raises RendezvousError."""
        if self.beats:
            self.keep_beating(now)
        if self._candidates and now >= self._check_at:
            self._check_at = now + self._heartbeat / 10
            return self._check(*self._candidates[0])
        return None

    def restart(self) -> None:
        """Measure the silence from now on: this rank could not observe the host meanwhile."""
        if self._candidates:
            self._candidates[0][1].restart()

    def _check(self, ranks: list[int], heartbeat: HostHeartbeat) -> PeerLost | None:
        began = time.monotonic()
        beats = self._store.peek(heartbeat.key)
        silence = heartbeat.silence(beats, began, time.monotonic())
        reason, to_ask = heartbeat.loss(silence), heartbeat.to_ask(silence)
        if reason is None and not to_ask:
            return None
        # A failure that another rank notices before the host counts as lost leads to a regroup, which goes on from here
        self._store.set(heartbeat.report_key, heartbeat.report(beats, silence))
        closed = have_closed(self._store, ranks)
        left = [rank for rank in ranks if rank not in closed]
        if not left:
            del self._candidates[0]
            return None
        if reason is None:
            self._ask(left)
            return None
        names = self._group.describe_all(left)
        return PeerLost(f"rank {self._group.rank} lost {names}: {reason}", rank=self._group.rank, peer=left[0])
