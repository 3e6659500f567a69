"""Messages between launcher and agents: frames, noise before them, signs of life, silence."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.launch.hosts import Listener, RemoteHost
from collectives.launch.hosts.connection import (
    MAX_FRAME,
    CommandConnection,
    Connection,
    Decoder,
    Link,
    Message,
    encode,
)
from collectives.launch.processes import Guardian
from collectives.launch.supervision.supervisor import _Supervisor
from transports.testing.leaks import Leaks

MESSAGES: list[Message] = [["hello", {"a": "b"}], ["output", 3, 1, b"\xff\x00"], ["beat"], ["start", [1.5, None, True]]]


@given(st.lists(st.integers(1, 40)), st.binary(max_size=50))
def test_messages_arrive_whatever_the_pieces_and_the_noise(cuts: list[int], noise: bytes) -> None:
    marker = b"0123456789abcdef"
    decoder, data = Decoder(marker), noise + marker + b"".join(map(encode, MESSAGES))
    found = []
    for cut in cuts:
        found += decoder.feed(data[:cut])
        data = data[cut:]
    assert found + decoder.feed(data) == MESSAGES
    assert decoder.skipped == noise


def test_only_the_end_of_long_noise_is_kept() -> None:
    decoder = Decoder(b"marker")
    assert decoder.feed(b"x" * 10000 + b"the end mark") == []
    assert decoder.feed(b"er" + encode(["beat"])) == [["beat"]]
    assert decoder.skipped.endswith(b"xthe end ")
    assert len(decoder.skipped) <= 2000


@pytest.mark.parametrize(
    "data",
    [b"\0\0\0\0", (MAX_FRAME + 1).to_bytes(4, "big"), b"\0\0\0\1\xc1", b"\0\0\0\1\x07", b"\0\0\0\1\x90", b"GET / HTTP"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Decoder().feed(data)


class Pair:
    """Two links connected to each other, on one selector."""

    def __init__(self, limit: float) -> None:
        self.selector = selectors.DefaultSelector()
        self.got: tuple[list[Message], list[Message]] = ([], [])
        (a_read, b_write), (b_read, a_write) = os.pipe(), os.pipe()
        self.a = Link(self.selector, (a_read, a_write), self.got[0].append, limit)
        self.b = Link(self.selector, (b_read, b_write), self.got[1].append, limit)

    def turn(self, *alive: Link) -> None:
        """Handle the events that are there, or wait for one until the links must be woken."""
        until = min(link.wake_at for link in alive)
        for key, _ in self.selector.select(max(0.0, min(5.0, until - time.monotonic()))):
            key.data()
        for link in alive:
            link.tick()


@contextlib.contextmanager
def pair(limit: float = 60.0) -> Iterator[Pair]:
    links = Pair(limit)
    try:
        yield links
    finally:
        links.a.close("over")
        links.b.close("over")
        links.selector.close()


def test_more_than_a_pipe_holds_arrives() -> None:
    with pair() as links:
        sent: list[Message] = [["output", 0, 0, bytes([n]) * 300_000] for n in range(5)]
        for message in sent:
            links.a.send(*message)
        while len(links.got[1]) < 5:
            links.turn(links.a, links.b)
        assert links.got[1] == sent


@pytest.mark.long
def test_signs_of_life_keep_a_link_up_and_silence_closes_it() -> None:
    with pair(limit=0.2) as links:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            links.turn(links.a, links.b)
        assert links.a.closed is links.b.closed is None
        assert links.got == ([], [])
        while links.a.closed is None:
            links.turn(links.a)  # the other says nothing any more
        assert links.a.silent
        assert links.a.closed == "no sign of life for 0.2 s"


def test_a_launcher_that_starts_many_ranks_gives_signs_of_life_meanwhile() -> None:
    with pair(limit=0.1) as links:
        host = RemoteHost("h1", cast("Connection", None), links.selector, cast("Listener", None), limit=0.1, grace=1.0)
        host._link = links.a
        supervisor = SimpleNamespace(_ranks={0: SimpleNamespace(pid=0)}, _used={"h1": SimpleNamespace(host=host)})
        time.sleep(0.15)
        _Supervisor.started(cast("_Supervisor", supervisor), 0, 7)
        links.b.tick()
        assert links.b.closed is None


def test_a_process_that_was_stopped_itself_has_heard_no_silence() -> None:
    with pair(limit=0.1) as links:
        links.b.send("beat")
        links.b.send("last", 1)
        time.sleep(0.15)  # nothing is read meanwhile
        links.a.tick()
        assert links.a.closed is None
        assert links.got[0] == [["last", 1]]


def test_the_patience_with_a_busy_agent_ends_with_its_next_message_not_with_a_sign_that_was_on_its_way() -> None:
    with pair(limit=0.01) as links:
        links.a.watched = False
        links.b.send("beat")
        links.a.watch(patience=60.0)
        links.turn(links.a)
        time.sleep(0.02)
        links.a.tick()
        assert links.a.closed is None
        links.b.send("started", 0, 1)
        while not links.got[0]:
            links.turn(links.a)
        time.sleep(0.02)
        links.a.tick()
        assert links.a.silent


def test_what_was_sent_before_the_end_arrives() -> None:
    with pair() as links:
        links.b.send("last", 1)
        links.b.close("over")
        links.a.send("into", "nothing")
        while links.a.closed is None:
            links.turn(links.a)
        assert links.got[0] == [["last", 1]]
        assert (links.a.closed, links.a.silent) == ("the connection has ended", False)
        links.a.send("ignored")


def test_nonsense_closes_a_link() -> None:
    with pair() as links:
        links.b.send_bytes(b"\0\0\0\0")
        while links.a.closed is None:
            links.turn(links.a)
        assert links.a.closed == "the other end sent a frame of 0 bytes"


def test_silence_means_nothing_until_the_link_is_watched() -> None:
    with pair(limit=0.1) as links:
        links.a.watched = False
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            links.turn(links.a)
        assert links.a.closed is None
        links.a.watch()
        assert links.a.closed is None
        while links.a.closed is None:
            links.turn(links.a)
        assert links.a.silent


def test_events_that_come_with_the_end_of_the_link_do_nothing() -> None:
    """One select reports that the other end has closed and that it takes more; the first event closes the link."""
    ours, theirs = socket.socketpair()
    with ours, theirs, selectors.DefaultSelector() as selector:
        link = Link(selector, (os.dup(ours.fileno()), os.dup(ours.fileno())), list, 60.0)
        while not selector.get_map() or len(selector.get_map()) < 2:  # until it waits to write
            link.send("input", b"x" * (1 << 16))
        theirs.recv(1 << 20)
        theirs.shutdown(socket.SHUT_WR)
        events = [key.data for key, _ in selector.select(5.0)]
        assert len(events) == 2
        for event in sorted(events, key=lambda event: event.__name__):  # _read before _write
            event()
        assert link.closed == "the connection has ended"


@pytest.mark.processes
def test_the_end_of_a_command_leaves_nothing_to_watch() -> None:
    """A selector that still watched the process would find it readable for ever, and its owner would not sleep."""
    with (
        Leaks(),
        contextlib.closing(selectors.DefaultSelector()) as selector,
        contextlib.closing(Guardian()) as guardian,
    ):
        guardian.start()
        connection = CommandConnection(["true"], None, selector, guardian)
        ends = connection.open()
        until = time.monotonic() + 30
        while not connection.ended:
            assert time.monotonic() < until
            for key, _ in selector.select(1):
                key.data()
        assert connection.end == "true exited with 0"
        connection.close()
        for end in ends:
            os.close(end)
        assert not selector.get_map()
