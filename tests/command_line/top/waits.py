"""A job in which one rank makes the others wait: python waits.py CASE FOLDER. It ends once FOLDER has a file `stop`.

sleeps     the culprit sleeps 10 ms at random before its calls
late       it sleeps 10 ms before each call
rooted     the same before it sends as the root of a broadcast
chain      it makes rank 1 wait in a communicator of both, and rank 1 the others
named      it submits named operations late
messages   rank 0 waits for a message from it
large      no rank sleeps, and the arrays are large
small      no rank sleeps, and the arrays are small
computes   every rank computes for 5 ms before its calls, and the culprit gives way to other processes on its core

The culprit is the last rank. $CORES, if set, has the core of each rank.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ronde

NAP = 0.01
WORK = 0.005
READY = 10
"""Steps before the job is looked at."""
SMALL, LARGE = np.ones(1000, np.float32), np.ones(1 << 16, np.float32)
DICE = random.Random(1)


def give_way() -> None:
    """Let other processes go first: those of this session, and other sessions."""
    os.nice(10)
    with contextlib.suppress(OSError):  # the kernel does not tell sessions apart
        Path("/proc/self/autogroup").write_text("10")


def is_culprit() -> bool:
    return ronde.rank() == ronde.size() - 1


def nap(seconds: float = NAP, chance: float = 1.0) -> None:
    """Sleep if this rank is the culprit. The others do nothing."""
    if is_culprit() and DICE.random() < chance:
        time.sleep(seconds)


def sleeps() -> None:
    nap(chance=0.4)
    ronde.allreduce(SMALL)


def late() -> None:
    nap()
    ronde.allreduce(SMALL)


def rooted() -> None:
    nap()
    ronde.broadcast(SMALL, root=ronde.size() - 1)


def chain() -> Callable[[], None]:
    comm, size = ronde.world(), ronde.size()
    both = comm.split(0 if comm.rank in (1, size - 1) else None)
    others = comm.split(0 if comm.rank != size - 1 else None)

    def step() -> None:
        nap()
        for each in (both, others):
            if each is not None:
                each.allreduce(SMALL)

    return step


def named() -> None:
    nap()
    for work in [ronde.allreduce_async(SMALL, name=f"layer{number}") for number in range(3)]:
        work.wait()


def messages() -> None:
    nap(0.3)
    if is_culprit():
        ronde.world().send(SMALL, 0)
    elif ronde.rank() == 0:
        ronde.world().recv(SMALL, ronde.size() - 1)


def large() -> None:
    ronde.allreduce(LARGE)


def small() -> None:
    ronde.allreduce(SMALL[:10])


def computes() -> None:
    end = time.thread_time() + WORK
    while time.thread_time() < end:
        pass
    ronde.allreduce(SMALL)


def main(case: str, folder: Path) -> None:
    cores = [int(word) for word in os.environ.get("CORES", "").split()]
    ronde.init()
    if cores:
        os.sched_setaffinity(0, {cores[ronde.rank()]})
    if case == "computes" and is_culprit():
        give_way()
    step: Callable[[], None] = chain() if case == "chain" else globals()[case]
    count, until = 0, time.monotonic() + 2.0
    while ronde.allreduce(float((folder / "stop").exists()), op="max") == 0:
        step()
        count += 1
        if ronde.rank() == 0 and count >= READY and time.monotonic() > until and not (folder / "ready").exists():
            (folder / "ready").touch()
            print("ready", flush=True)
    ronde.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else os.environ["JOB_FOLDER"]))
