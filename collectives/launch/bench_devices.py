"""The devices on which `ronde bench` keeps its arrays, and the timing of calls there."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.arrays import Array
from collectives.communicator import Communicator
from collectives.gpu import cuda

_IN_A_ROW: Final = 10
"""Calls that are timed together on a GPU, since the GPU runs them asynchronously."""


class Device(ABC):
    """Memory for arrays, and a clock for calls on them."""

    @abstractmethod
    def put(self, array: Array) -> Any:
        """Copy an array to the device."""

    @abstractmethod
    def get(self, array: Any) -> Array:
        """Copy an array from the device."""

    @abstractmethod
    def times(self, call: Callable[[], object], repeats: int) -> Array:
        """Measure a call `repeats` times; returns the seconds of each."""

    @abstractmethod
    def bare(self, comm: Communicator, op: str, x: Any, out: Any) -> Callable[[], object] | None:
        """Return a call of the transport's own allreduce alone; None if it has none."""


class Host(Device):
    """Host memory."""

    def put(self, array: Array) -> Any:
        return array

    def get(self, array: Any) -> Array:
        found: Array = array
        return found

    def times(self, call: Callable[[], object], repeats: int) -> Array:
        seconds = np.empty(repeats)
        for index in range(repeats):
            began = time.perf_counter()
            call()
            seconds[index] = time.perf_counter() - began
        return seconds

    def bare(self, comm: Communicator, op: str, x: Any, out: Any) -> None:
        return None


class Gpu(Device):
    """The GPU with this rank's local rank; ranks share GPUs if there are fewer. Calls are timed by GPU events, several
    in a row."""

    def __init__(self, local_rank: int, timeout: float) -> None:
        self._timeout = timeout
        cuda().use(local_rank % cuda().count)

    def put(self, array: Array) -> Any:
        place = cuda().here()
        made = place.cuda.empty(array.shape, array.dtype)
        place.cuda.fill(made, array)
        return made

    def get(self, array: Any) -> Array:
        found: Array = array.get()
        return found

    def times(self, call: Callable[[], object], repeats: int) -> Array:
        rounds = max(3, repeats // _IN_A_ROW)
        return np.array([cuda().time(call, _IN_A_ROW, time.monotonic() + self._timeout) for _ in range(rounds)])

    def bare(self, comm: Communicator, op: str, x: Any, out: Any) -> Callable[[], object] | None:
        return comm.devices.bare_allreduce(x, out, op)


def device(name: str, comm: Communicator) -> Device:
    """Return the device called `name`: cpu or cuda. Raises ConfigError if CuPy is missing."""
    return Gpu(comm.local_rank, comm.config.timeout) if name == "cuda" else Host()
