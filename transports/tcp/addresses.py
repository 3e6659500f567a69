"""Exchange of the ranks' listening addresses through the store."""

from __future__ import annotations

from transports.base import Group
from transports.errors import DeadlineExceeded, RendezvousError
from transports.interfaces import choose_address
from transports.packed import pack, unpack

Address = tuple[str, int]


def own_address(group: Group, interface: str) -> str:
    """The address of this machine to listen on: loopback if all ranks share this host and no interface is named, else
    the local address of its connection to the store, or else one that leads to the lowest rank on another host.

    The store comes first, since it was reached: all hosts may have the same name, and many names resolve to a loopback
    address. Raises ConfigError."""
    own = group.members[group.rank].host
    other = next((member.hostname for member in group.members if member.host != own), None)
    return choose_address(interface, other and (group.store.local_address() or other))


def exchange(group: Group, address: Address, deadline: float) -> list[Address]:
    """Publish this rank's address and return the addresses of all ranks. Collective.

    Rank 0 gathers them into one value, so that a group of n ranks reads the store about 2n times instead of n * n.
    Raises DeadlineExceeded naming the ranks that are missing; RendezvousError.
    """
    store = group.store.prefixed("tcp")
    store.set(f"addr/{group.rank}", pack(address))
    try:
        if group.rank == 0:
            table = [_address(_read(store.get(f"addr/{rank}", deadline))) for rank in range(group.size)]
            store.set("table", pack(table))
        else:
            table = _table(_read(store.get("table", deadline)), group.size)
    except DeadlineExceeded as error:
        missing = [rank for rank in range(group.size) if store.peek(f"addr/{rank}") is None]
        absent = ", ".join(map(group.describe, missing)) or f"{group.describe(0)}, which gathers the addresses,"
        raise DeadlineExceeded(
            f"{absent} did not open the TCP transport in time", rank=group.rank, peer=missing[0] if missing else 0
        ) from error
    return table


def _read(data: bytes) -> object:
    try:
        return unpack(data)
    except ValueError as error:
        raise RendezvousError(f"the store holds invalid data in place of ranks' addresses: {error}") from error


def _table(rows: object, size: int) -> list[Address]:
    if isinstance(rows, list) and len(rows) == size:
        return [_address(row) for row in rows]
    raise RendezvousError("the store holds invalid data in place of the addresses of all ranks")


def _address(row: object) -> Address:
    match row:
        case [str(host), int(port)] if 0 < port < 65536:
            return host, port
    raise RendezvousError("the store holds invalid data in place of the address of a rank")
