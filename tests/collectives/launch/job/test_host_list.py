"""Lists of hosts, host files, and the ranks that hosts get. Nothing is started."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from collectives.launch.job.discovery import host_file
from collectives.launch.job.host_list import NamedHost, parse_file, parse_list, share_out
from frontends.command_line.host_arguments import hosts_of
from transports.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("h1:4,h2", [("h1", "h1", 4), ("h2", "h2", 1)]),
        ("user@node-1.cluster.example:2", [("user@node-1.cluster.example", "node-1.cluster.example", 2)]),
        ("[fd00::1]:2, u@[fe80::2%eth0]", [("fd00::1", "fd00::1", 2), ("u@fe80::2%eth0", "fe80::2%eth0", 1)]),
        ("10.0.0.1:16,10.0.0.2:16", [("10.0.0.1", "10.0.0.1", 16), ("10.0.0.2", "10.0.0.2", 16)]),
    ],
)
def test_list(text: str, hosts: list[tuple[str, str, int]]) -> None:
    assert parse_list(text) == [NamedHost(*host) for host in hosts]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("h1:4,,h2", "'': must be NAME"),
        ("", "'': must be NAME"),
        ("h1:0", "'0' slots: must be an integer, 1 to"),
        ("h1:", "'' slots"),
        ("h1:four", "'four' slots"),
        ("h1:4,h1:2", "host 'h1' is named twice"),
        ("u@h1,v@h1", "host 'h1' is named twice"),
        ("fd00::1", "an IPv6 address needs brackets"),
        ("-oProxyCommand=x", "must be NAME"),
        ("-l@h1", "must be NAME"),
        ("h1;rm", "must be NAME"),
        ("h1 h2", "must be NAME"),
    ],
)
def test_bad_list(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"^-H ") as caught:
        parse_list(text)
    assert complaint in str(caught.value)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors of Windows write it."""
    path = tmp_path / "hosts"
    path.write_bytes(b"\xef\xbb\xbfh1 slots=2\r\nh2\r\n")
    args = argparse.Namespace(hosts=None, hostfile=str(path), ssh_port=None, ssh_identity_file=None)
    for found in (hosts_of(args), host_file(path, 1).find()):
        assert found == [NamedHost("h1", "h1", 2), NamedHost("h2", "h2", 1)]


def test_files_of_open_mpi_mpich_and_horovod() -> None:
    text = """
        # a comment
        h1 slots=4 max-slots=8     # Open MPI
        h2 slots = 2
        h3:3
        user@h4
        [fd00::5]:2
        h6 max_slots=1
    """
    found = [(host.address, host.slots) for host in parse_file(text, "f")]
    assert found == [("h1", 4), ("h2", 2), ("h3", 3), ("user@h4", 1), ("fd00::5", 2), ("h6", 1)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# nothing\n\n", "host file f: names no host"),
        ("h1\nh2 slots=0", "host file f, line 2: '0' slots: must be"),
        ("h1 slots=4 max-slots=2", "line 1: 'max-slots=2': must not be less than slots=4"),
        ("h1:2 slots=2", "line 1: 'slots=2': must be slots=N or max-slots=N, or nothing after NAME:SLOTS"),
        ("h1 4", "line 1: '4': must be slots=N"),
        ("h1 color=red", "'color=red'"),
        ("u@h1\nv@h1", "host 'h1' is named twice"),
        ("h!", "line 1: 'h!': must be NAME"),
    ],
)
def test_bad_file(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"^host file f") as caught:
        parse_file(text, "f")
    assert complaint in str(caught.value)


def test_a_host_of_several_lines_has_the_slots_of_all() -> None:
    """PBS and LSF write a line for each slot ($PBS_NODEFILE, $LSB_DJOB_HOSTFILE)."""
    found = [(host.address, host.slots) for host in parse_file("h1\nh2\nh1\nh2 slots=3\nu@h3\nu@h3:2\n", "f")]
    assert found == [("h1", 2), ("h2", 4), ("u@h3", 3)]


def test_slots_are_filled_in_order() -> None:
    hosts = parse_list("h1:4,h2:4,h3:4")
    assert [(share.host.name, list(share.ranks)) for share in share_out(hosts, 6)] == [
        ("h1", [0, 1, 2, 3]),
        ("h2", [4, 5]),
    ]
    assert [len(share.ranks) for share in share_out(hosts, None)] == [4, 4, 4]


def test_more_ranks_than_slots() -> None:
    with pytest.raises(ConfigError, match=r"-np 7: .*6 slots \(h1:4, h2:2\)"):
        share_out(parse_list("h1:4,h2:2"), 7)


def test_this_host_is_known_by_its_names_and_addresses() -> None:
    own = socket.gethostname()
    names = ["localhost", "127.0.0.1", "[::1]", own, f"{own.partition('.')[0]}"]
    assert [NamedHost(host.address, host.name, 1).is_here for name in names for host in parse_list(name)] == [True] * 5
    assert [host.is_here for host in parse_list("other,192.0.2.1,user@localhost,[2001:db8::1]")] == [False] * 4
    for name in ("127.0.0.2", "LocalHost", f"{own.upper()}", "[0::1]", "[::ffff:127.0.0.1]"):
        assert [host.is_here for host in parse_list(name)] == [True], name


def test_l7_a_host_of_another_domain_is_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that begin alike are compared by their addresses."""
    leading = {"h1.here.example": "127.0.0.1", "h1.other.example": "192.0.2.1"}

    def resolve(host: str, *rest: object, **options: object) -> list[tuple[object, ...]]:
        if host.replace(".", "").isdecimal():
            return found(host, *rest, **options)
        if host not in leading:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return found(leading[host], *rest, **options)

    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for own in ("h1", "h1.mine.example"):
        monkeypatch.setattr(socket, "gethostname", lambda own=own: own)
        names = ("H1", "h1.here.example", "h1.other.example", "h1.no.example")
        assert [parse_list(name)[0].is_here for name in names] == [True, True, False, False], own


@pytest.mark.parametrize("text", ["[FD00::2],[fd00:0::2]", "H1,h1", "h1.,h1", "10.0.0.1,[::ffff:10.0.0.1]"])
def test_l7_a_host_has_one_name(text: str) -> None:
    with pytest.raises(ConfigError, match="named twice"):
        parse_list(text)


def test_l2_this_host_is_one_host_under_all_its_names() -> None:
    hosts = parse_list("localhost:1,h2:3,127.0.0.1:2,[::1]")
    assert [(host.name, host.slots) for host in hosts] == [("localhost", 4), ("h2", 3)]
