"""The watchdog: ranks that end, are stopped or fall silent are lost on every rank, also between calls."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from collectives import AbortedError, Communicator, PeerLost
from collectives.failure import wake
from collectives.watchdog import liveness
from collectives.watchdog import watchdog as watch
from collectives.watchdog.liveness import NextHost, NextProcess
from tests import worlds
from tests.collectives.launch.launcher import ronde
from tests.collectives.ranks import SECONDS, SECRET, await_failure, meeting_place, member
from tests.processes import run_processes
from tests.transports.groups import groups
from tests.worlds import world_of
from transports.errors import RendezvousError
from transports.launchers import Starter
from transports.liveness import Identity, Watch
from transports.rendezvous.bootstrap import open_store
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.server import TcpStoreServer
from transports.store import Store

TRANSPORTS = ["shm", "tcp", "auto"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched by /proc")


def raised(comm: Communicator) -> str:
    """The text of the PeerLost that a call raises."""
    with pytest.raises(PeerLost) as caught:
        comm.allreduce(np.zeros(4))
    return str(caught.value)


# ---- processes that end


def rank_that_is_killed(rank: int, url: str) -> dict[str, str]:
    """Two worlds on each transport, one in a call and one between calls, when rank 1 dies."""
    with contextlib.ExitStack() as stack:
        worlds = {
            (name, busy): stack.enter_context(member(rank, 3, url, generation=2 * at + busy, transport=name))
            for at, name in enumerate(TRANSPORTS)
            for busy in (False, True)
        }
        for comm in worlds.values():
            assert comm.allreduce(1) == 3
        calls = [comm.allreduce_async(np.zeros(4)) for (_, busy), comm in worlds.items() if busy and rank != 1]
        if rank == 1:
            time.sleep(0.2)  # the others wait by then
            os.kill(os.getpid(), signal.SIGKILL)
        texts = {}
        for call, name in zip(calls, TRANSPORTS, strict=True):
            with pytest.raises(PeerLost) as caught:
                call.wait()
            texts[f"{name}, in a call"] = str(caught.value)
        for (name, busy), comm in worlds.items():
            if not busy:
                assert await_failure(comm) is not None, f"{name}: no rank noticed"
                texts[f"{name}, between calls"] = raised(comm)
        return texts


@pytest.mark.processes
@linux
def test_killed_process_is_lost_on_every_rank() -> None:
    with meeting_place() as url:
        results = run_processes(rank_that_is_killed, 3, url, timeout=2 * SECONDS, dying={1})
    for rank in (0, 2):
        assert len(results[rank]) == 6
        for way, text in results[rank].items():
            assert "lost rank 1 (" in text, (way, text)
            assert ", pid " in text, (way, text)
            assert "in allreduce(float64, 4 elements, op=sum)" in text, (way, text)
            if "in a call" in way:
                assert "call 2, recursive_doubling: " in text or "call 2, " in text, (way, text)
                assert f"rank {rank} waits " in text, (way, text)


# ---- launchers that end


@pytest.mark.processes
@linux
def test_ranks_whose_launcher_has_ended_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        starter = Starter(Identity.of(launcher.pid), "mpiexec")
        monkeypatch.setattr(liveness, "find_starter", lambda env: starter)
        with world_of("local", 2) as world:
            assert world.run(lambda comm: comm.allreduce(1)) == [2, 2]
            launcher.communicate()
            world.run(await_failure)
            texts = world.run(aborted)
    for text in texts:
        assert re.search(rf"its launcher has ended on .+ \(mpiexec, process {launcher.pid}\)", text), text


def aborted(comm: Communicator) -> str:
    """The text of the AbortedError that a call raises."""
    with pytest.raises(AbortedError) as caught:
        comm.allreduce(np.zeros(4))
    return str(caught.value)


# ---- processes that are stopped


def rank_that_is_stopped(rank: int, url: str, transport: str) -> list[str]:
    """Rank 1 stops between calls; then, in another world, while the others are in a call."""
    texts = []
    for generation, busy in enumerate((False, True)):
        with member(rank, 3, url, generation=generation, transport=transport) as comm:
            assert comm.allreduce(1) == 3
            if rank == 1:
                time.sleep(0.2)
                os.kill(os.getpid(), signal.SIGSTOP)
                assert await_failure(comm) is not None
            elif not busy:
                assert await_failure(comm) is not None
            texts.append(raised(comm))
            if rank == 0:
                os.kill(comm.members[1].pid, signal.SIGCONT)
    return texts


@pytest.mark.processes
@linux
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_stopped_process_is_lost_on_every_rank(transport: str) -> None:
    with meeting_place() as url:
        results = run_processes(rank_that_is_stopped, 3, url, transport, timeout=2 * SECONDS)
    for rank, texts in enumerate(results):
        for text in texts:
            assert "rank 0 lost rank 1 (" in text
            assert "its process has been stopped for 0.5 s" in text
            assert "in allreduce(float64, 4 elements, op=sum)" in text
        if rank != 1:
            assert ", call 2, " in texts[1]
            assert f"; rank {rank} waits " in texts[1]


def rank_beside_a_stopped_store(rank: int, url: str) -> str:
    """Rank 0 has the store of the world in its process, and stops."""
    deadline = time.monotonic() + SECONDS
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(contextlib.closing(open_store(url, SECRET, deadline)))
        if rank == 0:
            server = stack.enter_context(TcpStoreServer("127.0.0.1", secret=SECRET))
            told.set("world", server.url.encode())
        comm = stack.enter_context(member(rank, 3, told.get("world", deadline).decode(), transport="shm"))
        assert comm.allreduce(1) == 3
        if rank == 0:
            time.sleep(0.2)  # the others wait by then
            os.kill(os.getpid(), signal.SIGSTOP)
            assert await_failure(comm) is not None
        text = raised(comm)
        os.kill(comm.members[0].pid, signal.SIGCONT)
        return text


@pytest.mark.processes
@linux
def test_stopped_process_with_the_store_is_lost_on_every_rank() -> None:
    with meeting_place() as url:
        results = run_processes(rank_beside_a_stopped_store, 3, url, timeout=2 * SECONDS)
    for text in results:
        assert "rank 2 lost rank 0 (" in text
        assert "its process has been stopped for 0.5 s" in text


def rank_that_closes(rank: int, url: str, transport: str) -> float:
    """Rank 1 stops before rank 0 closes, which has sent it a message that it has not read. Returns the seconds that
    closing takes, of 20 allowed."""
    with member(rank, 2, url, hosts="ab", transport=transport, heartbeat=1.0, patience=20.0) as comm:
        assert comm.allreduce(1) == 2
        comm.send(np.ones(3), 1 - rank)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            return 0.0
        began = time.monotonic()
        comm.close(20.0)
        os.kill(comm.members[1].pid, signal.SIGCONT)
        return time.monotonic() - began


@pytest.mark.processes
@linux
@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_close_does_not_wait_for_a_stopped_process(transport: str) -> None:
    with meeting_place() as url:
        seconds = run_processes(rank_that_closes, 2, url, transport, timeout=2 * SECONDS)
    assert seconds[0] < 15


def rank_of_a_stopped_job(rank: int, url: str) -> str:
    """All ranks are stopped for longer than one alone may be, and continue in another order."""
    with member(rank, 3, url, hosts="aab", transport="auto", heartbeat=1.5) as comm:
        assert comm.allreduce(1) == 3
        if rank == 0:
            pids = [str(other.pid) for other in comm.members]
            script = f"kill -STOP {' '.join(pids)}; sleep 2; kill -CONT {' '.join(reversed(pids))}"
            subprocess.run(["sh", "-c", script], check=True)
        assert await_failure(comm, 3) is None, comm.failure
        assert comm.allreduce(1) == 3
        return "sound"


@pytest.mark.processes
@pytest.mark.long
@linux
def test_job_stopped_as_a_whole_continues() -> None:
    with meeting_place() as url:
        results = run_processes(rank_of_a_stopped_job, 3, url, timeout=2 * SECONDS)
    assert results == ["sound"] * 3


# ---- processes that close


def await_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        assert select.select([descriptor], [], [], SECONDS)[0]
        os.close(descriptor)


def rank_that_may_close(rank: int, url: str) -> str:
    patience = 0.3 if rank in (1, 2) else 5.0  # the others read their goodbyes in their next wait
    with contextlib.ExitStack() as stack:
        worlds = [
            stack.enter_context(member(rank, 4, url, generation=at, transport=name, patience=patience))
            for at, name in enumerate(TRANSPORTS)
        ]
        for comm in worlds:
            assert comm.allreduce(1) == 4
        if rank in (1, 2):
            return "gone"
        for gone in (1, 2):
            await_end(worlds[0].members[gone].pid)
        for comm in worlds:
            assert await_failure(comm, 0.4) is None, comm.failure
            if rank == 0:
                comm.send(np.ones(3), 3)
            else:
                np.testing.assert_array_equal(comm.recv(np.zeros(3), 0), np.ones(3))
        return "sound"


@pytest.mark.processes
@linux
def test_process_that_closed_before_it_ended_is_not_lost() -> None:
    with meeting_place() as url:
        results = run_processes(rank_that_may_close, 4, url, timeout=2 * SECONDS)
    assert results == ["sound", "gone", "gone", "sound"]


SCRIPT = """
import sys, time
import numpy as np
import collectives as ronde

world = ronde.init()
for round in range(3):
    assert ronde.allreduce(1) == world.size
time.sleep(0.05 * ((world.rank + int(sys.argv[1])) % 3))
if sys.argv[2] == "shutdown":
    ronde.shutdown()
"""


@pytest.mark.processes
@pytest.mark.parametrize(("transport", "ending"), [("shm", "exit"), ("tcp", "shutdown"), ("tcp", "exit")])
def test_ranks_that_end_one_after_the_other_are_not_lost(tmp_path: Path, transport: str, ending: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for turn in range(2):
        done = ronde("run", "-np", "3", "--transport", transport, str(tmp_path / "script.py"), str(turn), ending)
        assert (done.returncode, done.stderr.decode()) == (0, "")


def next_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> NextProcess:
    """Rank 0 of three processes, which do not exist."""
    monkeypatch.setattr(Watch, "add", lambda self, rank, process: setattr(self, "rank", rank))
    members = [groups(3)[0].members[0]] * 3
    members = [dataclasses.replace(member, pid=100 + rank) for rank, member in enumerate(members)]
    return NextProcess(dataclasses.replace(groups(3)[0], members=tuple(members)), store)


@pytest.mark.parametrize("end", ["dead", "replaced"])
def test_dead_process_is_not_lost_if_it_closed_or_the_store_cannot_tell(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    store = Unreliable()
    monkeypatch.setattr(Watch, end, lambda self: [self.rank])
    candidate = next_process(store, monkeypatch)
    assert candidate.exists
    store.down = True
    with pytest.raises(RendezvousError):
        candidate.check()
    store.down = False
    lost = candidate.check()
    assert isinstance(lost, PeerLost)
    assert (lost.rank, lost.peer) == (0, 1)
    store.set("left/1", b"")
    assert candidate.check() is None
    assert candidate.exists
    lost = candidate.check()
    assert isinstance(lost, PeerLost)
    assert lost.peer == 2
    store.set("left/2", b"")
    assert candidate.check() is None
    assert not candidate.exists
    candidate.close()


def test_a_stopped_process_is_lost_where_the_store_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Unreliable()
    store.down = True
    monkeypatch.setattr(Watch, "stopped", lambda self: [self.rank])
    candidate = next_process(store, monkeypatch)
    lost = candidate.check()
    assert isinstance(lost, PeerLost)
    assert lost.peer == 1
    candidate.close()


# ---- hosts that fall silent


def rank_on_a_host(rank: int, url: str, hosts: str, transport: str, heartbeat: float) -> str:
    """The ranks of the last host stop themselves; rank 0 lets them continue."""
    size = len(hosts)
    with member(rank, size, url, hosts=hosts, transport=transport, heartbeat=heartbeat) as comm:
        assert comm.allreduce(1) == size
        last = [other for other in range(size) if hosts[other] == hosts[-1]]
        if rank in last:
            for other in sorted(last, key=rank.__eq__):  # itself last
                os.kill(comm.members[other].pid, signal.SIGSTOP)
        failure = await_failure(comm, SECONDS if heartbeat else 1.2)
        if rank == 0:
            for other in last:
                os.kill(comm.members[other].pid, signal.SIGCONT)
        if failure is None:
            assert comm.allreduce(1) == size
        return str(failure)


@pytest.mark.processes
@linux
@pytest.mark.parametrize(("hosts", "transport"), [("ab", "tcp"), ("aab", "auto")])
def test_ranks_of_a_silent_host_are_lost(hosts: str, transport: str) -> None:
    size = len(hosts)
    with meeting_place() as url:
        texts = run_processes(rank_on_a_host, size, url, hosts, transport, 1.0, timeout=2 * SECONDS)
    for text in texts:
        assert re.match(rf"rank 0 lost rank {size - 1} \([^)]+, pid \d+\): no sign of life from its host for", text), (
            text
        )
        assert text.endswith("(setting heartbeat: 1 s)")


@pytest.mark.processes
@linux
def test_silent_host_without_the_setting_heartbeat_is_not_lost() -> None:
    with meeting_place() as url:
        texts = run_processes(rank_on_a_host, 2, url, "ab", "tcp", 0.0, timeout=2 * SECONDS)
    assert texts == ["None", "None"]


class Unreliable(MemoryStore):
    """A store that cannot be reached while `down` is set."""

    down = False

    def get(self, key: str, deadline: float) -> bytes:
        self._look()
        return super().get(key, deadline)

    def set(self, key: str, value: bytes) -> None:
        self._look()
        super().set(key, value)

    def add(self, key: str, amount: int) -> int:
        self._look()
        return super().add(key, amount)

    def _look(self) -> None:
        if self.down:
            raise RendezvousError("out of reach")


class RankOfHost(NextHost):
    """The watch of one rank."""

    def __init__(self, rank: int, hosts: str, store: Store, heartbeat: float = 1.0) -> None:
        group = dataclasses.replace(groups(len(hosts), list(hosts))[rank], store=store)
        super().__init__(group, store, heartbeat, lambda ranks: wake(store, ranks))
        self.woken = lambda: store.delete(f"wakeup/{rank}")


class Clock:
    """A clock that the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(liveness.time, "monotonic", lambda: self.now)

    def run(self, seconds: float, *hosts: RankOfHost) -> list[PeerLost]:
        """Let `seconds` pass and call `tick` of the hosts when it is due; the errors that they report."""
        lost: list[PeerLost] = []
        end = self.now + seconds
        while self.now < end:
            for host in hosts:
                if host.woken():
                    host.send()
                if host.due <= self.now and (found := host.tick(self.now)) is not None:
                    lost.append(found)
            self.now += 0.05
        return lost


def test_silence_counts_only_while_the_observer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = Unreliable(), Clock(monkeypatch)
    a, b, c = (RankOfHost(rank, "abc", store) for rank in range(3))
    assert a.exists
    assert not clock.run(3, a, b)  # c has sent no heartbeat, so it is not watched
    assert not clock.run(3, a, b, c)
    assert not clock.run(0.7, a, c)
    clock.now += 60  # all were stopped
    assert not clock.run(0.7, a, c)
    store.down = True
    with pytest.raises(RendezvousError):
        clock.run(1, a)
    store.down = False
    a.restart()
    assert not clock.run(0.7, a, c)
    assert not clock.run(3, a, b, c)
    lost = clock.run(1, a, c)
    assert [(error.rank, error.peer) for error in lost[:1]] == [(0, 1)]


def test_host_whose_ranks_closed_is_not_lost_and_the_next_one_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryStore(), Clock(monkeypatch)
    ranks = [RankOfHost(rank, "aabbc", store) for rank in range(5)]
    assert not clock.run(3, *ranks)
    assert not clock.run(3, ranks[0], ranks[1], ranks[3], ranks[4])  # one rank of a host is enough
    store.set("left/2", b"")
    store.set("left/3", b"")
    assert not clock.run(3, ranks[0], ranks[1], ranks[4])
    lost = clock.run(2, ranks[0], ranks[1])
    assert {(error.rank, error.peer) for error in lost} == {(0, 4)}
    assert "rank 0 lost rank 4 (localhost, pid" in lost[0].message


def test_silent_host_whose_ranks_partly_closed_loses_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryStore(), Clock(monkeypatch)
    ranks = [RankOfHost(rank, "abbb", store) for rank in range(4)]
    assert not clock.run(2, *ranks)
    store.set("left/2", b"")
    lost = clock.run(1.2, ranks[0])
    assert lost
    assert "lost rank 1 (" in lost[0].message
    assert "rank 3 (" in lost[0].message
    assert "rank 2 (" not in lost[0].message


def test_no_host_is_watched_in_a_group_of_one_host_or_without_heartbeat() -> None:
    assert not RankOfHost(0, "aaa", MemoryStore()).exists
    assert not RankOfHost(0, "ab", MemoryStore(), heartbeat=0.0).exists


# ---- aborts and threads


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_reaches_ranks_in_no_call_and_without_connections(transport: str) -> None:
    def body(comm: Communicator) -> str:
        if comm.rank == 1:
            comm.abort("the data set is empty")
        return str(await_failure(comm))

    with world_of(transport, 3) as world:
        assert world.run(body) == ["rank 1 aborted: the data set is empty"] * 3


def test_store_out_of_reach_is_not_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "MemoryStore", Unreliable)
    monkeypatch.setattr(watch, "LISTEN_SECONDS", 0.05)
    with world_of("local", 2, stall=0.1) as world:
        world.store.down = True

        def body(comm: Communicator) -> None:
            for turn in range(5):
                if comm.rank:
                    time.sleep(0.1)
                assert comm.allreduce(turn) == 2 * turn

        world.run(body)
        assert world.sound
        world.store.down = False


def test_one_watchdog_for_each_rank_and_none_for_a_group_of_one() -> None:
    before = set(threading.enumerate())

    def watchdogs() -> list[str]:
        return sorted(
            thread.name for thread in threading.enumerate() if thread not in before and "ronde" in thread.name
        )

    with world_of("local", 1):
        assert watchdogs() == []
    with world_of("local", 3) as world:
        world.run(lambda comm: comm.split(0))
        assert watchdogs() == [f"ronde listener of rank {rank}" for rank in range(3)]
        world.communicators[0].close()
        world.communicators[0].close()
        assert watchdogs() == ["ronde listener of rank 1", "ronde listener of rank 2"]
    assert watchdogs() == []


@pytest.mark.long
def test_worlds_open_and_close_without_delay() -> None:
    began = time.monotonic()
    for _ in range(20):
        with world_of("local", 4) as world:
            assert world.run(lambda comm: comm.allreduce(1)) == [4] * 4
    assert time.monotonic() - began < 20 * watch.LISTEN_SECONDS  # no listener slept to the end


# ---- errors of ranks that end


WAYS = {
    "raise KeyError('the reason')": "AbortedError: rank 1 aborted: KeyError: 'the reason'",
    "with world: raise KeyError('the reason')": "AbortedError: rank 1 aborted: KeyError: 'the reason'",
    "with world: sys.exit(3)": "AbortedError: rank 1 aborted: SystemExit: 3",
    "sys.exit(3)": r"PeerLost: rank 1 \(.*, pid \d+\) closed its transport while rank 0 was waiting for it",
    "os._exit(3)": r"PeerLost: rank 0 lost rank 1 \(.*, pid \d+\)",
}


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_error_of_a_rank_that_ends_reaches_the_other_ranks(tmp_path: Path, way: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nimport collectives as ronde\nworld = ronde.init()\nworld.barrier()\n"
        f"def fail():\n    {way}\n\nif world.rank == 1:\n    fail()\nworld.barrier()\n"
    )
    for transport in ("shm", "tcp") if "exit" in way else ("tcp",):
        done = ronde("run", "-np", "2", "--transport", transport, str(script))
        err = done.stderr.decode()
        assert done.returncode == (3 if "exit" in way else 1), err
        assert re.search(rf"\[rank 0\] .*{WAYS[way]}", err), err
