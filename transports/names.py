"""Names of hosts, resolved within a time: the resolver of the system may wait for its servers for minutes.

A name is looked up in a thread, which ends when the resolver does. Addresses need no thread.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from transports.moments import seconds_left, seconds_until

T = TypeVar("T")

Found = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""See socket.getaddrinfo."""

RESOLVE_SECONDS: Final = 10.0
"""Time for a name where there is no deadline."""


def resolve(host: str, port: int | None, kind: socket.SocketKind, deadline: float | None = None) -> Sequence[Found]:
    """Do what `socket.getaddrinfo` does, up to a time of time.monotonic() or for RESOLVE_SECONDS. Raises as that does;
    TimeoutError."""
    try:
        return socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # it is no address
        pass
    until = time.monotonic() + RESOLVE_SECONDS if deadline is None else deadline
    text = f"the name {host!r} was not resolved in time"
    return _within(until, text, lambda: socket.getaddrinfo(host, port, type=kind))


def full_name() -> str:
    """The full name of this host, or its short one if it is not told within RESOLVE_SECONDS."""
    try:
        return _within(time.monotonic() + RESOLVE_SECONDS, "", socket.getfqdn)
    except TimeoutError:
        return socket.gethostname()


def connect(address: tuple[str, int], deadline: float) -> socket.socket:
    """Do what `socket.create_connection` does, up to a time of time.monotonic(), the look-up of the name included. The
    addresses of a name share the time, since one of them may not answer. Raises OSError, UnicodeError; TimeoutError."""
    host, port = address
    cause: OSError = OSError(f"the name {host!r} has no address")
    found = resolve(host, port, socket.SOCK_STREAM, deadline)
    for place, (family, kind, protocol, _, target) in enumerate(found):
        left = seconds_left(deadline) / (len(found) - place)
        link = socket.socket(family, kind, protocol)
        try:
            link.settimeout(left)
            link.connect(target)
        except OSError as error:
            link.close()
            cause = error
        except BaseException:
            link.close()
            raise
        else:
            return link
    raise cause


def no_loopback(host: str, error: OSError) -> bool:
    """True if a connection failed since the loopback interface is down, which nothing mends by itself."""
    if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL):
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _within(until: float, text: str, call: Callable[[], T]) -> T:
    """The result of a call, made in a thread. Raises what it raises; TimeoutError with the text."""
    results: list[T] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - it is raised by the caller
            errors.append(error)

    thread = threading.Thread(target=work, name="ronde-resolver", daemon=True)
    thread.start()
    thread.join(seconds_until(until))
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(text)
    return results[0]
