"""The coordinator's side of an admission: which newcomers become ranks, and which ranks leave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collectives.membership.calls import ask, call
from collectives.membership.registry import Registry
from collectives.membership.roster import Newcomer, Roster
from transports.store import Store


@dataclass(frozen=True)
class Admission:
    """The part of a verdict beside the survivors.

    leaving    numbers of processes that leave, with reasons
    admitted   newcomers with their numbers, in the order of their new ranks
    roster     the roster after the verdict
    """

    leaving: dict[int, str]
    admitted: tuple[Newcomer, ...]
    roster: Roster


class Candidates:
    """The newcomers that wait, and the ranks that are to leave, as the coordinator of a group finds them.

    store    the store of the job
    terms    version and transport of the group
    numbers  the processes that have survived, in the order of their ranks

    The constructor reads the store, and tells newcomers of other terms. Raises RendezvousError.
    """

    def __init__(self, store: Store, terms: str, numbers: Sequence[int]) -> None:
        self._store = store
        self._registry = Registry(store)
        self._numbers = numbers
        self.roster = self._registry.read()
        unfit = [newcomer for newcomer in self.roster.waiting if newcomer.terms != terms]
        for newcomer in unfit:
            call(store, newcomer.ticket, "refused", f"it has {newcomer.terms}, and the ranks have {terms}")
        self._drop(unfit)
        self._leaving = self.roster.leavers(numbers)
        self._staying = [number for number in numbers if number not in self._leaving]

    def are_due(self, meanwhile: Callable[[], object]) -> bool:
        """True if a rank is to leave, or a newcomer that has room answers a call. Raises RendezvousError.

        meanwhile   called several times a second
        """
        return bool(self._leaving or (self._staying and self._ask(len(self._staying), ["ready"], meanwhile)))

    def suffice(self) -> bool:
        """True if the ranks that stay and the newcomers are as many as there must be. If all leave, they are."""
        found = len(self._staying) + len(self.roster.candidates(len(self._staying)))
        return found >= self.roster.minimum or not self._staying

    def admit(self, generation: int, meanwhile: Callable[[], object]) -> Admission | None:
        """Call the newcomers that have room; the admission, or None if too few answer. Raises RendezvousError.

        generation  that of the group that decides
        meanwhile   called several times a second
        """
        size = len(self._staying)
        admitted = self._ask(size, ["come", generation], meanwhile) if size else []
        self.roster = self.roster.without(_tickets(admitted))
        if size and size + len(admitted) < self.roster.minimum:
            return None
        next_number = max([self.roster.next_number, *(number + 1 for number in self._numbers)])
        taken, given = set(self._numbers), []
        for newcomer in admitted:
            number = newcomer.number
            if number is None or number in taken:
                number = next_number
            next_number = max(next_number, number + 1)
            taken.add(number)
            given.append(dataclasses.replace(newcomer, number=number))
        asked = {number: reason for number, reason in self.roster.leaving.items() if number not in self._leaving}
        roster = dataclasses.replace(self.roster, next_number=next_number, leaving=asked)
        return Admission(self._leaving, tuple(given), roster)

    def _ask(self, size: int, words: Sequence[object], meanwhile: Callable[[], object]) -> list[Newcomer]:
        """Call as many newcomers as have room beside `size` ranks, until so many answer or none is left. Those that do
        not answer are no candidates any more."""
        found: list[Newcomer] = []
        rest = self.roster
        while candidates := rest.candidates(size + len(found)):
            answered = ask(self._store, candidates, *words, meanwhile=meanwhile)
            found += [newcomer for newcomer in candidates if newcomer.ticket in answered]
            silent = [newcomer for newcomer in candidates if newcomer.ticket not in answered]
            self._drop(silent)
            rest = rest.without(_tickets(candidates))
        return found

    def _drop(self, newcomers: Sequence[Newcomer]) -> None:
        """Take newcomers off the roster."""
        if newcomers:
            tickets = _tickets(newcomers)
            self._registry.request("gone", tickets)
            self.roster = self.roster.without(tickets)


def _tickets(newcomers: Sequence[Newcomer]) -> list[str]:
    return [newcomer.ticket for newcomer in newcomers]
