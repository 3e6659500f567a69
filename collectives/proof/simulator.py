"""The simulator: runs the programs of all ranks in virtual time. It is the reference of the quicker ones.

A rank sends one message and receives one message at a time, both at once. A message of n bytes starts when both ends
are ready, and occupies both for alpha + beta n seconds (the one-port model of Hockney 1994 and of Thakur, Rabenseifner
and Gropp 2005). A message between hosts occupies both ends for an overhead and for its bytes, and arrives when the rest
of the latency has passed, so that the latency of one is hidden behind the bytes of the next (LogGP: Alexandrov et al.
1995). Its bytes flow through the NICs of both hosts and through the uplinks of their switches. Messages share these
links by max-min fairness: no message gets more at the expense of one that has less (Bertsekas and Gallager 1992).
Combining and copying occupy the rank itself. A signal arrives after `signal` seconds.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import numpy as np

from collectives.algorithms import Algorithm
from collectives.planning import Model
from collectives.proof.all_ranks import Lowered, ProofError, count_blocks, lower_ranks
from collectives.proof.network import Network
from collectives.schedule import SPECS, Instruction, Kind, Span, split_evenly


@dataclass(frozen=True, slots=True)
class Activity:
    """An activity of a rank or of its sending port from `begin` to `end`, in seconds; `peer` is -1 for local work."""

    rank: int
    kind: Kind
    label: str
    begin: float
    end: float
    peer: int = -1


@dataclass(frozen=True, slots=True)
class Timeline:
    """One call in virtual time, in seconds from its beginning on all ranks.

    finish     the end of the call on each rank
    busy       the time that each rank combined and copied
    waiting    the time that each rank waited
    activity   all activities, ordered by their beginning
    """

    finish: tuple[float, ...]
    busy: tuple[float, ...]
    waiting: tuple[float, ...]
    activity: tuple[Activity, ...]

    @property
    def seconds(self) -> float:
        """The end of the call on the last rank."""
        return max(self.finish)


def simulate(
    algorithm: Algorithm,
    size: int,
    nbytes: int,
    model: Model,
    *,
    root: int = 0,
    segments: int = 1,
    hosts: Sequence[int] = (),
) -> Timeline:
    """Simulate one call on `nbytes` bytes in all blocks together (alltoall: in one rank's row), by a cost model.

    Raises ValueError for arguments that the algorithm does not support, ProofError for a deadlock.
    """
    if size < 1 or (hosts and len(hosts) != size):
        raise ValueError(f"hosts={hosts!r}: must name a host for each of size={size!r} ranks, or be empty")
    network = Network.of(model, tuple(hosts), size)
    return simulate_on(network, algorithm, nbytes, root=root, segments=segments, hosts=tuple(hosts))


def simulate_on(
    network: Network,
    algorithm: Algorithm,
    nbytes: int,
    *,
    root: int = 0,
    segments: int = 1,
    hosts: tuple[int, ...] | None = None,
) -> Timeline:
    """Simulate one call of all ranks of a network.

    hosts  as the algorithm sees them; by default those of the network

    Raises ValueError for arguments that the algorithm does not support, ProofError for a deadlock.
    """
    if nbytes < 0:
        raise ValueError(f"nbytes={nbytes!r}: must be 0 or more")
    size = network.size
    parts = size if SPECS[algorithm.collective].by_rank else count_blocks(algorithm, size)
    sizes = split_evenly(nbytes, parts)
    if algorithm.uniform:
        sizes = [-(-nbytes // parts)] * parts
    if algorithm.collective == "alltoall":
        sizes *= size
    seen = network.geometry_hosts if hosts is None else hosts
    lowered = lower_ranks(algorithm, size, root=root, segments=segments, hosts=seen, sizes=sizes)
    clocks = [_Clock(rank, program.instructions, network) for rank, program in enumerate(lowered.programs)]
    return _Simulation(clocks, lowered, network).run()


class _Clock:
    """The state of a rank: its instruction, its time, and the times at which its ports become free."""

    def __init__(self, rank: int, steps: Sequence[Instruction], network: Network) -> None:
        self.rank = rank
        self.host = network.hosts[rank]
        self.pace = network.slow[self.host] if network.slow else 1.0
        self.steps = steps
        self.at = 0
        self.now = network.late[self.host] if network.late else 0.0
        self.busy = 0.0
        self.waiting = 0.0
        self.out_free = 0.0
        self.in_free = 0.0
        self.done: dict[int, float] = {}
        self.signalled: list[float] = []

    def wait_until(self, moment: float) -> None:
        if moment > self.now:
            self.waiting += moment - self.now
            self.now = moment


@dataclass(eq=False, slots=True)
class _Message:
    """A message whose bytes flow through shared links.

    left    bytes to go
    beta    seconds per byte at its present rate; 0 for no limit
    turn    number of the last change of its rate: an end that was foreseen before does not happen
    """

    source: _Clock
    sent: Instruction
    target: _Clock
    received: Instruction
    begin: float
    left: float
    links: tuple[tuple[str, int], ...]
    beta: float = 0.0
    turn: int = -1


_What: TypeAlias = "tuple[_Clock, Instruction, _Clock, Instruction] | tuple[_Message, int] | _Clock"


class _Simulation:
    """A queue of events in order of time: a rank that continues (until it must wait), a message that may start, the
    bytes of a message that begin to flow, or that have passed."""

    def __init__(self, clocks: list[_Clock], lowered: Lowered, network: Network) -> None:
        self.clocks = clocks
        self.network = network
        self.model = network.costs
        self.name = str(lowered)
        self.single_copy = lowered.algorithm.single_copy
        self.order = count()
        self.events: list[tuple[float, int, int, _What]] = []
        self.posted: dict[tuple[int, int], deque[tuple[Instruction, float]]] = {}
        self.blocked: dict[tuple[int, int, int], list[_Clock]] = {}
        self.activity: list[Activity] = []
        self.flowing: list[_Message] = []
        self.flowed = 0.0
        self.held: dict[tuple[str, int], list[tuple[_Clock, Instruction, _Clock, Instruction]]] = {}
        self.turns = count()
        self.noise = np.random.default_rng(network.seed) if network.noise else None

    def at(self, moment: float, what: _What) -> None:
        """Queue an event. Ranks continue before messages start; a rank's messages start in the order of its SENDs."""
        turn = -1 if isinstance(what, _Clock) else what[1] if isinstance(what[1], int) else what[1].request
        heapq.heappush(self.events, (moment, turn, next(self.order), what))

    def run(self) -> Timeline:
        for clock in self.clocks:
            self.at(clock.now, clock)
        while self.events:
            moment, _, _, what = heapq.heappop(self.events)
            if isinstance(what, _Clock):
                self.advance(what)
            elif len(what) == 2:
                self.flow(moment, *what)
            else:
                self.transfer(moment, *what)
        for clock in self.clocks:
            if clock.at < len(clock.steps):
                step = clock.steps[clock.at]
                raise ProofError(
                    f"{self.name}: deadlock: rank {clock.rank} waits in {step.label!r} for rank {step.peer}",
                    rank=clock.rank,
                    peer=step.peer,
                    at=clock.at,
                )
        return Timeline(
            tuple(clock.now for clock in self.clocks),
            tuple(clock.busy for clock in self.clocks),
            tuple(clock.waiting for clock in self.clocks),
            tuple(sorted(self.activity, key=lambda entry: entry.begin)),
        )

    def advance(self, clock: _Clock) -> None:
        while clock.at < len(clock.steps):
            step = clock.steps[clock.at]
            match step.kind:
                case Kind.SEND | Kind.RECV:
                    self.post(clock, step)
                case Kind.AWAIT:
                    if step.request not in clock.done:
                        self.blocked[clock.rank, step.request, 0] = [clock]
                        return
                    clock.wait_until(clock.done[step.request])
                case Kind.COPY | Kind.REDUCE:
                    rate = self.model.copy if step.kind is Kind.COPY else self.model.gamma
                    if self.single_copy and step.reads_peer:
                        rate = self.model.read
                    duration = rate * clock.pace * _length(step.dst)
                    self.activity.append(Activity(clock.rank, step.kind, step.label, clock.now, clock.now + duration))
                    clock.now += duration
                    clock.busy += duration
                case Kind.SIGNAL:
                    clock.signalled.append(clock.now)
                    for other in self.blocked.pop((clock.rank, step.phase, 1), ()):
                        self.at(clock.now, other)
                case Kind.WAIT:
                    times = self.clocks[step.peer].signalled
                    if len(times) < step.phase:
                        self.blocked.setdefault((step.peer, step.phase, 1), []).append(clock)
                        return
                    clock.wait_until(times[step.phase - 1] + self.model.signal)
            clock.at += 1

    def post(self, clock: _Clock, step: Instruction) -> None:
        """Begin a SEND or RECV. The message may start when both ends have begun."""
        sends = step.kind is Kind.SEND
        link = (clock.rank, step.peer) if sends else (step.peer, clock.rank)
        queue = self.posted.setdefault(link, deque())
        if not queue or queue[0][0].kind is step.kind:
            queue.append((step, clock.now))
            return
        other, since = queue.popleft()
        peer = self.clocks[step.peer]
        pair = (clock, step, peer, other) if sends else (peer, other, clock, step)
        self.at(max(clock.now, since), pair)

    def transfer(self, moment: float, source: _Clock, sent: Instruction, target: _Clock, received: Instruction) -> None:
        """Start a message if the ports of both ends are free; otherwise queue it for that time."""
        what = (source, sent, target, received)
        for key, free in ((("out", source.rank), source.out_free), (("in", target.rank), target.in_free)):
            if free == math.inf:  # until a message has passed whose rate may change
                self.held.setdefault(key, []).append(what)
                return
        begin = max(moment, source.out_free, target.in_free)
        if begin > moment:
            self.at(begin, what)
            return
        here, there = source.host, target.host
        nbytes = _length(sent.a)
        if here == there:
            end = begin + self.model.alpha + self.model.beta * nbytes
            self.complete(begin, end, end, source, sent, target, received)
            return
        begun = begin + self.network.overhead
        if self.noise is not None:
            begun += self.noise.exponential(self.network.noise)
        if self.network.nic[here] or self.network.nic[there] or self.network.uplink:
            source.out_free = target.in_free = math.inf
            links = self.network.route(here, there)
            message = _Message(source, sent, target, received, begin, nbytes, links)
            self.at(begun, (message, -1))
            return
        free = begun + max(self.network.flow[here], self.network.flow[there]) * nbytes
        self.complete(begin, free, self.arrival(free, source, target), source, sent, target, received)

    def arrival(self, free: float, source: _Clock, target: _Clock) -> float:
        """Return when a message arrives whose last byte has been sent."""
        return free + max(0.0, self.network.latency(source.host, target.host) - self.network.overhead)

    def complete(
        self,
        begin: float,
        free: float,
        end: float,
        source: _Clock,
        sent: Instruction,
        target: _Clock,
        received: Instruction,
    ) -> None:
        """Note that a message leaves both ports at `free` and arrives at `end`."""
        source.out_free = target.in_free = free
        self.activity.append(Activity(source.rank, Kind.SEND, sent.label, begin, end, target.rank))
        for clock, request, done in ((source, sent.request, free), (target, received.request, end)):
            clock.done[request] = done
            for waiting in self.blocked.pop((clock.rank, request, 0), ()):
                self.at(done, waiting)

    # ---- shared links

    def flow(self, moment: float, message: _Message, turn: int) -> None:
        """Let the bytes of a message flow from now on, or end, and share the links anew."""
        if turn != message.turn:
            return  # foreseen at a rate that has changed
        for other in self.flowing:
            other.left -= (moment - self.flowed) / other.beta if other.beta else other.left
        self.flowed = moment
        if turn < 0:
            self.flowing.append(message)
        else:
            self.flowing.remove(message)
            arrival = self.arrival(moment, message.source, message.target)
            source, target = message.source, message.target
            self.complete(message.begin, moment, arrival, source, message.sent, target, message.received)
            for queue in (self.held.pop(("out", source.rank), []), self.held.pop(("in", target.rank), [])):
                for what in queue:
                    self.at(moment, what)
        before = {id(other): other.beta for other in self.flowing if other is not message}
        self.share()
        for other in self.flowing:
            if other.beta != before.get(id(other)):  # otherwise its end has been foreseen
                other.turn = next(self.turns)
                self.at(moment + max(0.0, other.left) * other.beta, (other, other.turn))

    def share(self) -> None:
        """Share the links by max-min fairness: the link, or the message, that allows least is settled first."""
        users: dict[tuple[str, int], list[_Message]] = {}
        for message in self.flowing:
            for link in message.links:
                if self.network.capacity(link):
                    users.setdefault(link, []).append(message)
        room = {link: 1 / self.network.capacity(link) for link in users}
        flow = self.network.flow
        own = {id(message): max(flow[message.source.host], flow[message.target.host]) for message in self.flowing}
        open_ = {id(message): message for message in self.flowing}
        while open_:
            shares = {link: room[link] / len(using) for link, using in users.items()}
            rate, slowest = min(shares.values(), default=math.inf), max(own[name] for name in open_)
            if rate * slowest < 1:  # all links that allow equally little are settled at once
                tight = [message for link, share in shares.items() if share == rate for message in users[link]]
            else:
                tight = [message for name, message in open_.items() if own[name] == slowest]
                rate = 1 / slowest if slowest else math.inf
            for message in tight:
                if open_.pop(id(message), None) is None:
                    continue  # another tight link has settled it
                message.beta = 1 / rate
                for used in message.links:
                    if used in users:
                        users[used].remove(message)
                        room[used] -= rate
            users = {link: using for link, using in users.items() if using}


def _length(span: Span | None) -> int:
    return 0 if span is None else span.stop - span.start
