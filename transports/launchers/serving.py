"""The store that rank 0 serves where the launcher serves none."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Sequence
from typing import Final

from transports.errors import RendezvousError
from transports.interfaces import can_bind, choose_address, interfaces
from transports.launchers.ways import Meeting
from transports.rendezvous import TcpStoreServer

CANDIDATES: Final = 8
_LOWEST: Final = 10000
_HIGHEST: Final = 32767
"""Below the ports that Linux gives to outgoing connections (ip(7), ip_local_port_range)."""


def serve(ports: Sequence[int], secret: bytes, meeting: Meeting, host: str | None = None) -> TcpStoreServer:
    """Serve a store on the first of `ports` that is free on all addresses by which ranks may come.

    host  where the other ranks look for it, if they were told

    It is closed with the meeting's resources, once all other ranks have left it, or some seconds (`drain`). A rank that
    is still there then goes on: the store is needed to connect, and after failures. Raises ConfigError,
    RendezvousError.
    """
    hosts = listening_addresses(meeting, host)
    causes = []
    for port in ports:
        server = TcpStoreServer(hosts, port, secret=secret, tls=meeting.tls, purpose=meeting.purpose)
        try:
            server.start()
        except RendezvousError as error:
            causes.append(error.message)
            continue
        meeting.resources.callback(server.close)
        meeting.resources.callback(server.drain)
        return server
    raise RendezvousError(f"rank 0 cannot serve the store: {'; '.join(causes)}", rank=0)


def listening_addresses(meeting: Meeting, host: str | None) -> list[str]:
    """The addresses of this host by which the other ranks may reach it; those of networks before loopback.

    An address of this host is taken as it is; a name is not resolved, since many hosts resolve their own to loopback.
    """
    if host is not None and can_bind(host):
        return [host]
    if meeting.interface:
        return [choose_address(meeting.interface, None)]
    loopback = choose_address("", None)
    if meeting.one_host or host == "localhost":
        return [loopback]
    found = [address for addresses in interfaces().values() for address in addresses]
    return [*dict.fromkeys(address for address in found if _leads_outward(address)), loopback]


def _leads_outward(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def derived_ports(job: str) -> list[int]:
    """The ports on which the store of a job may be, in the order in which they are tried."""
    digest = hashlib.sha256(os.fsencode(f"ports of {job}")).digest()
    numbers = [int.from_bytes(digest[2 * i : 2 * i + 2], "big") for i in range(CANDIDATES)]
    return list(dict.fromkeys(_LOWEST + number % (_HIGHEST + 1 - _LOWEST) for number in numbers))
