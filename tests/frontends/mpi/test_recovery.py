"""Going on after failures: revocation, agreement, communicators of the ranks that are left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.mpi.conftest import Run

ROOT = Path(__file__).parents[3]
LOST = """
import os, signal
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
old = world.rank
pair, parity = world.Dup(), world.Split(old % 2, old)
pair.Barrier()
if old == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        pair.Allreduce(np.ones(4), np.empty(4))
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_PROC_FAILED
pair.Revoke()
assert pair.Get_failed().Get_size() == 1
try:
    pair.Agree(7)
    raise SystemExit("an agreement that does not tell of the loss")
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_PROC_FAILED
assert pair.Ack_failed() == 1
assert pair.Agree(7 - old) == 4, old
left, half = pair.Shrink(), parity.Shrink()
total = np.empty(1)
left.Allreduce(np.array([float(old)]), total)
print(f"{old} -> {left.rank} of {left.size}, {total[0]:g}, {half.allgather(old)}, {MPI.COMM_WORLD.size}", flush=True)
"""


def mpi() -> Any:
    from frontends.mpi import MPI

    return MPI


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_go_on_without_one_that_was_killed(tmp_path: Path, transport: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOST)
    words = ["run", "-np", "4", "--keep-going", "--no-prefix", "--transport", transport, "--mpi4py", str(script)]
    command = [sys.executable, "-m", "ronde", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert sorted(done.stdout.splitlines()) == [
        "0 -> 0 of 3, 5, [0, 2], 3",
        "2 -> 1 of 3, 5, [0, 2], 3",
        "3 -> 2 of 3, 5, [3], 3",
    ], done.stderr


def test_a_revoked_communicator_can_agree_and_shrink_and_nothing_else(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        own = comm.Dup()
        flag = np.array([7 - comm.rank], np.int32)
        own.Iagree(flag).Wait()
        own.Revoke()
        seen = [own.Is_revoked(), own.Get_failed().size, own.Agree(6 | comm.rank), int(flag[0])]
        for call in (
            own.Barrier,
            own.Dup,
            lambda: own.send(1, MPI.PROC_NULL),
            lambda: own.recv(source=MPI.PROC_NULL),
            lambda: own.Split(0),
        ):
            with pytest.raises(MPI.Exception) as caught:
                call()
            assert caught.value.Get_error_class() == MPI.ERR_REVOKED
        again = own.Shrink()
        seen += [again.Is_revoked(), again.allgather(comm.rank)]
        again.Free()
        own.Free()
        return seen

    assert ranks(3, body) == [[True, 0, 6, 4, False, [0, 1, 2]]] * 3


def test_agreements_are_checked(ranks: Run) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(TypeError):
            comm.Iagree(3)
        with pytest.raises(ValueError, match="8 bytes"):
            comm.Iagree(bytearray(8))

    ranks(2, body)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_revoking_ends_the_calls_of_ranks_that_do_not_come(ranks: Run, transport: str) -> None:
    """Rank 0 revokes in the place of a barrier in which the others wait."""

    def body(comm: Any) -> Any:
        MPI = mpi()
        old, own = comm.rank, comm.Dup()
        if old == 0:
            own.Revoke()
        else:
            with pytest.raises(MPI.Exception) as caught:
                own.Barrier()
            assert caught.value.Get_error_class() == MPI.ERR_PROC_FAILED
        left = own.Shrink()
        return left.allgather(old)

    assert ranks(3, body, transport) == [[0, 1, 2]] * 3


def test_collectives_inside_of_other_calls_raise_errors_of_mpi(ranks: Run) -> None:
    def body(comm: Any) -> None:
        MPI = mpi()
        window = MPI.Win.Allocate(8, 8, comm=comm)
        comm.peers.process.world.abort("a rank has had enough")
        for call in (
            lambda: comm.Split(0),
            lambda: comm.Split_type(MPI.COMM_TYPE_SHARED),
            lambda: comm.Reduce_scatter(np.ones(2), np.empty(1)),
            window.Free,
        ):
            with pytest.raises(MPI.Exception):
                call()

    ranks(2, body)
