"""Worlds of many processes on one machine, each of which may open 256 descriptors, survive the loss of a rank."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from tests.collectives.membership.shrinks import linux
from tests.many_ranks import DESCRIPTORS, SECRET
from transports.rendezvous.server import TcpStoreServer

SECONDS = 150.0


@linux
@pytest.mark.crowd
@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize(
    ("size", "transport"), [pytest.param(200, "auto", marks=pytest.mark.nightly), (60, "auto"), (60, "tcp")]
)
def test_many_ranks_lose_one_and_go_on(size: int, transport: str) -> None:
    lost = size // 3
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        command = [sys.executable, "-m", "tests.many_ranks", server.url, str(size), str(lost), transport]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            try:
                out, err = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                pytest.fail(f"{size} ranks did not end within {SECONDS:g} s")
            finally:
                with contextlib.suppress(ProcessLookupError):  # all have ended
                    os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err.decode()[-4000:]
    told = [json.loads(line) for line in out.splitlines()]
    assert sorted(row["rank"] for row in told) == [rank for rank in range(size) if rank != lost]
    assert {row["size"] for row in told} == {size - 1}
    assert max(row["descriptors"] for row in told) <= DESCRIPTORS // 2
