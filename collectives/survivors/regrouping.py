"""From the group that failed to a connected group of its survivors.

All survivors meet in the store of the group that failed, agree on the decision (agreement.py), and connect. The new
group is the next generation: it has a part of the store of its own, and new connections, segments and windows, so
nothing of the old group can reach it.

Source: MPI_Comm_shrink of ULFM (user-level failure mitigation; Bland et al., 2013).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Final, TypeVar

from collectives.failure import report_left_out
from collectives.survivors.agreement import SurvivorAgreement
from transports.base import Group
from transports.errors import RendezvousError, RondeError, TransportError
from transports.rendezvous import SHRINKS

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
"""The longest time for the survivors to connect. All of them are there, so it may be less than `connect_timeout`."""
ATTEMPTS: Final = 3
"""Number of times that the same ranks try to connect."""


def regroup(
    group: Group,
    failure: RondeError | None,
    timeout: float,
    heartbeat: float,
    *,
    leave: Callable[[], None],
    connect: Callable[[Group], T],
) -> T:
    """Agree on the survivors of `group`, and connect them; returns the result of `connect`. Collective among them.

    failure     the failure of the group, as this rank knows it; None if there was none
    timeout     seconds for the ranks to arrive that are not known to be lost
    heartbeat   the setting: a host silent for so long is lost with all its ranks that have not arrived
    leave       closes the old group; called once, when this rank has arrived
    connect     connects the new group. If it raises TransportError, a rank may have been lost meanwhile, and the
                survivors agree again.

    Raises RendezvousError if the store cannot be reached, or if the others have continued without this rank; the error
    of `connect` if it failed ATTEMPTS times with the same ranks.
    """
    begun, attempts = time.monotonic(), 0
    while True:
        smaller = _agree(group, failure, begun, timeout, heartbeat, leave)
        attempts = attempts + 1 if smaller.size == group.size else 1
        try:
            return connect(smaller)
        except TransportError as error:
            if attempts == ATTEMPTS:
                with contextlib.closing(SurvivorAgreement(smaller, error, heartbeat)) as agreement:
                    agreement.withdraw(f"it gave up: {error.message}")
                raise
            group, failure, begun, leave = smaller, error, time.monotonic(), _nothing_to_leave


def _agree(
    group: Group,
    failure: RondeError | None,
    begun: float,
    timeout: float,
    heartbeat: float,
    leave: Callable[[], None],
) -> Group:
    """The group of the survivors. Raises RendezvousError."""
    try:
        with contextlib.closing(SurvivorAgreement(group, failure, heartbeat)) as agreement:
            agreement.arrive()
            try:
                leave()
                decision, by = agreement.decide(begun, timeout)
            except BaseException as error:
                agreement.withdraw(f"it gave up: {error!r}")
                raise
    except RendezvousError as error:
        raise RendezvousError(
            f"rank {group.rank} cannot agree on the survivors: {error.message}. The ranks agree in the store in which "
            f"they met; the store ends with the process that serves it",
            rank=group.rank,
        ) from error
    if group.rank in decision.left_out:
        raise RendezvousError(
            f"the other ranks continued without {group.describe(group.rank)}: {decision.left_out[group.rank]} "
            f"(decided by {group.describe(by)})",
            rank=group.rank,
            peer=by,
        )
    smaller = _next_generation(group, decision.survivors)
    if smaller.rank == 0 and group.parent_store is not None:
        left_out = set(group.original_ranks or range(group.size)) - set(smaller.original_ranks)
        report_left_out(group.parent_store, left_out)
    return smaller


def _next_generation(group: Group, ranks: tuple[int, ...]) -> Group:
    """The group of some of a group's ranks, in the next generation."""
    assert group.parent_store is not None
    generation = group.generation + 1
    original_ranks = group.original_ranks or range(group.size)
    return dataclasses.replace(
        group,
        rank=ranks.index(group.rank),
        members=tuple(group.members[rank] for rank in ranks),
        store=group.parent_store.prefixed(f"generation-{generation // SHRINKS}.{generation % SHRINKS}/group"),
        generation=generation,
        original_ranks=tuple(original_ranks[rank] for rank in ranks),
    )


def _nothing_to_leave() -> None:
    """A failed `connect` has released its group itself."""
