"""Detection of dead and stopped processes, also by an observer that was stopped itself."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from transports import liveness
from transports.liveness import STOPPED_SECONDS, Identity, Steady, Watch, _state_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


@contextlib.contextmanager
def child() -> Iterator[tuple[int, Identity]]:
    """A process that waits, and its identity."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield process.pid, Identity(process.pid, _state_of(process.pid)[1], Identity.own().space)
        finally:
            process.kill()


def await_state(pid: int, state: bytes) -> None:
    end = time.monotonic() + 10
    while _state_of(pid)[0] != state:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_p3_an_emulated_process_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator of another processor answers for /proc/PID/stat of its own process."""
    real = open

    def emulated(path: str, mode: str) -> Any:
        if path == f"/proc/{os.getpid()}/stat":
            return io.BytesIO(b"%d (python) R 1" % os.getpid() + b" 0" * 48)
        return real(path, mode)

    seen = Identity.of(os.getpid())
    monkeypatch.setattr(liveness, "open", emulated, raising=False)
    assert Identity.own() == seen


@pytest.mark.processes
@pytest.mark.parametrize("pidfd", [True, False])
def test_a_watch_tells_the_dead_from_the_living(pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    own = Identity.own()
    with child() as (pid, identity):
        watch = Watch()
        watch.add(0, own)
        watch.add(1, identity)
        watch.add(2, Identity(pid, identity.start + 1, own.space))  # it died, and its id was given to another one
        watch.add(3, Identity(pid, identity.start + 1, own.space + 1))
        assert watch.dead() == [2]
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert sorted(watch.dead()) == [1, 2]
        assert watch.stopped() == []
        watch.close()
        watch.close()


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare of util-linux")
def test_a_process_in_another_namespace_of_time_counts_as_alive() -> None:
    """There, start times are others."""
    words = ["unshare", "--time", "--boottime", "86400", sys.executable, "-c"]
    code = (
        "from transports.liveness import Identity; own = Identity.own(); print(own.pid, own.start, own.space); input()"
    )
    with subprocess.Popen([*words, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = process.stdout.readline().split()
        if not told:
            pytest.skip("no namespaces of time here")
        with contextlib.closing(Watch()) as watch:
            watch.add(1, Identity(*map(int, told)))
            assert watch.dead() == []


@pytest.mark.processes
def test_a_process_that_becomes_another_program_is_reported() -> None:
    words = ["sh", "-c", "echo begun; read word; exec sleep 60"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before, exec(3) may be under way
        watch = Watch()
        watch.add(1, Identity.of(process.pid))
        watch.add(2, Identity(process.pid, 1, Identity.own().space))
        assert watch.replaced() == []
        assert process.stdin is not None
        process.stdin.write(b"word\n")
        process.stdin.flush()
        end = time.monotonic() + 10
        while not (found := watch.replaced()):
            assert time.monotonic() < end
            time.sleep(0.001)
        assert found == [1]
        assert watch.dead() == [2]
        process.kill()
        process.wait()
        assert watch.replaced() == []
        watch.close()


def process_descriptors() -> set[int]:
    """The descriptors of this process that stand for processes."""
    links = {descriptor: f"/proc/self/fd/{descriptor}" for descriptor in map(int, os.listdir("/proc/self/fd"))}
    return {descriptor for descriptor, link in links.items() if os.path.lexists(link) and "pidfd" in os.readlink(link)}


@pytest.mark.processes
def test_a_descriptor_that_is_taken_away_is_no_death() -> None:
    with child() as (pid, identity):
        watch = Watch()
        before = process_descriptors()
        watch.add(1, identity)
        (descriptor,) = process_descriptors() - before
        with open(os.devnull) as file:
            os.dup2(file.fileno(), descriptor)  # always readable
        assert watch.dead() == []
        os.close(descriptor)
        assert watch.dead() == []
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert watch.dead() == [1]
        watch.close()


@pytest.mark.processes
def test_a_stopped_process_is_reported_after_a_while_until_it_continues() -> None:
    with child() as (pid, identity):
        watch = Watch()
        watch.add(1, identity)
        watch.add(2, Identity(pid, identity.start + 1, identity.space))
        assert watch.stopped() == []
        os.kill(pid, signal.SIGSTOP)
        await_state(pid, b"T")
        began = time.monotonic()
        while not (stopped := watch.stopped()):
            assert time.monotonic() < began + 30
            time.sleep(0.02)
        assert stopped == [1]
        assert time.monotonic() - began >= STOPPED_SECONDS
        assert watch.dead() == [2]
        os.kill(pid, signal.SIGCONT)
        await_state(pid, b"S")
        assert watch.stopped() == []
        watch.close()


def test_an_observer_that_did_not_run_starts_again() -> None:
    steady = Steady(gap=0.3)
    assert steady.seen("T", 10.0) == 0
    assert steady.seen("T", 10.25) == 0.25
    assert steady.seen("T", 10.5) == 0.5
    assert steady.seen("T", 11.0) == 0
    assert steady.seen("T", 11.25) == 0.25
    assert steady.seen("S", 11.5) == 0
    assert steady.seen("T", 11.75) == 0
    steady.forget()
    assert steady.seen("T", 12.0) == 0
    assert steady.seen("T", 12.25) == 0.25
