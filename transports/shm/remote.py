"""Copies from the memory of another process by the kernel: process_vm_readv(2), also known as cross memory attach.

It needs the right to trace the process, which the system may deny (Yama's `ptrace_scope`, filters of containers).
"""

from __future__ import annotations

import ctypes
import errno
import os
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy._core import multiarray

from transports.arenas import HANDLER
from transports.onesided import Memory, address

_AT_ONCE: Final = 1 << 30
_HEAPS: Final = ("default_allocator", HANDLER)
_IOVEC: Final = 16
"""Bytes of a struct iovec where memory can be shared, which is on 64-bit machines: base and length."""
_allocator: Final[Callable[[Any], str | None]] = getattr(multiarray, "get_handler_name", lambda _: None)
"""Name of the memory handler of an array that owns its memory (NEP 49); None for another array."""


def copy_from(pid: int, start: int, target: Memory) -> None:
    """Fill `target` with the bytes from address `start` on of process `pid`. Raises OSError."""
    read = _function()
    base, done, length = address(target), 0, target.nbytes
    while done < length:
        count = min(length - done, _AT_ONCE)
        spans = array("Q", (base + done, count, start + done, count))  # two of struct iovec
        at = spans.buffer_info()[0]
        got = read(pid, at, 1, at + _IOVEC, 1, 0)
        if got <= 0:
            code = ctypes.get_errno() if got < 0 else errno.EFAULT
            raise OSError(code, os.strerror(code))
        done += got


def copy_here(start: int, target: Memory) -> None:
    """Fill `target` with the bytes from an address of this process on."""
    ctypes.memmove(address(target), start, target.nbytes)


def on_heap(memory: Memory) -> bool:
    """True for memory of NumPy's own allocator, or of an arena. Every process with the right to read this one's memory
    can read it."""
    if type(memory) is not np.ndarray:
        return False
    owner = memory if memory.base is None else memory.base
    return type(owner) is np.ndarray and _allocator(owner) in _HEAPS


def readable(pieces: Sequence[Memory]) -> bool:
    """True if a process with the right to read this one's memory could read all of these pieces. The kernel does
    not read all memory for others, such as that of some devices. Tries the first and the last byte of each piece."""
    ends = []
    for piece in pieces:
        if piece.nbytes:
            start = address(piece)
            ends += [start, 1, start + piece.nbytes - 1, 1]
    count = len(ends) // 2
    kept = array("B", bytes(count + 1))
    spans = array("Q", (kept.buffer_info()[0], count, *ends))
    at = spans.buffer_info()[0]
    try:
        return bool(_function()(os.getpid(), at, 1, at + _IOVEC, count, 0) == count)
    except OSError:
        return False


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
