"""Partitioned messages, and sessions."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.frontends.mpi.conftest import Run


def mpi() -> Any:
    from frontends.mpi import MPI

    return MPI


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_a_message_arrives_once_all_its_parts_are_ready(ranks: Run, transport: str) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        peer, status = 1 - comm.rank, MPI.Status()
        data, got = np.zeros(6), np.zeros((6, 2))
        columns = MPI.DOUBLE.Create_vector(1, 1, 2).Create_resized(0, 16).Commit()
        sends = comm.Psend_init([data, 2, MPI.DOUBLE], 3, peer, tag=4)
        receives = comm.Precv_init([got, 3, columns], 2, peer, tag=4)
        for step in range(3):
            assert receives.Parrived(1)  # it is not active
            MPI.Prequest.Startall([sends, receives])
            data[:] = range(step, step + 6)
            sends.Pready(1)
            comm.Barrier()
            assert not receives.Parrived(0)
            assert not sends.Test()
            comm.Barrier()
            thread = threading.Thread(target=sends.Pready_list, args=([2, 0],))
            thread.start()
            sends.Wait()
            receives.Wait(status)
            thread.join()
            assert got[:, 0].tolist() == list(range(step, step + 6))
            assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (peer, 4, 6)
        sends.Free()
        receives.Free()
        return (got[:, 1] == 0).all()

    assert ranks(2, body, transport) == [True, True]


def test_partitioned_messages_belong_together_in_the_order_of_their_requests(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        peer, got, plain = 1 - comm.rank, np.zeros((2, 1)), np.zeros(1)
        sends = [comm.Psend_init(np.full(1, float(n)), 1, peer) for n in range(2)]
        receives = [comm.Precv_init(got[n], 1, peer, 0) for n in range(2)]
        other = comm.Irecv(plain)
        MPI.Prequest.Startall([*receives, *reversed(sends)])
        for request in reversed(sends):
            request.Pready_range(0, 0)
        MPI.Request.Waitall([*sends, *receives])
        comm.Send(np.full(1, 7.0), peer)
        other.Wait()
        return got[:, 0].tolist(), plain[0]

    assert ranks(2, body) == [([0.0, 1.0], 7.0)] * 2


def test_parts_that_cannot_be_ready_are_errors(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        sends, receives = comm.Psend_init(np.zeros(2), 2, 0), comm.Precv_init(np.zeros(2), 2, 0, 0)
        plain = comm.Send_init(np.zeros(2), 0)
        nowhere = comm.Psend_init(None, 2, MPI.PROC_NULL)
        nowhere.Start()
        nowhere.Pready(1)
        nowhere.Wait()
        for call, name in (
            (lambda: sends.Pready(0), "ERR_REQUEST"),
            (lambda: plain.Pready(0), "ERR_REQUEST"),
            (lambda: comm.Psend_init(np.zeros(2), 0, 0), "ERR_ARG"),
            (lambda: comm.Psend_init(np.zeros(2), 2, 0, tag=1 << 22), "ERR_TAG"),
            (lambda: comm.Precv_init(np.zeros(2), 2, tag=0), "ERR_RANK"),
        ):
            with pytest.raises(MPI.Exception) as caught:
                call()
            assert caught.value.Get_error_class() == getattr(MPI, name)
        MPI.Prequest.Startall([sends, receives])
        sends.Pready(0)
        for call in (lambda: sends.Pready(0), lambda: sends.Pready(2), lambda: receives.Parrived(2)):
            with pytest.raises(MPI.Exception, match="partition="):
                call()
        with pytest.raises(MPI.Exception):
            receives.Pready(0)
        with pytest.raises(MPI.Exception):
            sends.Parrived(0)
        sends.Pready(1)
        MPI.Request.Waitall([sends, receives])

    ranks(1, body)


@pytest.mark.parametrize("kind", ["parts", "generalized"])
@pytest.mark.parametrize("wait", ["Wait", "Waitany", "Test"])
def test_a_wait_for_the_program_ends_when_another_rank_gives_up(ranks: Run, kind: str, wait: str) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        if comm.rank:
            with pytest.raises(SystemExit):
                comm.Abort(3)
            return None
        request = comm.Psend_init(np.zeros(2), 2, 1) if kind == "parts" else MPI.Grequest.Start()
        if kind == "parts":
            request.Start()

        def until_tested() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end and not request.Test():
                time.sleep(0.001)

        waits = {"Wait": request.Wait, "Waitany": lambda: MPI.Request.Waitany([request]), "Test": until_tested}
        with pytest.raises(MPI.Exception, match="rank 1"):
            waits[wait]()
        return True

    assert ranks(2, body)[0]


def test_a_session_has_the_sets_of_all_ranks_and_of_one(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        with pytest.raises(MPI.Exception):
            MPI.SESSION_NULL.Get_num_psets()
        session = MPI.Session.Init(MPI.Info.Create({"thread_level": "MPI_THREAD_MULTIPLE"}), MPI.ERRORS_RETURN)
        assert session.Get_info()["thread_level"] == "MPI_THREAD_MULTIPLE"
        assert session.Get_errhandler() == MPI.ERRORS_RETURN
        names = [session.Get_nth_pset(n) for n in range(session.Get_num_psets())]
        assert names == ["mpi://WORLD", "mpi://SELF"]
        sizes = [session.Get_pset_info(name)["mpi_size"] for name in names]
        for call in (lambda: session.Get_nth_pset(2), lambda: session.Create_group("mpi://world")):
            with pytest.raises(MPI.Exception, match="must be"):
                call()
        group = MPI.Group.Create_from_session_pset(session, "mpi://WORLD")
        made = MPI.Intracomm.Create_from_group(group, "of a session", MPI.Info.Create({"a": "b"}), MPI.ERRORS_ABORT)
        session.Finalize()
        assert session == MPI.SESSION_NULL
        found = made.allgather(made.rank), made.Get_info()["a"], made.Get_errhandler() == MPI.ERRORS_ABORT
        made.Free()
        return sizes, found

    assert ranks(2, body) == [(["2", "1"], ([0, 1], "b", True))] * 2
