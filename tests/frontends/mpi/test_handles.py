"""Handles of MPI's objects in several threads."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from frontends.mpi.info import Info

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
