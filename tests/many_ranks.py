"""Many ranks as processes of one machine, which may open few descriptors: they compute, lose a rank, shrink, compute.

    python -m tests.many_ranks URL SIZE LOST TRANSPORT

The processes are forked from this one, which has imported everything: what is tested is the world, not the start of
Python. Prints one line of JSON per rank: its number, seconds at each stage, the size of the world after the shrink, and
the largest number of descriptors that it had open.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time

import numpy as np

import collectives as ronde
from collectives import communicator, elastic, startup  # before the ranks are forked
from collectives.launch import calls
from transports import auto, nccl, shm, tcp

IMPORTED = (communicator, elastic, startup, calls, auto, nccl, shm, tcp)
SECRET = b"a secret of many ranks"
DESCRIPTORS = 256
TIMEOUT = 100.0


def rank(number: int, url: str, size: int, lost: int, transport: str, done: tuple[int, int]) -> dict[str, object]:
    """Be one rank; what it has seen. `done`: a pipe into which each of the others writes a byte after the allreduce."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    config = {"timeout": TIMEOUT, "connect_timeout": TIMEOUT, "tcp": {"interface": "lo"}}
    began, seconds, opened = time.monotonic(), {}, 0

    def stage(name: str) -> None:
        nonlocal opened
        opened = max(opened, len(os.listdir("/proc/self/fd")) - 1)
        seconds[name] = round(time.monotonic() - began, 2)

    comm = ronde.init(transport=transport, rank=number, size=size, store=url, secret=SECRET, config=config)
    stage("start")
    assert comm.allreduce(np.full(1000, number))[0] == size * (size - 1) // 2
    stage("allreduce")
    if number == lost:  # not before the others have ended the call: they might still be waiting in it
        for _ in range(size - 1):
            os.read(done[0], 1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(done[1], b"!")
    failure = None
    while failure is None:
        try:
            comm.allreduce(np.ones(10))
        except ronde.PeerLost as error:
            failure = error
    assert failure.peer == lost, failure
    stage("failure")
    new = comm.shrink()
    stage("shrink")
    assert new.size == size - 1
    assert new.rank == number - (number > lost)
    assert new.allreduce(np.full(1000, number))[0] == size * (size - 1) // 2 - lost
    stage("again")
    ronde.shutdown()
    stage("end")
    return {"rank": number, "size": new.size, "seconds": seconds, "descriptors": opened}


def main() -> int:
    """Fork the ranks; 0 if all but the lost one have ended well."""
    url, size, lost, transport = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    children, done = {}, os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for number in range(size):
            child = os.fork()
            if not child:
                code = 1
                try:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    said = json.dumps(rank(number, url, size, lost, transport, done)) + "\n"
                    os.write(1, said.encode())
                    code = 0
                except BaseException as error:
                    os.write(2, f"rank {number}: {type(error).__name__}: {str(error)[:2000]}\n".encode())
                finally:
                    os._exit(code)
            children[child] = number
        codes = {}
        while children:
            child, status = os.wait()
            codes[children.pop(child)] = os.waitstatus_to_exitcode(status)
        return int(codes != {number: -signal.SIGKILL if number == lost else 0 for number in range(size)})
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
