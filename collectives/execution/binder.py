"""The memory and the kernels to which plans are bound: the stage, peers, and the functions of the transport."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from collectives.arrays import (
    Array,
    Averaging,
    Kernel,
    Op,
    averaging_kernel,
    compiled_averaging,
    compiled_kernel,
    is_small_float,
)
from collectives.arrays import kernel as kernel_for
from collectives.execution.positions import StepCounter
from collectives.execution.windows import Windows
from collectives.jit import MachineCode, combining
from collectives.planning import Plan, WindowOffset, WindowOffsets
from collectives.schedule import Buf, Instruction, Span
from transports.base import Transport
from transports.copying import Kernel as CopyKernel
from transports.copying import array_kernel
from transports.onesided import Window

NO_DATA: Final = np.empty(0, np.uint8)


class Binder:
    """Binds plans to a communicator's transport, window and memory."""

    def __init__(
        self, transport: Transport, ranks: tuple[int, ...], tag: int, windows: Windows, code: MachineCode | None
    ) -> None:
        """`code` has kernels that are faster than those of `arrays`; None: there are none."""
        self.window: Window | None = None
        """The staging window, if there is one: two halves."""
        self.ranks = ranks
        self.tag = tag
        self.transport = transport
        self.counter = StepCounter()
        self._windows = windows
        self._code = code

    def kernel(self, op: str | Op, dtype: np.dtype[Any]) -> Kernel:
        """The kernel of an op."""
        name = compiled_kernel(op, dtype)
        compiled = self._compiled(name, dtype) if name else None
        return kernel_for(op, dtype) if compiled is None else compiled

    def averaging_kernel(self, dtype: np.dtype[Any], averaging: Averaging) -> Kernel:
        """The kernel of a combination within an average."""
        found = compiled_averaging(dtype, averaging) if is_small_float(dtype) else None
        compiled = None if found is None else self._compiled(found.name, dtype)
        return averaging_kernel(dtype, averaging) if compiled is None else compiled

    def _compiled(self, name: str, dtype: np.dtype[Any]) -> Kernel | None:
        return None if self._code is None else combining(self._code, name, dtype.itemsize)

    def staged(self, span: Span, plan: Plan, slot: int) -> Array:
        """The memory of a span in the staging window."""
        assert self.window is not None
        index = self.window.index if span.rank < 0 else span.rank
        part = np.frombuffer(self.window.view(index), np.uint8)
        offset = slot % 2 * (self.window.nbytes // 2) + slot // 2 * plan.slot_stride
        dtype = plan.call.dtype
        view: Array = part[offset + span.start * dtype.itemsize : offset + span.stop * dtype.itemsize].view(dtype)
        return view

    def peers(self, span: Span, offsets: WindowOffsets | None, dtype: np.dtype[Any]) -> Array:
        """The memory of a span of a peer's IN or OUT, which lies in a window."""
        place = _window_offset(span, offsets)
        assert place is not None
        size = dtype.itemsize
        view: Array = self._windows.part(place, span.rank, span.start * size, span.stop * size).view(dtype)
        return view


def copy_kernel(plan: Plan, step: Instruction) -> CopyKernel | None:
    """The kernel for a COPY from or to memory that other ranks map; None for plain assignment."""
    a, dst = step.a, step.dst
    assert a is not None
    assert dst is not None
    if not (_shared(dst, plan) or _shared(a, plan)):
        return None
    nbytes = (dst.stop - dst.start) * plan.call.dtype.itemsize
    return array_kernel(nbytes, plan.nbytes, a.rank >= 0)


def _shared(span: Span, plan: Plan) -> bool:
    """True for memory that other ranks map."""
    return span.buf is Buf.STAGE or (
        span.buf is not Buf.SCRATCH and _window_offset(span, plan.call.windows) is not None
    )


def _window_offset(span: Span, offsets: WindowOffsets | None) -> WindowOffset | None:
    """The place in a window of the IN or OUT that `span` belongs to; None if that is not in a window."""
    return None if offsets is None else offsets[span.buf is Buf.OUT]
