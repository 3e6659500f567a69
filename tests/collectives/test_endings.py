"""A rank that ends normally delivers what it has sent, and is not lost; one that ends before a meeting is named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from collectives import Communicator, PeerLost
from tests.collectives.launch.launcher import ronde
from tests.worlds import world_of

LARGE = 1 << 21
"""Elements of a message of 16 MB, which no transport takes before it is received."""

PART = f"""
import sys, time
import numpy as np
import collectives as ronde

def part(comm):
    comm.barrier()
    store = comm.transport.group.store
    if comm.rank == 0:
        for tag in range(2):
            comm.send_async(np.full({LARGE}, 1.0 + tag), 1, tag=tag)
        store.set("rank 0 ends", b"")
        return
    x = np.zeros({LARGE})
    if comm.rank == 1:
        store.get("rank 0 ends", time.monotonic() + 60)
        time.sleep(0.2)
        for tag in (1, 0):
            comm.recv(x, 0, tag=tag)
            sys.stdout.write(f"got {{x.min()}} {{x.max()}}" + chr(10))
        comm.send(x, 2)
    else:
        comm.recv(x, 1)
        sys.stdout.write(f"got {{x.min()}} {{x.max()}}" + chr(10))
        try:
            comm.barrier()
        except ronde.PeerLost as error:
            sys.stdout.write(f"lost {{error.peer}} {{error.message}}" + chr(10))
        ronde.shutdown()
"""

PROCESSES = f"""
{PART}
import multiprocessing, tempfile

def rank(number, folder):
    part(ronde.init(transport="FABRIC", rank=number, size=3, store=f"file://{{folder}}", secret=b"a secret for tests"))

if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=rank, args=(number, folder)) for number in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    sys.exit(any(process.exitcode for process in processes))
"""

EARLY = """
import os, sys
import collectives as ronde

for meeting in range({meetings}):
    ronde.init()
    ronde.shutdown()
if os.environ["RONDE_RANK"] == "1":
    sys.exit(0)
try:
    ronde.init()
except ronde.RendezvousError as error:
    sys.stdout.write(f"alone {{error.rank}} {{error.peer}}" + chr(10))
"""


def output(folder: Path, size: int, text: str, *options: str) -> str:
    """Stdout of a program on some ranks, which must succeed."""
    script = folder / "script.py"
    script.write_text(text)
    done = ronde("run", "-np", str(size), *options, str(script))
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout.decode()


def check_parts(out: str) -> None:
    assert (out.count("got 1.0 1.0"), out.count("got 2.0 2.0")) == (2, 1), out
    assert re.search(r"lost [01] rank [01] .*its program ended", out), out


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shm", "tcp", "auto"])
def test_what_a_rank_has_sent_before_its_end_arrives(tmp_path: Path, transport: str) -> None:
    check_parts(output(tmp_path, 3, f"{PART}\npart(ronde.init())", "--transport", transport))


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_end_of_a_process_of_multiprocessing_is_orderly_too(tmp_path: Path, method: str) -> None:
    text = PROCESSES.replace("METHOD", method).replace("FABRIC", "tcp" if method == "fork" else "shm")
    check_parts(output(tmp_path, 1, text))


@pytest.mark.processes
@pytest.mark.parametrize("meetings", [0, 1])
@pytest.mark.parametrize("options", [[], ["--keep-going"]], ids=["", "keep going"])
def test_a_rank_that_ends_before_it_meets_the_others_is_named(
    tmp_path: Path, meetings: int, options: list[str]
) -> None:
    out = output(tmp_path, 3, EARLY.format(meetings=meetings), *options)
    assert sorted(re.findall(r"alone \d \d", out)) == ["alone 0 1", "alone 2 1"], out


@pytest.mark.parametrize("transport", ["local", "tcp", "shm", "auto"])
def test_others_go_on_until_they_need_a_rank_that_has_ended(transport: str) -> None:
    with world_of(transport, 3) as world:

        def part(comm: Communicator) -> str:
            comm.barrier()
            if comm.rank == 0:
                comm.send_async(np.full(1000, 3.0), 1)
                comm.close()
                return ""
            pair = np.zeros(1000)
            if comm.rank == 1:
                comm.recv(pair, 0)
                comm.send(pair, 2)
            else:
                comm.recv(pair, 1)
            assert pair[-1] == 3.0
            with pytest.raises(PeerLost) as caught:
                comm.recv(pair, 0)
            assert caught.value.peer == 0
            return str(caught.value)

        assert all("its program ended" in text for text in world.run(part)[1:])
