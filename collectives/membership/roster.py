"""The roster: the ranks that want to come or are to leave, and the bounds on their number. A pure function of the
entries of a log, to which newcomers, ranks and the launcher append."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from transports.errors import RendezvousError
from transports.packed import pack, unpack

NO_LIMIT: Final = 1 << 31
"""The largest number of ranks, where nobody has set one."""


@dataclass(frozen=True)
class Newcomer:
    """A process that waits to be admitted.

    ticket  its name in the store, a new one each time that it waits
    number  its number for the launcher; None to be given the next one
    member  its row, see `pack_member`
    terms   version and transport, which must be those of the group
    """

    ticket: str
    number: int | None
    member: bytes
    terms: str

    def fields(self) -> list[object]:
        """The newcomer as `newcomer_from` reads it."""
        return [self.ticket, self.number, self.member, self.terms]


def newcomer_from(fields: object) -> Newcomer:
    """The newcomer of `fields`. Raises RendezvousError."""
    match fields:
        case [str(ticket), int() | None as number, bytes(member), str(terms)]:
            return Newcomer(ticket, number, member, terms)
    raise RendezvousError("the store holds a value that is not a newcomer's entry")


@dataclass(frozen=True)
class Roster:
    """The state of the log after its first `read` entries.

    minimum, maximum  bounds on the number of ranks
    next_number       at least 1 more than any number that a newcomer was given here
    waiting           newcomers, in the order in which they came
    leaving           number of a process -> the reason why it is to leave
    """

    read: int = 0
    minimum: int = 1
    maximum: int = NO_LIMIT
    next_number: int = 0
    waiting: tuple[Newcomer, ...] = ()
    leaving: Mapping[int, str] = field(default_factory=dict)

    def after(self, entries: Iterable[bytes]) -> Roster:
        """The roster after the next entries of the log. Raises RendezvousError if one cannot be read."""
        roster = self
        for entry in entries:
            change: dict[str, Any]
            try:
                match unpack(entry):
                    case [_, "join", fields]:
                        change = {"waiting": (*roster.waiting, newcomer_from(fields))}
                    case [_, "gone", [*tickets]]:
                        change = {"waiting": roster.without(tickets).waiting}
                    case [_, "leave", [*numbers], str(reason)]:
                        change = {"leaving": {**roster.leaving, **{int(number): reason for number in numbers}}}
                    case [_, "bounds", int(minimum), int(maximum)]:
                        change = {"minimum": minimum, "maximum": maximum}
                    case _:
                        raise ValueError("it has another form")
            except (ValueError, TypeError) as error:
                raise RendezvousError(f"the store holds an entry of the roster that cannot be read: {error}") from error
            roster = dataclasses.replace(roster, read=roster.read + 1, **change)
        return roster

    def without(self, tickets: Collection[object]) -> Roster:
        """The roster without the newcomers of these tickets."""
        waiting = tuple(newcomer for newcomer in self.waiting if newcomer.ticket not in tickets)
        return dataclasses.replace(self, waiting=waiting)

    def leavers(self, numbers: Sequence[int]) -> dict[int, str]:
        """Those of the processes `numbers`, in the order of their ranks, that are to leave, with reasons. If more than
        the maximum are left, the last ones leave too."""
        found = {number: self.leaving[number] for number in numbers if number in self.leaving}
        staying = [number for number in numbers if number not in found]
        surplus = staying[self.maximum :]
        return found | dict.fromkeys(surplus, f"at most {self.maximum} ranks are wanted")

    def candidates(self, size: int) -> tuple[Newcomer, ...]:
        """The newcomers for whom there is room beside `size` ranks. The rest are spares."""
        return self.waiting[: max(0, self.maximum - size)]

    def pack(self) -> bytes:
        """The roster for `roster_from`."""
        waiting = [newcomer.fields() for newcomer in self.waiting]
        leaving = [[number, reason] for number, reason in self.leaving.items()]
        return pack([self.read, self.minimum, self.maximum, self.next_number, waiting, leaving])


def roster_from(packed: bytes | None) -> Roster:
    """The roster that was packed; that of an empty log for None. Raises RendezvousError."""
    if packed is None:
        return Roster()
    try:
        match unpack(packed):
            case [int(read), int(minimum), int(maximum), int(next_number), [*waiting], [*leaving]]:
                return Roster(
                    read,
                    minimum,
                    maximum,
                    next_number,
                    tuple(map(newcomer_from, waiting)),
                    {int(number): str(reason) for number, reason in leaving},
                )
    except (ValueError, TypeError) as error:
        raise RendezvousError(f"the store holds a roster that cannot be read: {error}") from error
    raise RendezvousError("the store holds a value that is not the roster")
