"""How the ranks that are left after a failure agree on who they are, and go on as a group of their own.

As in MPI_Comm_shrink of ULFM (user-level failure mitigation; Bland et al., 2013): all survivors come together, in the
store of the group that failed. Each says that it is here. Whoever finds that nobody is left to wait for proposes who
goes on; the first proposal holds (transports/rendezvous/once.py). What it proposes is a pure function of what it
knows, as in the quorum of torchft. The new group is the next generation: it has a part of the store of its own, and
its connections, segments and windows are new, so nothing of the old one can reach it.

Store keys, in the part of the old group
    shrink/here/RANK   the rank is here and would go on
    shrink/lost/RANK   why it cannot: somebody knows for certain
    shrink/verdict     who goes on, who does not and why, and who says so
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

from collectives.launch.left_out import leave_out
from collectives.neighbours import Pulse, has_left, peek, ranks_by_host
from transports.base import Group
from transports.errors import DeadlineExceeded, PeerLost, RendezvousError, RondeError, TransportError
from transports.liveness import STOPPED_SECONDS, Watch
from transports.packed import pack, unpack
from transports.rendezvous.bootstrap import SHRINKS
from transports.rendezvous.causes import Causes
from transports.rendezvous.once import decide, decided

if TYPE_CHECKING:
    from collectives.communicator import Communicator, Family
    from collectives.config import Config
    from collectives.jobs import Jobs
    from collectives.point_to_point import PointToPoint
    from collectives.progress import Stream

T = TypeVar("T")

LOST_SECONDS: Final = 0.5
LATE_SECONDS: Final = 2.0
"""What a rank gets to come that the failure is blamed on, as lost or as late. It may be able to, after all."""
HASTE_SECONDS: Final = 5.0
"""What the store gets to answer."""
FIRST_SLICE: Final = 0.01
LAST_SLICE: Final = 0.1
"""Seconds between two looks at the others. The last to come does not wait for one, and its verdict wakes the rest."""
CONNECT_SECONDS: Final = 10.0
"""What the survivors get to connect, at most; all of them are there."""
ATTEMPTS: Final = 3
"""How often the same ranks try to connect."""


# Who goes on


@dataclass(frozen=True)
class Blame:
    """Why a failure is blamed on a rank, and how many seconds it is waited for all the same."""

    why: str
    patience: float


@dataclass(frozen=True)
class Knowledge:
    """What a rank knows of the others.

    here     the ranks that have come
    lost     ranks that certainly cannot go on, and why
    blamed   ranks that the failure is blamed on; they may have come since
    """

    size: int
    here: frozenset[int]
    lost: Mapping[int, str]
    blamed: Mapping[int, Blame]


@dataclass(frozen=True)
class Decision:
    """The ranks that go on, ascending; and for each of the others why it does not."""

    ranks: tuple[int, ...]
    left_out: Mapping[int, str]


def conclude(known: Knowledge, waited: float, timeout: float) -> tuple[Decision | None, tuple[int, ...]]:
    """Who goes on; or None, and the ranks that are to be waited for.

    Ranks that are here go on, unless they have been lost since. The others are waited for, `timeout` seconds at most,
    and less if they are blamed. `waited` is how long this has been done.
    """
    left_out = {}
    waited_for = []
    for rank in range(known.size):
        if rank in known.lost:
            left_out[rank] = known.lost[rank]
        elif rank in known.here:
            continue
        elif rank in known.blamed and waited >= min(known.blamed[rank].patience, timeout):
            left_out[rank] = known.blamed[rank].why
        elif waited >= timeout:
            left_out[rank] = f"it did not come within {timeout:g} s"
        else:
            waited_for.append(rank)
    if waited_for:
        return None, tuple(waited_for)
    return Decision(tuple(rank for rank in range(known.size) if rank not in left_out), left_out), ()


# How they agree


class _Muster:
    """The survivors of one group, coming together."""

    def __init__(self, group: Group, failure: RondeError | None, heartbeat: float) -> None:
        self._group = group
        self._me = group.rank
        store = group.store.hasty(HASTE_SECONDS)
        self._watchmen = store.prefixed("watch")
        self._desk = store.prefixed("shrink")
        self._causes = Causes(store)
        self._failure = failure
        self._here = {self._me}
        self._lost: dict[int, str] = {}
        self._watch = Watch()
        self._far: list[tuple[list[int], Pulse]] = []
        for host, (name, ranks) in enumerate(ranks_by_host(group).items()):
            if name == group.members[self._me].host:
                for rank in ranks:
                    self._watch.add(rank, group.members[rank].process)
            elif heartbeat:
                self._far.append((ranks, Pulse(self._watchmen, host, heartbeat)))

    def come(self) -> None:
        """Say that this rank is here. Raises RendezvousError."""
        self._desk.set(f"here/{self._me}", b"")

    def withdraw(self, why: str) -> None:
        """Say that this rank does not go on. Never raises."""
        with contextlib.suppress(RendezvousError):  # whoever cannot be told finds out
            self._desk.set(f"lost/{self._me}", why.encode(errors="replace"))

    def close(self) -> None:
        """Release descriptors. Idempotent."""
        self._watch.close()

    def hold(self, begun: float, timeout: float) -> tuple[Decision, int]:
        """Wait for the others; who goes on, and which rank says so. Raises RendezvousError."""
        pause = FIRST_SLICE
        while True:
            with contextlib.suppress(DeadlineExceeded):
                return self._read(decided(self._desk, "verdict", time.monotonic()))
            self._look()
            known = Knowledge(self._group.size, frozenset(self._here), self._lost, self._blame())
            decision, _ = conclude(known, time.monotonic() - begun, timeout)
            if decision is not None:
                fields = [self._me, decision.ranks, list(decision.left_out.items())]
                return self._read(decide(self._desk, "verdict", pack(fields), time.monotonic() + HASTE_SECONDS))
            with contextlib.suppress(DeadlineExceeded):
                return self._read(decided(self._desk, "verdict", time.monotonic() + pause))
            pause = min(2 * pause, LAST_SLICE)

    def _look(self) -> None:
        """Find out who is here and who is lost."""
        for rank in range(self._group.size):
            if rank in self._lost:
                continue
            if rank not in self._here:
                left = has_left(self._watchmen, rank)  # asked first: whoever shrinks is here before it leaves
                if peek(self._desk, f"here/{rank}") is not None:
                    self._here.add(rank)
                elif left:
                    self._lose(rank, "it closed the communicator")
            said = peek(self._desk, f"lost/{rank}")
            if said is not None:
                self._lost[rank] = said.decode(errors="replace")
        for rank in self._watch.dead():
            self._lose(rank, "its process ended")
        blamed = self._blame()
        for rank in self._watch.stopped(0.0):
            if rank in blamed:
                self._lose(rank, blamed[rank].why)
        for rank in self._watch.stopped():
            self._lose(rank, f"its process has been stopped for {STOPPED_SECONDS:g} s")
        for ranks, pulse in self._far:
            missing = [rank for rank in ranks if rank not in self._here and rank not in self._lost]
            why = pulse.missed() if missing else None
            for rank in missing if why else []:
                self._lose(rank, str(why))

    def _lose(self, rank: int, why: str) -> None:
        if rank not in self._lost:
            self._lost[rank] = why
            self._desk.set(f"lost/{rank}", why.encode())

    def _blame(self) -> Mapping[int, Blame]:
        cause = self._causes.ask(0.0) or self._failure
        if not isinstance(cause, PeerLost | DeadlineExceeded) or cause.peer is None or cause.peer == self._me:
            return {}
        return {cause.peer: Blame(cause.message, LOST_SECONDS if isinstance(cause, PeerLost) else LATE_SECONDS)}

    def _read(self, verdict: bytes) -> tuple[Decision, int]:
        try:
            match unpack(verdict):
                case [int(by), [*ranks], [*left_out]]:
                    return Decision(tuple(ranks), dict(left_out)), by
        except (ValueError, TypeError) as error:
            raise RendezvousError(f"the store holds a verdict that cannot be read: {error}") from error
        raise RendezvousError("the store holds something else where the verdict on who goes on should be")


# The public face


class Shrinkable:
    """What makes a communicator one that ranks can be lost from."""

    _config: Config
    _context: int
    _family: Family
    _jobs: Jobs
    _messages: PointToPoint
    _stream: Stream
    _successor: Communicator | None = None
    abort: Callable[[str], None]
    close: Callable[[float], None]
    connect: Callable[[Group, Config, float], Communicator]

    def shrink(self, *, timeout: float | None = None) -> Communicator:
        """Go on with the ranks that are left: a new communicator of those that call this, in their old order, numbered
        from 0. Collective among them. This one is closed by it, with all that were split from it and its timeline.

        Ranks whose process has ended or is stopped, that have closed, or that the failure is blamed on are not waited
        for. It works without a failure too. The new communicator has the same settings, and the transport they name.

        timeout  seconds that the other ranks have to come; those that do not are left behind

        Raises RuntimeError, with nothing done, for a communicator made by `split`: shrink the one that it was split
        from, and split again. ClosedError if it is closed. RendezvousError if the others went on without this rank, or
        if the store in which the ranks met cannot be reached; what `init` raises if the survivors cannot connect. Then
        it is closed all the same.
        """
        if self._context != 0:
            raise RuntimeError("shrink: made by split; shrink the communicator that it was split from, and split again")
        seconds = self._jobs.timeout(timeout)
        transport, config = self._family.transport, self._config
        if transport.group.lobby is None:
            raise RendezvousError("shrink: the ranks did not meet in a store, so they cannot meet again")
        self._retire()
        for communicator in self._family.open[1:]:
            communicator._retire()

        def leave() -> None:
            with contextlib.suppress(DeadlineExceeded):  # what did not end in time is released all the same
                self.close(seconds)

        def connect(group: Group) -> Communicator:
            return self.connect(group, config, time.monotonic() + min(config.connect_timeout, CONNECT_SECONDS))

        try:
            group, failure = transport.group, transport.failure
            self._successor = regroup(group, failure, seconds, config.heartbeat, leave=leave, connect=connect)
        except BaseException as error:
            self.abort(f"it cannot go on: {error!r}")
            leave()
            raise
        return self._successor

    @property
    def current(self) -> Communicator:
        """What it has been shrunk to, in the end; itself if it has not."""
        latest = cast("Communicator", self)
        while latest._successor is not None:
            latest = latest._successor
        if latest is not self:
            self._successor = latest  # those between may go
        return latest

    def _retire(self) -> None:
        state = "closed: its world was shrunk; use what shrink returned"
        self._stream.retire(state)
        self._messages.retire(state)


# How they go on


def regroup(
    group: Group,
    failure: RondeError | None,
    timeout: float,
    heartbeat: float,
    *,
    leave: Callable[[], None],
    connect: Callable[[Group], T],
) -> T:
    """What `connect` makes of the group of the survivors, once they have come together. Collective among them.

    failure   why the group failed, as far as this rank knows
    timeout   seconds that ranks have to come that are not known to be lost
    heartbeat the setting: a host without a sign of life for so long is lost with all ranks that have not come
    leave     closes what there is of the old group; called when this rank has said that it is here
    connect   when it fails, a rank may have been lost meanwhile: then the survivors come together again

    Raises RendezvousError if the store cannot be reached, or if the others have gone on without this rank; what
    `connect` raised, if it did so ATTEMPTS times with the same ranks.
    """
    begun, attempts = time.monotonic(), 0
    while True:
        smaller = _agree(group, failure, begun, timeout, heartbeat, leave)
        attempts = attempts + 1 if smaller.size == group.size else 1
        try:
            return connect(smaller)
        except TransportError as error:
            if attempts == ATTEMPTS:
                _Muster(smaller, error, heartbeat).withdraw(f"it gave up: {error.message}")
                raise
            group, failure, begun, leave = smaller, error, time.monotonic(), _nothing_to_leave


def _agree(
    group: Group,
    failure: RondeError | None,
    begun: float,
    timeout: float,
    heartbeat: float,
    leave: Callable[[], None],
) -> Group:
    """The group of the survivors. Raises RendezvousError."""
    try:
        with contextlib.closing(_Muster(group, failure, heartbeat)) as muster:
            muster.come()
            try:
                leave()
                decision, by = muster.hold(begun, timeout)
            except BaseException as error:
                muster.withdraw(f"it gave up: {error!r}")
                raise
    except RendezvousError as error:
        raise RendezvousError(
            f"rank {group.rank} cannot learn who goes on: {error.message}. The ranks agree on it in the store in which "
            f"they met, and that ends with the process that serves it",
            rank=group.rank,
        ) from error
    if group.rank in decision.left_out:
        raise RendezvousError(
            f"the others went on without {group.describe(group.rank)}: {decision.left_out[group.rank]} (so decided "
            f"{group.describe(by)})",
            rank=group.rank,
            peer=by,
        )
    smaller = _next(group, decision.ranks)
    if smaller.rank == 0 and group.lobby is not None:
        leave_out(group.lobby, set(group.seats or range(group.size)) - set(smaller.seats))
    return smaller


def _next(group: Group, ranks: tuple[int, ...]) -> Group:
    """The group of some of a group's ranks, which is its next generation."""
    assert group.lobby is not None
    generation = group.generation + 1
    seats = group.seats or range(group.size)
    return dataclasses.replace(
        group,
        rank=ranks.index(group.rank),
        members=tuple(group.members[rank] for rank in ranks),
        store=group.lobby.prefixed(f"generation-{generation // SHRINKS}.{generation % SHRINKS}/group"),
        generation=generation,
        seats=tuple(seats[rank] for rank in ranks),
    )


def _nothing_to_leave() -> None:
    """What could not be connected has been released."""
