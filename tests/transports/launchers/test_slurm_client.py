"""The srun of a task, found by the port on which it listens. A process of this test stands for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from transports.launchers import slurm_client

NAME = Path("/proc/self/comm")
pytestmark = pytest.mark.skipif(not NAME.exists(), reason="the system has no /proc")


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket on which this process listens, which is named as srun."""
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path: "srun\n" if str(path) == f"/proc/{os.getpid()}/comm" else read(path)
    )
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def port_of(listener: socket.socket) -> dict[str, str]:
    return {slurm_client.PORT: str(listener.getsockname()[1])}


def test_srun_is_found_by_its_port(listener: socket.socket) -> None:
    assert slurm_client.client_of(port_of(listener)) == os.getpid()
    assert slurm_client.client_of({}) == 0
    assert slurm_client.client_of({slurm_client.PORT: "9"}) == 0


def test_srun_may_close_a_descriptor_meanwhile(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = os.listdir

    def listed(folder: str) -> list[str]:
        closed = ["987654"] if folder.endswith("/fd") else []
        return closed + descriptors(folder)

    monkeypatch.setattr(os, "listdir", listed)
    assert slurm_client.client_of(port_of(listener)) == os.getpid()
