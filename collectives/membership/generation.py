"""From one generation of a group to the next: its members, its numbers and its part of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from collectives.membership.verdict import Verdict
from transports.base import Group, Member
from transports.errors import RendezvousError
from transports.packed import pack, unpack
from transports.rendezvous import group_path, pack_member, unpack_member
from transports.store import Store, pack_table, read_table

DECISION: Final = "shrink/decision"
MEMBERS: Final = "shrink/members"
"""Keys of a group: the verdict on it; its members and their numbers, for newcomers."""

Numbered = tuple[Member, int]
"""A member and the number by which the launcher knows it."""


def numbered(group: Group) -> list[Numbered]:
    """The members of a group with their numbers."""
    return list(zip(group.members, group.numbers, strict=True))


def pack_members(group: Group) -> bytes:
    """The members of a group with their numbers, for `members_from`."""
    return pack_table([pack([pack_member(member), number]) for member, number in numbered(group)])


def members_from(packed: bytes) -> list[Numbered]:
    """The members that were packed. Raises RendezvousError."""
    found: list[Numbered] = []
    texts: dict[str, str] = {}
    try:
        for row in read_table(packed):
            match unpack(row):
                case [bytes(member), int(number)]:
                    found.append((unpack_member(member, texts), number))
                case _:
                    raise ValueError("a row has another form")
    except ValueError as error:
        raise RendezvousError(f"the store holds members of a group that cannot be read: {error}") from error
    return found


def next_group(
    old: Sequence[Numbered], verdict: Verdict, rank: int, generation: int, store: Store, secret: bytes
) -> Group:
    """The group after a verdict on the members `old` of a generation, as seen from its rank `rank`.

    store, secret  those of the job
    """
    new = [old[place] for place in verdict.staying]
    for newcomer in verdict.admitted:
        assert newcomer.number is not None
        new.append((unpack_member(newcomer.member), newcomer.number))
    generation += 1
    return Group(
        rank,
        tuple(member for member, _ in new),
        store.prefixed(group_path(generation)),
        secret,
        generation,
        parent_store=store,
        original_ranks=tuple(number for _, number in new),
    )
