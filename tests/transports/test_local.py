"""Promises of the threads' transport beyond the contract: it buffers nothing, and names the missing rank."""

from __future__ import annotations

import gc
import re
import time
import weakref

import pytest

from tests.transports.groups import backend_of, groups, on_ranks, recv, send, soon
from transports.base import Transport
from transports.errors import (
    AbortedError,
    ClosedError,
    ConfigError,
    ConnectError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
)
from transports.local import LocalTransport, Options
from transports.local.hub import Hub
from transports.local.link import LocalLink
from transports.onesided import KEPT, OneSided
from transports.testing import run_threads

LOCAL = backend_of("local")


def at_once() -> float:
    return time.monotonic()


def windows(transport: Transport) -> OneSided:
    found = transport.ability(OneSided)
    assert found is not None
    return found


def hub_of(transport: LocalTransport) -> Hub:
    (link,) = transport.links
    assert isinstance(link, LocalLink)
    return link.hub


def test_a_send_completes_only_when_it_was_received() -> None:
    def body(transport: Transport) -> None:
        if transport.rank == 0:
            request = transport.isend(1, 7, memoryview(b"x"))
            assert not request.test()
            with pytest.raises(DeadlineExceeded) as caught:
                request.wait(at_once())
            assert (caught.value.rank, caught.value.peer) == (0, 1)
            send(transport, 1, 8, b"go")
            request.wait(soon())
        else:
            recv(transport, 0, 8, 2)
            assert recv(transport, 0, 7, 1) == b"x"

    on_ranks(LOCAL, body)


def test_small_frames_are_buffered_where_that_is_asked_for() -> None:
    def body(transport: Transport) -> None:
        if transport.rank == 0:
            payload = bytearray(b"1234")
            small, large = transport.isend(1, 1, memoryview(payload)), transport.isend(1, 1, memoryview(b"12345"))
            assert small.test()
            assert not large.test()
            payload[:] = b"0000"
            send(transport, 1, 2, b"")
            large.wait(soon())
        else:
            recv(transport, 0, 2, 0)
            assert recv(transport, 0, 1, 4) == b"1234"
            assert recv(transport, 0, 1, 5) == b"12345"

    on_ranks(backend_of("local", eager_bytes=4), body)


def test_an_eager_frame_outlives_its_sender() -> None:
    first, second = (LocalTransport(group, Options(eager_bytes=100)) for group in groups(2))
    run_threads(lambda rank: (first, second)[rank].open(soon()), 2, timeout=20)
    first.isend(1, 1, memoryview(b"last words"))
    first.close(soon())
    assert recv(second, 0, 1, 10) == b"last words"
    second.close(soon())


def test_close_names_the_ranks_that_did_not_receive() -> None:
    first, second = (LocalTransport(group) for group in groups(2))
    run_threads(lambda rank: (first, second)[rank].open(soon()), 2, timeout=20)
    payload = bytearray(b"unread")
    first.isend(1, 1, memoryview(payload))
    with pytest.raises(DeadlineExceeded, match=r"rank 1 \(localhost, pid \d+\)"):
        first.close(at_once())
    payload[:] = b"reused"
    assert recv(second, 0, 1, 6) == b"unread"
    second.close(soon())


def test_a_closed_peer_is_lost() -> None:
    first, second = (LocalTransport(group) for group in groups(2))
    run_threads(lambda rank: (first, second)[rank].open(soon()), 2, timeout=20)
    receiving = second.irecv(0, 1, memoryview(bytearray(1)))
    first.close(soon())
    text = r"^rank 0 \(localhost, pid \d+\) closed .*rank 1\b.*ended"
    with pytest.raises(PeerLost, match=text) as caught:
        receiving.test()
    assert (caught.value.rank, caught.value.peer) == (1, 0)
    with pytest.raises(PeerLost, match=text):
        second.isend(0, 1, memoryview(b"x"))
    assert isinstance(second.failure, PeerLost)
    second.close(soon())


def test_a_rank_that_is_missing_is_named_to_all_that_came() -> None:
    transports = [LocalTransport(group) for group in groups(4)]
    text = r"^rank 1 \(.*\), rank 3 \(.*\) did not open"

    def body(rank: int) -> None:
        with pytest.raises(DeadlineExceeded, match=text):
            transports[2 * rank].open(time.monotonic() + (0.1 if rank == 0 else 20.0))

    run_threads(body, 2, timeout=20)
    with pytest.raises(DeadlineExceeded, match=text):
        transports[3].open(soon())


def test_ranks_in_another_process_cannot_be_found() -> None:
    group = groups(2)[1]
    group.store.add("local/arrivals", 1)
    group.store.set("local/hub", b"of another process")
    with pytest.raises(ConnectError, match=r"rank 1 .*no other rank"):
        LocalTransport(group).open(at_once())


def test_an_abort_while_others_open_reaches_them() -> None:
    transports = [LocalTransport(group) for group in groups(3)]

    def body(rank: int) -> None:
        if rank < 2:
            with pytest.raises(AbortedError, match="no use"):
                transports[rank].open(soon())
        else:
            while not transports[0].links:  # until it opens
                time.sleep(0.001)
            transports[0].abort(AbortedError("no use"))

    run_threads(body, 3, timeout=20)
    with pytest.raises(AbortedError, match="no use"):
        transports[0].irecv(0, 0, memoryview(bytearray(1)))


@pytest.mark.parametrize("name", ["local", "auto"])
def test_aborted_before_it_was_opened(name: str) -> None:
    transport = backend_of(name)(groups(1)[0])
    transport.abort(AbortedError("first"))
    transport.abort(AbortedError("second"))
    with pytest.raises(AbortedError, match="first"):
        transport.open(soon())
    transport.close(soon())


def test_opened_once() -> None:
    transport = LocalTransport(groups(1)[0])
    with pytest.raises(ClosedError, match=r"local transport of rank 0 .*not open"):
        transport.isend(0, 0, memoryview(b""))
    transport.open(soon())
    with pytest.raises(ClosedError, match="opened"):
        transport.open(soon())
    transport.close(soon())
    with pytest.raises(ClosedError, match="opened"):
        transport.open(soon())


def test_views_that_no_transport_takes_are_refused() -> None:
    def body(transport: Transport) -> None:
        for view in (memoryview(bytearray(8)).cast("I"), memoryview(bytearray(8))[::2]):
            with pytest.raises(ValueError, match="contiguous"):
                transport.isend(0, 0, view)
        with pytest.raises(ValueError, match="read-only"):
            transport.irecv(0, 0, memoryview(b"constant"))

    on_ranks(LOCAL, body, 1)


def test_each_rank_raises_an_error_of_its_own() -> None:
    def body(transport: Transport) -> BaseException | None:
        if transport.rank == 0:
            transport.abort(AbortedError("enough", rank=0))
        with pytest.raises(AbortedError, match=r"^enough$"):
            recv(transport, transport.rank, 1, 1)
        return transport.failure

    errors = on_ranks(LOCAL, body, 3)
    assert len(set(map(id, errors))) == 3


def test_windows_of_different_wishes_do_not_match() -> None:
    def body(transport: Transport) -> str:
        peer = 1 - transport.rank
        with pytest.raises((DeadlineExceeded, MismatchError)) as caught:
            windows(transport).expose("w", (0, 1), 8 + transport.rank, time.monotonic() + 0.1)
        sending = transport.isend(peer, 1, memoryview(b""))
        recv(transport, peer, 1, 0)
        sending.wait(soon())
        return str(caught.value)

    first, second = sorted(on_ranks(LOCAL, body), key=lambda text: "asks for" in text)
    assert re.match(r"rank . \(.*\) did not come to window 'w' in time", first)
    assert re.match(r"window 'w': rank . asks for . bytes among ranks .*, another rank for . among", second)


@pytest.mark.parametrize(
    ("ranks", "nbytes", "text"),
    [((1,), 8, "ranks="), ((0, 0), 8, "ranks="), ((0, 9), 8, "ranks="), ((0,), -1, "nbytes=-1"), ((0,), 8, "key='w'")],
)
def test_bad_windows_are_refused(ranks: tuple[int, ...], nbytes: int, text: str) -> None:
    def body(transport: Transport) -> None:
        windows(transport).expose("w", (0,), 8, soon())
        with pytest.raises(ValueError, match=text):
            windows(transport).expose("w" if ranks == (0,) else "v", ranks, nbytes, soon())

    on_ranks(LOCAL, body, 1)


def test_epochs_only_rise_and_old_checks_are_forgotten() -> None:
    def body(transport: Transport) -> None:
        window = windows(transport).expose("w", (0,), 0, soon())
        window.publish(2, check=7)
        for epoch in (0, 1, 2):
            with pytest.raises(ValueError, match=rf"epoch={epoch}: .* 2"):
                window.publish(epoch)
        with pytest.raises(ValueError, match="check=-1"):
            window.publish(3, check=-1)
        with pytest.raises(MismatchError, match="nothing with epoch 1"):
            window.wait(0, 1, soon(), check=7)
        window.publish(9)
        with pytest.raises(MismatchError, match="nothing with epoch 9"):
            window.wait(0, 9, soon(), check=7)
        for epoch in range(10, 9 + KEPT):
            window.publish(epoch, check=8)
            with pytest.raises(MismatchError, match=r"check 0x00000007 .*epoch 2\b.* check 0x00000008"):
                window.wait(0, 2, soon(), check=8)
        window.publish(9 + KEPT, check=8)
        window.wait(0, 2, soon(), check=8)
        view = window.view(0)
        window.close()
        with pytest.raises(ValueError, match="released"):
            len(view)
        with pytest.raises(ClosedError):
            window.view(0)
        with pytest.raises(ClosedError):
            window.publish(11)

    on_ranks(LOCAL, body, 1)


def test_nothing_is_kept_alive_by_the_process() -> None:
    transports = [LocalTransport(group) for group in groups(2)]
    run_threads(lambda rank: transports[rank].open(soon()), 2, timeout=20)
    hubs = {weakref.ref(hub_of(transport)) for transport in transports}
    assert len(hubs) == 1
    for transport in transports:
        transport.close(soon())
    transports.clear()
    del transport
    gc.collect()
    assert hubs.pop()() is None


def test_options() -> None:
    with pytest.raises(ConfigError, match="eager_bytes=-1"):
        Options(eager_bytes=-1)
