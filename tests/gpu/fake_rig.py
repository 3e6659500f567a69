"""Runs the checks of run_one_gpu.py with GPUs that are not there, ranks as threads: to try the script itself."""

from __future__ import annotations

import threading
from typing import Any

from collectives import Communicator
from tests.gpu.gpus import gpus
from tests.gpu.one_gpu_checks import Check
from transports.errors import PeerLost

NCCL_VERSION = 23000


class FakeRig:
    fake = True

    def __init__(self, machine: Any) -> None:
        self._machine = machine

    def occupy(self, cupy: Any, seconds: float) -> None:
        threading.Timer(seconds, self._machine.gate(cupy.cuda.get_current_stream().ptr)).start()

    def die(self, comm: Communicator) -> None:
        comm.transport.abort(PeerLost("rank 1 is gone, as if it had been killed", rank=1, peer=1))


class FakeRunner:
    """See run_one_gpu.Runner."""

    def about(self) -> dict[str, Any]:
        return {"fake": "NO GPU WAS USED: this tries the script itself", "nccl_version": NCCL_VERSION}

    def run(self, check: Check) -> list[str | None]:
        settings = dict(check.settings)
        if settings["transport"] == "nccl":
            settings["nccl"] = {"host": "local"}
        with gpus(2) as some:
            some.machine.nccl_version = NCCL_VERSION
            if "on the GPU" in check.name and settings["transport"] != "nccl":
                some.machine.devices = 1
            with some.world(check.size, settings.pop("transport"), **settings) as world:
                return some.run(world, check.body, FakeRig(some.machine))


def on_rank(rank: int, name: str, directory: str) -> str | None:
    """run_one_gpu.on_rank with a GPU that is not there, each rank in a process of its own."""
    from tests.gpu import run_one_gpu

    with gpus(1):
        return run_one_gpu.on_rank(rank, name, directory, NCCL_VERSION)
