"""Handles of MPI's objects in several threads."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import frontends.mpi.MPI  # noqa: F401 - has the constants
from frontends.mpi.datatypes import BYTE, Datatype
from frontends.mpi.errhandlers import ERRORS_RETURN
from frontends.mpi.errors import Exception as MPIException
from frontends.mpi.groups import GROUP_EMPTY, Group
from frontends.mpi.handles import Handle
from frontends.mpi.info import INFO_ENV, Info
from frontends.mpi.ops import Op
from frontends.mpi.peers import Peers
from tests.frontends.mpi.conftest import Run

THREADS = 3


def test_p6_threads_that_ask_at_once_get_one_number() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    gate = threading.Barrier(THREADS)

    def ask(info: Info) -> tuple[int, bool]:
        gate.wait(60)
        return info.handle, Info.fromhandle(info.handle) == info

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in range(1500):
                answers = set(pool.map(ask, [Info.Create()] * THREADS))
                assert len(answers) == 1
                assert all(found for _, found in answers)
    finally:
        sys.setswitchinterval(before)


def test_the_number_of_processes_is_that_of_the_innermost_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PMI_RANK": "1", "PMI_SIZE": "3", "RONDE_SIZE": "1"}.items():  # ours started mpiexec
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RONDE_LAUNCHER", "mpich")
    assert Info.Create_env([]).Get("maxprocs") == "3"
    monkeypatch.setenv("RONDE_LAUNCHER", "none")
    assert Info.Create_env([]).Get("maxprocs") is None
    monkeypatch.setenv("RONDE_LAUNCHER", "nosuch")
    assert Info.Create_env([]).Get("maxprocs") is None


@pytest.mark.parametrize("constant", [GROUP_EMPTY, ERRORS_RETURN, INFO_ENV])
def test_a_constant_outlives_its_free(constant: Handle) -> None:
    copy = type(constant)(constant)
    copy.Free()  # type: ignore[attr-defined]
    assert not copy
    constant.Free()  # type: ignore[attr-defined]
    assert constant


@pytest.mark.parametrize(
    "made", [Info.Create(), ERRORS_RETURN, GROUP_EMPTY, BYTE.Create_contiguous(2), Op.Create(lambda a, b, kind: None)]
)
def test_free_of_a_subclass_may_call_free_of_the_class(made: Handle) -> None:
    kind: Any = next(one for one in (Info, Group, Datatype, Op, type(made)) if isinstance(made, one))

    class Own(kind):  # type: ignore[misc]
        def free(self) -> None:
            kind.Free(self)

    own = Own(made)
    own.free()
    assert not own


def test_a_group_without_ranks_is_the_empty_one() -> None:
    assert Group.Union(GROUP_EMPTY, GROUP_EMPTY) == GROUP_EMPTY
    assert GROUP_EMPTY.Incl([]) == GROUP_EMPTY
    assert Group.Difference(GROUP_EMPTY, GROUP_EMPTY) == GROUP_EMPTY


@pytest.mark.parametrize(("key", "value"), [("", "v"), ("k" * 256, "v"), ("k", ""), ("k", "v" * 1025)])
def test_an_info_refuses_keys_and_values_that_are_empty_or_too_long(key: str, value: str) -> None:
    info = Info.Create({"a": "1"})
    with pytest.raises(MPIException):
        info.Set(key, value)
    with pytest.raises(TypeError):
        info.Set("n", 3)  # type: ignore[arg-type]
    assert info.items() == [("a", "1")]


@pytest.mark.parametrize("way", ["Dup", "Clone"])
def test_a_duplicate_of_a_communicator_has_its_attributes_and_info(ranks: Run, way: str) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi import MPI

        told: list[Any] = []
        key = MPI.Comm.Create_keyval(lambda comm, key, value: value + 1, lambda comm, key, value: told.append(value))
        first = comm.Dup(MPI.Info.Create({"hint": "some"}))
        first.Set_attr(key, 5)
        second = getattr(first, way)()
        found = second.Get_attr(key), second.Get_info().Get("hint")
        second.Free()
        first.Free()
        MPI.Comm.Free_keyval(key)
        return found, told

    assert ranks(2, body) == [((6, "some"), [6, 5])] * 2


def test_a_duplicate_whose_attribute_cannot_be_copied_is_closed(ranks: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    close = Peers.close

    def told(self: Peers) -> None:
        closed.append(self)
        close(self)

    def body(comm: Any) -> None:
        from frontends.mpi import MPI

        first = comm.Dup()
        key = MPI.Comm.Create_keyval(lambda comm, key, value: 1 // value)
        first.Set_attr(key, 0)
        with pytest.raises(MPI.Exception):
            first.Dup()
        first.Free()
        MPI.Comm.Free_keyval(key)

    monkeypatch.setattr(Peers, "close", told)
    ranks(2, body)
    assert len(closed) == 4
