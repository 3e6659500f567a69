"""How the ranks tell each other, through the store, where they listen."""

from __future__ import annotations

import time

import msgpack

from transports.base import Group
from transports.errors import DeadlineExceeded
from transports.interfaces import choose_address

Address = tuple[str, int]


def own_address(group: Group, interface: str) -> str:
    """The address of this machine to listen on: loopback if all ranks share this host and no interface is named, else
    one that leads to the lowest rank on another host. Raises ConfigError."""
    own = group.members[group.rank].host
    return choose_address(interface, next((other.hostname for other in group.members if other.host != own), None))


def exchange(group: Group, address: Address, deadline: float) -> list[Address]:
    """Publish the own address; the addresses of all ranks. Collective.

    Rank 0 gathers them into one value, so that a group of n ranks reads the store about 2n times instead of n * n.
    Raises DeadlineExceeded naming the ranks that are missing; RendezvousError.
    """
    store = group.store.prefixed("tcp")
    store.set(f"addr/{group.rank}", msgpack.packb(address))
    try:
        if group.rank == 0:
            table = [msgpack.unpackb(store.get(f"addr/{rank}", deadline)) for rank in range(group.size)]
            store.set("table", msgpack.packb(table))
        else:
            table = msgpack.unpackb(store.get("table", deadline))
    except DeadlineExceeded as error:
        missing = []
        for rank in range(group.size):
            try:
                store.get(f"addr/{rank}", time.monotonic())
            except DeadlineExceeded:
                missing.append(rank)
        who = ", ".join(map(group.describe, missing)) or f"{group.describe(0)}, which gathers the addresses,"
        raise DeadlineExceeded(
            f"{who} did not open the TCP transport in time", rank=group.rank, peer=missing[0] if missing else 0
        ) from error
    return [(str(host), int(port)) for host, port in table]
