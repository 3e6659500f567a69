"""Who watches whom. Two rings, so that the cost for a rank does not grow with their number: every rank watches the
next process on its host, by the kernel's eyes; every host watches the next one, by the beats of its ranks in the store.

Store keys, in the part that the watchmen of a group share
    left/RANK    it closed, and its end is no loss
    beats/HOST   a counter that all ranks of the host add to
"""

from __future__ import annotations

import time

from transports.base import Group
from transports.errors import DeadlineExceeded, PeerLost
from transports.liveness import STOPPED_SECONDS, Steady, Watch
from transports.rendezvous.store import Store


def peek(store: Store, key: str) -> bytes | None:
    """The value of a key, None if it has none. Raises RendezvousError."""
    try:
        return store.get(key, time.monotonic())
    except DeadlineExceeded:
        return None


def has_left(desk: Store, rank: int) -> bool:
    """True if a rank has closed, so that its end is no loss. Raises RendezvousError."""
    return peek(desk, f"left/{rank}") is not None


def ranks_by_host(group: Group) -> dict[str, list[int]]:
    """Host -> its ranks, ascending; the hosts in the order in which they appear."""
    hosts: dict[str, list[int]] = {}
    for rank, member in enumerate(group.members):
        hosts.setdefault(member.host, []).append(rank)
    return hosts


class NextProcess:
    """The next rank on this rank's host that is another process; the one after it if it has left, and so on."""

    def __init__(self, group: Group, desk: Store) -> None:
        me, rank = group.members[group.rank], group.rank
        ring = [*range(rank + 1, group.size), *range(rank)]
        near = [peer for peer in ring if group.members[peer].host == me.host]
        self._group = group
        self._desk = desk
        self._ahead = [peer for peer in near if group.members[peer].pid != me.pid]
        self._watch: Watch | None = None

    @property
    def exists(self) -> bool:
        """False once there is nobody to watch, any more."""
        return bool(self._ahead)

    def look(self) -> PeerLost | None:
        """The loss of it, if it is lost. Raises RendezvousError."""
        rank = self._ahead[0]
        if self._watch is None:
            self._watch = Watch()
            self._watch.add(rank, self._group.members[rank].process)
        if self._watch.dead():
            ill = "its process ended without closing"
        elif self._watch.stopped():
            ill = f"its process has been stopped for {STOPPED_SECONDS:g} s, by SIGSTOP or Ctrl-Z"
        else:
            return None
        if has_left(self._desk, rank):
            self.close()
            del self._ahead[0]
            return None
        who = f"rank {self._group.rank} lost {self._group.describe(rank)}"
        return PeerLost(f"{who}: {ill}", rank=self._group.rank, peer=rank)

    def close(self) -> None:
        """Release descriptors. Idempotent."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class Pulse:
    """The signs of life of one host, as this rank sees them.

    host        its number, in the order in which the hosts appear in the group
    heartbeat   the setting
    """

    def __init__(self, desk: Store, host: int, heartbeat: float) -> None:
        self._desk = desk
        self._key = f"beats/{host}"
        self._heartbeat = heartbeat
        self._steady = Steady(gap=heartbeat / 2)

    def beat(self) -> None:
        """Give one. Raises RendezvousError."""
        self._desk.add(self._key, 1)

    def forget(self) -> None:
        """Begin anew: this rank cannot tell what it did not see."""
        self._steady.forget()

    def missed(self) -> str | None:
        """Why the ranks of the host are lost, if they are; None too if it never gave a sign. Call it at least five
        times per heartbeat. Raises RendezvousError."""
        began = time.monotonic()
        beats = peek(self._desk, self._key)
        now = time.monotonic()
        if beats is None or now - began > self._heartbeat / 10:  # slow to answer here, so perhaps to take beats there
            self.forget()
            return None
        silence = self._steady.seen(beats, now)
        if silence < 0.8 * self._heartbeat:  # the two looks around it take the rest
            return None
        return f"no sign of life from its host for {silence:.1f} s (setting heartbeat: {self._heartbeat:g} s)"


class NextHost:
    """The next host, for groups on several. Every rank gives signs of life for its host, the first of each host also
    looks at those of the next one.

    heartbeat   seconds: so long after a host fell silent, at the latest, its ranks are lost; 0: never
    """

    def __init__(self, group: Group, desk: Store, heartbeat: float) -> None:
        hosts = ranks_by_host(group)
        names = list(hosts)
        at = names.index(group.members[group.rank].host)
        first = hosts[names[at]][0] == group.rank
        self._group = group
        self._desk = desk
        self._heartbeat = heartbeat
        self._own = Pulse(desk, at, heartbeat)
        self._ahead = [
            (hosts[names[host]], Pulse(desk, host, heartbeat))
            for host in ((at + step) % len(names) for step in range(1, len(names)))
            if first
        ]
        self._beat_at = self._look_at = 0.0
        self.exists = len(names) > 1 and heartbeat > 0

    @property
    def due(self) -> float:
        """When `turn` is to be called next (monotonic seconds)."""
        return min(self._beat_at, self._look_at) if self._ahead else self._beat_at

    @property
    def pause(self) -> float:
        """Seconds between two signs of life."""
        return self._heartbeat / 5

    def beat(self) -> None:
        """Give a sign of life: the first before anybody computes, since nobody is missed who never gave one. Raises
        RendezvousError."""
        self._own.beat()

    def turn(self, now: float) -> PeerLost | None:
        """Do what is due; the loss of the next host, if it is lost. Raises RendezvousError."""
        if now >= self._beat_at:
            self._beat_at = now + self.pause
            self.beat()
        if self._ahead and now >= self._look_at:
            self._look_at = now + self._heartbeat / 10
            return self._look(*self._ahead[0])
        return None

    def forget(self) -> None:
        """Begin anew: this rank cannot tell what it did not see."""
        if self._ahead:
            self._ahead[0][1].forget()

    def _look(self, ranks: list[int], pulse: Pulse) -> PeerLost | None:
        why = pulse.missed()
        if why is None:
            return None
        lost = [rank for rank in ranks if not has_left(self._desk, rank)]
        if not lost:
            del self._ahead[0]
            return None
        names = ", ".join(map(self._group.describe, lost))
        return PeerLost(f"rank {self._group.rank} lost {names}: {why}", rank=self._group.rank, peer=lost[0])
