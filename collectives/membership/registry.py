"""The store's side of the roster: requests of newcomers, ranks and the launcher, and the history of changes.

Store keys, in the part `elastic` of the store in which the ranks first met
    log/N                      the requests, see Roster
    roster                     the roster after the last change, so that nobody reads the whole log
    history/N                  the changes, for the launcher
    newcomer/TICKET/call/N     calls to a newcomer, see calls.py
    newcomer/TICKET/here/CALL  the newcomer's answer to a call
    newcomer/TICKET/settled    the newcomer does not wait any more
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from collectives.membership.roster import NO_LIMIT, Roster, roster_from
from collectives.membership.shared_log import SharedLog
from transports.errors import RendezvousError
from transports.packed import pack, unpack
from transports.store import Awaited, Store

_LONGEST_REASON: Final = 1 << 10
"""Characters of a reason."""


class Registry:
    """The roster of a job as it is in the job's store."""

    def __init__(self, store: Store) -> None:
        self._store = store.prefixed("elastic")
        self._log = SharedLog(self._store.prefixed("log"))
        self._history = SharedLog(self._store.prefixed("history"))

    def request(self, *words: object) -> None:
        """Append a request to the log. Raises RendezvousError."""
        self._log.append(pack([secrets.token_hex(8), *words]), self._checkpoint().read)

    def read(self, roster: Roster | None = None) -> Roster:
        """The roster now. `roster` is an earlier one, if the caller has one. Raises RendezvousError."""
        roster = self._checkpoint() if roster is None else roster
        return roster.after(self._log.read(roster.read))

    def news(self, roster: Roster, *keys: str) -> Awaited:
        """Begin to wait for the first request after `roster`, or one of `keys` of the part `elastic`."""
        return self._store.awaited(f"log/{roster.read}", *keys)

    def keep(self, roster: Roster) -> None:
        """Keep the roster after a change. Raises RendezvousError."""
        self._store.set("roster", roster.pack())

    def tell(self, change: bytes) -> None:
        """Tell the launcher of a change, after all earlier ones. Idempotent. Raises RendezvousError."""
        self._history.append(change)

    def _checkpoint(self) -> Roster:
        return roster_from(self._store.peek("roster"))


def newcomer_path(ticket: str, key: str) -> str:
    """A key of a newcomer, in the job's store."""
    return f"elastic/newcomer/{ticket}/{key}"


def newcomer_part(store: Store, ticket: str) -> Store:
    """The part of a job's store that belongs to a newcomer."""
    return store.prefixed(f"elastic/newcomer/{ticket}")


def is_elastic(store: Store) -> bool:
    """True if ranks come and go in the job of this store: its launcher has set bounds, or newcomers wait. Raises
    RendezvousError."""
    return Registry(store).read().read > 0


# ---- for the launcher


def set_bounds(store: Store, minimum: int, maximum: int | None) -> None:
    """Set the bounds on the number of ranks, from the next change of ranks on.

    store    the store of the job
    minimum  1 or more. If fewer are left, they wait for newcomers until the time-out of `regroup`
    maximum  None for no limit. Newcomers beyond it wait as spares; of more ranks the last ones leave

    Raises ValueError for bad bounds, RendezvousError.
    """
    if minimum < 1:
        raise ValueError(f"minimum={minimum!r}: must be 1 or more")
    if maximum is not None and not minimum <= maximum <= NO_LIMIT:
        raise ValueError(f"maximum={maximum!r}: must be at least minimum={minimum}, or None for no limit")
    Registry(store).request("bounds", minimum, NO_LIMIT if maximum is None else maximum)


def ask_to_leave(store: Store, numbers: Iterable[int], reason: str) -> None:
    """Ask processes to leave at their next boundary.

    store    the store of the job
    numbers  the processes by the numbers that the launcher knows them by

    Raises RendezvousError.
    """
    Registry(store).request("leave", list(numbers), reason[:_LONGEST_REASON])


@dataclass(frozen=True)
class Change:
    """A change of the ranks. Processes are named by their numbers, those by which the launcher knows them.

    generation  that of the new group
    members     the processes in the order of their new ranks
    came        those that were admitted
    left        those that were left behind or have left, with reasons
    spares      newcomers that wait on; -1 for one without a number
    lost        those of `left` that did not leave: the others go on without them
    """

    generation: int
    members: tuple[int, ...]
    came: tuple[int, ...]
    left: dict[int, str]
    spares: tuple[int, ...]
    lost: tuple[int, ...] = ()

    def pack(self) -> bytes:
        """The change for `History`."""
        left = [[number, reason] for number, reason in self.left.items()]
        return pack([self.generation, self.members, self.came, left, self.spares, self.lost])


class History:
    """The changes of the ranks of a job, in order, for one reader in one thread. The reader closes it."""

    def __init__(self, store: Store) -> None:
        self._store = store.prefixed("elastic/history")
        self._place = 0
        self._awaited: Awaited | None = None

    def wait(self, until: float) -> Change | None:
        """The next change, waited for until `until` (monotonic seconds); None if there is none by then. Raises
        RendezvousError."""
        if self._awaited is None:
            self._awaited = self._store.awaited(str(self._place))
        found = self._awaited.wait(until)
        if found is None:
            return None
        self.close()
        self._place += 1
        return _change_from(found[1])

    def close(self) -> None:
        """Wait no more. Idempotent."""
        if self._awaited is not None:
            self._awaited.close()
            self._awaited = None


def _change_from(packed: bytes) -> Change:
    try:
        match unpack(packed):
            case [int(generation), [*members], [*came], [*left], [*spares], [*lost]]:
                reasons = {int(number): str(reason) for number, reason in left}
                numbers: Sequence[tuple[int, ...]] = [tuple(map(int, row)) for row in (members, came, spares, lost)]
                return Change(generation, numbers[0], numbers[1], reasons, numbers[2], numbers[3])
    except (ValueError, TypeError) as error:
        raise RendezvousError(f"the store holds a change of the ranks that cannot be read: {error}") from error
    raise RendezvousError("the store holds a value that is not a change of the ranks")
