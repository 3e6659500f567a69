"""The links that `auto` chooses, and that a wait for a rank on one of them serves the other."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import re
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.transports.groups import SECONDS, backend_of, groups, on_ranks, recv, send, soon
from tests.transports.tcp_ranks import link_one, tcp_link
from transports import registry, shm
from transports.auto import AutoTransport, Options, usable
from transports.base import Group, Transport
from transports.engine import Engine, Link
from transports.errors import (
    AbortedError,
    ClosedError,
    ConfigError,
    ConnectError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
)
from transports.onesided import OneSided
from transports.shm.link import ShmLink
from transports.tcp.link import TcpLink
from transports.testing import check_transport, run_threads

pytestmark = pytest.mark.skipif(shm.usable() is not None, reason=str(shm.usable()))


def auto(intra: str = "shm", inter: str = "tcp") -> Callable[[Group], Transport]:
    """Makes such transports."""
    return lambda group: AutoTransport(group, Options(intra, inter))


def links(transport: Transport) -> list[type[Link]]:
    assert isinstance(transport, AutoTransport)
    return [type(link) for link in transport.links]


def offer(monkeypatch: pytest.MonkeyPatch, name: str, reason: Callable[[], str | None]) -> None:
    """Have a transport `name` with the links of `shm`, whose `usable` gives a reason."""
    module = types.ModuleType(f"backend_{name}")
    module.Options, module.create, module.link = shm.Options, shm.create, shm.link  # type: ignore[attr-defined]
    module.usable = reason  # type: ignore[attr-defined]
    offer_module(monkeypatch, name, module)


def offer_module(monkeypatch: pytest.MonkeyPatch, name: str, module: types.ModuleType) -> None:
    """Have a transport `name` of a third party."""
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = [EntryPoint(name, module.__name__, registry.ENTRY_POINTS)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group, name=None: points)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("a", [[ShmLink]]),
        ("aaa", [[ShmLink]] * 3),
        ("abc", [[TcpLink]] * 3),
        ("aba", [[ShmLink, TcpLink], [TcpLink], [ShmLink, TcpLink]]),
        ("abab", [[ShmLink, TcpLink]] * 4),
    ],
)
def test_links_are_opened_only_where_they_are_needed(hosts: str, expected: list[list[type[Link]]]) -> None:
    def body(transport: Transport) -> list[type[Link]]:
        for peer in range(transport.size):
            sending = transport.isend(peer, 1, memoryview(bytes([transport.rank])))
            assert recv(transport, peer, 1, 1) == bytes([peer])
            sending.wait(soon())
        assert transport.authenticated
        assert transport.failure is None
        return links(transport)

    assert on_ranks(auto(), body, hosts=hosts) == expected


@pytest.mark.long
@pytest.mark.parametrize("intra", ["local", "shm"])
def test_conformance_on_two_hosts(intra: str) -> None:
    def make(group: Group) -> Transport:
        members = tuple(dataclasses.replace(member, host=f"h{rank % 2}") for rank, member in enumerate(group.members))
        return AutoTransport(dataclasses.replace(group, members=members), Options(intra, "tcp"))

    report = check_transport(make, sizes=(3, 5), deadline=60.0)
    assert report.transport == "auto"


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The example of CONTRIBUTING.md, as a package of a third party."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (text,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "CountingLink" in block]
    assert len([line for line in text.splitlines() if line.strip()]) <= 30
    module = types.ModuleType("counting_package")
    exec(text, module.__dict__)
    offer_module(monkeypatch, "counting", module)
    return module


@pytest.mark.parametrize("alone", [True, False])
def test_a_link_of_a_third_party(counting: types.ModuleType, alone: bool) -> None:
    def body(transport: Transport) -> list[int]:
        for peer in range(transport.size):
            sending = transport.isend(peer, 1, memoryview(bytes([transport.rank])))
            assert recv(transport, peer, 1, 1) == bytes([peer])
            sending.wait(soon())
        assert isinstance(transport, Engine)
        return [link.frames for link in transport.links if isinstance(link, counting.CountingLink)]

    def make(group: Group) -> Transport:
        backend = registry.backend("counting")
        return backend.create(group, backend.Options()) if alone else auto(inter="counting")(group)

    assert on_ranks(make, body, hosts="aab") == ([[2]] * 3 if alone else [[1], [1], [2]])


@pytest.mark.long
@pytest.mark.parametrize("alone", [True, False])
def test_conformance_of_a_link_of_a_third_party(counting: types.ModuleType, alone: bool) -> None:
    def make(group: Group) -> Transport:
        if alone:
            return registry.backend("counting").create(group, counting.Options())
        members = tuple(dataclasses.replace(member, host=f"h{rank % 2}") for rank, member in enumerate(group.members))
        return auto(inter="counting")(dataclasses.replace(group, members=members))

    check_transport(make, sizes=(3,), deadline=60.0)


def test_a_host_that_cannot_use_its_link_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = iter([None, "/dev/shm is full", None, None])
    offer(monkeypatch, "memory", lambda: next(asked))
    with caplog.at_level(logging.WARNING, "transports.auto"):
        found = on_ranks(auto("memory"), links, 4)
    assert found == [[TcpLink]] * 4
    assert len(caplog.records) == 1
    text = caplog.records[0].getMessage()
    assert text.startswith("transport 'memory' cannot be used by rank ")
    assert text.endswith(": /dev/shm is full; the ranks of its host use 'tcp' instead")


def test_a_rank_that_is_missing_is_named() -> None:
    transports = [auto()(group) for group in groups(2)]
    with pytest.raises(DeadlineExceeded, match=r"^rank 1 \(localhost, pid \d+\) did not open"):
        transports[0].open(time.monotonic() + 0.05)
    with pytest.raises(DeadlineExceeded, match=r"^rank 1 \(localhost, pid \d+\) did not open"):
        transports[0].isend(0, 0, memoryview(b""))
    transports[0].close(soon())
    transports[1].close(soon())


def test_a_link_that_does_not_open_closes_the_other() -> None:
    transports = [auto()(group) for group in groups(3, "aab")]

    def body(rank: int) -> None:
        with pytest.raises(DeadlineExceeded, match="rank 2"):
            transports[rank].open(time.monotonic() + 0.3)
        assert not transports[rank].authenticated or transports[rank].failure is not None

    run_threads(body, 2, timeout=20)


def test_an_abort_crosses_from_one_to_the_other() -> None:
    def body(transport: Transport) -> int | None:
        recv(transport, 2 - transport.rank, 1, 0) if transport.rank == 0 else None
        if transport.rank == 2:
            transport.isend(0, 1, memoryview(b"")).wait(soon())
            transport.abort(AbortedError("the far one gave up", rank=2, peer=1))
        else:
            with pytest.raises(AbortedError, match="the far one gave up"):
                recv(transport, 1 - transport.rank, 1, 1)
            with pytest.raises(AbortedError, match="the far one gave up"):
                send(transport, 2, 1, b"")
        assert transport.failure is not None
        assert transport.failure.rank == 2
        return transport.failure.peer

    assert set(on_ranks(auto(), body, hosts="aab")) == {1}


def test_the_one_to_blame_may_be_unknown_to_the_link_that_tells() -> None:
    """Rank 1 hears through the memory of its host of a rank on another one."""
    lost = PeerLost("rank 0 lost rank 2", rank=0, peer=2)

    def body(transport: Transport) -> tuple[int | None, int | None]:
        link_one(transport)
        linked.wait(SECONDS)
        if transport.rank == 0:
            recv(transport, 1, 1, 0)
            transport.abort(lost)
        elif transport.rank == 1:
            send(transport, 0, 1, b"")
            with pytest.raises(PeerLost, match="rank 0 lost rank 2"):
                recv(transport, 0, 1, 1)
        else:
            with pytest.raises(PeerLost, match="rank 0 lost rank 2"):
                recv(transport, 0, 1, 1)
        assert transport.failure is not None
        return transport.failure.rank, transport.failure.peer

    linked = threading.Barrier(3)
    assert on_ranks(auto(), body, hosts="aab") == [(0, 2)] * 3


def test_a_deadline_may_be_the_cause_of_an_abort() -> None:
    def body(transport: Transport) -> None:
        link_one(transport)
        linked.wait(SECONDS)
        if transport.rank == 0:
            recv(transport, 1, 2, 0)
            transport.abort(DeadlineExceeded("the collective took too long"))
        elif transport.rank == 1:
            send(transport, 0, 2, b"")
        with pytest.raises(DeadlineExceeded, match="the collective took too long"):
            recv(transport, (transport.rank + 1) % 3, 1, 1)

    linked = threading.Barrier(3)
    on_ranks(auto(), body, hosts="aab")


def test_ranks_are_numbered_as_in_the_group() -> None:
    text = r"^rank 2 \(localhost, pid \d+\) closed .*rank 1\b"

    def body(transport: Transport) -> None:
        if transport.rank == 1:
            with pytest.raises(PeerLost, match=text) as caught:
                recv(transport, 2, 1, 1)
            assert (caught.value.rank, caught.value.peer) == (1, 2)
            assert isinstance(transport.failure, PeerLost)
            assert (transport.failure.rank, transport.failure.peer) == (1, 2)
        elif transport.rank == 0:
            with pytest.raises(PeerLost):
                recv(transport, 1, 1, 1)

    on_ranks(auto(), body, hosts="abb")


def test_a_mismatch_is_numbered_as_in_the_group() -> None:
    def body(transport: Transport) -> None:
        if transport.rank == 1:
            with pytest.raises(MismatchError) as caught:
                recv(transport, 2, 1, 1, check=1)
            assert (caught.value.rank, caught.value.peer) == (1, 2)
            assert transport.failure is None
        elif transport.rank == 2:
            send(transport, 1, 1, b"x", check=2)

    on_ranks(auto(), body, hosts="abb")


def receive_meanwhile(transport: Transport, nbytes: int) -> None:
    """Rank 0 waits for rank 2 on another host, and receives from rank 1 meanwhile."""
    if transport.rank == 0:
        background = transport.irecv(1, 1, memoryview(bytearray(nbytes)))
        recv(transport, 2, 2, 0)
        background.wait(soon())
    elif transport.rank == 1:
        send(transport, 0, 1, bytes(nbytes))
        send(transport, 2, 3, b"")
    else:
        recv(transport, 1, 3, 0)
        send(transport, 0, 2, b"")


@pytest.mark.long
def test_a_rank_of_this_host_that_is_late_is_not_sought_by_tcp() -> None:
    def body(transport: Transport) -> bool:
        if transport.rank == 0:
            with pytest.raises(DeadlineExceeded):
                transport.recv(1, 1, memoryview(bytearray()), time.monotonic() + 0.6)
        late.wait(SECONDS)
        return isinstance(transport, AutoTransport) and bool(tcp_link(transport).lanes)

    late = threading.Barrier(3)
    assert on_ranks(auto(), body, hosts="aab") == [False] * 3


def test_a_wait_on_one_link_serves_the_other() -> None:
    """The other link moves more than a ring holds."""
    on_ranks(auto(), lambda transport: receive_meanwhile(transport, 16 << 20), hosts="aab")


def count_sleeps(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count how often the loop sleeps; each time it has looked at the sockets before."""
    assert isinstance(transport, AutoTransport)
    driver = transport.loop.driver
    sleep, calls = driver.sleep, 0

    def counted(doze: Callable[[], object]) -> object:
        nonlocal calls
        calls += 1
        return sleep(doze)

    monkeypatch.setattr(driver, "sleep", counted)
    return lambda: calls


@pytest.mark.parametrize("source", [1, 2])
@pytest.mark.long
def test_a_long_wait_sleeps_until_it_is_woken(source: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits for a rank of its host, or of another one. Sleeps last 32 ms after the first ones; with slices of a
    millisecond there were hundreds."""

    def body(transport: Transport) -> int:
        if transport.rank == 0:
            sleeps = count_sleeps(transport, monkeypatch)
            recv(transport, source, 1, 4)
            return sleeps()
        if transport.rank == source:
            time.sleep(0.5)
            send(transport, 0, 1, b"late")
        return 0

    assert on_ranks(auto(), body, hosts="aab")[0] < 75


def test_both_links_may_be_of_one_transport() -> None:
    on_ranks(auto("tcp", "tcp"), lambda transport: receive_meanwhile(transport, 1 << 20), hosts="aab")


def test_threads_wait_on_both_links() -> None:
    """One thread of rank 0 waits for its host, another for the other one; the frames come in both orders."""

    def body(transport: Transport) -> None:
        for number in range(20):
            if transport.rank == 0:
                with ThreadPoolExecutor(2) as pool:
                    waits = [pool.submit(recv, transport, peer, number, 4) for peer in (1, 2)]
                    assert [wait.result(SECONDS) for wait in waits] == [b"here", b"afar"]
                for peer in (1, 2):
                    send(transport, peer, number, b"")
            else:
                first = 1 + number % 2
                if transport.rank != first:
                    recv(transport, first, 100 + number, 0)
                send(transport, 0, number, b"here" if transport.rank == 1 else b"afar")
                if transport.rank == first:
                    send(transport, 3 - first, 100 + number, b"")
                recv(transport, 0, number, 0)

    on_ranks(auto(), body, hosts="aab")


def test_threads_wait_for_epochs_and_frames() -> None:
    """While a thread of rank 0 waits for another host, another one waits for an epoch of its own host."""

    def body(transport: Transport) -> None:
        onesided = transport.ability(OneSided)
        if transport.rank == 2:
            recv(transport, 1, 1, 0)
            send(transport, 0, 1, b"")
            return
        assert onesided is not None
        window = onesided.expose("w", (0, 1), 8, soon())
        if transport.rank == 0:
            with ThreadPoolExecutor(2) as pool:
                waits = [pool.submit(recv, transport, 2, 1, 0), pool.submit(window.wait, 1, 1, soon())]
                for wait in reversed(waits):
                    wait.result(SECONDS)
            send(transport, 1, 2, b"")
        else:
            time.sleep(0.1)
            window.publish(1)
            recv_later = transport.irecv(0, 2, memoryview(bytearray()))
            send(transport, 2, 1, b"")
            recv_later.wait(soon())
        window.close()

    on_ranks(auto(), body, hosts="aab")


def test_windows_are_those_of_the_host() -> None:
    def body(transport: Transport) -> None:
        onesided = transport.ability(OneSided)
        if transport.rank == 1:
            assert onesided is None
            return
        assert onesided is not None
        assert onesided.reaches((2, 0))
        assert not onesided.reaches((0, 1))
        assert not onesided.reaches((0, 1, 2))
        with pytest.raises(ValueError, match=r"ranks=\(0, 1\): .*ranks among 0, 2"):
            onesided.expose("v", (0, 1), 8, soon())
        window = onesided.expose("w", (2, 0), 8, soon())
        assert window.ranks == (2, 0)
        assert window.index == (1 if transport.rank == 0 else 0)
        assert window.nbytes == 8
        window.view(window.index)[:1] = bytes([transport.rank])
        window.publish(1, check=5)
        for index, rank in enumerate(window.ranks):
            window.wait(index, 1, soon(), check=5)
            assert window.view(index)[0] == rank
            with pytest.raises(MismatchError):
                window.wait(index, 1, soon(), check=6)
            with pytest.raises(DeadlineExceeded):
                window.wait(index, 2, time.monotonic() + 0.01)
        sending = transport.isend(2 - transport.rank, 1, memoryview(b""))
        recv(transport, 2 - transport.rank, 1, 0)
        sending.wait(soon())
        window.close()

    on_ranks(auto(), body, hosts="aba")


def test_an_abort_from_afar_ends_a_wait_in_a_window() -> None:
    def body(transport: Transport) -> None:
        onesided = transport.ability(OneSided)
        if transport.rank == 2:
            for peer in (0, 1):
                recv(transport, peer, 1, 0)
            transport.abort(AbortedError("from afar"))
            return
        assert onesided is not None
        window = onesided.expose("w", (0, 1), 8, soon())
        send(transport, 2, 1, b"")
        with pytest.raises(AbortedError, match="from afar"):
            window.wait(1 - transport.rank, 1, soon())

    on_ranks(auto(), body, hosts="aab")


def test_link_costs_are_those_of_the_two() -> None:
    transport, inside, across = (backend_of(name)(groups(1)[0]) for name in ("auto", "shm", "tcp"))
    assert transport.link_costs() == (inside.link_costs()[0], across.link_costs()[1])


def test_opened_once() -> None:
    transport = auto()(groups(1)[0])
    assert not transport.authenticated
    assert transport.ability(OneSided) is None
    transport.open(soon())
    with pytest.raises(ClosedError, match="opened"):
        transport.open(soon())
    assert transport.ability(OneSided) is not None
    transport.close(soon())


def test_errors_of_the_memory_of_a_host_name_ranks_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShmLink, "shortage", lambda link: None)
    options = Options(intra_options=("directory=/nowhere",))
    transports = [AutoTransport(group, options) for group in groups(3, "baa")]

    def body(rank: int) -> tuple[int | None, int | None]:
        with pytest.raises(ConnectError) as caught:
            transports[rank].open(soon())
        return caught.value.rank, caught.value.peer

    assert run_threads(lambda index: body(index + 1), 2, timeout=20) == [(1, None), (2, 1)]


def test_close_reports_unreceived_frames() -> None:
    transports = [auto()(group) for group in groups(3, "baa")]
    run_threads(lambda rank: transports[rank].open(soon()), 3, timeout=20)
    transports[1].isend(2, 1, memoryview(bytes(4 << 20)))  # more than a ring holds
    with pytest.raises(DeadlineExceeded, match="before rank 2 "):
        transports[1].close(time.monotonic() + 0.05)
    run_threads(lambda index: transports[2 * index].close(soon()), 2, timeout=20)


def test_options() -> None:
    assert Options() == Options("shm", "tcp")
    for setting in ("intra", "inter"):
        with pytest.raises(ConfigError, match=rf"{setting}='auto': .* links, .*'shm' or 'tcp'"):
            registry.make_options("auto", {setting: ("auto", "test")})
    with pytest.raises(ConfigError, match=r"ring_bytes='x' \(from setting intra_options of transport 'auto'\)"):
        AutoTransport(groups(1)[0], Options(intra_options=("ring_bytes=x",)))
    with pytest.raises(ConfigError, match=r"transport 'lokal' .*'local'"):
        AutoTransport(groups(1)[0], Options("lokal"))


@pytest.mark.parametrize(
    ("intra", "inter", "expected"),
    [(None, None, None), ("no", None, None), (None, "no", None), ("no", "never", "no; never")],
)
def test_usable_if_one_of_the_two_is(
    monkeypatch: pytest.MonkeyPatch, intra: str | None, inter: str | None, expected: str | None
) -> None:
    reasons = {"shm": intra, "tcp": inter}

    def backend(name: str) -> object:
        return types.SimpleNamespace(usable=lambda: reasons[name], link=None)

    monkeypatch.setattr(registry, "backend", backend)
    assert usable() == expected
