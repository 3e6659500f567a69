"""Stacks of running threads as text."""

from __future__ import annotations

import importlib.util
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from transports.stacks import DEPTH, stack_of


class Sized:
    """Stands for an array."""


def stack_while(body: Callable[[threading.Event], None]) -> str:
    """The stack of a thread that runs `body` until the event that it is given is set."""
    over, begun = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        body(over)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(10)
        for _ in range(1000):
            text = stack_of(thread.ident or 0)
            if "in wait\n" in text:
                return text
            threading.Event().wait(0.01)
        raise AssertionError(text)
    finally:
        over.set()
        thread.join()


def wait(over: threading.Event) -> None:
    over.wait(10)


def test_a_waiting_thread_is_shown_innermost_last_with_source_lines() -> None:
    lines = stack_while(wait).splitlines()
    assert any(line.startswith(f'  File "{__file__}", line ') and line.endswith(", in wait") for line in lines)
    assert lines.index("    over.wait(10)") > lines.index("    body(over)")


def test_the_own_thread_is_shown() -> None:
    last = stack_of(threading.get_ident()).splitlines()
    assert "    last = stack_of(threading.get_ident()).splitlines()" in last


def test_a_thread_that_has_ended() -> None:
    assert stack_of(0) == "  its thread has ended\n"


def test_a_deep_stack_shows_its_innermost_frames() -> None:
    def descend(over: threading.Event, depth: int = 50) -> None:
        if depth:
            descend(over, depth - 1)
        else:
            over.wait(10)

    text = stack_while(descend)
    assert text.count("  File ") == DEPTH
    assert "    over.wait(10)" in text
    assert "body(over)" not in text


def test_a_file_name_beyond_ascii_is_found(tmp_path: Path) -> None:
    path = tmp_path / "été_π_🎈.py"
    path.write_text("def wait_é(over):\n    over.wait(10)\n")
    spec = importlib.util.spec_from_file_location("foreign", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = stack_while(module.wait_é)
    assert f'  File "{path}", line 2, in wait_é\n    over.wait(10)\n' in text


def test_of_more_than_a_hundred_threads_the_oldest_are_not_shown() -> None:
    over = threading.Event()
    threads = [threading.Thread(target=wait, args=(over,)) for _ in range(110)]
    for thread in threads:
        thread.start()
    try:
        assert "over.wait(10)" in stack_of(threads[-1].ident or 0)
        text = stack_of(threading.get_ident())
        assert "more than 100 threads" in text or "in test_of_more_than" in text
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.long
def test_threads_that_run_meanwhile_and_end() -> None:
    """Frames come and go in them as fast as they can."""
    over = threading.Event()

    def call(depth: int) -> int:
        return call(depth - 1) + 1 if depth else len(Sized.__name__)

    def work() -> None:
        while not over.is_set():
            call(20)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            text = stack_of(threads[0].ident or 0)
            assert "in work\n" in text or "threading.py" in text
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)


def test_the_variables_of_a_thread_are_not_kept() -> None:
    kept: list[weakref.ref[Sized]] = []

    def work(over: threading.Event) -> None:
        array = Sized()
        kept.append(weakref.ref(array))
        over.wait(10)

    assert "over.wait(10)" in stack_while(work)
    assert kept[0]() is None
