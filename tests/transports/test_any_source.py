"""Receives from any source where the kit's checks do not go: two transports at once, and memory that is used up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.transports.groups import backend_of, on_ranks, send, soon
from transports.anysource import AnySource, Arrival
from transports.base import Group, Transport
from transports.testing import CHECKS, check_transport, sources

TAG = range(5, 6)


def ability(transport: Transport) -> AnySource:
    found = transport.ability(AnySource)
    assert found is not None
    return found


def take(transport: Transport) -> Arrival:
    request = ability(transport).irecv_any(frozenset(range(transport.size)), TAG, None)
    request.wait(soon())
    assert request.arrival is not None
    return request.arrival


@pytest.mark.long
@pytest.mark.parametrize("hosts", [("east", "west"), ("east", "east", "west"), ("east", "west", "west")])
def test_auto_over_two_transports_keeps_the_contract(hosts: tuple[str, ...]) -> None:
    make = backend_of("auto")

    def on_hosts(group: Group) -> Transport:
        members = [
            dataclasses.replace(member, host=hosts[rank % len(hosts)]) for rank, member in enumerate(group.members)
        ]
        return make(dataclasses.replace(group, members=tuple(members)))

    names = [check.name for check in sources.CHECKS]
    assert set(names) <= {check.name for check in CHECKS}
    report = check_transport(on_hosts, sizes=(3, 5), deadline=60.0, only=names)
    assert len(report.outcomes) >= len(names)


@pytest.mark.parametrize("name", ["tcp", "shm"])
def test_no_peer_is_starved_when_the_memory_for_frames_is_used_up(name: str) -> None:
    """Rank 1 floods; the frame of rank 2 waits for memory too, and gets it in its turn."""
    many = 2000

    def body(transport: Transport) -> int:
        if transport.rank == 1:
            for _ in range(many):
                transport.isend(0, 5, memoryview(bytes(100)))
        if transport.rank == 2:
            assert ability(transport).probe(frozenset((0,)), range(9, 10), soon()) is not None
            transport.isend(0, 5, memoryview(bytes(100)))
        if transport.rank:
            return 0
        for _ in range(20):
            assert take(transport).source == 1
        send(transport, 2, 9, b"now")
        assert ability(transport).probe(frozenset((2,)), TAG, soon()) is not None
        taken = 1
        while take(transport).source == 1:
            taken += 1
        for _ in range(many - 20 - taken + 1):
            assert take(transport).source == 1
        return taken

    make: Callable[[Group], Transport] = backend_of(name, max_parked_bytes=1000)
    assert on_ranks(make, body, 3)[0] < 50


@pytest.mark.parametrize("name", ["tcp", "shm"])
def test_a_probe_finds_a_frame_for_which_there_is_no_memory(name: str) -> None:
    def body(transport: Transport) -> None:
        if transport.rank:
            send(transport, 0, 5, bytes(5_000_000), check=7)
            return
        found = ability(transport).probe(frozenset((1,)), TAG, soon())
        assert found == Arrival(1, 5, 7, 5_000_000)
        buffer = bytearray(found.nbytes)
        transport.irecv(1, 5, memoryview(buffer), 7).wait(soon())

    on_ranks(backend_of(name, max_parked_bytes=1000), body, 2)


@pytest.mark.parametrize("name", ["tcp", "shm"])
def test_a_receive_of_a_held_frame_is_not_withdrawn(name: str) -> None:
    data = bytes(range(256)) * 1000

    def body(transport: Transport) -> None:
        if transport.rank:
            send(transport, 0, 5, data)
            return
        assert ability(transport).probe(frozenset((1,)), TAG, soon()) is not None
        request = ability(transport).irecv_any(frozenset((1,)), TAG, None, None)
        assert not request.withdraw()
        request.wait(soon())
        assert request.view == data

    on_ranks(backend_of(name, max_parked_bytes=1000), body, 2)
