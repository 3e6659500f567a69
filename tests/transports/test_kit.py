"""The kit finds and reports broken promises: each transport here breaks one."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.transports.groups import soon
from transports.anysource import AnyRequest, Arrival
from transports.base import Group, Request, Transport
from transports.errors import AbortedError, DeadlineExceeded, PeerLost, RondeError
from transports.local import LocalTransport
from transports.rendezvous.file import FileStore
from transports.testing import (
    CHECKS,
    ConformanceError,
    LeakError,
    Leaks,
    check_transport,
    run_processes,
    run_threads,
)
from transports.testing.bench import SYNC_TAG


class Wrapper(Transport):
    """A transport between threads that is about to break a promise."""

    name = "broken"

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.inner = LocalTransport(group)

    @property
    def authenticated(self) -> bool:
        return True

    @property
    def failure(self) -> RondeError | None:
        return self.inner.failure

    def open(self, deadline: float) -> None:
        self.inner.open(deadline)

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return self.inner.isend(peer, tag, view, check)

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return self.inner.irecv(peer, tag, view, check)

    def abort(self, cause: RondeError) -> None:
        self.inner.abort(cause)

    def close(self, deadline: float) -> None:
        self.inner.close(deadline)


class Done(Request):
    """Says that it has completed."""

    def test(self) -> bool:
        return True

    def wait(self, deadline: float) -> None:
        return None


class Reorders(Wrapper):
    """Sends every second frame of a tag before the first."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._held: tuple[int, int, memoryview, int] | None = None

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        if tag >= SYNC_TAG:
            return super().isend(peer, tag, view, check)
        if self._held is None:
            self._held = (peer, tag, view, check)
            return Done()
        held, self._held = self._held, None
        request = super().isend(peer, tag, view, check)
        super().isend(*held)
        return request


class Truncates(Wrapper):
    """Fills only the beginning of large buffers."""

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        if len(view) <= 65536:
            return super().irecv(peer, tag, view, check)
        return Lossy(super().irecv(peer, tag, view, check), view)


class Lossy(Request):
    def __init__(self, inner: Request, view: memoryview) -> None:
        self._inner = inner
        self._view = view

    def test(self) -> bool:
        return self._inner.test()

    def wait(self, deadline: float) -> None:
        self._inner.wait(deadline)
        self._view[65536:] = bytes(len(self._view) - 65536)


class IgnoresAborts(Wrapper):
    """Keeps an abort to itself."""

    def abort(self, cause: RondeError) -> None:
        return None


class Deaf(Wrapper):
    """Aborts reach its peers, but its own later calls succeed as if nothing had been."""

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return Done() if self.failure is not None else super().irecv(peer, tag, view, check)


class DropsChecks(Wrapper):
    """Does not carry the check."""

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return super().isend(peer, tag, view)

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return super().irecv(peer, tag, view)


class LeaksDescriptors(Wrapper):
    """Opens something that it does not close."""

    left: list[int]

    def open(self, deadline: float) -> None:
        super().open(deadline)
        self.left.append(os.open(os.devnull, os.O_RDONLY))


class LeaksThreads(Wrapper):
    """Starts a thread that outlives it."""

    stop: threading.Event
    left: list[threading.Thread]

    def open(self, deadline: float) -> None:
        super().open(deadline)
        thread = threading.Thread(target=self.stop.wait, name="forgotten", daemon=True)
        thread.start()
        self.left.append(thread)


class Hangs(Wrapper):
    """Waits without a bound, whatever happens."""

    stop: threading.Event
    waiting: list[threading.Thread]

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        super().irecv(peer, tag, view, check)
        return Forever(self)


class Forever(Request):
    def __init__(self, transport: Hangs) -> None:
        self._transport = transport

    def test(self) -> bool:
        return False

    def wait(self, deadline: float) -> None:
        self._transport.waiting.append(threading.current_thread())
        self._transport.stop.wait()


class IgnoresDeadlines(Wrapper):
    """A wait that would time out says that it is done."""

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return Hasty(super().irecv(peer, tag, view, check))


class Hasty(Request):
    def __init__(self, inner: Request) -> None:
        self._inner = inner

    def test(self) -> bool:
        return self._inner.test()

    def wait(self, deadline: float) -> None:
        try:
            self._inner.wait(deadline)
        except DeadlineExceeded:
            return


class AcceptsAnything(Wrapper):
    """Does not look at its arguments."""

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return super().isend(peer % self.size, tag % 2**64, view, check % 2**32)

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return super().irecv(peer % self.size, tag % 2**64, view, check % 2**32)


class Reopens(Wrapper):
    """Lets calls through after it was closed."""

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return Done() if self.inner.life.closed else super().isend(peer, tag, view, check)


class Prefers(LocalTransport):
    """Takes frames of one rank before those of any other."""

    name = "broken"
    first = 1

    def irecv_any(self, sources: frozenset[int], tags: range, *rest: Any) -> AnyRequest:
        for source in sorted(sources, key=lambda source: abs(source - self.first)):
            if self.probe(frozenset((source,)), tags, 0.0) is not None:
                sources = frozenset((source,))
                break
        return super().irecv_any(sources, tags, *rest)


class PrefersHigh(Prefers):
    first = 99


class TakesNewest(LocalTransport):
    """Takes the frame with the highest tag that has arrived, not the oldest."""

    name = "broken"

    def irecv_any(self, sources: frozenset[int], tags: range, *rest: Any) -> AnyRequest:
        found = [tag for tag in tags[:2000] if self.probe(sources, range(tag, tag + 1), 0.0) is not None]
        return super().irecv_any(sources, range(found[-1], found[-1] + 1) if found else tags, *rest)


class WaitsForOne(LocalTransport):
    """Receives from the lowest rank alone."""

    name = "broken"

    def irecv_any(self, sources: frozenset[int], tags: range, *rest: Any) -> AnyRequest:
        return super().irecv_any(frozenset((min(sources),)), tags, *rest)


class TakesProbed(LocalTransport):
    """A probe takes the frame."""

    name = "broken"

    def probe(self, sources: frozenset[int], tags: range, deadline: float) -> Arrival | None:
        found = super().probe(sources, tags, deadline)
        if found is not None:
            super().irecv_any(frozenset((found.source,)), range(found.tag, found.tag + 1), None)
        return found


class Unnamed(Wrapper):
    """Its errors name nobody."""

    def open(self, deadline: float) -> None:
        try:
            super().open(deadline)
        except DeadlineExceeded:
            raise DeadlineExceeded("somebody is missing") from None


def broken(
    make: Callable[[Group], Transport], *only: str, deadline: float = 0.5, sizes: tuple[int, ...] = (3,)
) -> ConformanceError:
    """The error that the kit raises for a transport, tried with some of its checks."""
    with pytest.raises(ConformanceError) as caught:
        check_transport(make, sizes=sizes, deadline=deadline, only=only)
    assert {outcome.check for outcome in caught.value.report.broken} == set(only)
    return caught.value


@pytest.mark.parametrize(
    ("make", "check"),
    [
        (Reorders, "frames_of_one_tag_keep_their_order"),
        (Truncates, "every_length_arrives_whole"),
        (Truncates, "all_ranks_exchange_at_once"),
        (IgnoresAborts, "an_abort_reaches_every_rank"),
        (IgnoresAborts, "a_thread_that_waits_hears_of_an_abort"),
        (Deaf, "after_an_abort_everything_raises_its_cause"),
        (DropsChecks, "a_frame_with_another_check_is_refused"),
        (IgnoresDeadlines, "a_wait_ends_at_its_deadline"),
        (AcceptsAnything, "bad_arguments_are_refused"),
        (Reopens, "a_closed_transport_refuses_calls"),
        (Unnamed, "a_rank_that_does_not_open_is_named"),
        (Prefers, "no_peer_is_starved"),
        (PrefersHigh, "no_peer_is_starved"),
        (TakesNewest, "no_peer_is_starved"),
        (TakesNewest, "a_receive_from_any_source_takes_the_first_match"),
        (WaitsForOne, "a_receive_from_any_source_takes_the_first_match"),
        (TakesProbed, "a_probe_tells_of_a_frame_and_leaves_it"),
    ],
)
def test_a_broken_promise_is_found(make: Callable[[Group], Transport], check: str) -> None:
    promise = next(known.promise for known in CHECKS if known.name == check)
    text = str(broken(make, check))
    assert text.startswith("transport 'broken' breaks ")
    assert f"BROKEN {check}, " in text
    assert promise in text
    assert "Traceback (most recent call last)" in text


def test_all_broken_promises_are_listed_not_the_first_alone() -> None:
    error = broken(Truncates, "every_length_arrives_whole", "all_ranks_exchange_at_once", deadline=10.0, sizes=(1, 2))
    assert len(error.report.broken) == 4
    assert str(error).count("\nBROKEN ") == 4
    assert all("byte 65536 of " in str(outcome.error) for outcome in error.report.broken)


def test_a_kept_promise_among_broken_ones_is_reported_as_kept() -> None:
    with pytest.raises(ConformanceError) as caught:
        check_transport(
            DropsChecks, sizes=(2,), only=["a_frame_with_another_check_is_refused", "a_rank_reaches_itself"]
        )
    assert [str(outcome).split(",")[0].split() for outcome in caught.value.report.outcomes] == [
        ["kept", "a_rank_reaches_itself"],
        ["BROKEN", "a_frame_with_another_check_is_refused"],
    ]


def test_a_leaked_descriptor_is_found() -> None:
    left: list[int] = []
    make = type("Leaky", (LeaksDescriptors,), {"left": left})
    try:
        text = str(broken(make, "a_rank_reaches_itself"))
        assert f"descriptor {left[0]} ({os.devnull})" in text
    finally:
        for descriptor in left:
            os.close(descriptor)


def test_a_leaked_thread_is_found() -> None:
    stop, left = threading.Event(), []  # type: ignore[var-annotated]
    make = type("Leaky", (LeaksThreads,), {"left": left, "stop": stop})
    try:
        assert "left behind: thread 'forgotten'" in str(broken(make, "empty_frames_are_frames"))
    finally:
        stop.set()
        for thread in left:
            thread.join()


def test_a_hang_is_bounded_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.testing.ranks.GRACE", 0.1)
    stop, waiting = threading.Event(), []  # type: ignore[var-annotated]
    make = type("Hanging", (Hangs,), {"waiting": waiting, "stop": stop})
    try:
        with pytest.raises(ConformanceError) as caught:
            check_transport(make, sizes=(1,), deadline=0.1, only=["a_rank_reaches_itself"])
        text = str(caught.value)
        assert "TimeoutError: ranks [0] of 1 did not end within" in text
        assert "self._transport.stop.wait()" in text
    finally:
        stop.set()
        for thread in waiting:
            thread.join()


def test_names_of_checks_are_checked() -> None:
    with pytest.raises(ValueError, match=r"only=\['nonsense'\]: .*frames_of_one_tag_keep_their_order"):
        check_transport(Wrapper, only=["nonsense"])


def test_every_check_has_a_name_of_its_own_and_a_promise() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(len(check.promise) > 20 for check in CHECKS)


def test_threads_return_their_results_by_rank() -> None:
    assert run_threads(lambda rank: rank * rank, 4, timeout=20) == [0, 1, 4, 9]


def test_the_first_error_of_threads_comes_home_with_the_others() -> None:
    first = threading.Event()

    def body(rank: int) -> None:
        if rank == 2:
            try:
                raise PeerLost("the cause", peer=1)
            finally:
                threading.Timer(0.05, first.set).start()
        if rank == 0:
            first.wait(20)
            raise RuntimeError("a consequence")

    with pytest.raises(PeerLost, match="the cause") as caught:
        run_threads(body, 3, timeout=20)
    notes = "\n".join(caught.value.__notes__)
    assert "raised by rank 2 of 3" in notes
    assert "rank 0 raised too:\nTraceback" in notes
    assert "RuntimeError: a consequence" in notes


def test_threads_that_do_not_end_are_released_and_shown() -> None:
    stop = threading.Event()

    def body(rank: int) -> None:
        if rank == 1:
            stop.wait()

    with pytest.raises(TimeoutError, match=r"ranks \[1\] of 2 .*0\.05 s") as caught:
        run_threads(body, 2, timeout=0.05, release=stop.set)
    assert "rank 1 was still running" in caught.value.__notes__[0]
    assert "stop.wait()" in caught.value.__notes__[0]


def square(rank: int, add: int) -> int:
    return rank * rank + add


def misbehave(rank: int, how: str, directory: str = "") -> None:
    if rank == 1 and how == "raise":
        FileStore(directory).get("rank 0 is here", soon())
        raise PeerLost("the cause", rank=1, peer=0)
    if rank == 1 and how == "raise something odd":
        raise Odd(1, 2)
    if rank == 1 and how == "die":
        os._exit(7)
    if rank == 0 and how == "raise":
        FileStore(directory).set("rank 0 is here", b"")
    if how == "hang" or rank == 0:
        time.sleep(60)


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


@pytest.mark.processes
def test_processes_return_their_results_by_rank() -> None:
    assert run_processes(square, 3, 10, timeout=60) == [10, 11, 14]


@pytest.mark.processes
def test_the_error_of_a_process_comes_home_with_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("transports.testing.ranks.GRACE", 0.1)
    with pytest.raises(PeerLost, match="the cause") as caught:
        run_processes(misbehave, 2, "raise", str(tmp_path / "store"), timeout=60)
    assert (caught.value.rank, caught.value.peer) == (1, 0)
    notes = "\n".join(caught.value.__notes__)
    assert 'raise PeerLost("the cause", rank=1, peer=0)' in notes
    assert "raised by rank 1 of 2" in notes
    assert "rank 0 was still running" in notes
    assert sys.platform == "win32" or "in misbehave" in notes.split("rank 0 was still running")[1]


@pytest.mark.processes
def test_an_error_that_cannot_travel_comes_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.testing.ranks.GRACE", 0.1)
    with pytest.raises(RuntimeError, match="Odd: odd") as caught:
        run_processes(misbehave, 2, "raise something odd", timeout=60)
    assert "raise Odd(1, 2)" in caught.value.__notes__[0]


@pytest.mark.processes
def test_a_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.testing.ranks.GRACE", 0.1)
    with pytest.raises(RuntimeError, match=r"rank 1 .*exit code 7"):
        run_processes(misbehave, 2, "die", timeout=60)


@pytest.mark.processes
def test_processes_that_hang_are_killed() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1\] of 2 .* 1"):
        run_processes(misbehave, 2, "hang", timeout=1.0)


@pytest.fixture
def quick() -> Leaks:
    return Leaks(settle=0.05)


def leak_of(leaks: Leaks, leave: Callable[[], object]) -> str:
    def body() -> None:
        with leaks:
            leave()

    with pytest.raises(LeakError) as caught:
        body()
    return str(caught.value)


def test_leaks_finds_descriptors(quick: Leaks) -> None:
    left: list[socket.socket] = []
    assert "descriptor" in leak_of(quick, lambda: left.append(socket.socket()))
    left.pop().close()


def test_leaks_finds_threads(quick: Leaks) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="lingering")
    assert leak_of(quick, thread.start) == "left behind: thread 'lingering'"
    stop.set()
    thread.join()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="this platform has no /dev/shm")
def test_leaks_finds_shared_memory(quick: Leaks) -> None:
    path = Path(f"/dev/shm/ronde-test-{os.getpid()}")
    assert leak_of(quick, path.touch) == f"left behind: file {path}"
    path.unlink()


def test_leaks_finds_shared_memory_elsewhere(tmp_path: Path) -> None:
    leaks = Leaks(settle=0.05, directory=str(tmp_path))
    assert leak_of(leaks, (tmp_path / "ronde-1").touch) == f"left behind: file {tmp_path / 'ronde-1'}"


WATCHING = """
import sys
from transports.testing import Leaks
with Leaks(settle=0.05, directory=sys.argv[1]):
    print("begun", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.processes
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="this platform has no proc(5)")
@pytest.mark.parametrize("used", [False, True])
def test_leaks_blames_nobody_for_a_file_that_a_foreign_process_uses(tmp_path: Path, used: bool) -> None:
    command = [sys.executable, "-c", WATCHING, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        path = tmp_path / "ronde-1"
        path.write_bytes(bytes(4096))
        with path.open("rb") as file, mmap.mmap(file.fileno(), 4096 if used else 1, prot=mmap.PROT_READ) as memory:
            if not used:
                memory.close()
            _, errors = child.communicate("\n", timeout=60)
    assert (child.returncode == 0) == used, errors
    assert ("LeakError: left behind: file" in errors) != used


@pytest.mark.processes
def test_leaks_finds_processes(quick: Leaks) -> None:
    left: list[subprocess.Popen[bytes]] = []

    def leave() -> None:
        left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))

    try:
        text = leak_of(quick, leave)
        assert f"process {left[0].pid}" in text
    finally:
        for process in left:
            process.kill()
            process.wait()


def test_resources_of_other_code_are_not_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([set[str](), {"file 1"}, {"file 2"}])
    leaks = Leaks(settle=20.0)
    monkeypatch.setattr(leaks, "_inventory", lambda: next(seen))
    with leaks:
        pass


def test_a_thread_that_is_ending_is_no_leak() -> None:
    with Leaks():
        threading.Thread(target=time.sleep, args=(0.05,)).start()


def test_an_error_of_the_body_is_not_covered() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)

    def body() -> None:
        with Leaks(settle=0.0):
            thread.start()
            raise AbortedError("the error")

    with pytest.raises(AbortedError, match="the error"):
        body()
    stop.set()
    thread.join()
