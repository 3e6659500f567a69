"""Bootstrap of a rank: opens the store, and meets all ranks there."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import tempfile
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from transports.auth import check_secret
from transports.base import Group, Member, runs
from transports.core_count import core_mask
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError, from_wire, to_wire
from transports.liveness import Identity, is_running
from transports.packed import pack, unpack
from transports.rendezvous.causes import Causes
from transports.rendezvous.file import FileStore
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.tcp import TcpStore
from transports.rendezvous.wire import PURPOSE, parse_url
from transports.store import Store, is_table, read_table
from transports.tls import Tls

STORES: Final = "tcp://host:port, file:///directory, or memory: (a world of one)"
REGROUPS: Final = 1 << 32
"""Distance between the generations of meetings. The numbers between are for groups that ranks form later."""


# The store


def open_store(
    url: str, secret: bytes, deadline: float, *, tls: Tls | None = None, purpose: bytes = PURPOSE, size: int = 1
) -> Store:
    """The store at `url`: tcp://host:port (tried until `deadline`), file:///directory, or memory: (a new one,
    for one rank). The caller closes it. For tcp: `tls` has the certificates, if the server uses TLS, and `purpose` is
    that of the server. `size`: number of ranks that are to meet in it.

    No I/O: a store that cannot be reached fails on first use. Raises ConfigError for any other URL.
    """
    scheme = url.partition(":")[0]
    if scheme == "tcp":
        host, port = parse_url(url)
        return TcpStore(host, port, secret, connect_deadline=deadline, tls=tls, purpose=purpose)
    if scheme == "file":
        parts = urllib.parse.urlsplit(url)
        if parts.netloc in ("", "localhost") and parts.path.startswith("/") and not parts.query and not parts.fragment:
            from urllib.request import url2pathname  # here, since it loads a client of HTTP

            return FileStore(url2pathname(parts.path))
    if url == "memory:":
        if size > 1:
            raise ConfigError(f"store={url!r}: is in this process alone, where {size} ranks cannot meet")
        return MemoryStore()
    raise ConfigError(f"store={url!r}: must be {STORES}")


# The ranks


def this_member() -> Member:
    """The calling process. Processes that share kernel and /dev/shm have the same `host`, independent of their hostname
    and network: the digest of the kernel's boot id (random(4)) and the identity of the mount. On a system without
    these, the digest of the hostname, the network card's address if there is one, and the folder of temporary files."""
    own = Identity.own()
    return Member(host_identity(), socket.gethostname(), own.pid, own.start, own.space, core_mask())


@functools.cache
def host_identity() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        shared = os.stat("/dev/shm")
        identity = f"{boot}:{shared.st_dev}:{shared.st_ino}"
    except OSError:
        card, folder = uuid.getnode(), os.stat(tempfile.gettempdir())
        known = "" if card >> 40 & 1 else card  # without a card it is a random number, another one in each process
        identity = f"{socket.gethostname()}:{known}:{folder.st_dev}:{folder.st_ino}"
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def join(
    rank: int,
    size: int,
    store: Store,
    *,
    secret: bytes = b"",
    generation: int | None = 0,
    deadline: float,
    terms: str = "",
) -> Group:
    """Meet the other ranks in `store`. Collective: `size` processes with different ranks and the same size.

    Costs two calls of the store per rank: it enters its row in the table of members, and gets the table. The first
    decision of a generation, success or error, applies to all of its ranks: a rank that comes after another gave up
    fails at once. Retry with the next generation, never with the same.

    Ranks that were given up meanwhile (`give_up`) are not in the group; its `original_ranks` tell which are.

    generation  None for the number of earlier meetings of this rank in this store. So the n-th meeting of a rank is the
                n-th meeting of every rank, also if another process has replaced the rank in between. If an earlier
                generation is undecided, it is taken instead, so that two processes with the same rank meet there and
                fail. If another process still is the rank in the generation before, the ranks of both fail; see
                `leave`. The second and later meetings cost five calls more.
    terms       what must be equal on all ranks, as text; not compared with ranks that give none

    Raises
        DeadlineExceeded  naming every missing rank
        RendezvousError   two processes have the same rank, or sizes differ (both are named); or the store failed
        ConfigError       the terms of two ranks differ (on all ranks; both are named), or a secret that is too short
        ValueError        a bad rank, size or generation
    The store stays open in any case; it belongs to the caller.
    """
    if size < 1:
        raise ValueError(f"size={size!r}: must be 1 or more")
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank!r}: must be 0 to {size - 1}")
    if generation is not None and generation < 0:
        raise ValueError(f"generation={generation!r}: must be 0 or more")
    check_secret(secret)

    def meeting_of(number: int) -> Meeting:
        return Meeting(rank, size, this_member(), store.prefixed(f"generation-{number}"), deadline, terms)

    if generation is None:
        generation, meeting = enter_next(rank, store, meeting_of)
    else:
        meeting = meeting_of(generation)
        meeting.enter()
    members = meeting.result()
    generation *= REGROUPS
    own = store.prefixed(group_path(generation))
    there = tuple(members) if len(members) < size else ()
    rank = there.index(rank) if there else rank
    return Group(rank, tuple(members.values()), own, secret, generation, parent_store=store, original_ranks=there)


def give_up(store: Store, rank: int, size: int) -> None:
    """Let the other ranks of the first meeting go on without a rank whose process has ended. Nothing happens if it had
    entered, or if they do not wait any more. Raises RendezvousError."""
    with contextlib.suppress(ValueError):
        store.prefixed("generation-0").put_row(_MEMBERS, rank, size, _GIVEN_UP)


def announce_end(store: Store, rank: int, *, met: bool) -> bool:
    """Fail the meeting in which the others may wait for a rank, since its process has ended: the first one if it is not
    over and lacks the rank, else the next of the rank. Returns True if the first meeting is over.

    met  the answer to an earlier call: if it is True, the first meeting need not be looked at

    Raises RendezvousError.
    """
    text = f"rank {rank} will not come: its process has ended before it met the other ranks"
    number, decision = 0, pack({"error": to_wire(RendezvousError(text, peer=rank))})
    first = store.prefixed("generation-0")
    if met or first.peek(_MEMBERS) is not None:
        number = int(store.peek(f"meetings/{rank}") or b"0") + 1
    else:
        rows = first.rows(_MEMBERS)
        if rows and (rank >= len(rows) or rows[rank] is not None):
            return False
    store.prefixed(f"generation-{number}").set_default(_MEMBERS, decision)
    return True


def first_meeting(store: Store, until: float) -> tuple[int, ...] | None:
    """The ranks of the first meeting, in which they have become a group; none if they failed to meet. Waited for until
    `until` (monotonic seconds); None if it has not been by then. Raises RendezvousError."""
    with contextlib.closing(store.prefixed("generation-0").awaited(_MEMBERS)) as awaited:
        found = awaited.wait(until)
    if found is None:
        return None
    try:
        rows = read_table(found[1]) if is_table(found[1]) else []
    except ValueError as error:
        raise RendezvousError(f"the store holds something that cannot be read: {error}") from error
    return tuple(rank for rank, row in enumerate(rows) if row != _GIVEN_UP)


def enter_next(rank: int, store: Store, meeting_of: Callable[[int], Meeting]) -> tuple[int, Meeting]:
    """Enter the next meeting of a rank; its generation and the meeting. See `join`. Raises RendezvousError.

    Most ranks meet once, so a rank tries the first meeting without a look at its number of meetings. Its row goes
    through the proxies of the store together with those of other ranks, which a counter would not.
    """
    first = meeting_of(0)
    if first.try_to_enter():
        return 0, first
    number = store.add(f"meetings/{rank}", 1)  # meetings after the first
    if not first.has_row():  # the size differs
        number = 0
    before: bytes | None = None
    while number > 0 and (before := store.peek(f"generation-{number - 1}/{_MEMBERS}")) is None:
        number -= 1
    meeting = meeting_of(number)
    if before is not None:
        _check_left(rank, number - 1, before, store, meeting)
    meeting.enter()
    return number, meeting


def leave(store: Store, rank: int, generation: int) -> None:
    """Tell that a rank has closed the world of a generation, so that another process may have the rank in the next
    meeting. Never raises, and waits for a second at most."""
    with contextlib.suppress(RendezvousError):
        store.with_timeout(_LEAVE_SECONDS).set(f"generation-{generation // REGROUPS}/left/{rank}", b"")


def _check_left(rank: int, number: int, decision: bytes, store: Store, meeting: Meeting) -> None:
    """Raise RendezvousError if another process still is this rank in an earlier meeting: two programs run at once where
    one is meant, and may have met each other. The ranks of both meetings fail."""
    rows = read_table(decision) if is_table(decision) else []
    if rank >= len(rows) or rows[rank] == _GIVEN_UP:
        return
    own, other = this_member(), unpack_member(rows[rank])
    if other.host != own.host or other.pid == own.pid or not is_running(Identity(other.pid, other.start, other.space)):
        return
    if store.peek(f"generation-{number}/left/{rank}") is not None:
        return
    error = RendezvousError(
        f"two processes are rank {rank} at once: {other}, which is in a world, and {own}. Start one program on each "
        f"rank, or one after the other",
        rank=rank,
    )
    Causes(store.prefixed(group_path(number * REGROUPS))).publish(error)
    meeting.reject(error)
    raise error


def group_path(generation: int) -> str:
    """The part of the ranks' store that belongs to the group of a generation (see Group)."""
    meeting, regrouped = divmod(generation, REGROUPS)
    return f"generation-{meeting}.{regrouped}/group" if regrouped else f"generation-{meeting}/group"


class Meeting:
    """The ranks of one generation, meeting in a store: `enter`, then `result`.

    The key `members` has the decision: the table of all members, or the first error that a rank has found.
    """

    def __init__(self, rank: int, size: int, member: Member, store: Store, deadline: float, terms: str = "") -> None:
        self._rank = rank
        self._size = size
        self._member = member
        self._store = store
        self._deadline = deadline
        self._terms = terms
        self._begun = time.monotonic()

    def enter(self) -> None:
        """Tell the others about this rank. Raises RendezvousError."""
        if not self.try_to_enter():
            error = RendezvousError(self._objection(), rank=self._rank)
            self.reject(error)
            raise error

    def reject(self, error: RendezvousError) -> None:
        """Let all ranks that meet here fail, unless they have met. Raises RendezvousError."""
        self._store.set_default(_MEMBERS, pack({"error": to_wire(error)}))

    def try_to_enter(self) -> bool:
        """Tell the others about this rank; False if the place is taken or the size differs. Raises RendezvousError."""
        try:
            self._store.put_row(_MEMBERS, self._rank, self._size, pack_member(self._member, self._terms))
        except ValueError:
            return False
        return True

    def has_row(self) -> bool:
        """True if some process with this rank has entered. Raises RendezvousError."""
        rows = self._store.rows(_MEMBERS)
        return self._rank < len(rows) and rows[self._rank] is not None

    def result(self) -> dict[int, Member]:
        """Wait for the others; the members by their ranks, but those that were given up. Raises DeadlineExceeded,
        RendezvousError; ConfigError if the terms of two of them differ."""
        try:
            decision = self._store.get(_MEMBERS, self._deadline)
        except DeadlineExceeded:
            decision = self._store.set_default(_MEMBERS, pack({"error": to_wire(self._overdue())}))
        rows = self._rows(decision)
        _check_terms(rows)
        return {rank: member for rank, (member, _) in rows.items()}

    def _rows(self, decision: bytes) -> dict[int, tuple[Member, str]]:
        """The members of the decided table, each with its terms. Raises the error that was decided, RendezvousError."""
        try:
            if is_table(decision):
                rows = _rows(read_table(decision), self._size)
                if self._rank not in rows:
                    raise RendezvousError(self._given_up(), rank=self._rank)
                return rows
            match unpack(decision):
                case {"error": dict(fields)}:
                    error = from_wire(fields)
                    error.rank = self._rank
                    raise error
        except ValueError as error:
            raise RendezvousError(f"the store holds something that cannot be read: {error}") from error
        raise RendezvousError("the store holds a value that is not the table of ranks", rank=self._rank)

    def _given_up(self) -> str:
        return f"the launcher has given up rank {self._rank} of {self._size}, since its process had ended"

    def _overdue(self) -> DeadlineExceeded:
        seconds = max(0.0, self._deadline - self._begun)
        within = f"within {seconds:.2g} s" if seconds < 10 else f"within {seconds:.0f} s"
        rows = self._store.rows(_MEMBERS)
        missing = [rank for rank, row in enumerate(rows) if row is None]
        if not missing:
            return DeadlineExceeded(f"all {self._size} ranks came, but the last did not announce the group {within}")
        ranks = "rank" if len(missing) == 1 else "ranks"
        return DeadlineExceeded(
            f"{ranks} {runs(missing)} of {self._size} did not come {within} "
            f"(rank {self._rank} ({self._member}) gave up)",
            peer=missing[0],
        )

    def _objection(self) -> str:
        """The reason why this rank cannot enter."""
        rank, size, rows = self._rank, self._size, self._store.rows(_MEMBERS)
        if len(rows) != size:
            first = next(((place, row) for place, row in enumerate(rows) if row is not None), None)
            other = "another one" if first is None else f"rank {first[0]} ({unpack_member(first[1])})"
            return f"the size differs: {other} says {len(rows)}, rank {rank} ({self._member}) says {size}"
        taken = rows[rank]
        if taken == _GIVEN_UP:
            return self._given_up()
        other = "a process without a description" if taken is None else str(unpack_member(taken))
        return (
            f"two processes have rank {rank} of {size}: {other}, and {self._member}. If the first has ended: a store "
            f"serves one job, so start the job again with a new store"
        )


_LEAVE_SECONDS: Final = 1.0
_MEMBERS: Final = "members"
_GIVEN_UP: Final = pack([])
"""The row of a rank whose process has ended."""


def pack_member(member: Member, terms: str = "") -> bytes:
    """The row of a member in a table. `terms`: see `join`."""
    return pack([member.host, member.hostname, member.pid, member.start, member.space, f"{member.cores:x}", terms])


def unpack_member(row: bytes, texts: dict[str, str] | None = None) -> Member:
    """The member that `pack_member` has packed. Members with the same `texts` share equal texts. Raises
    RendezvousError."""
    return _unpack_row(row, {} if texts is None else texts)[0]


def _rows(rows: list[bytes], size: int) -> dict[int, tuple[Member, str]]:
    """The members of a complete table by their ranks, each with its terms. Raises RendezvousError."""
    if len(rows) != size:
        raise RendezvousError("the store holds a value that is not the table of ranks")
    texts: dict[str, str] = {}  # members of a host share the same
    return {rank: _unpack_row(row, texts) for rank, row in enumerate(rows) if row != _GIVEN_UP}


def _unpack_row(row: bytes, texts: dict[str, str]) -> tuple[Member, str]:
    """A member and its terms. Raises RendezvousError."""
    try:
        match unpack(row):
            case [str(host), str(hostname), int(pid), int(start), int(space), str(cores), str(terms)]:
                host, hostname, terms = (texts.setdefault(text, text) for text in (host, hostname, terms))
                return Member(host, hostname, pid, start, space, int(cores, 16)), terms
    except ValueError as error:
        raise RendezvousError(f"the store holds something that cannot be read: {error}") from error
    raise RendezvousError("the store holds a value that is not the host and process of a rank")


def _check_terms(rows: Mapping[int, tuple[Member, str]]) -> None:
    """Raise ConfigError, the same on all ranks, if the terms of two ranks differ."""
    given: dict[str, int] = {}
    for rank, (_, terms) in rows.items():
        if terms:
            given.setdefault(terms, rank)
    if len(given) > 1:
        texts = [f"rank {rank} ({rows[rank][0]}) has {terms}" for terms, rank in given.items()]
        raise ConfigError(f"the ranks do not fit together: {', '.join(texts[:2])}")
