"""Bootstrap of a rank: opens the store, and meets all ranks there."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import time
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Final

from transports.auth import check_secret
from transports.base import Group, Member
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError, from_wire, to_wire
from transports.liveness import Identity
from transports.packed import pack, unpack
from transports.rendezvous.file import FileStore
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.tcp import TcpStore
from transports.rendezvous.wire import parse_url
from transports.store import Store
from transports.tls import Tls

STORES: Final = "tcp://host:port, file:///directory, or memory: (a world of one)"
SHRINKS: Final = 1 << 32
"""Distance between the generations of meetings. The numbers between are for groups that survivors form."""
GRACE_SECONDS: Final = 5.0
"""Seconds that a rank waits, after its deadline, for the decision of another rank."""


# The store


def open_store(url: str, secret: bytes, deadline: float, *, tls: Tls | None = None) -> Store:
    """The store at `url`: tcp://host:port (tried until `deadline`), file:///directory, or memory: (a new one,
    for one rank). The caller closes it. `tls` has the certificates for tcp, if the server uses TLS.

    No I/O: a store that cannot be reached fails on first use. Raises ConfigError for any other URL.
    """
    scheme = url.partition(":")[0]
    if scheme == "tcp":
        host, port = parse_url(url)
        return TcpStore(host, port, secret, connect_deadline=deadline, tls=tls)
    if scheme == "file":
        parts = urllib.parse.urlsplit(url)
        if parts.netloc in ("", "localhost") and parts.path.startswith("/") and not parts.query and not parts.fragment:
            return FileStore(urllib.request.url2pathname(parts.path))
    if url == "memory:":
        return MemoryStore()
    raise ConfigError(f"store={url!r}: must be {STORES}")


# The ranks


def this_member() -> Member:
    """The calling process. Processes that share kernel and /dev/shm have the same `host`, independent of their hostname
    and network: the digest of the kernel's boot id (random(4)) and the identity of the mount. On a system without
    these, the digest of hostname and network card's address."""
    own = Identity.own()
    return Member(_host_identity(), socket.gethostname(), own.pid, own.start, own.space)


@functools.cache
def _host_identity() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        shared = os.stat("/dev/shm")
        identity = f"{boot}:{shared.st_dev}:{shared.st_ino}"
    except OSError:
        identity = f"{socket.gethostname()}:{uuid.getnode()}"
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def world_of_one() -> Group:
    """The group of a single process."""
    parent_store = MemoryStore()
    return Group(0, (this_member(),), parent_store.prefixed("group"), parent_store=parent_store)


def next_meeting(rank: int, store: Store) -> int:
    """The generation that a rank joins next in a store: the number of earlier calls for this rank. The n-th meeting of
    a rank is thus the n-th meeting of every rank, also if another process has replaced the rank in between.

    If an earlier generation is undecided, it is returned instead, so that two processes with the same rank meet there
    and fail. Raises RendezvousError.
    """
    number = store.add(f"meetings/{rank}", 1) - 1
    while number > 0 and store.peek(f"generation-{number - 1}/join/decided") is None:
        number -= 1
    return number


def join(rank: int, size: int, store: Store, *, secret: bytes = b"", generation: int = 0, deadline: float) -> Group:
    """Meet the other ranks in `store`. Collective: `size` processes with different ranks and the same size.

    Costs five calls of the store per rank, and `size` more for the last rank. The first decision of a generation,
    success or error, applies to all of its ranks: a rank that comes after another gave up fails at once. Retry with the
    next generation, never with the same. The published table has room for about 5,000 ranks.

    Raises
        DeadlineExceeded  naming every missing rank
        RendezvousError   two processes have the same rank, or sizes differ (both are named); or the store failed
        ValueError        a bad rank, size or generation;  ConfigError  a secret that is too short
    The store stays open in any case; it belongs to the caller.
    """
    if size < 1:
        raise ValueError(f"size={size!r}: must be 1 or more")
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank!r}: must be 0 to {size - 1}")
    if generation < 0:
        raise ValueError(f"generation={generation!r}: must be 0 or more")
    check_secret(secret)
    room = store.prefixed(f"generation-{generation}")
    entry = _Entry(rank, size, this_member())
    members = _Meeting(entry, room.prefixed("join"), deadline).meet()
    return Group(rank, members, room.prefixed("group"), secret, generation * SHRINKS, parent_store=store)


@dataclass(frozen=True)
class _Entry:
    """The entry that a rank writes to the store."""

    rank: int
    size: int
    member: Member

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.member})"

    def pack(self) -> bytes:
        return pack([self.rank, self.size, _row(self.member)])

    @staticmethod
    def unpack(data: bytes) -> _Entry:
        match _unpack(data):
            case [int(rank), int(size), row]:
                return _Entry(rank, size, _member(row))
        raise RendezvousError("the store holds something else where a rank's entry should be")


def _row(member: Member) -> list[object]:
    return [member.host, member.hostname, member.pid, member.start, member.space]


def _member(row: object) -> Member:
    match row:
        case [str(host), str(hostname), int(pid), int(start), int(space)]:
            return Member(host, hostname, pid, start, space)
    raise RendezvousError("the store holds something else where host and process of a rank should be")


def _unpack(data: bytes) -> object:
    try:
        return unpack(data)
    except ValueError as error:
        raise RendezvousError(f"the store holds something that cannot be read: {error}") from error


class _Meeting:
    """The ranks of one generation, meeting in a store. Keys:

    seat/RANK    number of processes with this rank         member/RANK   the entry of the first of these
    seated       number of ranks that have an entry         founder       the entry of the first rank
    decided      number of decisions; the first one counts  verdict       the first decision: all members, or an error

    The last rank publishes the members, a rank that finds an error publishes the error, and all ranks wait for the
    decision.
    """

    def __init__(self, me: _Entry, store: Store, deadline: float) -> None:
        self._me = me
        self._store = store
        self._deadline = deadline
        self._begun = time.monotonic()

    def meet(self) -> tuple[Member, ...]:
        try:
            decision = self._attend()
        except DeadlineExceeded:
            decision = self._give_up()
        match _unpack(decision):
            case {"members": [*rows]} if len(rows) == self._me.size:
                return tuple(_member(row) for row in rows)
            case {"error": dict(fields)}:
                error = from_wire(fields)
                raise type(error)(error.message, rank=self._me.rank, peer=error.peer)
        raise RendezvousError("the store holds something else where the table of ranks should be", rank=self._me.rank)

    def _attend(self) -> bytes:
        """Write this rank's entry and wait for the decision."""
        me, store = self._me, self._store
        if store.add(f"seat/{me.rank}", 1) > 1:
            raise self._refuse(self._duplicate())
        store.set(f"member/{me.rank}", me.pack())
        seated = store.add("seated", 1)
        if seated == 1:
            store.set("founder", me.pack())
        else:
            founder = _Entry.unpack(store.get("founder", self._deadline))
            if founder.size != me.size:
                raise self._refuse(f"the size differs: {founder} says {founder.size}, {me} says {me.size}")
        if seated == me.size:
            entries = [self._store.peek(f"member/{rank}") for rank in range(me.size)]
            # An entry is missing if a rank with another size was counted; that rank publishes the error.
            if None not in entries:
                rows = [_row(_Entry.unpack(entry).member) for entry in entries if entry is not None]
                self._decide(pack({"members": rows}))
        return store.get("verdict", self._deadline)

    def _decide(self, decision: bytes) -> bool:
        """Publish `decision` as the decision; False if another rank has decided."""
        if self._store.add("decided", 1) > 1:
            return False
        self._store.set("verdict", decision)
        return True

    def _refuse(self, reason: str) -> RendezvousError:
        """Publish an error as the decision, and return it."""
        error = RendezvousError(reason, rank=self._me.rank)
        self._decide(pack({"error": to_wire(error)}))
        return error

    def _give_up(self) -> bytes:
        """The decision after the deadline: another rank's, or the error that names the missing ranks."""
        overdue = pack({"error": to_wire(self._overdue())})
        if self._decide(overdue):
            return overdue
        try:
            return self._store.get("verdict", time.monotonic() + GRACE_SECONDS)
        except DeadlineExceeded:  # the rank that counted its decision has died
            return overdue

    def _overdue(self) -> DeadlineExceeded:
        me = self._me
        seconds = max(0.0, self._deadline - self._begun)
        within = f"within {seconds:.2g} s" if seconds < 10 else f"within {seconds:.0f} s"
        missing = [rank for rank in range(me.size) if self._store.peek(f"member/{rank}") is None]
        if not missing:
            return DeadlineExceeded(f"all {me.size} ranks came, but the last did not announce the group {within}")
        ranks = "rank" if len(missing) == 1 else "ranks"
        return DeadlineExceeded(
            f"{ranks} {_runs(missing)} of {me.size} did not come {within} ({me} gave up)", peer=missing[0]
        )

    def _duplicate(self) -> str:
        me = self._me
        try:
            other = str(_Entry.unpack(self._store.get(f"member/{me.rank}", time.monotonic() + GRACE_SECONDS)).member)
        except DeadlineExceeded:
            other = "one that did not say who it is"
        return (
            f"two processes say they are rank {me.rank} of {me.size}: {other}; and {me.member}. If the first is gone: "
            f"a store serves one job, and a generation is joined once"
        )


def _runs(numbers: list[int]) -> str:
    """'2, 5, 7-12' for sorted numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)
