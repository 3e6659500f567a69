"""Choice of the address on which this machine listens, and which it publishes to the other ranks."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from typing import Final

from transports.errors import ConfigError
from transports.names import resolve

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_SIOCGIFADDR: Final = {"linux": 0x8915, "darwin": 0xC0206921}.get(sys.platform)
_SIOCGIFMTU: Final = {"linux": 0x8921, "darwin": 0xC0206933}.get(sys.platform)
_IF_INET6: Final = "/proc/net/if_inet6"
_LINK_SCOPE: Final = 0x20


def interfaces() -> dict[str, list[str]]:
    """The addresses of each network interface, IPv4 first.

    Complete on Linux, except for second IPv4 addresses of one interface (netdevice(7), proc_net(5)). Other systems:
    names with their IPv4 address if the system has the ioctl, and under the host's own name the addresses that it
    resolves to.
    """
    found: dict[str, list[str]] = {name: _ipv4(name) for _, name in socket.if_nameindex()}
    try:
        with open(_IF_INET6) as file:
            for line in file:
                address, _, _, scope, _, name = line.split()
                text = str(ipaddress.IPv6Address(int(address, 16)))
                found.setdefault(name, []).append(f"{text}%{name}" if int(scope, 16) == _LINK_SCOPE else text)
    except FileNotFoundError:  # no Linux, or a kernel without IPv6
        if sys.platform != "linux":
            found[socket.gethostname()] = _resolved(socket.gethostname())
    return found


def _ipv4(name: str) -> list[str]:
    if fcntl is None or _SIOCGIFADDR is None:
        return []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            reply = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("16s16x", name.encode()[:15]))
        except OSError:  # the interface has none
            return []
    return [socket.inet_ntoa(reply[20:24])]


def mtu(name: str) -> int | None:
    """The bytes of the largest packet that a network interface sends; None if the system does not say."""
    if fcntl is None or _SIOCGIFMTU is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            reply = fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("16si12x", name.encode()[:15], 0))
        except OSError:  # the interface is gone
            return None
    return int(struct.unpack_from("16si", reply)[1])


def _resolved(host: str) -> list[str]:
    try:
        return sorted({str(found[4][0]) for found in resolve(host, None, socket.SOCK_STREAM)})
    except OSError:
        return []


def choose_address(interface: str, hint: str | None) -> str:
    """The address of this machine to bind to and announce. Never an all-interfaces address.

    interface  "" for automatic, the name of an interface ("eth0"), or an address of this machine
    hint       a host on the way to the peers, usually the store's; None if there is none

    Automatic means the source address that the kernel would use toward `hint` (a UDP socket is connected, which
    sends nothing); without a hint, loopback. So if ranks of several hosts meet in a store that has no host (a shared
    directory), pass a peer's hostname. A named interface gives its address of the same family as that, or else its
    first. Raises ConfigError, listing the interfaces and addresses.
    """
    if not interface:
        return _loopback() if hint is None else _toward(hint)
    address = _read(interface)
    if address is None:
        return _of_interface(interface, hint)
    if address.is_unspecified:
        raise ConfigError(f"interface={interface!r}: must be one address, not all of them; {_existing()}")
    if not can_bind(interface):
        raise ConfigError(f"interface={interface!r}: is not an address of this machine; {_existing()}")
    return interface


def canonical(host: str) -> str:
    """One text for all ways to write a host's name or address: 'fd00::2' for 'FD00:0::2', 'h1' for 'H1.'."""
    address = _read(host)
    if address is None:
        return host.lower().rstrip(".")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_this_host(host: str) -> bool:
    """True if a name or an address certainly stands for this machine.

    A name is resolved only if it begins as this machine's does, and differs from it: so `h1.other.example` is this
    machine's if it leads here. Under another name this machine counts as another one.
    """
    host = canonical(host)
    address = _read(host)
    if address is None:
        own = canonical(socket.gethostname())
        if host in ("localhost", own, own.partition(".")[0]):
            return True
        return host.partition(".")[0] == own.partition(".")[0] and is_own(host)
    if address.is_loopback:
        return True
    return any(host == canonical(text) for addresses in interfaces().values() for text in addresses)


def is_own(host: str) -> bool:
    """True if a host's name or address stands for this machine. False also where it cannot be resolved."""
    try:
        found = resolve(host, None, socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # UnicodeError: no host can have such a name
        return False
    return any(can_bind(str(target[0])) for *_, target in found)


def outward_address(sock: socket.socket) -> str | None:
    """The local address of a connected socket; None if it is loopback, which leads nowhere."""
    address = _local(sock)
    return None if ipaddress.ip_address(address).is_loopback else address


def _read(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is; None if it is a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _toward(hint: str) -> str:
    try:
        return _source(hint)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host can have such a name
        raise ConfigError(
            f"interface='' (automatic): no address of this machine leads to {hint!r} ({error}); name one: {_existing()}"
        ) from error


def _of_interface(name: str, hint: str | None) -> str:
    addresses = interfaces().get(name)
    if addresses is None:
        raise ConfigError(f"interface={name!r}: is not an interface or address of this machine; {_existing()}")
    if not addresses:
        raise ConfigError(f"interface={name!r}: has no address; {_existing()}")
    try:
        ipv6 = hint is not None and ":" in _source(hint)
    except (OSError, UnicodeError):  # the hint does not resolve, and is optional here
        ipv6 = False
    return next((address for address in addresses if (":" in address) == ipv6), addresses[0])


def _source(hint: str) -> str:
    """The source address toward a host. Raises OSError if it cannot be resolved or there is no route."""
    cause = OSError("it has no address")
    for family, kind, protocol, _, target in resolve(hint, 9, socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(target)
                return _local(sock)
        except OSError as error:
            cause = error
    raise cause


def _local(sock: socket.socket) -> str:
    """The local address of a socket, a link-local one with its interface."""
    name = sock.getsockname()
    scope = name[3] if sock.family == socket.AF_INET6 else 0
    return f"{name[0]}%{socket.if_indextoname(scope)}" if scope else str(name[0])


def _loopback() -> str:
    return "127.0.0.1" if can_bind("127.0.0.1") else "::1"


def can_bind(address: str) -> bool:
    """True for a numerical address of this machine."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.bind(target)
    except OSError:
        return False
    return True


def _existing() -> str:
    return "this machine has " + ", ".join(
        f"{name} ({', '.join(addresses) or 'no address'})" for name, addresses in interfaces().items()
    )
