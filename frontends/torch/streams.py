"""Order among CUDA streams where threads of Ronde's own touch tensors of the caller's.

A thread that ends an operation, or settles its future, works *aside*: on streams that nobody else uses, so that what
the caller computes meanwhile need not wait for it. What it has enqueued there is behind an event, for which the current
stream of whoever waits is made to wait, and not the host. Without CUDA tensors all of this does nothing.
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
    """The CUDA devices that they are on."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))


@contextlib.contextmanager
def aside(devices: Sequence[torch.device]) -> Iterator[None]:
    """Within it the thread's current streams of these devices are others than anybody's."""
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
        yield


def mark(devices: Sequence[torch.device]) -> Marks:
    """Where the thread's current streams of these devices have come to."""
    return [(device, torch.cuda.current_stream(device).record_event()) for device in devices]


def follow(marks: Marks) -> None:
    """Have the thread's current streams wait for marks."""
    for device, event in marks:
        torch.cuda.current_stream(device).wait_event(event)


class Keeper:
    """Keeps what GPUs are still at work on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[Marks, object]] = deque()

    def keep(self, marks: Marks, memory: object) -> None:
        """Keep `memory` at least until the devices have come past the marks; forget what is done with."""
        if not marks:
            return
        with self._lock:
            self._kept.append((marks, memory))
            while self._kept and all(event.query() for _, event in self._kept[0][0]):
                self._kept.popleft()
