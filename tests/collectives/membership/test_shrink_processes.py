"""shrink and repeated init in processes, also under the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import collectives as ronde
from collectives import AbortedError, Communicator, DeadlineExceeded, PeerLost, RendezvousError
from collectives.membership.agreement import SurvivorAgreement
from tests.collectives.launch.launcher import ronde as ronde_command
from tests.collectives.membership.shrinks import PROCESSES, compute, fail, linux, soon
from tests.collectives.ranks import SECONDS, SECRET, await_failure, meeting_place, member
from tests.processes import run_processes
from tests.transports.groups import free_port
from transports.rendezvous.bootstrap import REGROUPS, join, open_store
from transports.rendezvous.memory import MemoryStore

# ---- lost processes


def processes_killed(rank: int, url: str) -> dict[str, tuple[int, int]]:
    """One world over each transport. Rank 1 is killed; after the others have shrunk, the last of them is killed."""
    with contextlib.ExitStack() as stack:
        comms = {
            name: stack.enter_context(member(rank, 4, url, generation=at, transport=name))
            for at, name in enumerate(PROCESSES)
        }
        for comm in comms.values():
            compute(comm, [0, 1, 2, 3])
        for victim, original_ranks in ((1, [0, 2, 3]), (2, [0, 2])):
            if comms["shm"].rank == victim:
                time.sleep(0.1)  # the others wait for it by then
                os.kill(os.getpid(), signal.SIGKILL)
            for name, comm in comms.items():
                error = fail(comm)
                assert isinstance(error, PeerLost)
                assert error.peer == victim
                comms[name] = new = comm.shrink()
                stack.callback(new.close)
                compute(new, original_ranks)
        return {name: (comm.rank, comm.size) for name, comm in comms.items()}


@pytest.mark.processes
@linux
def test_shrink_after_killed_processes() -> None:
    with meeting_place() as url:
        results = run_processes(processes_killed, 4, url, timeout=2 * SECONDS, dying={1, 3})
    assert results[0] == dict.fromkeys(PROCESSES, (0, 2))
    assert results[2] == dict.fromkeys(PROCESSES, (1, 2))


def process_that_serves_the_store_killed(rank: int, transport: str, port: int) -> tuple[int, int]:
    """Rank 0, which serves the store of the job, is killed; the others go on in a standby."""
    os.environ |= {"RONDE_RANK": str(rank), "RONDE_SIZE": "4", "RONDE_STORE": f"tcp://127.0.0.1:{port}"}
    os.environ["RONDE_SECRET"] = SECRET.hex()
    with ronde.init(transport=transport, config={"calibrate": False, "standbys": 2}) as comm:
        compute(comm, [0, 1, 2, 3])
        if rank == 0:
            time.sleep(0.1)  # the others wait for it by then
            os.kill(os.getpid(), signal.SIGKILL)
        assert isinstance(fail(comm), PeerLost)
        with comm.shrink() as new:
            compute(new, [1, 2, 3])
            return new.rank, new.size


@pytest.mark.processes
@linux
@pytest.mark.parametrize("transport", PROCESSES)
def test_shrink_after_the_loss_of_the_process_that_serves_the_store(transport: str) -> None:
    results = run_processes(
        process_that_serves_the_store_killed, 4, transport, free_port(), timeout=2 * SECONDS, dying={0}
    )
    assert results[1:] == [(0, 3), (1, 3), (2, 3)]


def process_stopped(rank: int, url: str) -> list[str]:
    """Rank 1 is stopped, and continued after the others have shrunk."""
    texts = []
    with contextlib.ExitStack() as stack:
        comms = [
            stack.enter_context(member(rank, 3, url, generation=at, transport=name))
            for at, name in enumerate(PROCESSES)
        ]
        for comm in comms:
            compute(comm, [0, 1, 2])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            for comm in comms:
                assert await_failure(comm) is not None
                texts.append(str(fail(comm)))
                with pytest.raises(RendezvousError, match=r"without rank 1 \(") as caught:
                    comm.shrink()
                texts.append(str(caught.value))
            return texts
        smaller = []
        for comm in comms:
            assert isinstance(fail(comm), PeerLost)
            smaller.append(comm.shrink())
            stack.callback(smaller[-1].close)
            compute(smaller[-1], [0, 2])
        if rank == 0:
            os.kill(comms[0].members[1].pid, signal.SIGCONT)
        end = soon(1.0)  # whatever rank 1 does now must not affect the others
        while smaller[0].allreduce(time.monotonic() < end, "min"):
            for new in smaller:
                compute(new, [0, 2])
        return texts


@pytest.mark.processes
@linux
def test_shrink_after_a_stopped_process_which_then_continues() -> None:
    with meeting_place() as url:
        results = run_processes(process_stopped, 3, url, timeout=2 * SECONDS)
    assert len(results[1]) == 2 * len(PROCESSES)
    for text in results[1]:
        assert "its process has been stopped for 0.5 s" in text


def process_that_dies_in_shrink(rank: int, url: str, transport: str, moment: str) -> tuple[int, int] | None:
    """Rank 1 dies; then rank 2 dies in shrink: before it arrives, after it, or after the decision."""

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with member(rank, 4, url, transport=transport) as comm:
        assert comm.allreduce(1) == 4
        store = comm.transport.group.store.prefixed("test")
        store.set(f"ready/{rank}", b"")
        if rank == 1:
            for other in range(4):  # the others may have been in the first call still
                store.get(f"ready/{other}", soon())
            die()
        fail(comm)
        if rank == 2:
            place = SurvivorAgreement if moment in ("arrive", "decide") else Communicator
            setattr(place, moment, die)
        with comm.shrink(timeout=10 * SECONDS) as new:
            compute(new, [0, 3])
            assert new.transport.group.generation in {"arrive": (1,), "decide": (1, 2)}.get(moment, (2,))
            return new.rank, new.size


@pytest.mark.processes
@linux
@pytest.mark.parametrize(
    ("transport", "moment"),
    [("shm", "arrive"), ("tcp", "decide"), ("shm", "connect"), ("tcp", "connect"), ("auto", "__init__")],
)
def test_shrink_in_which_another_process_dies(transport: str, moment: str) -> None:
    with meeting_place() as url:
        results = run_processes(
            process_that_dies_in_shrink, 4, url, transport, moment, timeout=2 * SECONDS, dying={1, 2}
        )
    assert results == [(0, 2), None, None, (1, 2)]


def process_that_dies_in_init(rank: int, url: str) -> None:
    with contextlib.closing(open_store(url, SECRET, soon())) as store:
        groups = {
            name: join(rank, 3, store, secret=SECRET, generation=at, deadline=soon())
            for at, name in enumerate(PROCESSES)
        }
        if rank == 1:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        for name, group in groups.items():
            config = ronde.Config.load({"transport": name, "tcp": {"interface": "lo"}}, environment={})
            with pytest.raises(PeerLost, match=r"lost rank 1 \(.*process ended"):
                ronde.connect(group, config, soon())


@pytest.mark.processes
@linux
def test_connect_with_a_process_that_dies() -> None:
    with meeting_place() as url:
        run_processes(process_that_dies_in_init, 3, url, timeout=SECONDS, dying={1})


# ---- init again


def test_generations_are_counted_for_each_rank() -> None:
    store = MemoryStore()

    def meet(rank: int, deadline: float) -> int:
        return join(rank, 2, store, generation=None, deadline=deadline).generation // REGROUPS

    with ThreadPoolExecutor(2) as pool:
        for number in range(3):
            assert list(pool.map(meet, range(2), [soon()] * 2)) == [number, number]
        with pytest.raises(DeadlineExceeded, match="rank 1 of 2 did not come"):
            meet(0, soon(0.05))
        with pytest.raises(DeadlineExceeded, match="rank 1 of 2 did not come"):
            meet(1, soon())  # it learns that the others have given up
        assert list(pool.map(meet, range(2), [soon()] * 2)) == [4, 4]
        early = pool.submit(meet, 0, soon())
        store.get("generation-5/members/row/0", soon())
        second = pool.submit(meet, 0, soon())
        for meeting in (early, second):
            with pytest.raises(RendezvousError, match=r"processes .*rank 0 of 2"):
                meeting.result(SECONDS)


def compute_until_it_fails(comm: Communicator) -> None:
    compute(comm, [0, 1, 2])
    raise fail(comm)


def init_again(rank: int, url: str, transport: str) -> list[int]:
    config = {"tcp": {"interface": "lo"}, "timeout": SECONDS}
    generations = []
    for what in ("end well", "abort", "shrink", "leave one behind", "end well"):
        comm = ronde.init(transport=transport, rank=rank, size=3, store=url, secret=SECRET, config=config)
        generations.append(comm.transport.group.generation)
        if what == "abort" and rank != 1:
            with pytest.raises(AbortedError):  # perhaps while this rank is still in the last barrier
                compute_until_it_fails(comm)
        else:
            compute(comm, [0, 1, 2])
        if what == "abort" and rank == 1:
            ronde.abort("a bad day")
        if what == "shrink":
            new = ronde.shrink()
            assert new is ronde.world()
            compute(new, [0, 1, 2])
        if what == "leave one behind" and rank != 1:
            fail(comm)
            compute(ronde.shrink(), [0, 2])
            assert (ronde.rank(), ronde.size()) == (rank // 2, 2)
        ronde.shutdown()
    return generations


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_init_again(transport: str) -> None:
    with meeting_place() as url:
        results = run_processes(init_again, 3, url, transport, timeout=SECONDS)
    assert results[0] == results[1] == results[2]
    assert len(set(results[0])) == 5


# ---- under the launcher


SCRIPT = """
import os, signal, sys
import collectives as ronde

world, seat = ronde.init(), ronde.rank()
for call in range(1000):
    if call == 20 and seat == 1:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    try:
        world.allreduce(1)
    except ronde.PeerLost:
        world = world.shrink()
        break
assert (ronde.rank(), ronde.size(), ronde.allreduce(seat)) == (seat // 2, 2, 2)
print("went on:", seat)
sys.exit(int(sys.argv[2 + seat // 2]))
"""


@pytest.mark.processes
@linux
@pytest.mark.parametrize(
    ("lost", "codes", "code"), [("SIGKILL", "00", 0), ("SIGKILL", "30", 0), ("SIGSTOP", "33", 3), ("SIGSTOP", "00", 0)]
)
def test_launcher_with_keep_going_waits_for_the_survivors(tmp_path: Path, lost: str, codes: str, code: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ["-np", "3", "--keep-going", "--grace", "0.2", "--no-prefix"]
    done = ronde_command("run", *options, str(tmp_path / "script.py"), lost, *codes)
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert sorted(done.stdout.decode().splitlines()) == ["went on: 0", "went on: 2"]
    ending = "killed by SIGKILL" if lost == "SIGKILL" else "ended by the launcher (SIGTERM)"
    assert f"ronde: rank 1 failed: {ending}, pid " in said
    assert ("rank 0 failed: exited with 3" in said) == (codes[0] == "3")


@pytest.mark.processes
def test_launcher_without_keep_going_ends_the_survivors(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = ronde_command("run", "-np", "3", str(tmp_path / "script.py"), "SIGKILL", "0", "0")
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 failed: killed by SIGKILL" in done.stderr.decode()
