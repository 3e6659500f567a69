"""Which named operations are run, and in which order: the state machine of the coordinator.

No I/O, no threads, no clock: `engine` carries the messages and tells the time. Every rank has a Member (member.py);
rank 0 has the Coordinator too. A member announces what its rank submits; once all ranks have announced a name, the
coordinator answers all of them that it is to be run. What was run before has a slot (slots.py), and is one bit of an
integer from then on: what is ready is the AND of one integer per rank.

Holding back
    A member that has not heard from the coordinator since its last announcement gathers what is submitted and announces
    it all when it hears. So there is at most one announcement of a rank on its way, and a batch costs one message each
    way per rank. That must not deadlock: if an operation lacks only ranks that may hold it back, the coordinator sends
    those an empty answer. It need not while the operation lacks another rank too, which has yet to speak up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from collectives.slots import Slots
from collectives.terms import JOIN, Announcement, Answer, Failure, Terms, bits, ranks_text
from transports.errors import ClosedError, DeadlineExceeded, MismatchError, RondeError

_CAPACITY: Final = 4096


class Late(NamedTuple):
    """An operation that some ranks have submitted and `missing` ones (bits) have not."""

    name: str
    terms: Terms
    since: float
    missing: int

    def describe(self, now: float) -> str:
        """'grad' ..., for messages."""
        return f"{self.name!r}, {self.terms.describe()}: for {now - self.since:.1f} s not by {ranks_text(self.missing)}"


Letter = tuple[int, Answer]
"""An answer after the bits of the ranks that are to hear it."""


@dataclass(slots=True)
class _Loose:
    """An operation that is announced without a slot: which rank said what."""

    since: float
    said: dict[int, Terms] = field(default_factory=dict)
    ranks: int = 0
    reported: bool = False


class Coordinator:
    """What all ranks have announced, and what follows from it."""

    def __init__(self, ranks: Sequence[int], *, fusion: int = 0, capacity: int = _CAPACITY) -> None:
        """For messages it calls the ranks 0, 1, ... by the numbers `ranks`.

        fusion     is passed on in answers
        capacity   the number of slots
        """
        size = len(ranks)
        self._names = tuple(ranks)
        self._everyone = (1 << size) - 1
        self._fusion = fusion
        self._said = [0] * size  # the slots that a rank has announced and that were not answered yet
        self._waiting = 0  # all of these
        self._ages: list[tuple[float, int]] = []  # since when each of them waits, oldest first
        self._reported = 0  # those that a stall report has named
        self._loose: dict[str, _Loose] = {}
        self._withdrawn: dict[str, int] = {}
        self._held = 0  # ranks that may hold something back; as are the following, bits
        self._joined = 0
        self._left = 0
        self._last = -1  # the last rank to join
        self._table = Slots(capacity)
        self._known = [0] * size
        self.ended = False

    @property
    def pending(self) -> bool:
        """True while any rank waits for something."""
        return bool(self._waiting or self._loose or self._joined)

    # ---- what ranks say

    def hear(self, rank: int, said: Announcement, now: float) -> None:
        """Take note of an announcement that came at time `now`, in seconds."""
        slots = said.slots
        self._known[rank] = said.known
        for past in self._table.past:
            if slots >> past.slot & 1 and past.meant.serial <= said.known < past.until:
                slots ^= 1 << past.slot
                self._note(rank, past.meant.name, past.meant.terms, now)
        if new := slots & ~self._waiting:
            self._ages.append((now, new))
            self._waiting |= new
        self._said[rank] |= slots
        for name, terms in said.fresh:
            self._note(rank, name, terms, now)
        for name in said.withdrawn:
            if self._waits(rank, name):  # else it was answered meanwhile
                self._withdrawn.setdefault(name, rank)
        if said.joined:
            self._joined |= 1 << rank
            self._last = rank
        if said.left:
            self._left |= 1 << rank
        if rank:
            self._held |= 1 << rank

    def _note(self, rank: int, name: str, terms: Terms, now: float) -> None:
        loose = self._loose.get(name)
        if loose is None:
            loose = self._loose[name] = _Loose(now)
        loose.said[rank] = terms
        loose.ranks |= 1 << rank

    def _waits(self, rank: int, name: str) -> bool:
        if name == JOIN:
            return bool(self._joined >> rank & 1)
        loose = self._loose.get(name)
        if loose is not None and loose.ranks >> rank & 1:
            return True
        return bool(self._said[rank] & self._table.slots_of(name))

    # ---- what follows

    def decide(self) -> list[Letter]:
        """What to tell whom, now that something was heard."""
        letters: list[Letter] = []
        self._fail_joins(letters)
        self._loosen(self._ambiguous() | self._doomed())
        ready = self._fail_loose(letters)
        slots = self._complete()
        last = self._last if self._joined == self._everyone else -1
        if slots or ready or last >= 0:
            letters.append((self._everyone, self._run(slots, ready, last)))
        if self._left & 1 and not self.pending and not self.ended:
            self.ended = True
            letters.append((self._everyone & ~self._left, Answer(ended=True)))
        told = 0
        for ranks, _ in letters:
            told |= ranks
        self._held &= ~told
        if (released := self._blocking()) and not self.ended:
            self._held &= ~released
            letters.append((released, Answer()))
        return letters

    def _complete(self) -> int:
        """The slots that all ranks have announced, but for those that have joined."""
        complete = self._waiting
        for rank, said in enumerate(self._said):
            if not self._joined >> rank & 1:
                complete &= said
        return complete

    def _ambiguous(self) -> int:
        """The waiting slots whose name is also announced in another way."""
        mask = 0
        for name in self._loose:
            mask |= self._waiting & self._table.slots_of(name)
        for slot in bits(self._waiting & self._table.shared):
            siblings = self._waiting & self._table.slots_of(self._table.entries[slot].name)
            if siblings & (siblings - 1):
                mask |= siblings
        return mask

    def _doomed(self) -> int:
        """The waiting slots that will not be run."""
        mask = 0
        if not (self._left or self._withdrawn or self._joined):
            return mask
        for rank in bits(self._left & ~self._joined):
            mask |= self._waiting & ~self._said[rank]
        for name in self._withdrawn:
            mask |= self._waiting & self._table.slots_of(name)
        if self._joined:
            for slot in bits(self._complete()):
                missing = any(not self._said[rank] >> slot & 1 for rank in bits(self._joined))
                mask |= (missing and not self._table.entries[slot].terms.joinable) << slot
        return mask

    def _loosen(self, slots: int) -> None:
        """Go on with these as if they had been announced without a slot."""
        for slot in bits(slots):
            since = next(since for since, mask in self._ages if mask >> slot & 1)
            for rank, said in enumerate(self._said):
                if said >> slot & 1:
                    self._note(rank, self._table.entries[slot].name, self._table.entries[slot].terms, since)
        self._settle(slots)

    def _settle(self, slots: int) -> None:
        """These do not wait any more."""
        if slots:
            self._said = [said & ~slots for said in self._said]
            self._waiting &= ~slots
            self._reported &= ~slots
            self._ages = [(since, rest) for since, mask in self._ages if (rest := mask & ~slots)]

    def _fail_joins(self, letters: list[Letter]) -> None:
        rank = self._withdrawn.pop(JOIN, None)
        absent = self._everyone & ~self._joined
        if rank is not None and absent:
            text = f"join: {self._text(1 << rank)} waited too long for {self._text(absent)} to join"
            letters.append((1 << rank, self._failed(JOIN, DeadlineExceeded, text, absent)))
            self._joined &= ~(1 << rank)
        if self._joined and (gone := absent & self._left):
            text = f"join: {self._text(gone)} closed without joining"
            letters.append((self._joined, self._failed(JOIN, ClosedError, text, gone)))
            self._joined = 0

    def _fail_loose(self, letters: list[Letter]) -> list[str]:
        """Fail what comes to nothing; the names of what is ready."""
        ready = []
        for name, loose in list(self._loose.items()):
            failed = self._verdict(name, loose)
            if failed is not None:
                letters.append((loose.ranks, failed))
                del self._loose[name]
            elif loose.ranks | self._joined == self._everyone:
                ready.append(name)
        self._withdrawn.clear()
        return ready

    def _verdict(self, name: str, loose: _Loose) -> Answer | None:
        """What to tell those who announced an operation, if it cannot be run."""
        first = min(loose.said)
        absent = self._everyone & ~loose.ranks & ~self._joined
        zeros = self._joined & ~loose.ranks
        what = f"{loose.said[first].describe()} named {name!r}"
        if absent and name in self._withdrawn:
            who = self._text(1 << self._withdrawn[name])
            text = f"{what}: {who} waited too long for {self._text(absent)} to submit it"
            return self._failed(name, DeadlineExceeded, text, absent)
        if gone := absent & self._left:
            text = f"{what}, submitted by {self._text(loose.ranks)}: {self._text(gone)} closed without submitting it"
            return self._failed(name, ClosedError, text, gone)
        if absent:
            return None
        said: dict[Terms, int] = {}
        for rank, terms in sorted(loose.said.items()):
            said[terms] = said.get(terms, 0) | 1 << rank
        if len(said) > 1:
            table = "\n  ".join(f"{self._text(ranks)}: {terms.describe()}" for terms, ranks in said.items())
            return self._failed(
                name, MismatchError, f"the ranks' calls named {name!r} do not fit together:\n  {table}", 0
            )
        if zeros and not loose.said[first].joinable:
            text = f"{what}: {self._text(zeros)} joined, and can only take part in allreduces with op sum or average"
            return self._failed(name, MismatchError, text, zeros)
        return None

    def _run(self, slots: int, ready: list[str], last: int) -> Answer:
        """The answer that lets these run; `last` completes join."""
        loose = []
        for name in ready:
            terms = next(iter(self._loose.pop(name).said.values()))
            slot = self._table.find(name, terms)
            if slot < 0:
                loose.append((name, terms))
            slots |= (slot >= 0) << max(slot, 0)
        self._settle(slots)
        self._table.use(slots)
        fresh = tuple((self._table.assign(name, terms, self._waiting), name, terms) for name, terms in loose)
        if last >= 0:
            self._known = [self._table.serial] * len(self._names)
            self._joined, self._last = 0, -1
        if self._table.past:
            active = bits(self._everyone & ~self._joined & ~self._left)
            self._table.forget(min((self._known[rank] for rank in active), default=self._table.serial))
        return Answer(slots, fresh, (), last, False, self._fusion)

    def _blocking(self) -> int:
        """The ranks that may hold back all that some operation lacks."""
        active = self._everyone & ~self._joined & ~self._left
        held, free = active & self._held, active & ~self._held
        blocking = 0
        if held and self._waiting:
            lacking = self._waiting
            for rank in bits(free):
                lacking &= self._said[rank]
            for rank in bits(held):
                blocking |= bool(lacking & ~self._said[rank]) << rank
        for loose in self._loose.values():
            if not free & ~loose.ranks:
                blocking |= held & ~loose.ranks
        return blocking

    # ---- stalls

    @property
    def oldest(self) -> float:
        """Since when something waits that `late` has not named yet."""
        times = [loose.since for loose in self._loose.values() if not loose.reported]
        return min(times + [since for since, mask in self._ages if mask & ~self._reported], default=float("inf"))

    def late(self, before: float) -> list[Late]:
        """What waits since `before` or longer; everything is named once."""
        found = []
        for since, mask in self._ages:
            if since <= before:
                for slot in bits(mask & ~self._reported):
                    ranks = sum(1 << rank for rank, said in enumerate(self._said) if said >> slot & 1)
                    entry = self._table.entries[slot]
                    found.append(Late(entry.name, entry.terms, since, self._missing(ranks)))
                self._reported |= mask
        for name, loose in self._loose.items():
            if loose.since <= before and not loose.reported:
                loose.reported = True
                found.append(Late(name, loose.said[min(loose.said)], loose.since, self._missing(loose.ranks)))
        return found

    def _missing(self, ranks: int) -> int:
        return self._named(self._everyone & ~ranks & ~self._joined)

    # ---- words

    def _named(self, ranks: int) -> int:
        """The bits of the numbers by which ranks are called."""
        return sum(1 << self._names[rank] for rank in bits(ranks))

    def _text(self, ranks: int) -> str:
        return ranks_text(self._named(ranks))

    def _failed(self, name: str, error: type[RondeError], text: str, blame: int) -> Answer:
        """The answer that fails an operation; the first rank of `blame` is the error's peer."""
        return Answer(failed=(Failure(name, error.__name__, text, next(bits(self._named(blame)), None)),))
