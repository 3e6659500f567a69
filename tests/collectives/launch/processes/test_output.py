"""Parts of the launcher alone: lines, sinks, exit statuses, order of ended children."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.launch.processes.output import FULL, MAX_LINE, STDOUT, LineSplitter, Relay, Sink, Tail
from collectives.launch.processes.processes import describe_status, exit_code
from collectives.launch.processes.rank_processes import Reaper


@pytest.mark.parametrize(
    ("pieces", "lines", "rest"),
    [
        ([b"a\nb\n"], [b"a\n", b"b\n"], []),
        ([b"a", b"b", b"\nc"], [b"ab\n"], [b"c"]),
        ([b"10%\r", b"20%\r"], [b"10%\r"], [b"20%\r"]),
        ([b"\r10%", b"\r20%", b"\n"], [b"\r", b"10%\r", b"20%\n"], []),
        ([b"dos\r", b"\n", b"x\r\n"], [b"dos\r\n", b"x\r\n"], []),
        ([b"\n\n"], [b"\n", b"\n"], []),
        ([b"\xff\xfe\n\x00"], [b"\xff\xfe\n"], [b"\x00"]),
        ([], [], []),
    ],
)
def test_lines_are_split(pieces: list[bytes], lines: list[bytes], rest: list[bytes]) -> None:
    splitter = LineSplitter()
    assert [line for piece in pieces for line in splitter.feed(piece)] == lines
    assert splitter.finish() == rest


@given(st.lists(st.binary(max_size=8) | st.sampled_from([b"\n", b"\r", b"\r\n"])))
def test_lines_do_not_depend_on_the_pieces_fed(pieces: list[bytes]) -> None:
    one, many = LineSplitter(), LineSplitter()
    whole = b"".join(pieces)
    at_once = one.feed(whole) + one.finish()
    assert b"".join(at_once) == whole
    assert [line for piece in pieces for line in many.feed(piece)] + many.finish() == at_once


def test_endless_line_is_passed_on_in_parts() -> None:
    splitter = LineSplitter()
    parts = [part for _ in range(40) for part in splitter.feed(b"x" * (MAX_LINE // 16))]
    assert len(parts) == 2
    assert sum(map(len, parts)) + sum(map(len, splitter.finish())) == 40 * (MAX_LINE // 16)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def written(pipe: tuple[int, int], *lines: tuple[str, bytes]) -> bytes:
    """The bytes that a sink writes for these lines."""
    sink = Sink(pipe[1])
    for writer, line in lines:
        sink.put(writer, writer.encode() + b": ", line)
    while sink.pending:
        sink.write_some()
    sink.close()
    return os.read(pipe[0], 1 << 16)


def test_lines_get_their_prefix(pipe: tuple[int, int]) -> None:
    assert written(pipe, ("a", b"1\n"), ("b", b"2\r\n"), ("a", b"3\n")) == b"a: 1\nb: 2\r\na: 3\n"


def test_an_unfinished_line_is_continued_by_its_writer_only(pipe: tuple[int, int]) -> None:
    assert written(pipe, ("a", b"1"), ("a", b"2\n"), ("a", b"3"), ("b", b"4\n")) == b"a: 12\na: 3\nb: 4\n"


def test_a_progress_bar_is_overwritten_by_its_writer_only(pipe: tuple[int, int]) -> None:
    assert written(pipe, ("a", b"1\r"), ("a", b"2\r"), ("b", b"3\n")) == b"a: 1\ra: 2\r\nb: 3\n"


def test_sink_is_full_until_drained(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1])
    assert not sink.full
    sink.put("a", b"", b"x" * FULL)
    assert sink.full
    while sink.full:
        sink.write_some()
        os.read(pipe[0], 1 << 16)
    assert sink.pending


def test_a_sink_without_reader_is_broken() -> None:
    read, write = os.pipe()
    os.close(read)
    sink = Sink(write)
    sink.put("a", b"", b"x\n")
    sink.write_some()
    assert isinstance(sink.broken, BrokenPipeError)
    sink.put("a", b"", b"y\n")
    assert not sink.pending
    os.close(write)


def test_the_tail_holds_the_last_lines() -> None:
    tail = Tail()
    for line in [*(b"%d\n" % i for i in range(30)), b"\n", b"50%\r", b"100%\r", b"\xff" + b"x" * 5000 + b"\n"]:
        tail.add(line)
    lines = tail.lines()
    assert lines[:2] == ["12", "13"]
    assert lines[-2] == "29"
    assert lines[-1].startswith("\ufffdxxx")
    assert len(lines[-1]) < 2100


@contextlib.contextmanager
def relay_to(path: str, wanted: dict[int, bool]) -> Iterator[Relay]:
    """A relay to this file in place of stdout. `wanted`: what it has said last of each kind of output."""
    before = os.dup(1)
    with open(path, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
    try:
        with (
            selectors.DefaultSelector() as selector,
            contextlib.closing(Relay(selector, lambda stream, is_wanted: wanted.update({stream: is_wanted}))) as relay,
        ):
            relay.open()
            yield relay
    finally:
        os.dup2(before, 1)
        os.close(before)


@pytest.mark.parametrize("kind", ["file", "/dev/null"])
def test_more_output_than_a_sink_holds_at_once_goes_to_a_file(tmp_path: Path, kind: str) -> None:
    """The selector tells nothing of a file, so that no event would resume the output."""
    path, wanted, lines = tmp_path / "out" if kind == "file" else Path(kind), {STDOUT: True}, b"line\n" * FULL
    with relay_to(str(path), wanted) as relay:
        for rank in range(2):
            relay.add(rank, b"", Tail(), None)
            relay.feed(rank, STDOUT, lines)
        relay.update()
        assert not relay.pending
        assert wanted[STDOUT]
    if kind == "file":
        assert path.read_bytes() == 2 * lines


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "stdout").symlink_to("/dev/full")
    with selectors.DefaultSelector() as selector, contextlib.closing(Relay(selector, lambda *_: None)) as relay:
        relay.open()
        relay.add(0, b"", Tail(), tmp_path, shown=False)
        relay.feed(0, STDOUT, b"text")
        assert relay.ending is not None
        code, reason = relay.ending
    assert code == 1
    assert str(tmp_path / "stdout") in reason


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (0, 0, "exited with 0"),
        (3, 3, "exited with 3"),
        (-signal.SIGKILL, 137, "killed by SIGKILL"),
        (-signal.SIGSEGV, 139, "killed by SIGSEGV"),
        (-50, 178, "killed by signal 50"),
    ],
)
def test_exit_code_and_text_of_a_status(status: int, code: int, text: str) -> None:
    assert (exit_code(status), describe_status(status)) == (code, text)


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_children_are_collected_in_the_order_in_which_they_ended(order: tuple[int, ...]) -> None:
    pids = [os.posix_spawnp("sleep", ["sleep", "1000"], os.environ) for _ in range(3)]
    reaper = Reaper()
    for pid in pids:
        reaper.add(pid)
    assert reaper.collect() == []
    for index in order:
        os.kill(pids[index], signal.SIGTERM)
        os.waitid(os.P_PID, pids[index], os.WEXITED | os.WNOWAIT)
    assert reaper.collect() == [(pids[index], -signal.SIGTERM) for index in order]
    assert reaper.collect() == []
    reaper.close()
