"""Calls to newcomers that wait, and their answers. A newcomer that has died does not answer, so it is never admitted.

["ready"]             is it still there?
["come", GENERATION]  the ranks of this generation decide now; the newcomer waits for their decision
["again"]             it did not answer in time: it is to apply again
["refused", REASON]   it does not fit
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from collectives.membership.registry import newcomer_part, newcomer_path
from collectives.membership.roster import Newcomer
from collectives.membership.shared_log import SharedLog
from transports.liveness import Watch
from transports.packed import pack
from transports.rendezvous import this_member, unpack_member
from transports.store import Store

ANSWER_SECONDS: Final = 1.0
"""Time for a newcomer to answer."""
_SLICE_SECONDS: Final = 0.1
"""Time between two looks at the processes of newcomers, and at the duties of the caller."""


def call(store: Store, ticket: str, *words: object) -> str:
    """Call a newcomer; returns the name of the call. Raises RendezvousError.

    store  the store of the job
    """
    name = secrets.token_hex(8)
    SharedLog(newcomer_part(store, ticket).prefixed("call")).append(pack([name, *words]))
    return name


def ask(store: Store, newcomers: Sequence[Newcomer], *words: object, meanwhile: Callable[[], object]) -> set[str]:
    """Call newcomers and wait for their answers; the tickets of those that have answered. Those that have not, and have
    not settled either, are told to apply again. Raises RendezvousError.

    meanwhile  called several times a second
    """
    until = time.monotonic() + ANSWER_SECONDS
    keys = {}
    for newcomer in newcomers:
        name = call(store, newcomer.ticket, *words)
        keys[newcomer.ticket] = [newcomer_path(newcomer.ticket, key) for key in (f"here/{name}", "settled")]
    own, answered = this_member().host, set()
    with contextlib.closing(Watch()) as watch:
        for place, newcomer in enumerate(newcomers):
            member = unpack_member(newcomer.member)
            if member.host == own:
                watch.add(place, member.process)
        while keys and time.monotonic() < until:
            tickets = list(keys)
            with contextlib.closing(store.awaited(*[key for ticket in tickets for key in keys[ticket]])) as awaited:
                found = awaited.wait(min(until, time.monotonic() + _SLICE_SECONDS))
            if found is not None:
                ticket = tickets[found[0] // 2]
                if found[0] % 2 == 0:
                    answered.add(ticket)
                del keys[ticket]
            else:
                for place in watch.dead():
                    keys.pop(newcomers[place].ticket, None)
                meanwhile()
    for ticket in keys:
        call(store, ticket, "again")
    return answered
