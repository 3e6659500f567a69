"""The address that a rank binds to and announces."""

from __future__ import annotations

import socket
import sys

import pytest

from transports.errors import ConfigError
from transports.interfaces import choose_address, interfaces

linux = pytest.mark.skipif(sys.platform != "linux", reason="interface addresses are complete on Linux only")


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def can_listen(address: str) -> bool:
    found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    with socket.socket(*found[:3]) as sock:
        sock.bind(found[4])
        sock.listen()
    return True


@linux
def test_every_address_listed_can_be_bound() -> None:
    found = interfaces()
    assert "127.0.0.1" in found["lo"]
    assert all(can_listen(address) for address in found["lo"])
    assert set(found) == {name for _, name in socket.if_nameindex()}


def test_automatic_without_a_hint_is_loopback() -> None:
    assert choose_address("", None) in ("127.0.0.1", "::1")


def test_automatic_toward_loopback_is_loopback() -> None:
    assert choose_address("", "127.0.0.1") == "127.0.0.1"
    assert choose_address("", "localhost") in ("127.0.0.1", "::1")


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback")
def test_automatic_toward_ipv6() -> None:
    assert choose_address("", "::1") == "::1"
    assert choose_address("::1", None) == "::1"


@linux
def test_named_interface_follows_the_family_of_the_hint() -> None:
    assert choose_address("lo", None) == "127.0.0.1"
    assert choose_address("lo", "127.0.0.1") == "127.0.0.1"
    assert choose_address("lo", "no-such-host.invalid") == "127.0.0.1"
    if "::1" in interfaces()["lo"]:
        assert choose_address("lo", "::1") == "::1"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"] if sys.platform == "linux" else ["127.0.0.1"])
def test_address_of_this_machine_is_taken_as_it_is(address: str) -> None:
    assert choose_address(address, None) == address


@pytest.mark.parametrize("everything", ["0.0.0.0", "::"])
def test_never_all_interfaces(everything: str) -> None:
    with pytest.raises(ConfigError, match="not all"):
        choose_address(everything, None)


def test_unknown_interface_lists_the_existing_ones() -> None:
    with pytest.raises(ConfigError, match=r"interface='no-such0': .*machine has .*lo ") as caught:
        choose_address("no-such0", None)
    assert all(name in str(caught.value) for name in interfaces())


def test_foreign_address_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"interface='192\.0\.2\.77': .*address"):
        choose_address("192.0.2.77", None)


@linux
def test_interface_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.interfaces.interfaces", lambda: {"dummy0": [], "lo": ["127.0.0.1"]})
    with pytest.raises(ConfigError, match=r"no address; .*dummy0 \(no address\), lo \(127"):
        choose_address("dummy0", None)


def test_hint_that_cannot_be_resolved_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'no-such-host\.invalid'"):
        choose_address("", "no-such-host.invalid")
