"""A newcomer's way into a group: it applies, waits until it is called and admitted, and connects.

It does all that takes long before it applies: imports, compilation, authentication. So the ranks wait for it only while
they connect.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from typing import Final, TypeVar

from collectives.membership.generation import DECISION, MEMBERS, members_from, next_group
from collectives.membership.registry import Registry, newcomer_part, newcomer_path
from collectives.membership.roster import Newcomer
from collectives.membership.verdict import verdict_from
from transports.base import Group
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError, TransportError
from transports.packed import unpack
from transports.rendezvous import group_path, pack_member, this_member
from transports.store import Store

T = TypeVar("T")

ATTEMPTS: Final = 3
"""Number of times that a newcomer applies again, after it could not connect."""


def wait_to_join(
    store: Store, number: int | None, terms: str, secret: bytes, deadline: float, connect: Callable[[Group], T]
) -> T:
    """Wait until the ranks of a job admit this process, and connect; returns the result of `connect`.

    store     the store of the job
    number    this process's number for the launcher; None to be given one
    terms     version and transport
    secret    the secret of the job
    deadline  monotonic seconds
    connect   connects the group in which this process is a rank

    Raises DeadlineExceeded if they do not admit it, ConfigError if it does not fit, RendezvousError; the error of
    `connect` if it failed ATTEMPTS times.
    """
    attempts = 0
    while True:
        group = _await_admission(store, number, terms, secret, deadline)
        attempts += 1
        try:
            return connect(group)
        except TransportError:  # the ranks go on without it
            if attempts == ATTEMPTS or time.monotonic() >= deadline:
                raise


def _await_admission(store: Store, number: int | None, terms: str, secret: bytes, deadline: float) -> Group:
    begun = time.monotonic()
    while True:
        ticket = secrets.token_hex(16)
        Registry(store).request("join", Newcomer(ticket, number, pack_member(this_member()), terms).fields())
        try:
            if (group := _await_verdict(store, ticket, secret, deadline)) is not None:
                return group
        finally:
            with contextlib.suppress(RendezvousError):  # then it does not answer
                newcomer_part(store, ticket).set("settled", b"")
        if time.monotonic() >= deadline:
            waited = time.monotonic() - begun
            raise DeadlineExceeded(
                f"no rank admitted this process within {waited:.1g} s: "
                "ranks admit newcomers in `regroup`, up to its maximum"
            )


def _await_verdict(store: Store, ticket: str, secret: bytes, deadline: float) -> Group | None:
    """Answer calls until a verdict admits the newcomer, or it is to apply again, or `deadline`."""
    part = newcomer_part(store, ticket)
    place, generation = 0, -1
    while True:
        keys = [newcomer_path(ticket, f"call/{place}")]
        if generation >= 0:
            keys.append(f"{group_path(generation)}/{DECISION}")
        with contextlib.closing(store.awaited(*keys)) as awaited:
            found = awaited.wait(deadline)
        if found is None:
            return None
        if found[0] == 1:
            group = _group_after(store, generation, found[1], ticket, secret)
            if group is not None:
                return group
            generation = -1
            continue
        place += 1
        match _words(found[1]):
            case [str(name), "ready"]:
                part.set(f"here/{name}", b"")
            case [str(name), "come", int(called)]:
                part.set(f"here/{name}", b"")
                generation = called
            case [_, "again"]:
                return None
            case [_, "refused", str(reason)]:
                raise ConfigError(f"the ranks do not admit this process: {reason}")
            case _:
                raise RendezvousError("the store holds a value that is not a call to a newcomer")


def _words(called: bytes) -> object:
    try:
        return unpack(called)
    except ValueError as error:
        raise RendezvousError(f"the store holds a call to a newcomer that cannot be read: {error}") from error


def _group_after(store: Store, generation: int, decision: bytes, ticket: str, secret: bytes) -> Group | None:
    """The group after the verdict of a generation; None if the newcomer is not in it. Raises RendezvousError."""
    packed = store.peek(f"{group_path(generation)}/{MEMBERS}")
    if packed is None:
        raise RendezvousError("the ranks' call to this newcomer lacks the table of ranks")
    old = members_from(packed)
    verdict = verdict_from(decision, len(old))
    tickets = [newcomer.ticket for newcomer in verdict.admitted]
    if ticket not in tickets:
        return None
    rank = len(verdict.staying) + tickets.index(ticket)
    return next_group(old, verdict, rank, generation, store, secret)
