"""Worlds of threads whose ranks have a GPU each, that is not there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collectives import Communicator
from collectives.gpu import devices
from tests.gpu import fake_cupy
from tests.gpu.machine import FakeNccl, Machine
from tests.worlds import World


class Gpus:
    """A machine, a CuPy for it, and worlds of ranks on it. NCCL is there unless `nccl` is False."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, nccl: bool = True) -> None:
        self.machine = Machine(count)
        self.cupy = fake_cupy.make(self.machine)
        self.apis: list[FakeNccl] = []
        monkeypatch.setitem(sys.modules, "cupy", self.cupy)
        reason = None if nccl else "no NCCL in this test"
        monkeypatch.setattr("transports.nccl.missing", lambda: reason)
        monkeypatch.setattr("transports.nccl.usable", lambda: reason)
        monkeypatch.setattr("transports.nccl.load", self._load)
        devices.cuda.cache_clear()

    def _load(self) -> FakeNccl:
        self.apis.append(FakeNccl(self.machine))
        return self.apis[-1]

    @contextlib.contextmanager
    def world(self, size: int, transport: str = "nccl", **settings: Any) -> Iterator[World]:
        """A world; over "nccl" what is in the host's memory goes between threads."""
        if transport == "nccl":
            settings.setdefault("nccl", {"host": "local"})
        world = World(transport, size, **settings)
        try:
            yield world
        finally:
            world.close()
        assert self.machine.violations == []

    def run(self, world: World, body: Callable[..., Any], *args: Any) -> list[Any]:
        """body(comm, cupy, *args) on every rank, which uses the GPU of its number."""

        def on_rank(comm: Communicator) -> Any:
            with self.cupy.cuda.Device(comm.rank % self.machine.devices):
                return body(comm, self.cupy, *args)

        return world.run(on_rank)


@contextlib.contextmanager
def gpus(count: int = 4, nccl: bool = True) -> Iterator[Gpus]:
    """GPUs for one test."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            yield Gpus(monkeypatch, count, nccl)
        finally:
            devices.cuda.cache_clear()
