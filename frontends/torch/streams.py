"""Order among CUDA streams for threads of Ronde that access the caller's tensors.

A thread that ends an operation or completes its future uses private streams (`aside`), so that the caller's kernels do
not wait for it. It records an event after its work; the current stream of a waiting thread waits for that event, and
the host does not. Without CUDA tensors these functions do nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch

Marks = list[tuple[torch.device, torch.cuda.Event]]
"""Devices, each with an event on a stream of it."""


def devices_of(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    """Return the CUDA devices of the tensors."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))


@contextlib.contextmanager
def aside(devices: Sequence[torch.device]) -> Iterator[None]:
    """Context in which the thread's current streams of these devices are private ones."""
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
        yield


def mark(devices: Sequence[torch.device]) -> Marks:
    """Record an event on the thread's current stream of each device."""
    return [(device, torch.cuda.current_stream(device).record_event()) for device in devices]


def follow(marks: Marks) -> None:
    """Make the thread's current streams wait for the events."""
    for device, event in marks:
        torch.cuda.current_stream(device).wait_event(event)


class Keeper:
    """Keeps references to memory until the GPUs have finished their work on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[Marks, object]] = deque()

    def keep(self, marks: Marks, memory: object) -> None:
        """Keep `memory` until the devices have passed the events; release memory whose events have passed."""
        if not marks:
            return
        with self._lock:
            self._kept.append((marks, memory))
            while self._kept and all(event.query() for _, event in self._kept[0][0]):
                self._kept.popleft()
