"""frontends.horovod.run: the arguments of `horovod.run`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

import ronde
import ronde.numpy as hvd
from frontends import horovod


def ranked(first: int, *, second: int) -> tuple[int, int, int]:
    """A function for ranks, as Horovod's users write it."""
    hvd.init()
    return hvd.rank(), hvd.size(), first + second


def test_ranks_of_this_machine_with_horovods_arguments() -> None:
    with pytest.warns(UserWarning, match="run: use_gloo, verbose: "):
        found = ronde.horovod.run(
            ranked, (3,), {"second": 4}, num_proc=2, hosts="localhost:1,127.0.0.1:1", use_gloo=True, verbose=2
        )
    assert found == [(0, 2, 7), (1, 2, 7)]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The numbers of ranks that `run` would have started."""
    started: list[Any] = []
    monkeypatch.setattr("collectives.run", lambda fn, np, args, kwargs: started.append(np))
    return started


def test_numbers_of_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = counted(monkeypatch)
    file = tmp_path / "hosts"
    file.write_text(f"localhost slots=2  # here\n\n{socket.gethostname()} slots = 1\n")
    horovod.run(ranked, num_proc=3, hostfile=str(file))
    with pytest.warns(DeprecationWarning, match=r"np: .*num_proc"):
        horovod.run(ranked, np=2)
    horovod.run(ranked, use_mpi=None, min_num_proc=None)
    assert started == [3, 2, 1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hosts": "localhost:2,elsewhere:2"}, "hosts: elsewhere: "),
        ({"hosts": "localhost:many"}, "hosts: localhost: 'many' .*slots"),
        ({"hosts": "localhost:2", "num_proc": 3}, "hosts: .*2 slots .*num_proc=3"),
        ({"hosts": "localhost:2", "hostfile": "hosts"}, "hosts and hostfile: "),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi: "),
    ],
)
def test_mistakes(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], text: str) -> None:
    started = counted(monkeypatch)
    with pytest.raises(ValueError, match=text):
        horovod.run(ranked, **options)
    with pytest.raises(TypeError, match="arguments hots"):
        horovod.run(ranked, hots="localhost:2")
    assert not started
