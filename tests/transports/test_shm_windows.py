"""Windows in shared memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes import run_processes
from tests.transports.groups import group_of_processes, on_ranks, recv, soon
from tests.transports.shm_ranks import BOTH, SECONDS, await_sleep, briefly, make
from transports import shm
from transports.errors import ClosedError, DeadlineExceeded, MismatchError, PeerLost
from transports.onesided import KEPT, OneSided
from transports.rendezvous.file import FileStore
from transports.shm import segments
from transports.shm.segments import Segment

pytestmark = pytest.mark.skipif(shm.usable() is not None, reason=str(shm.usable()))


def test_windows_name_bad_arguments() -> None:
    def body(t: Any) -> None:
        with pytest.raises(ValueError, match=r"ranks=\(0, 2\): .*ranks among 0, 1"):
            t.ability(OneSided).expose("w", (0, 2), 8, soon())
        with pytest.raises(ValueError, match=r"nbytes=-1: .* 0 or more"):
            t.ability(OneSided).expose("w", BOTH, -1, soon())
        made = t.ability(OneSided).expose("w", BOTH, 0, soon())
        assert len(made.view(1)) == 0
        with pytest.raises(ValueError, match="key='w': "):
            t.ability(OneSided).expose("w", BOTH, 0, soon())
        made.publish(5)
        for epoch, check, text in (
            (5, 0, "epoch=5: .* 5"),
            (6, 1 << 32, "check="),
            (6, -1, "check="),
        ):
            with pytest.raises(ValueError, match=text):
                made.publish(epoch, check)
        with pytest.raises(ValueError, match=r"index=2: .* 0 to 1"):
            made.view(2)
        made.close()
        refused: list[Callable[[], object]] = [
            lambda: made.publish(9),
            lambda: made.view(0),
            lambda: made.wait(0, 9, soon()),
        ]
        for call in refused:
            with pytest.raises(ClosedError, match="window"):
                call()

    on_ranks(make, body)


def test_ranks_that_disagree_about_a_window_raise() -> None:
    def body(t: Any) -> None:
        with pytest.raises(MismatchError, match=r"rank [01] .*\((0, 1|1, 0)\), another rank"):
            t.ability(OneSided).expose("w", BOTH if t.rank == 0 else (1, 0), 8, soon())
        if t.rank == 1:
            with pytest.raises(MismatchError, match=r"rank 1 .* 9 bytes .*\(0, 1\), another rank .*8"):
                t.ability(OneSided).expose("v", BOTH, 9, soon())
        else:
            with pytest.raises(DeadlineExceeded, match=r"rank 1 .* did not come .*window 'v'"):
                t.ability(OneSided).expose("v", BOTH, 8, briefly(0.1))
        gate.wait(SECONDS)  # a rank that leaves early is another error

    gate = threading.Barrier(2)
    on_ranks(make, body)


def test_a_check_is_compared_as_long_as_it_is_kept() -> None:
    def body(t: Any) -> None:
        made = t.ability(OneSided).expose("w", (0,), 8, soon()) if t.rank == 0 else None
        if made is not None:
            made.publish(8, 0xFFFFFFFF)
            made.publish(10, 3)
            made.wait(0, 8, soon(), 0xFFFFFFFF)
            made.wait(0, 10, soon(), 3)
            with pytest.raises(MismatchError, match=r"check 0x00000003 .*epoch 10\b.* check 0x00000004"):
                made.wait(0, 10, soon(), 4)
            with pytest.raises(MismatchError, match="published nothing with epoch 9"):
                made.wait(0, 9, soon(), 0)
            for epoch in range(11, 9 + KEPT):
                with pytest.raises(MismatchError):
                    made.wait(0, 8, soon(), 77)
                made.publish(epoch, 5)
            made.publish(1000)  # it has no check, and takes no place
            with pytest.raises(MismatchError, match="published nothing with epoch 1000"):
                made.wait(0, 1000, soon(), 5)
            made.publish(1001, 5)
            made.wait(0, 8, soon(), 77)  # overwritten
            with pytest.raises(MismatchError):  # an earlier one is kept: it was never published
                made.wait(0, 999, soon(), 77)
            made.wait(0, 10, soon())

    on_ranks(make, body)


def test_an_array_outlives_its_window() -> None:
    def body(t: Any) -> None:
        made = t.ability(OneSided).expose("w", BOTH, 4096, soon())
        array = np.frombuffer(made.view(made.index), np.int64)
        array[:] = 42
        made.close()
        t.close(soon())
        assert array.sum() == 512 * 42

    on_ranks(make, body)


def test_a_wait_for_the_epoch_of_a_closed_peer_raises() -> None:
    def body(t: Any) -> None:
        made = t.ability(OneSided).expose("w", BOTH, 8, soon())
        if t.rank == 0:
            made.publish(1)
            await_sleep(t, 1)
            t.close(soon())
        else:
            made.wait(0, 1, soon())
            with pytest.raises(PeerLost, match=r"rank 0 .* closed .*rank 1\b"):
                made.wait(0, 2, soon())

    on_ranks(make, body)


ROUNDS_SECONDS = 4 * SECONDS
"""A round takes microseconds, but on a busy machine two changes of processes: milliseconds."""


def rank_that_exchanges_patterns(rank: int, directory: str, rounds: int) -> None:
    store = FileStore(directory)
    t = make(group_of_processes(rank, 2, store))
    t.open(soon())
    made = t.ability(OneSided).expose("w", BOTH, 2 * 256 * 8, soon())
    parts = [np.frombuffer(made.view(index), np.int64).reshape(2, 256) for index in BOTH]
    peer, end = 1 - rank, time.monotonic() + ROUNDS_SECONDS
    for number in range(1, rounds + 1):
        half = number % 2
        parts[rank][half] = number * (rank + 1)
        made.publish(number, number)
        made.wait(peer, number, end, number)
        assert (parts[peer][half] == number * (peer + 1)).all(), f"round {number}"
    del parts
    t.close(soon())
    store.close()


@pytest.mark.processes
def test_data_that_processes_publish_are_complete_in_every_round(tmp_path: Path) -> None:
    run_processes(rank_that_exchanges_patterns, 2, str(tmp_path), 5_000, timeout=ROUNDS_SECONDS)


def test_the_frames_of_offers_are_not_for_users() -> None:
    def body(t: Any) -> None:
        going = t.isend(1 - t.rank, 0, memoryview(b"user"))
        made = t.ability(OneSided).expose("w", BOTH, 8, soon())
        assert recv(t, 1 - t.rank, 0, 4) == b"user"
        going.wait(soon())
        made.close()

    on_ranks(make, body)


def test_reserving_without_fallocate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    segment = Segment.create((1 << 20) + 5, str(tmp_path))
    assert os.stat(segment.path).st_blocks * 512 >= 1 << 20
    assert not any(segment.memory)
    segment.unlink()
    segment.close()
    monkeypatch.setattr(os.path, "isdir", lambda path: False)
    assert segments.default_directory() != segments.SHARED_DIRECTORY


def test_the_keys_of_windows_that_are_gone_are_forgotten() -> None:
    """Or a program that makes and drops many keeps them all."""

    def body(t: Any) -> None:
        for _ in range(3):
            made = t.ability(OneSided).expose("w", BOTH, 8, soon())
            made.publish(1)
            made.wait(1 - t.rank, 1, soon())
            made.close()
            del made
            gc.collect()

    on_ranks(make, body)
