"""The prover: runs the programs of all ranks on symbols instead of numbers, and refuses what could go wrong.

    deadlock   messages are not buffered: a send completes only once its receive is posted
    data       every element of every result is exactly what specs.py demands: each contribution once, from the right
               rank and place; the same expression on all ranks; `patterns.canonical_tree` where tree order is claimed
    races      no access conflicts with a pending SEND or RECV, none with another rank's access to STAGE (vector clocks
               over program order, messages and signals), also across successive calls; IN is not written
    promises   traffic and window size as registered; every rank waits for every other in each one-sided call, and
               never so late that the peer could have left the epochs behind that a window keeps; a barrier holds

Messages match in a fixed order and a WAIT names its signal, so all interleavings give the same result: one is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np

from collectives.algorithms.registry import Algorithm
from collectives.lowered import Lowered, ProofError, lower_ranks
from collectives.patterns import Tree, canonical_tree
from collectives.program import Instruction, Kind, Layout, Program, Span, split_evenly
from collectives.schedule import Buf

__all__ = ["Proof", "ProofError", "check", "prove"]

_ONESIDED_CALLS: Final = 3
"""Successive calls that are run of a one-sided algorithm: the third uses the window half of the first again."""

_EPOCHS_KEPT: Final = 8
"""See `transports.onesided.Window.publish`."""

_UNDEFINED: Final = -1
_PENDING: Final = -2
"""What a RECV that has not been awaited is about to overwrite."""
_LATER: Final = 1 << 62
"""The moment at which a read ends that is still going on."""

_Clock: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class Proof(NamedTuple):
    """What was proved, in numbers of one call: of all ranks together; `scratch` and `stage` of the rank with the most.

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
) -> Proof:
    """Prove an algorithm for one geometry; arguments and ValueErrors are those of `lower_ranks`.

    Raises ProofError, whose text names rank, instruction, label and reason.
    """
    return check(
        lower_ranks(algorithm, size, root=root, segments=segments, hosts=hosts, in_place=in_place, sizes=sizes)
    )


def check(lowered: Lowered) -> Proof:
    """Prove the programs of one call. Raises ProofError."""
    return _Machine(lowered).run()


class _Expressions:
    """Symbolic values as numbers, which are equal if and only if the expressions are.

    The contribution of rank r to element e in call c is (c * size + r) * elements + e. Combinations get the numbers
    above those as they come up.
    """

    def __init__(self, size: int, elements: int, calls: int) -> None:
        self._size = size
        self._elements = elements
        leaves = range(calls * size * elements)
        self.ranks = [1 << leaf // elements % size for leaf in leaves]
        """Whose contributions a value contains, as bits."""
        self.places = [leaf // (elements * size) * elements + leaf % elements for leaf in leaves]
        """call * elements + element."""
        self._known: dict[tuple[int, int], int] = {}

    def combine(self, a: int, b: int) -> int:
        """Raises ValueError for values that must not be combined."""
        value = self._known.get((a, b))
        if value is None:
            if self.places[a] != self.places[b]:
                places = [place % self._elements for place in (self.places[a], self.places[b])]
                raise ValueError(f"combines elements {places[0]} and {places[1]}, or values of different calls")
            twice = self.ranks[a] & self.ranks[b]
            if twice:
                raise ValueError(f"combines the contribution of rank {twice.bit_length() - 1} twice")
            value = self._known[a, b] = len(self.ranks)
            self.ranks.append(self.ranks[a] | self.ranks[b])
            self.places.append(self.places[a])
        return value

    def along(self, tree: Tree, place: int) -> int:
        """The value of a combination tree."""
        if isinstance(tree, int):
            call, element = divmod(place, self._elements)
            return (call * self._size + tree) * self._elements + element
        return self.combine(self.along(tree[0], place), self.along(tree[1], place))


class _Request:
    """A SEND or RECV that has begun. `data` is what a SEND reads, and what a RECV gets once it is matched."""

    __slots__ = ("at", "clock", "data", "matched", "owner", "step")

    def __init__(self, owner: _Rank, step: Instruction) -> None:
        self.owner = owner
        self.at = owner.at
        self.step = step
        self.data: list[int] = []
        self.clock: _Clock | None = None
        self.matched = False


class _Rank:
    """Where a rank is, and what its memory holds. STAGE has two halves, and lives on from call to call.

    written, readers   for every place in STAGE: when it was last written, and by whom and when it was read since
    published          the clock of every SIGNAL
    checked            WAITs that compare checks: (instruction, own time, peer, epoch)
    """

    def __init__(self, number: int, program: Program, window: int, size: int) -> None:
        self.number = number
        self.steps = program.instructions
        self.scratch = program.scratch
        self.at = 0
        self.call = -1
        self.phase = 0
        self.waited: set[int] = set()
        self.requests: dict[int, _Request] = {}
        self.memory: list[list[int]] = [[], [], [], [_UNDEFINED] * (2 * window)]
        self.sending: list[list[int]] = [[], [], [], [0] * (2 * window)]
        self.written = [0] * (2 * window)
        self.readers: list[dict[int, int]] = [{} for _ in range(2 * window)]
        self.clock: _Clock = np.zeros(size, np.int64)
        self.entered: list[int] = []
        self.published: list[_Clock] = []
        self.checked: list[tuple[int, int, int, int]] = []

    @property
    def now(self) -> int:
        return int(self.clock[self.number])

    def tick(self) -> None:
        self.clock[self.number] += 1


class _Machine:
    """All ranks, run until they end or none can go on."""

    def __init__(self, lowered: Lowered) -> None:
        algorithm, size = lowered.algorithm, lowered.geometry.size
        spec = lowered.spec
        self.lowered = lowered
        self.size = size
        self.total = sum(lowered.blocks)
        self.onesided = algorithm.onesided
        self.calls = _ONESIDED_CALLS if self.onesided else 1
        self.timed = self.onesided or algorithm.collective == "barrier"
        self.window = algorithm.slots(size) * lowered.layouts[0].largest
        self.tree = canonical_tree(size) if algorithm.tree_order else None
        self.expressions = _Expressions(size, self.total, self.calls) if spec.reduces else None
        self.results: dict[int, int] = {}
        self.origins: list[int] = []
        if spec.source is not None:
            for block, elements in enumerate(lowered.blocks):
                self.origins += [spec.source(block, size, lowered.geometry.root)] * elements
        self.held = [self.find(layout) for layout in lowered.layouts]
        self.ranks = [_Rank(rank, program, self.window, size) for rank, program in enumerate(lowered.programs)]
        self.unmatched: dict[tuple[int, int], deque[_Request]] = {}
        self.ready = list(self.ranks)
        self.asleep: dict[tuple[int, int], list[_Rank]] = {}
        self.messages = self.sent = self.reduced = self.copied = 0

    def find(self, layout: Layout) -> tuple[list[int], list[int]]:
        """The elements that a rank's IN and OUT hold, in order."""
        starts = [0]
        for block in self.lowered.blocks:
            for count in split_evenly(block, self.lowered.geometry.segments):
                starts.append(starts[-1] + count)
        given, wanted = (
            [element for chunk in table for element in range(starts[chunk], starts[chunk + 1])]
            for table in (layout.inputs, layout.outputs)
        )
        return given, wanted

    def fail(self, rank: _Rank, reason: str, at: int | None = None) -> NoReturn:
        at = rank.at if at is None else at
        where = (
            f"instruction {at}, {rank.steps[at].kind.name} {rank.steps[at].label!r}" if at < len(rank.steps) else "end"
        )
        where = f"{self.lowered}: rank {rank.number} of {self.size}, {where}"
        raise ProofError(f"{where}: {reason}", rank=rank.number, at=at)

    # Running

    def run(self) -> Proof:
        for rank in self.ranks:
            self.enter(rank)
        while self.ready:
            self.advance(self.ready.pop())
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
        source, target = [base + element for element in given], [_UNDEFINED] * len(wanted)
        alias = self.lowered.layouts[rank.number].alias
        if alias is not None:
            target[alias : alias + len(source)] = source
            source = []
        rank.memory[:3] = source, target, [_UNDEFINED] * rank.scratch
        rank.sending[:3] = [0] * len(source), [0] * len(target), [0] * rank.scratch
        rank.tick()
        rank.entered.append(rank.now)

    def advance(self, rank: _Rank) -> None:
        """Run a rank until it ends or must wait."""
        while True:
            while rank.at < len(rank.steps):
                step = rank.steps[rank.at]
                kind = step.kind
                if kind is Kind.SEND or kind is Kind.RECV:
                    self.begin(rank, step)
                elif kind is Kind.AWAIT:
                    if not self.complete(rank, step):
                        return
                elif kind is Kind.COPY:
                    values = self.read(rank, step.a)
                    self.copied += len(values)
                    self.write(rank, step.dst, values)
                elif kind is Kind.REDUCE:
                    self.combine(rank, step)
                elif not self.onesided:
                    self.fail(rank, "the algorithm is not registered as one-sided")
                elif kind is Kind.SIGNAL:
                    self.signal(rank, step)
                elif not self.wait(rank, step):
                    return
                rank.at += 1
            self.leave(rank)
            if rank.call + 1 == self.calls:
                return
            self.enter(rank)

    # Memory

    def locate(self, rank: _Rank, span: Span | None) -> tuple[_Rank, Buf, int, int]:
        """Whose memory a span is, which, and where."""
        if span is None:
            self.fail(rank, "an operand is missing")
        buf, start, stop, peer = span
        staged = buf is Buf.STAGE
        room = self.window if staged else len(rank.memory[buf])
        if not 0 <= start <= stop <= room:
            self.fail(rank, f"{buf.name} {start}:{stop} is out of bounds, it has {room} elements")
        half = rank.call % 2 * room if staged else 0
        return (self.ranks[peer] if peer >= 0 else rank), buf, start + half, stop + half

    def read(self, rank: _Rank, span: Span | None, until: int | None = None) -> list[int]:
        """The values of a span. A read that goes on for some time lasts `until` that moment of the own clock."""
        owner, buf, start, stop = self.locate(rank, span)
        values = owner.memory[buf][start:stop]
        if values and min(values) < 0:
            what = "a pending RECV writes" if _PENDING in values else "nobody has written"
            self.fail(rank, f"reads {buf.name} {start}:{stop} of rank {owner.number}, which {what}")
        if owner is not rank:
            told = rank.clock[owner.number].item()
            moment = rank.now if until is None else until
            for place in range(start, stop):
                if owner.written[place] > told:
                    self.fail(rank, f"reads STAGE {place} of rank {owner.number} without knowing that it is ready")
                owner.readers[place][rank.number] = moment
        return values

    def write(self, rank: _Rank, span: Span | None, values: Sequence[int]) -> None:
        owner, buf, start, stop = self.locate(rank, span)
        memory = owner.memory[buf]
        if len(values) != stop - start:
            self.fail(rank, f"{len(values)} elements for a place of {stop - start}")
        if buf is Buf.IN:
            self.fail(rank, "writes IN")
        if owner is not rank:
            self.fail(rank, f"writes the STAGE of rank {owner.number}")
        if any(owner.sending[buf][start:stop]):
            self.fail(rank, f"writes {buf.name} {start}:{stop}, which a pending SEND reads")
        if _PENDING in memory[start:stop]:
            self.fail(rank, f"writes {buf.name} {start}:{stop}, which a pending RECV writes")
        if buf is Buf.STAGE:
            for place in range(start, stop):
                for reader, moment in rank.readers[place].items():
                    if moment > rank.clock[reader]:
                        self.fail(rank, f"writes STAGE {place}, which rank {reader} may still be reading")
                rank.readers[place] = {}
                rank.written[place] = rank.now
        memory[start:stop] = values

    def combine(self, rank: _Rank, step: Instruction) -> None:
        left, right = self.read(rank, step.a), self.read(rank, step.b)
        if self.expressions is None or len(left) != len(right):
            self.fail(rank, f"cannot combine {len(left)} with {len(right)} elements here")
        try:
            values = [self.expressions.combine(a, b) for a, b in zip(left, right, strict=True)]
        except ValueError as error:
            self.fail(rank, str(error))
        self.reduced += len(values)
        self.write(rank, step.dst, values)

    # Messages

    def begin(self, rank: _Rank, step: Instruction) -> None:
        if not 0 <= step.peer < self.size:
            self.fail(rank, f"there is no rank {step.peer}")
        request = rank.requests[step.request] = _Request(rank, step)
        sends = step.kind is Kind.SEND
        if sends:
            self.messages += 1
            if step.a is not None:
                request.data = self.read(rank, step.a, _LATER)
                self.sent += len(request.data)
                self.mark_sending(rank, step.a, 1)
            if self.timed:
                request.clock = rank.clock.copy()
                rank.tick()
        elif step.dst is not None:
            self.write(rank, step.dst, [_PENDING] * (step.dst.stop - step.dst.start))
        link = (rank.number, step.peer) if sends else (step.peer, rank.number)
        queue = self.unmatched.setdefault(link, deque())
        if not queue or queue[0].step.kind is step.kind:
            queue.append(request)
            return
        other = queue.popleft()
        sent, received = (request, other) if sends else (other, request)
        target = received.step.dst
        if len(sent.data) != (0 if target is None else target.stop - target.start):
            self.fail(rank, f"{len(sent.data)} elements sent meet another size posted by rank {received.owner.number}")
        received.data, received.clock = sent.data, sent.clock
        sent.matched = received.matched = True
        waiting = other.owner
        if waiting.at < len(waiting.steps):
            blocked = waiting.steps[waiting.at]
            if blocked.kind is Kind.AWAIT and waiting.requests.get(blocked.request) is other and waiting is not rank:
                self.ready.append(waiting)

    def mark_sending(self, rank: _Rank, span: Span, change: int) -> None:
        owner, buf, start, stop = self.locate(rank, span)
        if owner is rank:
            for place in range(start, stop):
                owner.sending[buf][place] += change
        elif change < 0:
            self.read(rank, span)

    def complete(self, rank: _Rank, step: Instruction) -> bool:
        """An AWAIT. False if the rank must wait."""
        request = rank.requests.get(step.request)
        if request is None:
            self.fail(rank, f"request {step.request} is not pending")
        if not request.matched:
            return False
        del rank.requests[step.request]
        if request.step.kind is Kind.SEND:
            if request.step.a is not None:
                self.mark_sending(rank, request.step.a, -1)
            return True
        if request.clock is not None:
            np.maximum(rank.clock, request.clock, out=rank.clock)
        if request.step.dst is not None:
            owner, buf, start, stop = self.locate(rank, request.step.dst)
            owner.memory[buf][start:stop] = request.data
            if buf is Buf.STAGE:
                owner.written[start:stop] = [rank.now] * (stop - start)
        return True

    # Signals

    def signal(self, rank: _Rank, step: Instruction) -> None:
        if step.phase != rank.phase + 1:
            self.fail(rank, f"signals phase {step.phase} after phase {rank.phase}")
        rank.phase += 1
        rank.published.append(rank.clock.copy())
        rank.tick()
        self.ready += self.asleep.pop((rank.number, len(rank.published)), ())

    def wait(self, rank: _Rank, step: Instruction) -> bool:
        """A WAIT. False if the rank must wait."""
        if not 0 <= step.peer < self.size or step.peer == rank.number:
            self.fail(rank, f"waits for rank {step.peer}")
        peer = self.ranks[step.peer]
        epoch = rank.call * self.lowered.programs[step.peer].phases + step.phase
        if len(peer.published) < epoch:
            self.asleep.setdefault((step.peer, epoch), []).append(rank)
            return False
        rank.waited.add(step.peer)
        clock = peer.published[epoch - 1]
        if clock[step.peer] > rank.clock[step.peer]:
            np.maximum(rank.clock, clock, out=rank.clock)
        if step.phase == 1 and rank.call == 0:
            rank.checked.append((rank.at, rank.now, step.peer, epoch))
        return True

    # What must hold at the end

    def leave(self, rank: _Rank) -> None:
        """The end of a call."""
        if rank.requests:
            self.fail(rank, "ends with a pending request", next(iter(rank.requests.values())).at)
        if self.onesided and len(rank.waited) != self.size - 1:
            lacking = sorted(set(range(self.size)) - rank.waited - {rank.number})
            self.fail(rank, f"never waits for ranks {lacking}")
        for place, (element, value) in enumerate(zip(self.held[rank.number][1], rank.memory[Buf.OUT], strict=True)):
            reason = self.judge(rank.call, element, value)
            if reason is not None:
                self.fail(rank, f"OUT {place} {reason}")

    def judge(self, call: int, element: int, value: int) -> str | None:
        """What is wrong with a value that ends as `element` of the result, if anything."""
        if value < 0:
            return "is not written"
        if self.expressions is None:
            want = (call * self.size + self.origins[element]) * self.total + element
            return None if value == want else f"is not element {element} of rank {self.origins[element]}"
        place = call * self.total + element
        if self.expressions.places[value] != place:
            return f"is not element {element}, but another or of another call"
        lacking = (1 << self.size) - 1 & ~self.expressions.ranks[value]
        if lacking:
            return f"lacks the contribution of rank {lacking.bit_length() - 1}"
        want = self.results.get(place, _UNDEFINED)
        if want == _UNDEFINED:
            want = self.results[place] = value if self.tree is None else self.expressions.along(self.tree, place)
        if value != want:
            return f"is not combined as {'on other ranks' if self.tree is None else 'the canonical tree says'}"
        return None

    def check_ended(self) -> None:
        """No rank waits for ever, no message is left over, a barrier has held."""
        stuck = [rank for rank in self.ranks if rank.at < len(rank.steps)]
        if stuck:
            steps = [(rank, rank.steps[rank.at]) for rank in stuck]
            waits = [f"rank {rank.number} in {step.label!r} for rank {step.peer}" for rank, step in steps[:8]]
            self.fail(stuck[0], "deadlock: " + ", ".join(waits))
        for queue in self.unmatched.values():
            for request in queue:
                self.fail(request.owner, f"is left over, rank {request.step.peer} has no counterpart", request.at)
        if self.timed:
            for rank in self.ranks:
                for peer in self.ranks:
                    if rank.clock[peer.number] < peer.entered[-1]:
                        self.fail(rank, f"ends without having heard of rank {peer.number}")

    def check_promises(self) -> None:
        """Traffic, window size, and how far a peer can be ahead of a wait."""
        algorithm, geometry = self.lowered.algorithm, self.lowered.geometry
        if len(set(self.lowered.blocks)) == 1:
            promised = algorithm.traffic(geometry) * self.lowered.elements
            if promised * self.calls != self.sent:
                raise ProofError(f"{self.lowered}: {self.sent} elements are sent, {promised} promised")
        for rank, program in zip(self.ranks, self.lowered.programs, strict=True):
            if program.stage > self.window:
                self.fail(rank, f"needs {program.stage} elements of STAGE, {self.window} are promised")
            if program.phases != self.lowered.programs[0].phases:
                self.fail(rank, f"signals {program.phases} phases, rank 0 {self.lowered.programs[0].phases}")
            for at, moment, number, epoch in rank.checked:
                newest = epoch
                for clock in self.ranks[number].published[epoch:]:
                    if clock[rank.number] >= moment:
                        break
                    newest += 1
                if newest - epoch >= _EPOCHS_KEPT:
                    self.fail(rank, f"rank {number} may be {newest - epoch} epochs ahead by then", at)
