"""Values that one rank hands to all others by the launcher's own means, and the way to meet that is made of them.

Rank 0 serves a store of Ronde's and publishes its addresses and a fresh secret. The launcher's means carry nothing
else, and are used once in a process: they are slow, end with the start-up, or do not work twice. Later meetings, after
`shutdown`, are at the same addresses, on ports that follow from the secret.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from transports.auth import new_secret
from transports.errors import RendezvousError, RondeError, from_wire, to_wire
from transports.launchers.dialing import dial
from transports.launchers.serving import derived_ports, serve
from transports.launchers.ways import Meeting, Way
from transports.packed import pack, unpack
from transports.store import Store


class KeyValue(AbstractContextManager["KeyValue"], ABC):
    """A dictionary of the launcher's for the ranks of one job. Keys are short words, values some hundred bytes.

    Deadlines are times of time.monotonic(). Every method raises RendezvousError if the launcher cannot be reached or
    refuses, DeadlineExceeded.
    """

    @abstractmethod
    def put(self, key: str, value: bytes, deadline: float) -> None:
        """Bind a new key to a value."""

    @abstractmethod
    def fence(self, deadline: float) -> None:
        """Wait for all ranks. Then `get` finds what any rank has put before."""

    @abstractmethod
    def get(self, key: str, deadline: float) -> bytes:
        """The value of a key that a rank has put before the fence."""


class Published(Way):
    """Rank 0 serves the store and publishes its address in a KeyValue.

    name      what the KeyValue is, for messages
    connect   opens it, until a deadline; what it returns is used and closed at once
    lacking   what is needed for it and missing; None if nothing is
    """

    def __init__(self, name: str, connect: Callable[[float], KeyValue], lacking: str | None = None) -> None:
        self._name = name
        self._connect = connect
        self._lacking = lacking

    def describe(self) -> str:
        return f"rank 0 serves the store, and publishes its address through {self._name}"

    def missing(self) -> str | None:
        return self._lacking

    def open(self, meeting: Meeting) -> tuple[Store, bytes]:
        if meeting.history.published is None:
            with self._connect(meeting.deadline) as values:
                if meeting.rank == 0:
                    values.put(_KEY, _offer(meeting), meeting.deadline)
                values.fence(meeting.deadline)
                addresses, secret = _accept(values.get(_KEY, meeting.deadline))
            meeting.history.published = [host for host, _ in addresses], secret
        else:
            hosts, secret = meeting.history.published
            ports = derived_ports(f"{secret.hex()} {meeting.history.number}")
            addresses = [(host, port) for host in hosts for port in ports]
            if meeting.rank == 0:
                addresses = serve(ports, secret, meeting).addresses
        return dial(addresses, secret, meeting, meeting.purpose), secret


_KEY: Final = "ronde"


def _offer(meeting: Meeting) -> bytes:
    """The text that rank 0 publishes: the address of its store, or the reason for which it has none."""
    secret = new_secret()
    try:
        server = serve([0], secret, meeting)
    except RondeError as error:
        return pack({"error": to_wire(error)})
    return pack({"addresses": server.addresses, "secret": secret})


def _accept(offer: bytes) -> tuple[list[tuple[str, int]], bytes]:
    try:
        told = unpack(offer)
    except ValueError as error:
        raise RendezvousError(f"the value that rank 0 published cannot be read: {error}") from error
    match told:
        case {"addresses": [*rows], "secret": bytes(secret)}:
            return [_address(row) for row in rows], secret
        case {"error": dict(fields)}:
            raise from_wire(fields)
    raise RendezvousError("rank 0 published a value that is not the address of its store")


def _address(row: object) -> tuple[str, int]:
    match row:
        case [str(host), int(port)] if 0 < port < 65536:
            return host, port
    raise RendezvousError("rank 0 published a value that is not the address of its store")
