"""Standby stores: if the store in which the ranks met is lost, a majority of the ranks meets in another one.

    store of the job       serves all ranks, until it is lost
    standby of rank 2      empty but for the bounds; on another host than rank 0
    standby of rank 4      likewise, on a third host

Some ranks serve a standby each, beside their work. All ranks learn the addresses when they connect. In `regroup`, a
rank whose store fails enters the same generation in the first standby that it reaches. The ranks that meet there agree
as in the store itself (agreement.py), and the standby becomes the store of the next generation. Nothing is copied to a
standby while all is well: the ranks know their group, and requests of newcomers and leavers are made anew.

At most one side of a partition goes on, although each store decides by itself. A rank connects one successor of a
generation at most. With standbys a verdict needs a majority of the generation (`has_majority`), wherever it is made, so
two verdicts share a rank, and that rank is missing in one of the two. Ranks that could not connect a generation
need the majority of it and also of the last one that they had connected, as joint consensus does.

Source: the joint majorities of Raft (Ongaro and Ousterhout, 2014, section 6).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from typing import Final

from collectives.membership.registry import Registry, set_bounds
from transports.base import Group
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError
from transports.interfaces import choose_address
from transports.packed import pack
from transports.rendezvous import TcpStore, TcpStoreServer, group_path, parse_url
from transports.store import Store
from transports.tls import Tls

log = logging.getLogger("ronde.membership")

REACH_SECONDS: Final = 2.0
"""Time to reach a standby."""


class Standby:
    """One rank's part in the standbys of its job, from one generation to the next. Its owner closes it.

    count      number of standbys; 0 for none, then it does nothing
    interface  address or name of the interface that a standby is served on; '' chooses
    tls        certificates of connections to a standby, if they use TLS
    """

    def __init__(self, count: int = 0, interface: str = "", tls: Tls | None = None) -> None:
        self._count = count
        self._interface = interface
        self._tls = tls
        self._server: TcpStoreServer | None = None
        self._clients = contextlib.ExitStack()
        self._urls: list[str] = []  # of the standbys that this rank has not tried to reach

    @property
    def is_used(self) -> bool:
        """True if the job has standbys."""
        return self._count > 0

    def share(self, group: Group, deadline: float) -> None:
        """Serve a standby if this rank is to, and learn the addresses of all. Collective.

        Costs a request for each standby, and one. Raises ConfigError if the ranks differ in their number,
        DeadlineExceeded, RendezvousError.
        """
        if not self.is_used or group.size == 1 or group.parent_store is None:
            return
        part, chosen = group.store.prefixed("standby"), standby_ranks(group, self._count)
        if (count := part.set_default("count", b"%d" % self._count)) != b"%d" % self._count:
            raise ConfigError(
                f"standbys={self._count}: another rank has {count.decode()}; the setting must be the same on all ranks"
            )
        if group.rank in chosen:
            part.set(str(group.rank), self._serve(group, group.parent_store).encode())
        urls = []
        for rank in chosen:
            try:
                urls.append(part.get(str(rank), deadline).decode(errors="replace"))
            except DeadlineExceeded as error:
                text = f"{group.describe(rank)} did not serve its standby of the store in time"
                raise DeadlineExceeded(text, rank=group.rank, peer=rank) from error
        self._urls = urls

    def move(self, group: Group) -> Group:
        """The same generation in the next standby that can be reached. Raises RendezvousError if there is none.

        The part of the standby that it gets belongs to these members alone: other ranks may have made another group of
        this generation.
        """
        while self._urls:
            url = self._urls.pop(0)
            host, port = parse_url(url)
            store = TcpStore(host, port, group.secret, tls=self._tls)
            try:
                store.with_timeout(REACH_SECONDS).peek("reach")
            except RendezvousError as error:
                store.close()
                log.info("rank %d: no way to the standby at %s: %s", group.rank, url, error.message)
                continue
            self._clients.callback(store.close)
            log.warning("rank %d: the store of the job is lost; its standby at %s takes over", group.rank, url)
            members = hashlib.sha256(pack(list(group.numbers))).hexdigest()[:16]
            part = store.prefixed(f"{group_path(group.generation)}/{members}")
            return dataclasses.replace(group, store=part, parent_store=store)
        raise RendezvousError("no standby of the store can be reached", rank=group.rank)

    def close(self) -> None:
        """Leave the standbys, and serve no longer than the others need it. Idempotent."""
        self._clients.close()
        if self._server is not None:
            self._server.drain()
            self._server.close()
            self._server = None

    def _serve(self, group: Group, job: Store) -> str:
        """Serve a standby, unless this rank does already, with the bounds of the job; its URL."""
        if self._server is None:
            here = group.members[group.rank].host
            other = next((member.hostname for member in group.members if member.host != here), None)
            address = choose_address(self._interface, other and (group.store.local_address() or other))
            server = TcpStoreServer(address, secret=group.secret, tls=self._tls)
            server.start()
            self._server = server
        bounds = Registry(job).read()
        with contextlib.closing(TcpStore(*self._server.address, group.secret, tls=self._tls)) as own:
            set_bounds(own, bounds.minimum, bounds.maximum)
        return self._server.url


def standby_ranks(group: Group, count: int) -> list[int]:
    """The ranks that serve a standby, in the order in which the standbys are tried: one of each host first, those of
    rank 0's host last, since the store of the job is often there."""
    hosts: dict[str, int] = {}
    places = []
    for rank, member in enumerate(group.members):
        place = hosts[member.host] = hosts.get(member.host, -1) + 1
        places.append((place, member.host == group.members[0].host, rank))
    return [rank for *_, rank in sorted(places)[:count]]


def has_majority(members: Sequence[int], present: Sequence[int]) -> bool:
    """True if more than half of the members of a generation are present, or half of them with the first one.

    members  their numbers, in the order of their ranks
    """
    here = sum(number in members for number in present)
    return 2 * here > len(members) or (2 * here == len(members) and members[0] in present)
