"""Arrays that are born shared where memory is short: little address space, and a small /dev/shm."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import collectives as ronde
from collectives import AbortedError, ConfigError, share_arrays
from collectives.jit import obstacle
from tests.collectives.launch.launcher import RONDE
from transports import arenas

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(obstacle() is not None, reason="needs the compiled allocator"),
    pytest.mark.skipif(not arenas.supported(), reason="needs memfd_create"),
]

MIB = 1 << 20
BOUND = 120.0
TOTAL = 3.0


def leave(more: int) -> None:
    """Leave this process so many bytes of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def fill(mib: int) -> list[np.ndarray]:
    """Arrays of so many MiB, each of its own number, until there is no memory for another one."""
    arrays: list[np.ndarray] = []
    try:
        while True:
            arrays.append(np.full(mib * MIB // 8, float(len(arrays))))
    except MemoryError:
        return arrays


def _without_room_for_the_arena() -> bool:
    leave(300 * MIB)
    with pytest.raises(ConfigError, match="cannot map"):
        share_arrays(1024 * MIB)
    with ronde.world().split(0) as comm:
        assert (comm.allreduce(np.full(MIB, comm.rank + 1.0)) == TOTAL).all()
    return True


def test_an_arena_for_which_there_is_no_address_space_is_refused_and_calls_go_on() -> None:
    assert ronde.run(_without_room_for_the_arena, np=2, transport="shm") == [True, True]


def _until_memory_is_short() -> int:
    with share_arrays(256 * MIB), ronde.world().split(0) as comm:
        x, out = np.full(MIB, comm.rank + 1.0), np.empty(MIB)
        assert (comm.allreduce(x) == TOTAL).all()
        leave(100 * MIB)
        arrays = fill(8)
        assert all((array == number).all() for number, array in enumerate(arrays))
        assert (comm.allreduce(x, out=out) == TOTAL).all()
        shared = len(arrays)
        arrays.clear()
        assert (comm.allreduce(x) == TOTAL).all()
    return shared


def test_arrays_go_on_beyond_the_arena_until_a_memory_error_and_keep_their_values() -> None:
    assert min(ronde.run(_until_memory_is_short, np=2, transport="shm")) > 30


def _one_rank_without_memory() -> str:
    with share_arrays(64 * MIB), ronde.world().split(0) as comm:
        x = np.full(4 * MIB, comm.rank + 1.0)
        assert comm.allgather(x).sum() == 4 * MIB * TOTAL
        if comm.rank == 0:
            leave(8 * MIB)
            arrays = fill(4)
        with pytest.raises(MemoryError if comm.rank == 0 else AbortedError) as caught:
            comm.allgather(x)
        if comm.rank == 0:
            arrays.clear()
        assert isinstance(comm.failure, AbortedError)
    return str(caught.value)


def test_a_rank_that_has_no_memory_for_its_result_is_named_on_the_others() -> None:
    texts = ronde.run(_one_rank_without_memory, np=2, transport="shm")
    assert "rank 0 left its call" in texts[1]
    assert "MemoryError" in texts[1]


PROGRAM = f"""
import numpy as np
import ronde

ronde.share_arrays({256 * MIB})
comm = ronde.init()
for number in range(8):
    x = np.full({MIB}, comm.rank + 1.0 + number)
    assert (ronde.allreduce(x) == {TOTAL} + 2 * number).all()
    assert [part[0] for part in np.split(ronde.allgather(x), 2)] == [1 + number, 2 + number]
    assert (ronde.broadcast(x, root=1) == 2 + number).all()
print("events", ronde.metrics()["events"])
"""


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root, to mount small disks")
@pytest.mark.parametrize("size", ["64m", "1m", "100k"])
def test_a_small_shm(size: str) -> None:
    script = f'mount -t tmpfs -o size={size} none /dev/shm && "$@" && test -z "$(ls /dev/shm)"'
    words = ["unshare", "-m", "sh", "-c", script, "sh", *RONDE, "run", "-np", "2", sys.executable, "-c", PROGRAM]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=BOUND, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("events {}") == 2
