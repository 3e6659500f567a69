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
from transports.store import MOST_AWAITED, Store

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
    keys = {}
    for newcomer in newcomers:
        name = call(store, newcomer.ticket, *words)
        keys[newcomer.ticket] = [newcomer_path(newcomer.ticket, key) for key in (f"here/{name}", "settled")]
        meanwhile()
    until = time.monotonic() + ANSWER_SECONDS  # calls to many take long where the store is slow
    own, answered, late = this_member().host, set(), False
    with contextlib.closing(Watch()) as watch:
        for place, newcomer in enumerate(newcomers):
            member = unpack_member(newcomer.member)
            if member.host == own:
                watch.add(place, member.process)
        while keys and not late:
            late = time.monotonic() >= until  # then there is one more look, as this rank may have been late itself
            first = [key for pair in keys.values() for key in pair][:MOST_AWAITED]
            with contextlib.closing(store.awaited(*first)) as awaited:
                awaited.wait(min(until, time.monotonic() + _SLICE_SECONDS))
            values = iter(store.peek_all([key for pair in keys.values() for key in pair]))
            for ticket, here, settled in zip(list(keys), values, values, strict=False):
                if here is not None:
                    answered.add(ticket)
                if here is not None or settled is not None:
                    del keys[ticket]
            for place in watch.dead():
                keys.pop(newcomers[place].ticket, None)
            meanwhile()
    for ticket in keys:
        call(store, ticket, "again")
    return answered
