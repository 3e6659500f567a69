"""The vector engine: all ranks of a kind take a step at once, as one operation on arrays of times.

It needs an algorithm with a symmetry (algorithms/symmetry.py): one program is lowered for each kind of rank. Blocks
have equal sizes, rounded up. Messages pass a port in the order of the program, and all messages of one step share the
NICs and uplinks evenly. That is what the exact engine finds in a ring on any hosts, with one rank on each of hosts that
are alike, and where a turn by whole hosts maps the algorithm onto itself: there both agree to the last digits.
Elsewhere a message may pass a port before another that a slow host sends later, and shares may change on the way.

Where hosts are alike, and a turn by whole hosts maps the algorithm onto itself, all hosts take the same time. Then only
the ranks of the first one are computed.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms import Algorithm, Relation, Symmetry
from collectives.proof import Network, ProofError, count_blocks
from collectives.schedule import SPECS, Geometry, Instruction, Kind, Program, lay_out, lower

Times: TypeAlias = NDArray[np.float64]


class _Links(NamedTuple):
    """The messages of one relation, by the seat of their source: seconds that occupy both ends, seconds per byte, and
    seconds from then to the arrival. `peer` is the seat of the target."""

    peer: NDArray[np.int64]
    overhead: Times
    beta: Times
    rest: Times


@dataclass(slots=True, eq=False)
class _Box:
    """Message number k of every rank in one relation, by the seat of its source.

    sent, received   when both ends are ready; NaN: not yet
    free, end        when the ports are free again, and when it arrives; NaN: not yet
    """

    key: tuple[Relation, int]
    links: _Links
    sent: Times
    received: Times
    free: Times
    end: Times
    waits: int = 2


@dataclass(slots=True, eq=False)
class _Crew:
    """The ranks of a kind: their seats and program, its next instruction, messages that have not started.

    sends     messages that have not started, with the span that each rank sends
    requests  messages that this kind has not awaited yet, and whether it is the source
    sent      the SENDs among them, in order
    late      requests that are awaited at the end of the program, after all other steps: all SENDs among them end
              when the port is free, so that their own times need not be kept
    """

    seats: NDArray[np.int64]
    ranks: NDArray[np.int64]
    program: Program
    late: frozenset[int]
    at: int = 0
    sends: deque[tuple[_Box, int, int]] = field(default_factory=deque)
    sent: deque[int] = field(default_factory=deque)
    requests: dict[int, tuple[_Box, bool]] = field(default_factory=dict)
    counts: Counter[tuple[bool, Relation]] = field(default_factory=Counter)


def symmetry_of(network: Network, algorithm: Algorithm, segments: int = 1) -> Symmetry | None:
    """Return the symmetry that the vector engine would use; None if there is none."""
    geometry = Geometry(0, network.size, 0, segments, network.geometry_hosts)
    return None if SPECS[algorithm.collective].rooted or network.size < 2 else algorithm.symmetry(geometry)


def simulate_vector(
    network: Network, algorithm: Algorithm, nbytes: int, *, segments: int = 1, whole: bool = False
) -> Times | None:
    """Return the time at which each rank ends the call; None if the algorithm has no symmetry.

    whole  compute all ranks, also where one host stands for all; then the times of the others are equal to those
    """
    symmetry = symmetry_of(network, algorithm, segments)
    if symmetry is None:
        return None
    turn = network.turn if symmetry.turns and not whole else 0
    run = _Run(network, algorithm, nbytes, segments, symmetry, turn or network.size)
    times = run.run()
    return np.resize(times, network.size) if turn else times


class _Run:
    """One call. Arrays have an element for each seat: a rank that is computed."""

    def __init__(
        self, network: Network, algorithm: Algorithm, nbytes: int, segments: int, symmetry: Symmetry, seats: int
    ) -> None:
        self.network = network
        self.symmetry = symmetry
        self.name = f"{algorithm.collective} {algorithm.name!r}"
        size = network.size
        parts = count_blocks(algorithm, size)
        self.block = -(-nbytes // parts)
        self.blocks = parts
        self.host = np.array(network.hosts)
        hosts = self.host[:seats]
        self.now: Times = np.zeros(seats) if not network.late else np.array(network.late)[hosts]
        self.slow: Times | None = np.array(network.slow)[hosts] if len(set(network.slow)) > 1 else None
        self.pace = network.slow[0] if network.slow else 1.0
        self.out_free = np.zeros(seats)
        self.in_free = np.zeros(seats)
        self.boxes: dict[tuple[Relation, int], _Box] = {}
        self.noise = np.random.default_rng(network.seed) if network.noise else None
        self.links = cache(self._links)
        self.relation = cache(symmetry.relation)
        self.crews = []
        for ranks in symmetry.kinds:
            first = int(ranks[0])
            geometry = Geometry(first, size, 0, segments, network.geometry_hosts)
            layout = lay_out(SPECS[algorithm.collective], geometry, [self.block] * parts)
            own = ranks[ranks < seats]
            program = lower(algorithm.generate(geometry), layout)
            tail = takewhile(lambda step: step.kind is Kind.AWAIT, reversed(program.instructions))
            self.crews.append(_Crew(own, own, program, frozenset(step.request for step in tail)))

    def _links(self, relation: Relation) -> _Links:
        network, host, seats = self.network, self.host, len(self.now)
        peers = self.symmetry.peers(relation)
        source = np.flatnonzero(peers >= 0)
        here, there = host[source], host[peers[source]]
        crosses = here != there
        number = int(host[-1]) + 1 if len(host) else 0
        nic, flow = np.array(network.nic), np.array(network.flow)
        leaving = np.bincount(here[crosses], minlength=number)
        coming = np.bincount(there[crosses], minlength=number)
        beta = np.maximum(flow[here], flow[there])
        beta = np.maximum(beta, np.maximum(leaving[here] * nic[here], coming[there] * nic[there]))
        latency = np.full(len(source), network.costs.inter_alpha)
        if network.switches:
            switch = np.array(network.switches)
            up, down = switch[here], switch[there]
            away = up != down
            count = int(switch.max()) + 1
            leaving, coming = np.bincount(up[away], minlength=count), np.bincount(down[away], minlength=count)
            busy = np.maximum(leaving[up], coming[down])
            beta = np.maximum(beta, np.where(away, busy * network.uplink, 0.0))
            latency += away * network.detour
        overhead = np.full(self.network.size, np.nan)
        per_byte, rest = overhead.copy(), overhead.copy()
        overhead[source] = np.where(crosses, network.overhead, network.costs.alpha)
        per_byte[source] = np.where(crosses, beta, network.costs.beta)
        rest[source] = np.where(crosses, np.maximum(0.0, latency - network.overhead), 0.0)
        return _Links(peers[:seats] % seats, overhead[:seats], per_byte[:seats], rest[:seats])

    def box(self, relation: Relation, number: int) -> _Box:
        """Return the messages of a relation with a number, made at the first use."""
        found = self.boxes.get((relation, number))
        if found is None:
            blank = np.full((4, len(self.now)), np.nan)
            found = self.boxes[relation, number] = _Box((relation, number), self.links(relation), *blank)
        return found

    def run(self) -> Times:
        moved = True
        while moved:
            moved = False
            for crew in self.crews:
                while self.advance(crew):
                    moved = True
        for crew in self.crews:
            if crew.at < len(crew.program.instructions):
                step = crew.program.instructions[crew.at]
                raise ProofError(f"{self.name}: deadlock: rank {crew.ranks[0]} waits in {step.label!r}", rank=0)
        return self.now

    def advance(self, crew: _Crew) -> bool:
        """Take the next step of a kind; False if its messages have not arrived."""
        if crew.at == len(crew.program.instructions) or not crew.seats.size:
            return False
        step = crew.program.instructions[crew.at]
        seats: Any = slice(None) if len(crew.seats) == len(self.now) else crew.seats
        match step.kind:
            case Kind.SEND:
                self.send(crew, step, seats)
            case Kind.RECV:
                self.receive(crew, step, seats)
            case Kind.AWAIT:
                return self.wait(crew, step, seats)
            case Kind.COPY | Kind.REDUCE:
                costs = self.network.costs
                rate = costs.copy if step.kind is Kind.COPY else costs.gamma
                length = 0 if step.dst is None else step.dst.stop - step.dst.start
                self.now[seats] += rate * length * (self.pace if self.slow is None else self.slow[seats])
        crew.at += 1
        return True

    def send(self, crew: _Crew, step: Instruction, seats: Any) -> None:
        relation = self.relation(int(crew.ranks[0]), step.peer)
        number = crew.counts[True, relation]
        crew.counts[True, relation] += 1
        box = self.box(relation, number)
        box.sent[seats] = self.now[seats]
        first, stop = (step.a.start, step.a.stop) if step.a is not None else (0, 0)
        crew.sends.append((box, first, stop))
        if step.request in crew.late:
            box.waits -= 1
        else:
            crew.requests[step.request] = box, True
            crew.sent.append(step.request)
        self.start(crew)

    def receive(self, crew: _Crew, step: Instruction, seats: Any) -> None:
        rank = int(crew.ranks[0])
        there, back = self.relation(rank, step.peer), self.relation(step.peer, rank)
        number = crew.counts[False, back]
        crew.counts[False, back] += 1
        box = self.box(back, number)
        box.received[self.links(there).peer[seats]] = self.now[seats]
        crew.requests[step.request] = box, False

    def start(self, crew: _Crew) -> None:
        """Start the messages of a kind that both ends are ready for, in the order of the program."""
        seats: Any = slice(None) if len(crew.seats) == len(self.now) else crew.seats
        while crew.sends:
            box, first, stop = crew.sends[0]
            if np.isnan(box.received[seats]).any():
                return
            crew.sends.popleft()
            links, nbytes = box.links, stop - first
            peer = links.peer[seats]
            begin = np.maximum(np.maximum(box.sent[seats], box.received[seats]), self.out_free[seats])
            np.maximum(begin, self.in_free[peer], out=begin)
            overhead = links.overhead[seats]
            if self.symmetry.wraps and nbytes > self.block:
                block = (crew.ranks + first // self.block) % self.blocks
                overhead = overhead * (1 + (block + nbytes // self.block > self.blocks))
            if self.noise is not None:
                crosses = links.rest[seats] > 0
                overhead = overhead + crosses * self.noise.exponential(self.network.noise, len(crosses))
            free = begin + overhead + links.beta[seats] * nbytes
            box.free[seats] = free
            box.end[seats] = free + links.rest[seats]
            self.out_free[seats] = free
            self.in_free[peer] = free

    def wait(self, crew: _Crew, step: Instruction, seats: Any) -> bool:
        for other in self.crews:
            self.start(other)
        if step.request in crew.requests:
            box, sent = crew.requests[step.request]
            if sent:
                done = box.free[seats]
            else:
                done = box.end[self.links(self.relation(int(crew.ranks[0]), step.peer)).peer[seats]]
            if np.isnan(done).any():
                return False
            self.finish(crew, step.request)
            self.now[seats] = np.maximum(self.now[seats], done)
            while crew.sent and self.has_passed(crew, crew.sent[0], seats):
                self.finish(crew, crew.sent.popleft())
        elif step.request in crew.late:
            if crew.sends:
                return False
            self.now[seats] = np.maximum(self.now[seats], self.out_free[seats])
        crew.at += 1
        return True

    def has_passed(self, crew: _Crew, request: int, seats: Any) -> bool:
        """True if a SEND ended before the present: to await it later takes no time, and its times can be dropped."""
        if request not in crew.requests:
            return True
        return bool((crew.requests[request][0].free[seats] <= self.now[seats]).all())

    def finish(self, crew: _Crew, request: int) -> None:
        """Forget a request, and its messages if both ends have."""
        found = crew.requests.pop(request, None)
        if found is not None:
            found[0].waits -= 1
            if not found[0].waits and len(self.crews) == 1:  # else another kind's messages may be in it
                del self.boxes[found[0].key]
