"""From a group to the connected group of its next generation.

All survivors meet in the store in which the ranks first met, agree on the verdict (agreement.py), and connect, with the
newcomers that were admitted. The new group has a part of the store of its own, and new connections, segments and
windows, so nothing of the old group can reach it. If the store is lost, a standby takes its place (standby.py).

Source: MPI_Comm_shrink of ULFM (user-level failure mitigation; Bland et al., 2013); the quorum of torchft.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Final, TypeVar

from collectives.failure import report_left_out
from collectives.membership.agreement import SurvivorAgreement
from collectives.membership.generation import DECISION, next_group, numbered
from collectives.membership.registry import Change, Registry
from collectives.membership.roster import Newcomer
from collectives.membership.standby import Standby
from collectives.membership.verdict import Verdict
from transports.base import Group
from transports.errors import RendezvousError, RondeError, TransportError, described
from transports.rendezvous import REGROUPS, group_path

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
"""The longest time for the ranks to connect. All of them are there, so it may be less than `connect_timeout`."""
KEPT_GENERATIONS: Final = 4
"""Number of generations that the store remembers: a newcomer that connects late reads one before the latest."""
ATTEMPTS: Final = 3
"""Number of times that the same ranks try to connect."""


def regroup(
    group: Group,
    failure: RondeError | None,
    timeout: float,
    heartbeat: float,
    *,
    terms: str | None,
    standby: Standby,
    leave: Callable[[], None],
    connect: Callable[[Group], T],
) -> T | None:
    """Agree on the next generation of `group`, and connect it; returns the result of `connect`, or None on a rank that
    leaves. Collective among the survivors.

    failure     the failure of the group, as this rank knows it; None if there was none
    timeout     seconds for the ranks to arrive that are not known to be lost, and for newcomers if there are too few
    heartbeat   the setting: a host silent for so long is lost with all its ranks that have not arrived
    terms       version and transport, which newcomers must have; None to admit nobody and to let nobody leave
    standby     the stores that may take the place of the one in which the ranks met
    leave       closes the old group; called once, when this rank has arrived
    connect     connects the new group. If it raises TransportError, a rank may have been lost meanwhile, and the
                survivors agree again, without the newcomers that they could not connect to.

    Raises RendezvousError if neither the store nor a standby can be reached, if the others have continued without this
    rank, or if the ranks are too few; the error of `connect` if it failed ATTEMPTS times with the same ranks.
    """
    begun, attempts, lost = time.monotonic(), 0, dict[int, str]()
    record: Callable[[], None] | None = None
    voters, moved = [group.numbers] if standby.is_used else [], False
    again: tuple[type[RondeError], ...] = (TransportError, RendezvousError) if standby.is_used else (TransportError,)
    leaving = contextlib.ExitStack()
    leaving.callback(leave)
    while True:
        agreement = SurvivorAgreement(
            group, failure, heartbeat, terms=terms, lost=lost, record=record, voters=voters, moved=moved
        )
        try:
            verdict = _agree(agreement, begun, timeout, leaving.close)
        except RendezvousError as error:
            group, begun, moved, record = _move(group, standby, error), time.monotonic(), True, None
            continue
        _check(group, verdict)
        if group.rank == min(verdict.staying or verdict.leaving):
            try:
                _record(group, verdict)
            except RendezvousError:
                if not standby.is_used:  # with standbys, `connect` fails too, and the ranks agree again
                    raise
        if group.rank in verdict.leaving:
            with contextlib.suppress(RendezvousError):  # the others tell it as well
                _tell_launcher(group, verdict)
            return None
        assert group.parent_store is not None
        rank = verdict.staying.index(group.rank)
        new = next_group(numbered(group), verdict, rank, group.generation, group.parent_store, group.secret)
        came = range(len(verdict.staying), new.size)
        attempts = attempts + 1 if new.size == group.size and not came else 1
        try:
            connected = connect(new)
        except RondeError as error:
            if not came and not isinstance(error, again):
                raise
            if attempts == ATTEMPTS:
                with contextlib.closing(SurvivorAgreement(new, error, heartbeat)) as agreement:
                    agreement.withdraw(f"it gave up: {error.message}")
                raise
            lost = dict.fromkeys(came, f"the ranks could not connect with this newcomer: {error.message}")
            # The rank that was to record the verdict may be the one that is lost.
            record = functools.partial(_record, group, verdict)
            if standby.is_used:
                voters = [*voters, new.numbers]
            group, failure, begun, moved = new, error, time.monotonic(), False
        else:
            _forget(new)
            return connected


def _agree(agreement: SurvivorAgreement, begun: float, timeout: float, leave: Callable[[], None]) -> Verdict:
    """The verdict on a group. Raises RendezvousError if the store fails."""
    with contextlib.closing(agreement):
        agreement.arrive()
        try:
            leave()
            return agreement.decide(begun, timeout)
        except BaseException as error:
            agreement.withdraw(f"it gave up: {described(error)}")
            raise


def _move(group: Group, standby: Standby, error: RendezvousError) -> Group:
    """The group in a standby of its store, which has failed. Raises RendezvousError."""
    try:
        return standby.move(group)
    except RendezvousError as missing:
        hint = f"; {missing.message}" if standby.is_used else ""
        raise RendezvousError(
            f"rank {group.rank} cannot agree on the survivors: {error.message}. The ranks agree in the store in which "
            f"they met; the store ends with the process that serves it{hint}",
            rank=group.rank,
        ) from error


def _check(group: Group, verdict: Verdict) -> None:
    """Raise RendezvousError if this rank does not go on by the verdict on its group."""
    if group.rank in verdict.left_out:
        raise RendezvousError(
            f"the other ranks continued without {group.describe(group.rank)}: {verdict.left_out[group.rank]} "
            f"(decided by {group.describe(verdict.by)})",
            rank=group.rank,
            peer=verdict.by,
        )
    if verdict.refusal:
        raise RendezvousError(f"the ranks do not continue: {verdict.refusal}", rank=group.rank)


def _record(group: Group, verdict: Verdict) -> None:
    """Tell the launcher, and later readers of the roster. Idempotent. Raises RendezvousError."""
    assert group.parent_store is not None
    report_left_out(group.parent_store, [group.numbers[rank] for rank in verdict.left_out])
    if verdict.roster is not None:
        Registry(group.parent_store).keep(verdict.roster)
    _tell_launcher(group, verdict)


def _tell_launcher(group: Group, verdict: Verdict) -> None:
    """Tell the launcher of the change. Idempotent. A rank that leaves does so too: when its process ends with 0, the
    launcher must know, and the rank that records the verdict may be late. Raises RendezvousError."""
    assert group.parent_store is not None
    numbers = group.numbers
    left_out = {numbers[rank]: reason for rank, reason in verdict.left_out.items()}
    came = tuple(_number(newcomer) for newcomer in verdict.admitted)
    members = (*(numbers[rank] for rank in verdict.staying), *came)
    left = left_out | {numbers[rank]: reason for rank, reason in verdict.leaving.items()}
    spares = () if verdict.roster is None else tuple(map(_number, verdict.roster.waiting))
    leaving = {} if verdict.roster is None else verdict.roster.leaving  # one may have ended before it could leave
    lost = tuple(number for number in left_out if number not in leaving)
    Registry(group.parent_store).tell(Change(group.generation + 1, members, came, left, spares, lost).pack())


def _forget(new: Group) -> None:
    """Have the store forget a generation that no rank can be in any more, but the verdict on it: a rank that was left
    out may read it much later."""
    old = new.generation - KEPT_GENERATIONS
    if new.rank == 0 and new.generation % REGROUPS >= KEPT_GENERATIONS:
        assert new.parent_store is not None
        with contextlib.suppress(RendezvousError):  # whoever needs the store next finds that it is lost
            new.parent_store.forget(group_path(old), [f"{group_path(old)}/{DECISION}"])


def _number(newcomer: Newcomer) -> int:
    return -1 if newcomer.number is None else newcomer.number
