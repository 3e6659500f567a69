"""Peer liveness. The cost for a rank does not grow with the number of ranks, since there are two rings:

    processes   every rank watches the next process on its host, through the kernel
    hosts       the first rank of every host watches the next host, through a counter in the store

Store keys, in the part that the watchdogs of a group share
    left/RANK    the rank has closed, so its end is no failure
    beats/HOST   heartbeat counter, to which all ranks of the host add
"""

from __future__ import annotations

import time

from transports.base import Group
from transports.errors import PeerLost
from transports.liveness import STOPPED_SECONDS, Steady, Watch
from transports.store import Store


def has_closed(store: Store, rank: int) -> bool:
    """True if a rank has closed, so that its end is no failure. Raises RendezvousError."""
    return store.peek(f"left/{rank}") is not None


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
        """The error if the process is lost; else None. Raises RendezvousError."""
        rank = self._candidates[0]
        if self._watch is None:
            self._watch = Watch()
            self._watch.add(rank, self._group.members[rank].process)
        if self._watch.dead():
            reason = "its process ended without closing"
        elif self._watch.stopped():
            reason = f"its process has been stopped for {STOPPED_SECONDS:g} s, by SIGSTOP or Ctrl-Z"
        else:
            return None
        if has_closed(self._store, rank):
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


class HostHeartbeat:
    """The heartbeat of one host, as this rank sees it.

    host        number of the host, in the order of `ranks_by_host`
    heartbeat   the setting, in seconds
    """

    def __init__(self, store: Store, host: int, heartbeat: float) -> None:
        self._store = store
        self._key = f"beats/{host}"
        self._heartbeat = heartbeat
        self._counter = Steady(gap=heartbeat / 2)

    def send(self) -> None:
        """Send one heartbeat. Raises RendezvousError."""
        self._store.add(self._key, 1)

    def restart(self) -> None:
        """Measure the silence from now on: this rank could not observe the host meanwhile."""
        self._counter.forget()

    def silence(self) -> str | None:
        """The reason why the ranks of the host are lost; None if they are not, or the host has never sent a heartbeat.

        To be called at least five times per heartbeat. Raises RendezvousError.
        """
        began = time.monotonic()
        beats = self._store.peek(self._key)
        now = time.monotonic()
        if beats is None or now - began > self._heartbeat / 10:  # a slow store may delay the host's heartbeats too
            self.restart()
            return None
        seconds = self._counter.seen(beats, now)
        if seconds < 0.8 * self._heartbeat:  # the rest is lost between two looks, at the begin and at the end
            return None
        return f"no sign of life from its host for {seconds:.1f} s (setting heartbeat: {self._heartbeat:g} s)"


class NextHost:
    """The next host in the ring of hosts. Every rank sends heartbeats for its own host; the first rank of each host
    also watches the next host.

    heartbeat   seconds of silence after which the ranks of a host are lost; 0: never
    """

    def __init__(self, group: Group, store: Store, heartbeat: float) -> None:
        hosts = list(ranks_by_host(group).values())
        own = next(number for number, ranks in enumerate(hosts) if group.rank in ranks)
        watches = hosts[own][0] == group.rank
        ring = [*range(own + 1, len(hosts)), *range(own)]
        self._group = group
        self._store = store
        self._heartbeat = heartbeat
        self._own = HostHeartbeat(store, own, heartbeat)
        self._candidates = [(hosts[host], HostHeartbeat(store, host, heartbeat)) for host in ring if watches]
        self._send_at = self._check_at = 0.0
        self.exists = len(hosts) > 1 and heartbeat > 0
        """False if the group has one host, or heartbeats are off: then no method is to be called."""

    @property
    def due(self) -> float:
        """The time of the next `tick` (monotonic seconds)."""
        return min(self._send_at, self._check_at) if self._candidates else self._send_at

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats."""
        return self._heartbeat / 5

    def send(self) -> None:
        """Send one heartbeat. The first is due before the ranks compute, since a host that never sent one is not
        watched. Raises RendezvousError."""
        self._own.send()

    def tick(self, now: float) -> PeerLost | None:
        """Run the tasks that are due at `now`. Returns the error if the next host is lost. Raises RendezvousError."""
        if now >= self._send_at:
            self._send_at = now + self.interval
            self.send()
        if self._candidates and now >= self._check_at:
            self._check_at = now + self._heartbeat / 10
            return self._check(*self._candidates[0])
        return None

    def restart(self) -> None:
        """Measure the silence from now on: this rank could not observe the host meanwhile."""
        if self._candidates:
            self._candidates[0][1].restart()

    def _check(self, ranks: list[int], heartbeat: HostHeartbeat) -> PeerLost | None:
        reason = heartbeat.silence()
        if reason is None:
            return None
        lost = [rank for rank in ranks if not has_closed(self._store, rank)]
        if not lost:
            del self._candidates[0]
            return None
        names = ", ".join(map(self._group.describe, lost))
        return PeerLost(f"rank {self._group.rank} lost {names}: {reason}", rank=self._group.rank, peer=lost[0])
