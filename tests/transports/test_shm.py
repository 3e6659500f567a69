"""The shared-memory transport: settings, sleep, deaths. What every transport promises is in test_conformance."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_processes
from tests.transports.groups import group_of_processes, groups, on_ranks, recv, send, soon
from tests.transports.shm_ranks import BOTH, SECONDS, await_sleep, briefly, make, small_rings
from transports import core_count, shm
from transports.base import Group, Member
from transports.errors import (
    AbortedError,
    ConfigError,
    ConnectError,
    DeadlineExceeded,
    PeerLost,
    RondeError,
)
from transports.onesided import NoRoom, OneSided, Window
from transports.rendezvous.file import FileStore
from transports.rendezvous.memory import MemoryStore
from transports.shm import Options, ShmTransport, doorbell, fence, ring, window
from transports.shm.doorbell import Doorbell
from transports.shm.fence import barrier
from transports.shm.segments import Segment, remove_abandoned
from transports.testing import check_transport, run_threads

pytestmark = pytest.mark.skipif(shm.usable() is not None, reason=str(shm.usable()))

# Settings and opening


@pytest.mark.parametrize(
    ("setting", "value"),
    [("ring_bytes", 1023), ("ring_bytes", 1 << 29), ("spin_us", -2), ("max_parked_bytes", -1), ("directory", "tmp")],
)
def test_a_bad_setting_is_named(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{setting}={value!r}: "):
        Options(**{setting: value})


def test_ranks_on_other_hosts_are_named() -> None:
    t = make(groups(3, ["a", "b", "a"])[0])
    with pytest.raises(ConnectError, match=r"rank 1 \(localhost, pid \d+\): not on its host"):
        t.open(soon())
    t.close(soon())


def test_names_are_gone_once_all_are_open(tmp_path: Path) -> None:
    def body(t: Any) -> None:
        assert not list(tmp_path.iterdir())
        gate.wait(SECONDS)
        made = t.ability(OneSided).expose("w", BOTH, 10, soon())
        assert not list(tmp_path.iterdir())
        made.publish(1)
        made.wait(1 - t.rank, 1, soon())

    gate = threading.Barrier(2)
    on_ranks(lambda group: shm.create(group, Options(directory=str(tmp_path))), body)


def test_memory_is_for_this_user_only(tmp_path: Path) -> None:
    segment = Segment.create(5000, str(tmp_path))
    assert stat.S_IMODE(os.stat(segment.path).st_mode) == 0o600
    other = Segment.attach(segment.path, 5000)
    segment.memory[4999] = 7
    assert other.memory[4999] == 7
    os.symlink(segment.path, tmp_path / "ronde-link")
    for path, nbytes in ((segment.path, 5001), (str(tmp_path / "ronde-link"), 5000), (str(tmp_path / "none"), 1)):
        with pytest.raises(OSError):
            Segment.attach(path, nbytes)
    segment.unlink()
    segment.unlink()
    for each in (segment, other, segment):
        each.close()


@pytest.mark.processes
def test_segments_of_makers_that_were_killed_are_removed(tmp_path: Path) -> None:
    own = Segment.create(4096, str(tmp_path))
    make = "from transports.shm.segments import Segment; s = Segment.create(9, sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", f"import os, sys; {make}; os._exit(9)", str(tmp_path)], timeout=60)
    assert done.returncode == 9
    (tmp_path / "ronde-other").touch()
    assert len(list(tmp_path.iterdir())) == 3
    remove_abandoned(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"ronde-other", Path(own.path).name}
    own.unlink()
    own.close()


def test_a_segment_that_another_process_removes_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    lock, removers = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not removers:  # it stops with the lock
            (path,) = tmp_path.iterdir()
            removers.append(os.open(path, os.O_RDWR))
            lock(removers[0], operation)
            os.unlink(path)
        assert operation & fcntl.LOCK_NB
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    segment = Segment.create(9, str(tmp_path))
    assert list(tmp_path.iterdir()) == [Path(segment.path)]
    segment.unlink()
    segment.close()
    os.close(removers[0])


def test_a_directory_of_ones_own(tmp_path: Path) -> None:
    def body(t: Any) -> bytes:
        peer = 1 - t.rank
        sending = t.isend(peer, 1, memoryview(b"%d" % t.rank))
        got = recv(t, peer, 1, 1)
        sending.wait(soon())
        return got

    assert on_ranks(lambda group: shm.create(group, Options(directory=str(tmp_path))), body) == [b"1", b"0"]
    assert not list(tmp_path.iterdir())


def full(descriptor: int, offset: int, nbytes: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_lack_of_memory_for_the_board_raises_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    transports = [make(group) for group in groups(3)]

    def body(rank: int) -> str:
        with pytest.raises(ConnectError, match="No space left") as caught:
            transports[rank].open(soon())
        transports[rank].close(soon())
        return str(caught.value)

    assert all("rank 0" in text for text in run_threads(body, 3, timeout=SECONDS))


def test_lack_of_memory_for_a_window_raises_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(t: Any) -> None:
        if t.rank == 0:
            monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
        with pytest.raises(NoRoom, match=r"rank 0 .*No space left"):
            t.ability(OneSided).expose("w", BOTH, 10, soon())
        assert t.failure is None

    on_ranks(make, body)


def test_a_late_rank_learns_that_opening_was_given_up() -> None:
    early, late = (make(group) for group in groups(2))
    with pytest.raises(DeadlineExceeded, match="rank 1"):
        early.open(briefly(0.01))
    with pytest.raises(ConnectError, match=r"rank 0 .* gave up"):
        late.open(soon())
    for t in (early, late):
        with pytest.raises(RondeError):
            t.isend(0, 1, memoryview(b""))
        t.close(soon())


# Waiting


@pytest.mark.parametrize("futex", [True, False])
def test_a_rank_that_sleeps_is_woken_by_a_frame(futex: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not futex:
        monkeypatch.setattr(doorbell, "_call", None)

    def body(t: Any) -> None:
        for number in range(3):
            if t.rank == 0:
                await_sleep(t, 1)
                send(t, 1, number, b"abc")
                recv(t, 1, number, 0)
            else:
                assert recv(t, 0, number, 3) == b"abc"
                send(t, 0, number, b"")

    on_ranks(make, body)


def test_a_doorbell_wakes_its_sleeper() -> None:
    segment = Segment.create(4096)
    segment.unlink()

    def use(bell: Doorbell) -> None:
        bell.sleep(30.0)  # it is not armed
        bell.arm()
        with ThreadPoolExecutor(1) as pool:
            sleeping = pool.submit(bell.sleep, 30.0)
            bell.ring()
            sleeping.result(20.0)
        assert bell.word[0] == 0
        bell.arm()
        bell.sleep(0.001)
        assert bell.word[0] == 1

    use(Doorbell(segment.memory, 64))
    segment.close()


@pytest.mark.long
def test_waiting_for_a_late_rank_burns_no_core() -> None:
    def body(t: Any) -> float:
        made = t.ability(OneSided).expose("w", BOTH, 8, soon())
        if t.rank == 0:
            time.sleep(0.3)
            made.publish(1)
            return 0.0
        began = time.thread_time()
        made.wait(0, 1, soon())
        return time.thread_time() - began

    assert on_ranks(make, body)[1] < 0.15


def test_threads_of_one_rank_wait_for_different_things() -> None:
    def body(t: Any) -> None:
        made = t.ability(OneSided).expose("w", BOTH, 8, soon())
        if t.rank == 0:
            await_sleep(t, 1)
            for step in range(1, 4):
                made.publish(step)
                send(t, 1, step, bytes(step))
                recv(t, 1, step, 0)
            return

        def waits(number: int) -> None:
            for step in range(1, 4):
                if number == 0:
                    made.wait(0, step, soon())
                elif number == 1:
                    assert recv(t, 0, step, step) == bytes(step)
                    send(t, 1, step, b"")
                else:
                    recv(t, 1, step, 0)
                    send(t, 0, step, b"")

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(waits, range(3)))

    on_ranks(make, body)


def test_a_wait_for_an_epoch_drains_a_full_ring() -> None:
    def body(t: Any) -> None:
        made = t.ability(OneSided).expose("w", BOTH, 8, soon())
        if t.rank == 0:
            send(t, 1, 1, bytes(50_000))
            made.publish(1)
        else:
            made.wait(0, 1, soon())
            assert recv(t, 0, 1, 50_000) == bytes(50_000)

    on_ranks(small_rings, body)


def test_spinning_is_for_processes_that_have_a_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def spins(group: Group, options: Options) -> bool:
        t = shm.create(group, options)
        t._choose(soon())
        return t.loop.spin > 0

    threads, processes = (
        groups(2)[0],
        Group(0, tuple(Member("here", "localhost", pid) for pid in (1, 2)), MemoryStore()),
    )
    assert not spins(threads, Options())
    assert spins(threads, Options(spin_us=5))
    monkeypatch.setattr(core_count, "core_mask", lambda: (1 << 64) - 1)
    assert spins(processes, Options())
    monkeypatch.setattr(core_count, "core_mask", lambda: 1)
    assert not spins(processes, Options())


def test_a_wait_for_an_epoch_leaves_the_core_to_other_processes_before_it_drives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert make(groups(2)[0]).cores.shares_process
    assert not make(groups(1)[0]).cores.shares_process

    def body(t: Any) -> None:
        t.cores.shares_process = False
        left: list[Callable[[], float]] = [lambda: 0.0]
        t.cores.leave = lambda: left[0]()
        made = t.ability(OneSided).expose("w", BOTH, 8, soon())
        if t.rank == 0:
            epochs = iter(range(1, 100))

            def publish() -> float:
                made.publish(next(epochs))
                return 0.0

            with monkeypatch.context() as patch:
                left[0] = publish
                patch.setattr(t.driver, "wait", None)
                made.wait(0, 3, soon())
            assert next(epochs) == 4
            yields: list[float] = []

            def long() -> float:
                yields.append(6.0)
                return yields[-1]

            left[0] = long
            with pytest.raises(DeadlineExceeded):
                made.wait(0, 5, time.monotonic())
            assert len(yields) == 1, "an abort is noticed by the wait that drives"

    on_ranks(make, body)


def test_all_works_where_memory_is_weakly_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    fences: deque[int] = deque()

    def counted() -> None:
        fences.append(1)
        barrier()

    for module in (ring, window):
        monkeypatch.setattr(module, "WEAKLY_ORDERED", True)
        monkeypatch.setattr(module, "barrier", counted)
    check_transport(make, sizes=(2,), only={"every_length_arrives_whole", "another_check_is_refused"})
    assert len(fences) > 100


def test_unknown_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "_MACHINE", "riscv64")
    assert "memory ordering" in str(shm.usable())


# Aborts and deaths


def test_an_abort_wakes_all_and_its_cause_is_cut_to_fit() -> None:
    reason = "why " + "ü" * 10_000

    def body(t: Any) -> str:
        made = t.ability(OneSided).expose("w", (0, 1, 2), 8, soon())
        if t.rank == 0:
            await_sleep(t, 1)
            await_sleep(t, 2)
            t.abort(AbortedError(reason, rank=0))
        waits = (lambda: made.wait(0, 1, soon())) if t.rank == 2 else (lambda: recv(t, (t.rank + 1) % 3, 1, 4))
        with pytest.raises(AbortedError) as caught:
            waits()
        t.abort(AbortedError("later"))
        assert str(t.failure) == str(caught.value)
        return str(caught.value)

    texts = on_ranks(make, body, 3)
    assert texts[0] == reason
    assert texts[1] == texts[2]
    assert texts[1].startswith("why üü")
    assert texts[1].endswith("...")


def test_causes_at_the_same_time_are_one_for_each_rank() -> None:
    def body(t: Any) -> str:
        gate.wait(SECONDS)
        if t.rank < 2:
            t.abort(AbortedError(f"by {t.rank}", rank=t.rank))
        with pytest.raises(AbortedError) as caught:
            recv(t, t.rank, 1, 4)
        assert str(t.failure) == str(caught.value)
        return str(caught.value)

    gate = threading.Barrier(3)
    assert set(on_ranks(make, body, 3)) <= {"by 0", "by 1"}


def test_an_interrupt_in_the_middle_of_a_copy_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(target: memoryview, source: memoryview) -> None:
        raise KeyboardInterrupt

    def body(t: Any) -> None:
        if t.rank == 0:
            with monkeypatch.context() as patch:
                patch.setattr("transports.shm.ring.write_bytes", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    t.isend(1, 1, memoryview(bytes(1 << 16)))
        with pytest.raises(AbortedError, match=r"rank 0 \(.*\) was interrupted"):
            recv(t, 1 - t.rank, 1, 1 << 16)

    on_ranks(make, body)


def rank_that_may_die(rank: int, directory: str) -> list[str]:
    """One transport for each way to wait; the death of rank 1 is news to each of them."""
    store = FileStore(f"{directory}/store")
    group = group_of_processes(rank, 3, store)
    options = Options(directory=f"{directory}/memory")
    ways = ["frame", "frame of another", "epoch", "window", "exposed memory"]
    made = {}
    for way in ways:
        t = shm.create(dataclasses.replace(group, store=group.store.prefixed(way)), options)
        t.open(soon())
        made[way] = t, t.ability(OneSided).expose("w", (0, 1, 2), 8, soon())
    exposed, (t, w) = bytes(1 << 20), made["exposed memory"]
    w.expose_arrays(memoryview(exposed))
    w.publish(1)
    w.wait(1, 1, soon())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    texts = []
    for way, (t, w) in made.items():
        with pytest.raises(PeerLost) as caught:
            wait_in_vain(t, w, way)
        texts.append(str(caught.value))
        t.close(soon())
    store.close()
    return texts


def wait_in_vain(t: ShmTransport, made: Window, way: str) -> None:
    if way == "frame":
        recv(t, 1, 1, 4)
    elif way == "frame of another":
        recv(t, 2 - t.rank, 1, 4)
    elif way == "epoch":
        made.wait(1, 1, soon())
    elif way == "exposed memory":
        while True:
            made.read(1, 0, 0, memoryview(bytearray(1 << 20)))
    else:
        t.ability(OneSided).expose("v", (0, 1, 2), 8, soon())


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="a zombie is told from the living by /proc")
def test_a_killed_process_is_missed_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    texts = run_processes(rank_that_may_die, 3, str(tmp_path), timeout=SECONDS, dying={1})
    for rank in (0, 2):
        assert all("lost rank 1 (localhost, pid" in text for text in texts[rank]), texts[rank]
    assert not list((tmp_path / "memory").iterdir())
