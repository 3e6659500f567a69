"""Bootstrap of a rank: reads the launcher's environment, opens the store, and meets all ranks there."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final

from transports.auth import MIN_SECRET, check_secret
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

_STORES: Final = "tcp://host:port, file:///directory, or memory: (a world of one)"
SHRINKS: Final = 1 << 32
"""Distance between the generations of meetings. The numbers between are for groups that survivors form."""
GRACE_SECONDS: Final = 5.0
"""Seconds that a rank waits, after its deadline, for the decision of another rank."""


# Environment of the launcher


@dataclass(frozen=True)
class Job:
    """The job as a launcher describes it to a process.

    store        URL, see `open_store`
    secret       the per-job secret; empty means that nothing is authenticated. It is not shown in the repr
    local_rank   place among the `local_size` ranks of the same host; None where the launcher does not say
    name         the job's id, for messages
    """

    rank: int
    size: int
    store: str
    secret: bytes = field(default=b"", repr=False)
    local_rank: int | None = None
    local_size: int | None = None
    name: str = ""


@dataclass(frozen=True)
class _Variables:
    """The environment variables by which a launcher passes a Job."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    store: str
    secret: str
    name: str


RONDE: Final = _Variables(
    rank="RONDE_RANK",
    size="RONDE_SIZE",
    local_rank="RONDE_LOCAL_RANK",
    local_size="RONDE_LOCAL_SIZE",
    store="RONDE_STORE",
    secret="RONDE_SECRET",
    name="RONDE_JOB",
)
TAKEN: Final = "RONDE_RANK_PROCESS"
"""The variable in which a rank notes its process id, rank and store, for the processes that it starts."""
LAUNCHERS: Final = (RONDE,)
"""Launchers' variables, in the order of precedence."""


def job_from_environment(env: Mapping[str, str]) -> Job | None:
    """The job that this process belongs to; None if it was not started as a rank.

    Rank and size are required. With more than one rank, the store and the secret are required, too. The secret is in
    hexadecimal; an empty one means no authentication. Raises ConfigError naming the variable, its value (except the
    secret's) and the allowed values.
    """
    for names in LAUNCHERS:
        if names.rank in env or names.size in env:
            return _job(names, env)
    return None


def job_to_environment(job: Job) -> dict[str, str]:
    """The environment variables of a rank, from which `job_from_environment` returns `job`."""
    values = {
        RONDE.rank: str(job.rank),
        RONDE.size: str(job.size),
        RONDE.store: job.store,
        RONDE.secret: job.secret.hex(),
        RONDE.name: job.name,
    }
    if job.local_rank is not None and job.local_size is not None:
        values |= {RONDE.local_rank: str(job.local_rank), RONDE.local_size: str(job.local_size)}
    return values


def take(job: Job, env: MutableMapping[str, str]) -> Callable[[], object]:
    """Note in `env`, which the processes that this one starts inherit, that this process is the job's rank. Returns
    the function that removes the note."""
    env[TAKEN] = f"{os.getpid()} {job.rank} {job.store}"
    return lambda: env.pop(TAKEN, None)


def check_not_taken(job: Job, env: Mapping[str, str]) -> None:
    """Raise ConfigError if `env` was inherited from another process that is the job's rank."""
    process, _, place = env.get(TAKEN, "").partition(" ")
    if place == f"{job.rank} {job.store}" and process != str(os.getpid()):
        raise ConfigError(
            f"{RONDE.rank}={job.rank}: rank {job.rank} is process {process} already, which has started this one (pid "
            f"{os.getpid()}); for a world of its own, give init rank=0, size=1 and store='memory:', or start the "
            f"process without the variables {RONDE.rank} and {RONDE.size}"
        )


def _job(names: _Variables, env: Mapping[str, str]) -> Job:
    size = _integer(env, names.size, 1, None, f"is needed with {names.rank}")
    rank = _integer(env, names.rank, 0, size - 1, f"is needed with {names.size}")
    local_rank = local_size = None
    if names.local_rank in env or names.local_size in env:
        local_size = _integer(env, names.local_size, 1, size, f"is needed with {names.local_rank}")
        local_rank = _integer(env, names.local_rank, 0, local_size - 1, f"is needed with {names.local_size}")
    store = env.get(names.store, "memory:" if size == 1 else None)
    if store is None:
        raise ConfigError(f"{names.store}: is needed when {names.size} is more than 1: {_STORES}")
    secret = env.get(names.secret, "" if size == 1 else None)
    if secret is None:
        raise ConfigError(
            f"{names.secret}: is needed when {names.size} is more than 1; set it, but to nothing, to go without "
            f"authentication"
        )
    try:
        proven = check_secret(bytes.fromhex(secret))
    except ValueError:
        raise ConfigError(
            f"{names.secret}: must be at least {2 * MIN_SECRET} hexadecimal digits, an even number, or empty "
            f"(its value, {len(secret)} characters, is not shown)"
        ) from None
    return Job(rank, size, store, proven, local_rank, local_size, env.get(names.name, ""))


def _integer(env: Mapping[str, str], name: str, low: int, high: int | None, needed: str) -> int:
    text = env.get(name)
    if text is None:
        raise ConfigError(f"{name}: {needed}")
    value = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
    if value < low or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise ConfigError(f"{name}={text!r}: must be an integer, {allowed}")
    return value


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
    raise ConfigError(f"store={url!r}: must be {_STORES}")


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
