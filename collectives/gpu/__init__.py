"""The same operations on arrays of GPUs: natively by the transport, or through page-locked memory of the host.

CuPy is imported when the first GPU array is seen. Work is enqueued on streams; only `blocking=True` waits for the GPU.
"""

from __future__ import annotations

from collectives.gpu.devices import cuda
from collectives.gpu.dispatch import DeviceCalls, DeviceOperations
from collectives.gpu.overlap import DeviceAccess

__all__ = ["DeviceAccess", "DeviceCalls", "DeviceOperations", "cuda"]
