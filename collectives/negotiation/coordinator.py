"""The coordinator: decides which named operations run, in one order for all ranks. A state machine without I/O.

Every rank has a Participant; rank 0 has the Coordinator too. The engine carries their messages and tells the time.

    rank 0   rank 1   rank 2
      | submit | submit | submit       a participant announces the operations that its rank has submitted
      v        v        v
    [      coordinator      ]          waits until all ranks have announced an operation
      |        |        |
      v        v        v              then answers all ranks: run it now

An operation that ran before has a bit in the response cache. Announcements and answers refer to it by this bit, and the
complete operations are the AND of one mask per rank.

Holding back
    After an announcement a participant (not that of rank 0) collects submissions until it receives an answer. Thus at
    most one announcement of a rank is on its way, and a batch of operations costs one message each way per rank.
    This could deadlock: rank 1 has announced a and holds back b, rank 2 has announced b and holds back a. Therefore the
    coordinator sends an empty answer to the ranks that an operation lacks, if all of them may be holding it back. If
    the operation also lacks a rank that is free to announce, the coordinator waits for that rank first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.negotiation.messages import JOIN, Announcement, Answer, Failure, bits, ranks_text
from collectives.negotiation.response_cache import ResponseCache
from collectives.operations import Signature
from transports.errors import ClosedError, DeadlineExceeded, MismatchError, RondeError


class StalledOperation(NamedTuple):
    """An operation announced by some ranks at time `since`, but not by the ranks of the mask `missing`."""

    name: str
    signature: Signature
    since: float
    missing: int

    def describe(self, now: float) -> str:
        """Format the operation for the stall report."""
        missing = ranks_text(self.missing)
        return f"{self.name!r}, {self.signature.describe()}: missing on {missing} for {now - self.since:.1f} s"


class AddressedAnswer(NamedTuple):
    """An answer, and the mask of the ranks to send it to."""

    ranks: int
    answer: Answer


@dataclass(slots=True)
class _Uncached:
    """An operation announced by name: the mask of the ranks that announced it, and the signature of each."""

    since: float
    signatures: dict[int, Signature] = field(default_factory=dict)
    ranks: int = 0
    reported: bool = False


class Coordinator:
    """Collects the announcements of all ranks and derives answers from them.

    Masks named after ranks have one bit per rank; the others have one bit per entry of the response cache.
    """

    def __init__(self, ranks: Sequence[int], cache: ResponseCache, *, fusion: int = 0) -> None:
        """Begin with nothing announced.

        ranks    numbers to use in messages for the ranks 0, 1, ...
        cache    with no entries
        fusion   passed on in answers
        """
        size = len(ranks)
        self.ended = False
        self._numbers = tuple(ranks)
        self._all_ranks = (1 << size) - 1
        self._fusion = fusion
        self._cache = cache
        self._versions = [0] * size  # cache version that each rank knows
        self._announced = [0] * size  # cached operations in flight, by rank
        self._waiting = 0  # the union of these
        self._since: list[tuple[float, int]] = []  # their times of arrival, oldest first
        self._reported = 0  # those that a stall report has named
        self._uncached: dict[str, _Uncached] = {}  # the other operations in flight
        self._withdrawn: dict[str, int] = {}
        self._holding_ranks = 0  # may be holding something back
        self._joined_ranks = 0
        self._left_ranks = 0
        self._last_joined = -1

    @property
    def pending(self) -> bool:
        """True while any rank waits for an operation or for join."""
        return bool(self._waiting or self._uncached or self._joined_ranks)

    # ---- announcements

    def receive(self, rank: int, announcement: Announcement, now: float) -> None:
        """Record an announcement that arrived at time `now` (seconds)."""
        cached = announcement.cached
        self._versions[rank] = announcement.version
        for bit, entry, until in self._cache.evicted:
            if cached >> bit & 1 and entry.version <= announcement.version < until:
                cached ^= 1 << bit
                self._add_uncached(rank, entry.name, entry.signature, now)
        if new := cached & ~self._waiting:
            self._since.append((now, new))
            self._waiting |= new
        self._announced[rank] |= cached
        for name, signature in announcement.uncached:
            self._add_uncached(rank, name, signature, now)
        for name in announcement.withdrawn:
            if self._is_in_flight(rank, name):  # otherwise the withdrawal crossed the answer
                self._withdrawn.setdefault(name, rank)
        if announcement.joined:
            self._joined_ranks |= 1 << rank
            self._last_joined = rank
        if announcement.left:
            self._left_ranks |= 1 << rank
        if rank:
            self._holding_ranks |= 1 << rank

    def names(self, announcement: Announcement) -> list[str]:
        """The names of the operations in an announcement that has been received."""
        cached = [self._cache.entries[bit].name for bit in bits(announcement.cached)]
        return [*cached, *(name for name, _ in announcement.uncached)]

    def _add_uncached(self, rank: int, name: str, signature: Signature, now: float) -> None:
        operation = self._uncached.get(name)
        if operation is None:
            operation = self._uncached[name] = _Uncached(now)
        operation.signatures[rank] = signature
        operation.ranks |= 1 << rank

    def _is_in_flight(self, rank: int, name: str) -> bool:
        if name == JOIN:
            return bool(self._joined_ranks >> rank & 1)
        operation = self._uncached.get(name)
        if operation is not None and operation.ranks >> rank & 1:
            return True
        return bool(self._announced[rank] & self._cache.mask_of(name))

    # ---- answers

    def decide(self) -> list[AddressedAnswer]:
        """The answers that follow from the announcements received so far. Call it after `receive`."""
        answers = self._fail_joins()
        self._make_uncached(self._conflicting() | self._impossible())
        answers += self._fail_uncached()
        ready = [name for name, operation in self._uncached.items() if self._is_complete(operation)]
        cached = self._complete()
        last = self._last_joined if self._joined_ranks == self._all_ranks else -1
        if cached or ready or last >= 0:
            answers.append(AddressedAnswer(self._all_ranks, self._run(cached, ready, last)))
        if self._left_ranks & 1 and not self.pending and not self.ended:
            self.ended = True
            answers.append(AddressedAnswer(self._all_ranks & ~self._left_ranks, Answer(ended=True)))
        for ranks, _ in answers:
            self._holding_ranks &= ~ranks
        if (released := self._blocking_ranks()) and not self.ended:
            self._holding_ranks &= ~released
            answers.append(AddressedAnswer(released, Answer()))
        return answers

    def _complete(self) -> int:
        """Mask of the cached operations announced by all ranks that have not joined."""
        complete = self._waiting
        for rank, announced in enumerate(self._announced):
            if not self._joined_ranks >> rank & 1:
                complete &= announced
        return complete

    def _is_complete(self, operation: _Uncached) -> bool:
        return operation.ranks | self._joined_ranks == self._all_ranks

    def _conflicting(self) -> int:
        """Mask of the cached operations whose name was also announced with another signature."""
        mask = 0
        for name in self._uncached:
            mask |= self._waiting & self._cache.mask_of(name)
        for bit in bits(self._waiting & self._cache.ambiguous):
            siblings = self._waiting & self._cache.mask_of(self._cache.entries[bit].name)
            if siblings & (siblings - 1):
                mask |= siblings
        return mask

    def _impossible(self) -> int:
        """Mask of the cached operations that cannot run: withdrawn, lacking a rank that left, or unfit for join."""
        mask = 0
        if not (self._left_ranks or self._withdrawn or self._joined_ranks):
            return mask
        for rank in bits(self._left_ranks & ~self._joined_ranks):
            mask |= self._waiting & ~self._announced[rank]
        for name in self._withdrawn:
            mask |= self._waiting & self._cache.mask_of(name)
        if self._joined_ranks:
            for bit in bits(self._complete()):
                missing = any(not self._announced[rank] >> bit & 1 for rank in bits(self._joined_ranks))
                mask |= (missing and not self._cache.entries[bit].signature.joinable) << bit
        return mask

    def _make_uncached(self, mask: int) -> None:
        """Treat these operations as if they had been announced by name."""
        for bit in bits(mask):
            entry = self._cache.entries[bit]
            since = next(since for since, arrived in self._since if arrived >> bit & 1)
            for rank, announced in enumerate(self._announced):
                if announced >> bit & 1:
                    self._add_uncached(rank, entry.name, entry.signature, since)
        self._remove_cached(mask)

    def _remove_cached(self, mask: int) -> None:
        """Remove these cached operations from those in flight."""
        if mask:
            self._announced = [announced & ~mask for announced in self._announced]
            self._waiting &= ~mask
            self._reported &= ~mask
            self._since = [(since, others) for since, arrived in self._since if (others := arrived & ~mask)]

    def _fail_joins(self) -> list[AddressedAnswer]:
        """Fail the joins that were withdrawn or that lack a rank that left."""
        answers = []
        rank = self._withdrawn.pop(JOIN, None)
        absent = self._all_ranks & ~self._joined_ranks
        if rank is not None and absent:
            text = f"join: {self._text(1 << rank)} waited too long for {self._text(absent)} to join"
            answers.append(AddressedAnswer(1 << rank, self._failure(JOIN, DeadlineExceeded, text, absent)))
            self._joined_ranks &= ~(1 << rank)
        if self._joined_ranks and (left := absent & self._left_ranks):
            text = f"join: {self._text(left)} closed without joining"
            answers.append(AddressedAnswer(self._joined_ranks, self._failure(JOIN, ClosedError, text, left)))
            self._joined_ranks = 0
        return answers

    def _fail_uncached(self) -> list[AddressedAnswer]:
        """Fail the uncached operations that cannot run."""
        answers = []
        for name, operation in list(self._uncached.items()):
            failure = self._check(name, operation)
            if failure is not None:
                answers.append(AddressedAnswer(operation.ranks, failure))
                del self._uncached[name]
        self._withdrawn.clear()
        return answers

    def _check(self, name: str, operation: _Uncached) -> Answer | None:
        """The failure of an operation that cannot run, None if it can or might later."""
        signatures = operation.signatures
        first = signatures[min(signatures)]
        absent = self._all_ranks & ~operation.ranks & ~self._joined_ranks
        zeros = self._joined_ranks & ~operation.ranks
        call = f"{first.describe()} named {name!r}"
        if absent and name in self._withdrawn:
            impatient = self._text(1 << self._withdrawn[name])
            text = f"{call}: {impatient} waited too long for {self._text(absent)} to submit it"
            return self._failure(name, DeadlineExceeded, text, absent)
        if left := absent & self._left_ranks:
            text = (
                f"{call}, submitted by {self._text(operation.ranks)}: {self._text(left)} closed without submitting it"
            )
            return self._failure(name, ClosedError, text, left)
        if absent:
            return None
        ranks_of: dict[Signature, int] = {}
        for rank, signature in sorted(signatures.items()):
            ranks_of[signature] = ranks_of.get(signature, 0) | 1 << rank
        if len(ranks_of) > 1:
            places = Signature.differing(ranks_of)
            rows = [f"{self._text(ranks)}: {signature.describe(places)}" for signature, ranks in ranks_of.items()]
            table = "\n  ".join(rows)
            return self._failure(
                name, MismatchError, f"the ranks' calls named {name!r} do not fit together:\n  {table}", 0
            )
        if zeros and not first.joinable:
            text = f"{call}: {self._text(zeros)} joined and can only take part in allreduce and barrier"
            return self._failure(name, MismatchError, text, zeros)
        return None

    def _run(self, cached: int, ready: list[str], last: int) -> Answer:
        """The answer that runs cached operations and the uncached ones of the names `ready`, and completes join."""
        new = []
        for name in ready:
            signature = next(iter(self._uncached.pop(name).signatures.values()))
            bit = self._cache.find(name, signature)
            if bit < 0:
                new.append((name, signature))
            else:
                cached |= 1 << bit
        self._remove_cached(cached)
        self._cache.touch(cached)
        uncached = tuple(
            (self._cache.insert(name, signature, self._waiting), name, signature) for name, signature in new
        )
        if last >= 0:
            self._versions = [self._cache.version] * len(self._numbers)
            self._joined_ranks, self._last_joined = 0, -1
        if self._cache.evicted:
            active = bits(self._all_ranks & ~self._joined_ranks & ~self._left_ranks)
            self._cache.forget_evicted(min((self._versions[rank] for rank in active), default=self._cache.version))
        return Answer(cached, uncached, (), last, False, self._fusion)

    def _blocking_ranks(self) -> int:
        """Ranks to release: an operation lacks them, all of them may be holding it back, and it lacks no other rank."""
        active = self._all_ranks & ~self._joined_ranks & ~self._left_ranks
        holding, free = active & self._holding_ranks, active & ~self._holding_ranks
        blocking = 0
        if holding and self._waiting:
            lacking = self._waiting
            for rank in bits(free):
                lacking &= self._announced[rank]
            for rank in bits(holding):
                blocking |= bool(lacking & ~self._announced[rank]) << rank
        for operation in self._uncached.values():
            if not free & ~operation.ranks:
                blocking |= holding & ~operation.ranks
        return blocking

    # ---- stalls

    @property
    def oldest(self) -> float:
        """Time of arrival of the oldest operation in flight that `stalled` has not returned yet; infinity if none."""
        times = [operation.since for operation in self._uncached.values() if not operation.reported]
        return min(times + [since for since, arrived in self._since if arrived & ~self._reported], default=float("inf"))

    def stalled(self, before: float) -> list[StalledOperation]:
        """Operations in flight since `before` or longer. Each is returned once."""
        found = []
        for since, arrived in self._since:
            if since <= before:
                for bit in bits(arrived & ~self._reported):
                    ranks = sum(1 << rank for rank, announced in enumerate(self._announced) if announced >> bit & 1)
                    entry = self._cache.entries[bit]
                    found.append(StalledOperation(entry.name, entry.signature, since, self._missing(ranks)))
                self._reported |= arrived
        for name, operation in self._uncached.items():
            if operation.since <= before and not operation.reported:
                operation.reported = True
                signature = operation.signatures[min(operation.signatures)]
                found.append(StalledOperation(name, signature, operation.since, self._missing(operation.ranks)))
        return found

    def _missing(self, ranks: int) -> int:
        return self._numbered(self._all_ranks & ~ranks & ~self._joined_ranks)

    # ---- texts

    def _numbered(self, ranks: int) -> int:
        """The mask of ranks of the communicator as a mask of the numbers used in messages."""
        return sum(1 << self._numbers[rank] for rank in bits(ranks))

    def _text(self, ranks: int) -> str:
        return ranks_text(self._numbered(ranks))

    def _failure(self, name: str, error: type[RondeError], text: str, culprits: int) -> Answer:
        """An answer that fails an operation. The error's peer is the first rank of `culprits`."""
        peer = next(bits(self._numbered(culprits)), None)
        return Answer(failed=(Failure(name, error.__name__, text, peer),))
