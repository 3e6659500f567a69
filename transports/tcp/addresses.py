"""Exchange of the ranks' listening addresses through the store."""

from __future__ import annotations

from collections.abc import Sequence

from transports.base import Group
from transports.errors import DeadlineExceeded, RendezvousError
from transports.interfaces import choose_address
from transports.packed import pack, unpack

Address = tuple[str, int]


def own_address(group: Group, ranks: Sequence[int], interface: str) -> str:
    """The address of this machine to listen on for `ranks`: loopback if all of them share this host and no interface is
    named, else the local address of its connection to the store, or else one that leads to the first of them on another
    host.

    The store comes first, since it was reached: all hosts may have the same name, and many names resolve to a loopback
    address. Raises ConfigError."""
    own = group.members[group.rank].host
    members = (group.members[rank] for rank in ranks)
    other = next((member.hostname for member in members if member.host != own), None)
    return choose_address(interface, other and (group.store.local_address() or other))


def exchange(group: Group, ranks: Sequence[int], address: Address, deadline: float) -> dict[int, Address]:
    """Publish this rank's address and return the addresses of `ranks`, which alone use the group's store. Collective
    over them.

    Costs two calls of the store. Raises DeadlineExceeded naming the ranks that are missing; RendezvousError.
    """
    store = group.store.prefixed("tcp")
    try:
        rows = store.gather("addresses", ranks.index(group.rank), len(ranks), pack(address), deadline)
        return {rank: _address(unpack(row)) for rank, row in zip(ranks, rows, strict=True)}
    except DeadlineExceeded as error:
        rows_now = zip(ranks, store.rows("addresses"), strict=False)
        missing = [rank for rank, row in rows_now if row is None] or [ranks[0]]
        text = f"{group.describe_all(missing)} did not open the TCP transport in time"
        raise DeadlineExceeded(text, rank=group.rank, peer=missing[0]) from error
    except ValueError as error:
        raise RendezvousError(f"the store holds invalid data in place of ranks' addresses: {error}") from error


def _address(row: object) -> Address:
    match row:
        case [str(host), int(port)] if 0 < port < 65536:
            return host, port
    raise RendezvousError("the store holds invalid data in place of the address of a rank")
