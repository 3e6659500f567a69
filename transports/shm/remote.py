"""Memory of another process that the kernel copies from: process_vm_readv(2), also known as cross memory attach.

The system may not allow it: it takes the right to trace the process (Yama's `ptrace_scope`, filters of containers).
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Any, Final

import numpy as np

_AT_ONCE: Final = 1 << 30


class _Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def address(view: memoryview) -> int:
    """Where the bytes of a view are in this process."""
    found: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0] if len(view) else 0
    return found


def copy_from(pid: int, start: int, target: memoryview) -> None:
    """Fill `target` with the bytes from address `start` on of process `pid`. Raises OSError."""
    read = _function()
    base, done, length = address(target), 0, len(target)
    while done < length:
        count = min(length - done, _AT_ONCE)
        here, there = _Span(base + done, count), _Span(start + done, count)
        got = read(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if got <= 0:
            code = ctypes.get_errno() if got < 0 else errno.EFAULT
            raise OSError(code, os.strerror(code))
        done += got


@cache
def _function() -> Any:
    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (AttributeError, OSError) as error:
        raise OSError(errno.ENOSYS, "the system has no process_vm_readv") from error
    read.restype = ctypes.c_ssize_t
    read.argtypes = (
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
        *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
    )
    return read
