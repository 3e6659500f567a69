"""The simulator: runs the programs of all ranks in virtual time.

A rank sends one message and receives one message at a time, both at once. A message of n bytes starts when both ends
are ready, and occupies both for alpha + beta n seconds (the one-port model of Hockney 1994 and of Thakur, Rabenseifner
and Gropp 2005). A message between hosts arrives after inter_alpha + inter_beta n seconds, and occupies both ends for
alpha + inter_beta n, so that the latency of one is hidden behind the bytes of the next (LogGP: Alexandrov et al. 1995).
Combining and copying occupy the rank itself. A signal arrives after `signal` seconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from collectives.algorithms import Algorithm
from collectives.planning import Model
from collectives.proof.all_ranks import Lowered, ProofError, count_blocks, lower_ranks
from collectives.schedule import SPECS, Instruction, Kind, Span, is_peers, split_evenly


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
    """Simulate one call on `nbytes` bytes in all blocks together (alltoall: in one rank's row).

    Raises ValueError for arguments that the algorithm does not support, ProofError for a deadlock.
    """
    if nbytes < 0:
        raise ValueError(f"nbytes={nbytes!r}: must be 0 or more")
    parts = size if SPECS[algorithm.collective].by_rank else count_blocks(algorithm, size)
    sizes = split_evenly(nbytes, parts)
    if algorithm.uniform:
        sizes = [-(-nbytes // parts)] * parts
    if algorithm.collective == "alltoall":
        sizes *= size
    lowered = lower_ranks(algorithm, size, root=root, segments=segments, hosts=hosts, sizes=sizes)
    clocks = [_Clock(rank, program.instructions) for rank, program in enumerate(lowered.programs)]
    return _Simulation(clocks, lowered, model).run()


class _Clock:
    """The state of a rank: its instruction, its time, and the times at which its ports become free."""

    def __init__(self, rank: int, steps: Sequence[Instruction]) -> None:
        self.rank = rank
        self.steps = steps
        self.at = 0
        self.now = 0.0
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


class _Simulation:
    """A queue of events in order of time: a rank that continues (until it must wait), or a message that may start."""

    def __init__(self, clocks: list[_Clock], lowered: Lowered, model: Model) -> None:
        self.clocks = clocks
        self.geometry = lowered.geometry
        self.model = model
        self.name = str(lowered)
        self.single_copy = lowered.algorithm.single_copy
        self.order = count()
        self.events: list[tuple[float, int, int, tuple[_Clock, Instruction, _Clock, Instruction] | _Clock]] = []
        self.posted: dict[tuple[int, int], deque[tuple[Instruction, float]]] = {}
        self.blocked: dict[tuple[int, int, int], list[_Clock]] = {}
        self.activity: list[Activity] = []

    def at(self, moment: float, what: tuple[_Clock, Instruction, _Clock, Instruction] | _Clock) -> None:
        """Queue an event. Ranks continue before messages start; a rank's messages start in the order of its SENDs."""
        turn = -1 if isinstance(what, _Clock) else what[1].request
        heapq.heappush(self.events, (moment, turn, next(self.order), what))

    def run(self) -> Timeline:
        for clock in self.clocks:
            self.at(0.0, clock)
        while self.events:
            moment, _, _, what = heapq.heappop(self.events)
            if isinstance(what, _Clock):
                self.advance(what)
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
                    if self.single_copy and is_peers(step.a):
                        rate = self.model.read
                    duration = rate * _length(step.dst)
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
        begin = max(moment, source.out_free, target.in_free)
        if begin > moment:
            self.at(begin, (source, sent, target, received))
            return
        alpha, beta = self.model.link(self.geometry, source.rank, target.rank)
        end = begin + alpha + beta * _length(sent.a)
        free = end - max(0.0, alpha - self.model.alpha)
        source.out_free = target.in_free = free
        self.activity.append(Activity(source.rank, Kind.SEND, sent.label, begin, end, target.rank))
        for clock, request, done in ((source, sent.request, free), (target, received.request, end)):
            clock.done[request] = done
            for waiting in self.blocked.pop((clock.rank, request, 0), ()):
                self.at(done, waiting)


def _length(span: Span | None) -> int:
    return 0 if span is None else span.stop - span.start
