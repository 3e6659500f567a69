"""The prover: runs the programs of all ranks on symbols instead of numbers, and raises ProofError for a defect.

    deadlock     messages are not buffered: a send completes only after its receive is posted
    data         every result contains exactly the elements that contracts.py demands: each contribution once, from the
                 right rank and place; the same expression on all ranks; the `canonical_tree` if `tree_order` is set.
                 Prefixes are combined in rank order, and from left to right if `tree_order` is set
    races        no access conflicts with a pending SEND or RECV, or with an access by another rank to a window, also
                 across successive calls (vector clocks over program order, messages and signals); IN is not written
    properties   traffic and STAGE size are as registered; in each one-sided call every rank waits for all others, early
                 enough that the window still keeps the epoch waited for; a barrier holds

Messages match in a fixed order and a WAIT names its signal, so all interleavings have the same result, and running one
of them is enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

from collectives.algorithms import Algorithm
from collectives.proof.all_ranks import Lowered, ProofError, lower_ranks
from collectives.proof.symbolic import PENDING, UNDEFINED, Clock, Expressions, Memory, Violation
from collectives.schedule import Instruction, Kind, Program, canonical_tree, split_evenly

__all__ = ["Proof", "ProofError", "check", "prove"]

_EPOCHS_KEPT: Final = 8
"""See `transports.onesided.Window.publish`."""


_SEND, _RECV, _COPY, _REDUCE, _SIGNAL, _, _AWAIT, _ = Kind  # faster than looking up members


class Proof(NamedTuple):
    """Counts of one call, for all ranks together; `scratch` and `stage` are the maximum over ranks.

    sent, reduced, copied, scratch, stage   elements
    """

    instructions: int
    messages: int
    sent: int
    reduced: int
    copied: int
    scratch: int
    stage: int


def prove(
    algorithm: Algorithm,
    size: int,
    *,
    root: int = 0,
    segments: int = 1,
    hosts: Sequence[int] = (),
    in_place: bool = False,
    sizes: Sequence[int] | None = None,
    calls: int = 3,
) -> Proof:
    """Prove an algorithm for one geometry. The arguments are those of `lower_ranks`, and:

    calls   number of successive calls of a one-sided algorithm; the third uses the half of the window that the first
            used. One call is a proof too, since every rank is seen to wait for all others in it.

    Raises ProofError, whose text names rank, instruction, label and reason; ValueError as `lower_ranks`.
    """
    lowered = lower_ranks(algorithm, size, root=root, segments=segments, hosts=hosts, in_place=in_place, sizes=sizes)
    return check(lowered, calls)


def check(lowered: Lowered, calls: int = 3) -> Proof:
    """Prove the programs of all ranks; see `prove`."""
    return _Machine(lowered, calls if lowered.algorithm.onesided else 1).run()


class _Request:
    """A pending SEND or RECV. `data` are the values that a SEND reads, or that a matched RECV receives."""

    __slots__ = ("at", "clock", "data", "matched", "owner", "step")

    def __init__(self, owner: _Rank, step: Instruction, data: list[int]) -> None:
        self.matched = False
        self.clock: Clock | None = None
        self.owner = owner
        self.at = owner.at
        self.step = step
        self.data = data


class _Rank:
    """The state of a rank.

    entered     the moments at which its calls began
    published   its vector clock at each of its signals
    checked     WAITs that compare checks: (instruction, moment, peer, epoch)
    """

    def __init__(self, number: int, program: Program, memory: Memory) -> None:
        self.number = number
        self.program = program
        self.steps = program.instructions
        self.memory = memory
        self.at = 0
        self.call = -1
        self.phase = 0
        self.waited: set[int] = set()
        self.requests: dict[int, _Request] = {}
        self.entered: list[int] = []
        self.published: list[Clock] = []
        self.checked: list[tuple[int, int, int, int]] = []


class _Machine:
    """All ranks. Runs them until they end or none can continue."""

    def __init__(self, lowered: Lowered, calls: int) -> None:
        algorithm, size, spec = lowered.algorithm, lowered.geometry.size, lowered.spec
        self.lowered = lowered
        self.size = size
        self.calls = calls
        self.total = sum(lowered.blocks)
        self.onesided = algorithm.onesided
        self.finishes = algorithm.finishes
        self.combined = spec.combined
        self.timed = self.onesided or algorithm.collective == "barrier"
        self.window = algorithm.staged_chunks(size, lowered.geometry.segments) * lowered.layouts[0].largest
        self.tree = canonical_tree(size) if algorithm.tree_order else None
        self.expressions = Expressions(size, self.total, calls) if spec.reduces else None
        self.results: dict[int, int] = {}
        self.origins: list[int] = []
        if spec.source is not None:
            for block, elements in enumerate(lowered.blocks):
                self.origins += [spec.source(block, size, lowered.geometry.root)] * elements
        self.held = self.find_elements()
        memories: list[Memory] = []
        for number, program in enumerate(lowered.programs):
            memories.append(Memory(number, memories, size, program.scratch, self.window, algorithm.exposed))
        self.ranks = [_Rank(n, program, memories[n]) for n, program in enumerate(lowered.programs)]
        self.unmatched: dict[int, list[_Request]] = {}
        self.ready = deque(self.ranks)
        self.asleep: dict[tuple[int, int], list[_Rank]] = {}
        self.messages = self.sent = self.reduced = self.copied = 0

    def find_elements(self) -> list[tuple[list[int], list[int]]]:
        """Return the elements of every rank's IN and OUT, in order."""
        starts = [0]
        for block in self.lowered.blocks:
            for count in split_evenly(block, self.lowered.geometry.segments):
                starts.append(starts[-1] + count)

        def elements(table: dict[int, int]) -> list[int]:
            return [element for chunk in table for element in range(starts[chunk], starts[chunk + 1])]

        return [(elements(layout.inputs), elements(layout.outputs)) for layout in self.lowered.layouts]

    def fail(self, rank: _Rank, reason: str, at: int | None = None) -> NoReturn:
        at = rank.at if at is None else at
        where = "end"
        if at < len(rank.steps):
            where = f"instruction {at}, {rank.steps[at].kind.name} {rank.steps[at].label!r}"
        where = f"{self.lowered}: rank {rank.number} of {self.size}, {where}"
        raise ProofError(f"{where}: {reason}", rank=rank.number, at=at)

    # Running

    def run(self) -> Proof:
        for rank in self.ranks:
            self.enter(rank)
        while self.ready:
            rank = self.ready.popleft()
            try:
                self.advance(rank)
            except Violation as violation:
                self.fail(rank, str(violation))
        self.check_ended()
        self.check_promises()
        programs, calls = self.lowered.programs, self.calls
        return Proof(
            sum(len(program.instructions) for program in programs),
            self.messages // calls,
            self.sent // calls,
            self.reduced // calls,
            self.copied // calls,
            max(program.scratch for program in programs),
            max(program.stage for program in programs),
        )

    def enter(self, rank: _Rank) -> None:
        """Begin the next call."""
        rank.call += 1
        rank.at = rank.phase = 0
        rank.waited = set()
        given, wanted = self.held[rank.number]
        base = (rank.call * self.size + rank.number) * self.total
        source, target = [base + element for element in given], [UNDEFINED] * len(wanted)
        alias = self.lowered.layouts[rank.number].alias
        if alias is not None:
            target[alias : alias + len(source)] = source
            source = []
        rank.memory.enter(rank.call, source, target)
        rank.memory.tick()
        rank.memory.share()
        rank.entered.append(rank.memory.now)

    def advance(self, rank: _Rank) -> None:
        """Run a rank until it ends or must wait."""
        steps, memory = rank.steps, rank.memory
        while True:
            for at in range(rank.at, len(steps)):
                rank.at, step = at, steps[at]
                kind = step.kind
                if kind is _AWAIT:
                    if not self.complete(rank, step):
                        return
                elif kind is _SEND or kind is _RECV:
                    self.begin(rank, step)
                elif kind is _COPY:
                    values = memory.read(step.a)
                    memory.write(step.dst, values)
                    self.copied += len(values)
                elif kind is _REDUCE:
                    values = self.combine(memory.read(step.a), memory.read(step.b), step.phase)
                    memory.write(step.dst, values)
                    self.reduced += len(values)
                elif not self.onesided:
                    raise Violation("the algorithm is not registered as one-sided")
                elif kind is _SIGNAL:
                    self.signal(rank, step)
                elif not self.wait(rank, step):
                    return
            rank.at = len(steps)
            self.leave(rank)
            if rank.call + 1 == self.calls:
                return
            self.enter(rank)

    def combine(self, left: list[int], right: list[int], marks: int) -> list[int]:
        if self.expressions is None or len(left) != len(right):
            raise Violation(f"cannot combine {len(left)} with {len(right)} elements here")
        values = [self.expressions.combine(a, b) for a, b in zip(left, right, strict=True)]
        for value in values:
            self.expressions.check_marks(value, marks, self.finishes)
        return values

    # Messages

    def begin(self, rank: _Rank, step: Instruction) -> None:
        kind, _, peer, source, _, target, _, number = step
        if not 0 <= peer < self.size:
            raise Violation(f"there is no rank {peer}")
        if kind is _SEND:
            data = [] if source is None else rank.memory.read(source, lasting=True)
            request = rank.requests[number] = _Request(rank, step, data)
            link = rank.number * self.size + peer
            self.messages += 1
            self.sent += len(data)
            if self.timed:
                request.clock = rank.memory.clock.copy()
                rank.memory.tick()
        else:
            if target is not None:
                rank.memory.write(target, [PENDING] * (target.stop - target.start))
            request = rank.requests[number] = _Request(rank, step, [])
            link = peer * self.size + rank.number
        queue = self.unmatched.get(link)
        if not queue:
            self.unmatched[link] = [request]
            return
        if queue[0].step.kind is kind:
            queue.append(request)
            return
        other = queue.pop(0)
        if kind is _SEND:
            self.match(request, other)
        else:
            self.match(other, request)
        blocked = other.owner
        if blocked.at < len(blocked.steps) and blocked is not rank:
            waits = blocked.steps[blocked.at]
            if waits.kind is _AWAIT and waits.request == other.step.request:
                self.ready.append(blocked)

    def match(self, sent: _Request, received: _Request) -> None:
        place = received.step.dst
        room = 0 if place is None else place.stop - place.start
        if len(sent.data) != room:
            raise Violation(
                f"rank {sent.owner.number} sends {len(sent.data)} elements ({sent.step.label!r}), "
                f"rank {received.owner.number} expects {room} ({received.step.label!r})"
            )
        received.data, received.clock = sent.data, sent.clock
        sent.matched = received.matched = True

    def complete(self, rank: _Rank, step: Instruction) -> bool:
        """Run an AWAIT. Return False if the rank must wait."""
        request = rank.requests.get(step.request)
        if request is None:
            raise Violation(f"request {step.request} is not pending")
        if not request.matched:
            return False
        del rank.requests[step.request]
        begun = request.step
        if begun.kind is _SEND:
            if begun.a is not None:
                rank.memory.end_read(begun.a)
            return True
        if request.clock is not None:
            rank.memory.learn(request.clock)
        if begun.dst is not None:
            rank.memory.end_write(begun.dst, request.data)
        return True

    # Signals

    def signal(self, rank: _Rank, step: Instruction) -> None:
        if step.phase != rank.phase + 1:
            raise Violation(f"signals phase {step.phase} after phase {rank.phase}")
        rank.phase += 1
        rank.published.append(rank.memory.clock.copy())
        rank.memory.tick()
        self.ready += self.asleep.pop((rank.number, len(rank.published)), ())

    def wait(self, rank: _Rank, step: Instruction) -> bool:
        """Run a WAIT. Return False if the rank must wait."""
        number, phase = step.peer, step.phase
        if not 0 <= number < self.size or number == rank.number or phase < 1:
            raise Violation(f"waits for phase {phase} of rank {number}")
        peer = self.ranks[number]
        epoch = rank.call * peer.program.phases + phase
        if phase > peer.program.phases or len(peer.published) < epoch:
            self.asleep.setdefault((number, epoch), []).append(rank)
            return False
        rank.waited.add(number)
        rank.memory.learn(peer.published[epoch - 1])
        if phase == 1 and rank.call == 0:
            rank.checked.append((rank.at, rank.memory.now, number, epoch))
        return True

    # Checks at the end

    def leave(self, rank: _Rank) -> None:
        """End a call and check its result."""
        if rank.requests:
            self.fail(rank, "is not awaited", next(iter(rank.requests.values())).at)
        if self.onesided and len(rank.waited) != self.size - 1:
            lacking = sorted(set(range(self.size)) - rank.waited - {rank.number})
            raise Violation(f"never waits for ranks {lacking}")
        rank.memory.leave()
        for place, (element, value) in enumerate(zip(self.held[rank.number][1], rank.memory.result, strict=True)):
            reason = self.judge(rank, element, value)
            if reason is not None:
                raise Violation(f"OUT {place} {reason}")

    def judge(self, rank: _Rank, element: int, value: int) -> str | None:
        """Return the defect of a value at `element` of a rank's result, or None."""
        call, combined = rank.call, self.combined
        if value < 0:
            return "is not written"
        if self.expressions is None:
            want = (call * self.size + self.origins[element]) * self.total + element
            return None if value == want else f"is not element {element} of rank {self.origins[element]}"
        place = call * self.total + element
        if self.expressions.places[value] != place:
            return f"is not element {element}, but another or of another call"
        if combined is not None:
            return self.judge_prefix(combined(rank.number, self.size), place, value)
        lacking = (1 << self.size) - 1 & ~self.expressions.ranks[value]
        if lacking:
            return f"lacks the contribution of rank {lacking.bit_length() - 1}"
        if place not in self.results:
            self.results[place] = value if self.tree is None else self.expressions.along(self.tree, place)
        if value != self.results[place]:
            return f"is not combined as {'on other ranks' if self.tree is None else 'the canonical tree says'}"
        return None

    def judge_prefix(self, ranks: range, place: int, value: int) -> str | None:
        """Return the defect of the combination of some successive ranks, or None."""
        assert self.expressions is not None
        if self.expressions.runs[value] != (ranks[0], ranks[-1]):
            return f"is not the combination of ranks {ranks[0]} to {ranks[-1]} in this order"
        if self.tree is not None and value != self.expressions.in_turn(ranks, place):
            return "is not combined from left to right"
        return None

    def check_ended(self) -> None:
        """Check that no rank waits for ever, so that every message was received, and that a barrier holds."""
        stuck = [rank for rank in self.ranks if rank.at < len(rank.steps)]
        if stuck:
            steps = [(rank, rank.steps[rank.at]) for rank in stuck[:8]]
            waits = [f"rank {rank.number} in {step.label!r} for rank {step.peer}" for rank, step in steps]
            self.fail(stuck[0], "deadlock: " + ", ".join(waits))
        for rank in self.ranks if self.timed else ():
            for peer in self.ranks:
                if rank.memory.clock[peer.number] < peer.entered[-1]:
                    self.fail(rank, f"ends without having heard of rank {peer.number}")

    def check_promises(self) -> None:
        """Check traffic, STAGE size, and how far a peer can be ahead of a WAIT."""
        algorithm, geometry = self.lowered.algorithm, self.lowered.geometry
        if len(set(self.lowered.blocks)) == 1:
            promised = algorithm.traffic(geometry) * self.lowered.elements
            if promised * self.calls != self.sent:
                raise ProofError(f"{self.lowered}: {self.sent} elements are sent, {promised * self.calls} promised")
        for rank in self.ranks:
            if rank.program.stage > self.window:
                self.fail(rank, f"needs {rank.program.stage} elements of STAGE, {self.window} are promised")
            if rank.program.phases != self.ranks[0].program.phases:
                self.fail(rank, f"signals {rank.program.phases} phases, rank 0 {self.ranks[0].program.phases}")
            for at, moment, number, epoch in rank.checked:
                ahead = 0
                for clock in self.ranks[number].published[epoch:]:
                    if clock[rank.number] >= moment:
                        break
                    ahead += 1
                if ahead >= _EPOCHS_KEPT:
                    self.fail(rank, f"rank {number} may be {ahead} epochs ahead by then", at)
