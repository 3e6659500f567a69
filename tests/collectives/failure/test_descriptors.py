"""A rank that has no descriptors left: all ranks are told so."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest

from collectives import RondeError
from tests.collectives.ranks import meeting_place, member
from tests.processes import run_processes

resource = pytest.importorskip("resource")
SECONDS = 60.0


def _connect(rank: int, url: str) -> str:
    with member(rank, 2, url, transport="tcp") as comm, contextlib.ExitStack() as files:
        if rank == 0:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
            with contextlib.suppress(OSError):
                while True:
                    files.enter_context(open(os.devnull))
        with pytest.raises(RondeError) as caught:
            comm.allreduce(np.ones(4))
        return str(caught.value)


@pytest.mark.processes
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors by /proc")
def test_a_rank_that_cannot_make_a_socket_is_named_on_all_ranks_with_the_remedy() -> None:
    with meeting_place() as url:
        for text in run_processes(_connect, 2, url, timeout=SECONDS):
            assert "rank 0 cannot connect to rank 1" in text
            assert "ulimit -n" in text
