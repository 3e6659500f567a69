"""The contract that every transport fulfils: bytes between ranks, in order, within a deadline.

A transport knows no dtype, no operation and no collective. Optional abilities (one-sided windows, whole
native collectives) are separate classes, asked for once with `Transport.ability`; there are no base
methods that raise "not supported".

Life of a transport
    t = SomeTransport(group, options)      no I/O
    t.open(deadline)                       collective: every rank of the group calls it
    t.isend(...), t.irecv(...)             from any thread
    t.close(deadline)                      collective when the job ends well; alone after an abort

Deadlines are absolute `time.monotonic()` seconds. Every wait has one, and every wait notices an abort.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, TypeVar

from transports.errors import DeadlineExceeded, ForkedError, MismatchError, RondeError
from transports.liveness import Identity
from transports.store import Store
from transports.tls import Tls

MAX_TAG = 2**64 - 3
"""The tags above it are those of a transport's own frames."""
MAX_CHECK = 2**32 - 1

FIRST_SLICE: Final = 50e-6
LAST_SLICE: Final = 1e-3
"""Seconds. A wait on several transports runs in slices, which double from the first to the second value: a short wait
is prompt, and a long one costs little."""

MOST_RANKS: Final = 1 << 16
"""The most ranks of a group that is started, and of a host in it."""

MOST_NAMED: Final = 32
"""Maximum number of ranks, or of runs of ranks, that a message names one by one."""

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member:
    """Identity of a rank. `host` is equal for ranks that share a kernel and /dev/shm;
    messages show `hostname` and `pid`.

    start, space   with `pid` the process's Identity; unknown by default: then the process is not watched
    cores          those that it may use, see core_mask; unknown by default: then those of the process that asks
    """

    host: str
    hostname: str
    pid: int
    start: int = 0
    space: int = -1
    cores: int = 0

    @property
    def process(self) -> Identity:
        """The process of the rank."""
        return Identity(self.pid, self.start, self.space)

    def __str__(self) -> str:
        return f"{self.hostname}, pid {self.pid}"


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that a transport connects, as seen from `rank`.

    store       shared by exactly this group and generation (a prefix store); keys are free for the transport
    secret      the per-job secret, at least 16 bytes; empty means that links cannot be authenticated. It is not shown
                in the repr
    generation  distinguishes this group from earlier ones of the same job, so that stale frames are refused
    tls         certificates for links that leave the host; None for links without TLS
    parent_store       the store in which the ranks first met, and survivors meet again; None without such a store
    original_ranks       the ranks' numbers in the first group, and those of newcomers; empty if they have not changed
    """

    rank: int
    members: tuple[Member, ...]
    store: Store
    secret: bytes = field(default=b"", repr=False)
    generation: int = 0
    tls: Tls | None = None
    parent_store: Store | None = None
    original_ranks: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def numbers(self) -> Sequence[int]:
        """By rank: the number by which the launcher knows the process, the same in all generations."""
        return self.original_ranks or range(self.size)

    def describe(self, rank: int) -> str:
        """'rank 3 (node1, pid 4242)', for messages."""
        return f"rank {rank} ({self.members[rank]})"

    def describe_all(self, ranks: Collection[int]) -> str:
        """'rank 3 (node1, pid 4242), rank 5 (node2, pid 17) and 40 more', for messages."""
        names = ", ".join(map(self.describe, sorted(ranks)[:MOST_NAMED]))
        return names if len(ranks) <= MOST_NAMED else f"{names} and {len(ranks) - MOST_NAMED} more"

    def forked_error(self) -> ForkedError:
        """The error of every call in a forked child of this rank."""
        parent = self.describe(self.rank)
        text = f"this process was forked by {parent} and is not a rank: only that process may call collectives"
        return ForkedError(text, rank=self.rank)


@dataclass(frozen=True, slots=True)
class LinkCost:
    """Rough figures for choosing algorithms: seconds per message, and seconds per byte.

    hosts   seconds per byte of each host's link, in the order of the hosts' first ranks: the slowest one's is
            `per_byte`, the others are it divided by powers of three; empty if links differ by less than that
    """

    latency: float
    per_byte: float
    hosts: tuple[float, ...] = ()


def runs(numbers: Sequence[int]) -> str:
    """'2, 5, 7-12 and 40 more' for sorted numbers."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    shown, more = found[:MOST_NAMED], sum(map(len, found[MOST_NAMED:]))
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in shown)
    return f"{text} and {more} more" if more else text


class Request(ABC):
    """One send or receive in flight.

    It completes exactly once. A failed request stays failed: `wait` raises the same error again.
    The view given to isend/irecv belongs to the transport until the request has completed or failed. A send may be
    forgotten: the transport keeps a reference to the view until the send ends; a closed peer is no error then.
    """

    __slots__ = ()

    @abstractmethod
    def test(self) -> bool:
        """Make all progress that is possible without waiting; True once completed.

        Raises the errors of `wait`, except DeadlineExceeded.
        """

    @abstractmethod
    def wait(self, deadline: float) -> None:
        """Wait until completed. The wait makes progress on every other request of the transport too.

        Raises
            DeadlineExceeded  the request is still in flight; the transport is intact, but an ordered protocol on
                              top of it usually is not, and should abort
            MismatchError     the arrived frame differs from the receive in length or check; the frame was consumed,
                              the buffer's content is undefined, the transport is intact
            PeerLost, AbortedError, ClosedError, ...   the transport's first failure; it is aborted for good
        """

    def withdraw(self) -> bool:
        """Take a receive back, unless it has matched a frame: then, and for a send, False, and it ends as any other.
        One that was taken back raises Withdrawn, also in a thread that waits for it. The default never takes one
        back."""
        return False


class Transport(ABC):
    """Two-sided byte movement between the ranks of a group. Threads may call it concurrently."""

    name: ClassVar[str]

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rank = group.rank
        self.size = group.size

    @property
    @abstractmethod
    def authenticated(self) -> bool:
        """True if every arriving byte provably comes from a member of the job."""

    @abstractmethod
    def open(self, deadline: float) -> None:
        """Prepare to send and receive. Collective.

        Raises ConnectError, RendezvousError or DeadlineExceeded, naming the missing rank; then everything is closed
        again.
        """

    @abstractmethod
    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        """Begin to send `view` (one-dimensional, format 'B', C-contiguous, 0 bytes allowed) to `peer`.

        Frames between one pair of ranks with one tag are received in the order sent; frames with different tags
        do not wait for each other. A send completes when its buffer may be used again, which may be before or
        after the peer has posted the receive. `peer` may be the rank itself.

        tag    0 <= tag <= MAX_TAG, which is 2**64 - 3: matched exactly
        check  0 <= check < 2**32: compared, not matched: see irecv

        Raises ValueError for a bad peer, tag or check; the transport's first failure if it is aborted or closed.
        """

    @abstractmethod
    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        """Begin to receive the next frame from `peer` with `tag` into `view` (writable, C-contiguous).

        The frame must have exactly the length of `view` and the same `check`, else the request fails with
        MismatchError. A frame that arrives before its receive is posted is kept. Raises as isend does.
        """

    def recv(self, peer: int, tag: int, view: memoryview, deadline: float, check: int = 0) -> None:
        """Receive the next frame from `peer` with `tag` into `view`: `irecv` and its `wait`, for which a transport may
        have a faster path. Raises as the two do; after DeadlineExceeded `view` still belongs to the transport."""
        self.irecv(peer, tag, view, check).wait(deadline)

    def sendrecv(
        self, dest: int, source: int, tag: int, data: memoryview, view: memoryview, deadline: float, check: int = 0
    ) -> Request:
        """Begin to send `data` to `dest`, and `recv` into `view` from `source`, which may be the same rank. Returns the
        request of the send, which may be in flight still. Raises as `isend` and `recv` do."""
        check_arguments(self, dest, tag, check)
        check_view(data, writable=False)
        receiving = self.irecv(source, tag, view, check)
        sending = self.isend(dest, tag, data, check)
        receiving.wait(deadline)
        return sending

    def wait_any(self, requests: Sequence[Request], deadline: float) -> list[int]:
        """Wait until at least one of this transport's `requests` has ended: completed, or failed alone.

        Returns the positions of all ended requests, ascending; their `wait` returns or raises immediately. The list is
        empty if the deadline passed first; a deadline in the past polls. The wait makes progress on all requests, as
        `Request.wait` does. Raises ValueError if there are no requests; the transport's first failure, also if one of
        the requests waits for a lost peer.

        The default waits for the first request in slices; a transport that can wait for several peers overrides it.
        """
        if not requests:
            raise ValueError("requests: must not be empty")
        pause = FIRST_SLICE
        while True:
            ended = [position for position, request in enumerate(requests) if has_ended(self, request)]
            now = time.monotonic()
            if ended or now >= deadline:
                return ended
            try:
                requests[0].wait(min(deadline, now + pause))
            except (DeadlineExceeded, MismatchError):
                if self.failure is not None:
                    raise
            pause = min(2 * pause, LAST_SLICE)

    @abstractmethod
    def abort(self, cause: RondeError) -> None:
        """Give up: every wait of this rank, now and later, raises `cause`, and so (as far as they can still be
        reached) does every other rank. The first cause wins; later calls do nothing. Never blocks, never raises.
        """

    @property
    @abstractmethod
    def failure(self) -> RondeError | None:
        """The cause of the abort, None while the transport is sound."""

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Flush all sent frames, then release every thread, descriptor, segment and socket.

        Idempotent. After it isend and irecv raise ClosedError. Raises DeadlineExceeded if the flush did not end in
        time; everything is released all the same. After an abort nothing is flushed and nothing is raised.
        """

    @property
    def entered(self) -> bool:
        """True if the calling thread is in the middle of a call of this transport: it is in a signal handler, a
        destructor or a callback, and cannot wait for another thread that may need the transport."""
        return False

    def interrupted(self) -> None:  # noqa: B027
        """The calling thread has left a call of the transport because of an interrupt, an exception that may come at
        any instruction: release the locks that it still holds. Not for a call in the middle of another one of the same
        thread. Never raises. The default is for transports without locks of their own."""

    def unlocked(self, function: Callable[[], T]) -> T:
        """Call a function while the locks of this transport that the calling thread holds are released: in a signal
        handler that waits for other threads, after an abort. The default is for transports without locks."""
        return function()

    def link_costs(self) -> tuple[LinkCost, LinkCost]:
        """Costs of a message between ranks of one host, and between ranks of two hosts. The same on every rank."""
        return LinkCost(20e-6, 0.8e-9), LinkCost(50e-6, 0.9e-9)

    def ability(self, kind: type[A]) -> A | None:
        """The optional ability `kind` (such as OneSided) of this transport, None if it has none.

        Constant from `open` on; callers ask once, when planning.
        """
        return self if isinstance(self, kind) else None


class Backend(Protocol):
    """A backend that the registry finds by name: a module (or object) with these three names."""

    Options: type[Any]
    """Frozen dataclass of the backend's settings, each with a default; fields int, float, bool, str or tuple[str, ...].
    Its __post_init__ raises ConfigError for a value out of range."""

    def create(self, group: Group, options: Any) -> Transport:
        """A transport that is not yet open. No I/O."""

    def usable(self) -> str | None:
        """None if the backend can be used on this machine, else the reason in one line."""


def has_ended(transport: Transport, request: Request) -> bool:
    """True if a request has completed or failed alone. Raises the transport's first failure."""
    try:
        return request.test()
    except MismatchError:
        if transport.failure is not None:
            raise
        return True


def check_arguments(transport: Transport, peer: int, tag: int, check: int) -> None:
    """The argument checks that isend and irecv share. Raises ValueError naming argument, value and what is allowed."""
    if not 0 <= peer < transport.size:
        raise ValueError(f"peer={peer!r}: must be a rank, 0 to {transport.size - 1}")
    if not 0 <= tag <= MAX_TAG:
        raise ValueError(f"tag={tag!r}: must be 0 to 2**64 - 3")
    if not 0 <= check <= MAX_CHECK:
        raise ValueError(f"check={check!r}: must be 0 to 2**32 - 1")


def check_view(view: memoryview, *, writable: bool) -> None:
    """Raises ValueError for a view that cannot be sent from or received into."""
    if view.ndim != 1 or view.format != "B" or not view.c_contiguous:
        raise ValueError(f"view of format {view.format!r}, {view.ndim} dimensions: must be contiguous bytes ('B', 1)")
    if writable and view.readonly:
        raise ValueError("view is read-only: a receive needs a writable one")
