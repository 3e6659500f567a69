"""Where the arrays of `ronde bench` are, and how calls on them are timed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.buffers import Array
from collectives.communicator import Communicator
from collectives.devices import cuda

_IN_A_ROW: Final = 10
"""Calls that are timed together on a GPU, which works on them while the host goes on."""


class Device(ABC):
    """A place for arrays."""

    @abstractmethod
    def put(self, array: Array) -> Any:
        """The array there."""

    @abstractmethod
    def get(self, array: Any) -> Array:
        """An array from there."""

    @abstractmethod
    def times(self, call: Callable[[], object], repeats: int) -> Array:
        """The seconds of a call, measured so often."""

    @abstractmethod
    def bare(self, comm: Communicator, op: str, x: Any, out: Any) -> Callable[[], object] | None:
        """The transport's own allreduce and nothing else; None if it has none."""


class Host(Device):
    """The host's memory."""

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
    """The GPU of this rank's number on its host; ranks share GPUs if they are more. Calls are timed by events on the
    GPU, around several in a row."""

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
    """The device called `name`: cpu or cuda. Raises ConfigError if CuPy is missing."""
    return Gpu(comm.local_rank, comm.config.timeout) if name == "cuda" else Host()
