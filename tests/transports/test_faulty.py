"""Each fault does what its rule says, to what its rule names, and nothing else."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_processes
from tests.transports.groups import (
    SECONDS,
    backend_of,
    group_of_processes,
    groups,
    on_ranks,
    recv,
    send,
    soon,
)
from transports.base import Group, Transport
from transports.errors import (
    AbortedError,
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    TransportError,
)
from transports.faulty import FaultyTransport, Operation, Options, Rule, parse_rule
from transports.local import LocalTransport
from transports.onesided import OneSided, Window
from transports.rendezvous.file import FileStore

MOMENT = 0.03


def faulty(*rules: Rule | str, seed: int = 0) -> Callable[[Group], Transport]:
    """Makes transports between threads with these faults."""
    parsed = [parse_rule(rule) if isinstance(rule, str) else rule for rule in rules]
    return lambda group: FaultyTransport(LocalTransport(group), parsed, seed)


def shortly() -> float:
    return time.monotonic() + MOMENT


def sync(transport: Transport) -> None:
    """Both ranks have come here."""
    sending = transport.isend(1 - transport.rank, 99, memoryview(b""))
    recv(transport, 1 - transport.rank, 99, 0)
    sending.wait(soon())


def one_way(body: Callable[[Transport], Any], count: int = 1, nbytes: int = 8) -> Callable[[Transport], Any]:
    """Rank 0 sends `count` frames of ones to rank 1 and waits for them; rank 1 runs `body`."""

    def run(transport: Transport) -> Any:
        if transport.rank == 1:
            return body(transport)
        for _ in range(count):
            send(transport, 1, 1, b"\1" * nbytes)
        return None

    return run


def test_without_rules_requests_are_the_inner_ones() -> None:
    def body(transport: Transport) -> None:
        assert isinstance(transport, FaultyTransport)
        request = transport.irecv(0, 1, memoryview(bytearray(1)))
        assert type(request).__module__ == "transports.requests"
        transport.isend(0, 1, memoryview(b"x")).wait(soon())
        assert transport.authenticated is transport.inner.authenticated
        assert transport.link_costs() == transport.inner.link_costs()

    on_ranks(faulty(), body, 1)


def test_drop_loses_the_frame_that_was_meant() -> None:
    def body(transport: Transport) -> None:
        for number in (1, 2, 4):
            assert recv(transport, 0, 1, 1) == bytes([number])

    def run(transport: Transport) -> None:
        if transport.rank == 1:
            body(transport)
        else:
            for number in (1, 2, 3, 4):
                request = transport.isend(1, 1, memoryview(bytes([number])))
                request.wait(soon())
                assert request.test()

    on_ranks(faulty("drop send rank=0 peer=1 nth=3"), run)


def test_delayed_receive() -> None:
    def body(transport: Transport) -> None:
        began = time.monotonic()
        buffer = bytearray(8)
        request = transport.irecv(0, 1, memoryview(buffer))
        request.wait(soon())
        assert request.test()
        assert time.monotonic() - began >= MOMENT
        assert buffer == b"\1" * 8

    on_ranks(faulty(f"delay recv rank=1 seconds={MOMENT}"), one_way(body))


def test_a_delay_beyond_the_deadline() -> None:
    def body(transport: Transport) -> None:
        request = transport.irecv(0, 1, memoryview(bytearray(8)))
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                request.wait(shortly())
            assert not request.test()

    on_ranks(faulty("delay recv rank=1 seconds=3600"), one_way(body))


def test_delayed_send_seen_by_test() -> None:
    def body(transport: Transport) -> None:
        if transport.rank == 1:
            recv(transport, 0, 1, 1)
            return
        began = time.monotonic()
        request = transport.isend(1, 1, memoryview(b"x"))
        while not request.test():
            time.sleep(0.001)
        assert time.monotonic() - began >= 0.05

    on_ranks(faulty("delay send seconds=0.05"), body)


@pytest.mark.parametrize("rule", ["corrupt send rank=0", "corrupt recv rank=1"])
def test_corrupt_flips_one_byte_and_leaves_the_senders_alone(rule: str) -> None:
    def body(transport: Transport) -> bytes:
        payload = bytearray(b"\1" * 50)
        if transport.rank == 0:
            transport.isend(1, 1, memoryview(payload)).wait(soon())
            return bytes(payload)
        return recv(transport, 0, 1, 50)

    sent, came = on_ranks(faulty(rule), body)
    assert sent == b"\1" * 50
    assert sorted(came) == [1] * 49 + [0xFE]


def test_corrupting_nothing_is_harmless() -> None:
    on_ranks(faulty("corrupt send", "corrupt recv"), one_way(lambda transport: recv(transport, 0, 1, 0), nbytes=0))


@pytest.mark.parametrize(
    ("fault", "told"),
    [("truncate", "7 bytes"), ("mislabel", "check 0x00000001 .*8 bytes, check 0x00000000")],
)
def test_truncated_and_mislabelled_frames_do_not_fit(fault: str, told: str) -> None:
    def body(transport: Transport) -> None:
        with pytest.raises(MismatchError, match=told):
            recv(transport, 0, 1, 8)
        assert recv(transport, 0, 1, 8) == b"\1" * 8

    on_ranks(faulty(f"{fault} send nth=1"), one_way(body, count=2))


@pytest.mark.parametrize("operation", ["irecv", "isend"])
def test_a_hanging_operation_ends_at_its_deadline_or_by_an_abort(operation: str) -> None:
    def body(transport: Transport) -> None:
        if transport.rank == 1:
            request = getattr(transport, operation)(0, 5, memoryview(bytearray(1)))
            assert not request.test()
            with pytest.raises(DeadlineExceeded):
                request.wait(shortly())
            sync(transport)
            with pytest.raises(AbortedError, match="that will do"):
                request.wait(soon())
        else:
            peer = transport.irecv(1, 5, memoryview(bytearray(1))) if operation == "isend" else None
            sync(transport)
            assert peer is None or not peer.test()
            transport.abort(AbortedError("that will do"))

    on_ranks(faulty("hang recv rank=1 tag=5", "hang send rank=1 tag=5"), body)


def test_raise_fails_the_transport_on_every_rank() -> None:
    def body(transport: Transport) -> None:
        for _ in range(2):
            with pytest.raises(TransportError, match=r"injected .*send of rank 0, peer 1") as caught:
                send(transport, 1, 1, b"x") if transport.rank == 0 else recv(transport, 0, 1, 1)
            assert type(caught.value) is PeerLost
        assert isinstance(transport.failure, PeerLost)

    on_ranks(faulty("raise send rank=0 error=PeerLost"), body)


def test_kill_closes_abruptly() -> None:
    def body(transport: Transport) -> None:
        if transport.rank == 0:
            with pytest.raises(ClosedError):
                send(transport, 1, 1, b"x")
        else:
            with pytest.raises(PeerLost, match="rank 0"):
                recv(transport, 0, 1, 1)

    on_ranks(faulty("kill send rank=0"), body)


def test_kill_by_a_function() -> None:
    killed: list[Transport] = []
    rule = Rule("kill", "recv", rank=1, nth=2, by=killed.append)
    on_ranks(faulty(rule), one_way(lambda transport: [recv(transport, 0, 1, 8) for _ in range(3)], count=3))
    assert [transport.rank for transport in killed] == [1]


@pytest.mark.processes
def test_kill_ends_a_process(tmp_path: Path) -> None:
    results = run_processes(send_until_killed, 2, str(tmp_path / "store"), timeout=SECONDS, dying=[0])
    assert results == [None, "rank 0"]


def send_until_killed(rank: int, directory: str) -> str:
    store = FileStore(directory)
    make = backend_of("faulty", inner="tcp", rules="kill send rank=0 nth=3 by=sigkill")
    transport = make(group_of_processes(rank, 2, store))
    transport.open(soon())
    try:
        if rank == 0:
            for _ in range(3):
                send(transport, 1, 1, b"x")
            raise AssertionError("still alive")
        with pytest.raises(PeerLost, match="rank 0") as caught:
            [recv(transport, 0, 1, 1) for _ in range(3)]
        return f"rank {caught.value.peer}"
    finally:
        transport.close(soon())
        store.close()


def test_rules_choose_by_peer_tag_and_predicate() -> None:
    seen: list[Operation] = []

    def note(operation: Operation) -> bool:
        seen.append(operation)
        return operation.nbytes == 3

    def body(transport: Transport) -> None:
        if transport.rank == 0:
            for tag, payload in ((1, b"abc"), (2, b"ab"), (2, b"abc")):
                request = transport.isend(1, tag, memoryview(payload))
                request.wait(soon())
        else:
            assert recv(transport, 0, 1, 3) == b"abc"
            assert recv(transport, 0, 2, 2) == b"ab"
            with pytest.raises(DeadlineExceeded):
                transport.irecv(0, 2, memoryview(bytearray(3))).wait(shortly())
        sync(transport)

    on_ranks(faulty(Rule("drop", "send", peer=1, tag=2, where=note)), body)
    assert seen == [Operation("send", 0, 1, 2, 2), Operation("send", 0, 1, 2, 3)]


def test_the_dice_fall_alike_with_one_seed() -> None:
    def losses(seed: int) -> list[bool]:
        transport = FaultyTransport(LocalTransport(groups(1)[0]), [parse_rule("drop send chance=0.5")], seed)
        return ["drop" in transport.apply_rules(Operation("send", 0, 0, 0, 0)) for _ in range(64)]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)
    assert 8 < sum(losses(1)) < 56


def in_window(rule: str, body: Callable[[Transport, Window], None]) -> None:
    """Run `body` on two ranks with a window of both, under a rule."""

    def run(transport: Transport) -> None:
        onesided = transport.ability(OneSided)
        assert onesided is not None
        assert onesided.reaches((0, 1))
        window = onesided.expose("w", (0, 1), 8, soon())
        assert (window.ranks, window.index, window.nbytes) == ((0, 1), transport.rank, 8)
        body(transport, window)
        window.close()

    on_ranks(faulty(rule), run)


def test_a_dropped_publish_does_not_happen() -> None:
    def body(transport: Transport, window: Window) -> None:
        if transport.rank == 0:
            window.publish(1)
        else:
            with pytest.raises(DeadlineExceeded):
                window.wait(0, 1, shortly())
        sync(transport)
        if transport.rank == 0:
            window.publish(2)
        window.wait(0, 1, soon())
        sync(transport)

    in_window("drop publish rank=0 tag=1", body)


def test_a_corrupt_publish_has_another_check() -> None:
    def body(transport: Transport, window: Window) -> None:
        window.publish(1, check=7)
        with pytest.raises(MismatchError):
            window.wait(0, 1, soon(), check=7)
        window.wait(1, 1, soon(), check=7)
        sync(transport)

    in_window("corrupt publish rank=0", body)


@pytest.mark.parametrize("operation", ["publish", "wait"])
def test_windows_are_late(operation: str) -> None:
    def body(transport: Transport, window: Window) -> None:
        began = time.monotonic()
        window.publish(1)
        window.wait(1 - transport.rank, 1, soon())
        assert time.monotonic() - began >= MOMENT
        sync(transport)

    in_window(f"delay {operation} seconds={MOMENT}", body)


def test_a_wait_that_hangs_ends_at_its_deadline_or_by_an_abort() -> None:
    def body(transport: Transport, window: Window) -> None:
        window.publish(1)
        if transport.rank == 0:
            with pytest.raises(DeadlineExceeded):
                window.wait(1, 1, shortly())
            sync(transport)
            with pytest.raises(AbortedError, match="that will do"):
                window.wait(1, 1, soon())
        else:
            sync(transport)
            transport.abort(AbortedError("that will do"))

    in_window("hang wait rank=0", body)


@pytest.mark.parametrize(("rule", "error"), [("raise wait rank=0", PeerLost), ("kill wait rank=0", ClosedError)])
def test_a_wait_that_fails(rule: str, error: type[Exception]) -> None:
    def body(transport: Transport, window: Window) -> None:
        if transport.rank == 0:
            with pytest.raises(error):
                window.wait(1, 1, soon())
        else:
            with pytest.raises(PeerLost):
                window.wait(0, 1, soon())

    in_window(rule, body)


def test_several_threads_may_be_late_at_once() -> None:
    def body(transport: Transport) -> None:
        def exchange(tag: int) -> None:
            sending = transport.isend(0, tag, memoryview(b"x"))
            assert recv(transport, 0, tag, 1) == b"x"
            sending.wait(soon())

        threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in threads)

    on_ranks(faulty("delay recv seconds=0.02", "delay send seconds=0.01"), body, 1)


def test_rules_are_read_from_text() -> None:
    assert parse_rule("drop send peer=1 nth=3") == Rule("drop", "send", peer=1, nth=3)
    assert parse_rule("delay recv seconds=0.01") == Rule("delay", "recv", seconds=0.01)
    assert parse_rule("raise wait error=DeadlineExceeded chance=.5 tag=0x10 rank=2") == Rule(
        "raise", "wait", error=DeadlineExceeded, chance=0.5, tag=16, rank=2
    )
    assert parse_rule("kill publish by=sigkill") == Rule("kill", "publish", by="sigkill")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", ".*drop, delay"),
        ("drop", ".*drop, delay"),
        ("explode send", ".*drop, delay"),
        ("drop recv", "on='recv': drop .*send, publish"),
        ("truncate lunch", "on='lunch': truncate .*send"),
        ("drop send pear=1", "'pear=1': .*rank=..., peer="),
        ("drop send peer=one", "'one': .*integer"),
        ("delay send seconds=soon", "'soon': .*number"),
        ("delay send seconds=-1", "seconds=-1.0: .*0 or more"),
        ("delay send seconds=nan", "seconds=nan: .*0 or more"),
        ("drop send nth=0", "nth=0: .*1 or more"),
        ("drop send chance=2", "chance=2.0: .*0 to 1"),
        ("raise send error=ValueError", "error='ValueError': .*RondeError"),
        ("kill send by=poison", "by='poison': .*close or sigkill"),
    ],
)
def test_bad_rules_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"^fault rule {re.escape(repr(text))}: {complaint}"):
        Options(rules=(text,))


def test_rules_in_code_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="action='explode'"):
        Rule("explode", "send")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seconds=inf"):
        Rule("delay", "send", seconds=math.inf)


def test_by_name_with_options_of_the_inner_transport() -> None:
    make = backend_of("faulty", inner="local", inner_options="eager_bytes=8", rules="corrupt send rank=0,delay recv")

    def body(transport: Transport) -> None:
        assert transport.isend(0, 1, memoryview(b"12345678")).test()
        assert recv(transport, 0, 1, 8) != b"12345678"

    on_ranks(make, body, 1)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="inner='faulty'"):
        Options(inner="faulty")
    with pytest.raises(ConfigError, match=r"transport 'local': eager_bytes='x' \(from setting inner_options\)"):
        backend_of("faulty", inner_options="eager_bytes=x")(groups(1)[0])
    with pytest.raises(ConfigError, match="transport 'lokal'"):
        backend_of("faulty", inner="lokal")(groups(1)[0])
