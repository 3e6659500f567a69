"""Doorbells: a rank sleeps until another process wakes it, by a futex where there is one, else by short sleeps.

A doorbell is a word in shared memory: 1 while its owner sleeps or is about to sleep, else 0. The owner sets the word,
checks once more for work, and sleeps. A rank that has published data for the owner reads the word; if it is 1, the rank
sets it to 0 and wakes the owner. Several ranks may ring at the same time, and late: all write 0, and an owner without
work sleeps again.

The ringing rank has no barrier between its data and its read of the word, since a barrier costs more than the read. So
the processor may read the word first, miss that it is just being set, and not ring. This is one reason why every sleep
is bounded; see `loop`.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from collections.abc import Callable
from typing import Any, Final

_FUTEX_WAIT: Final = 0
_FUTEX_WAKE: Final = 1
_NUMBERS: Final = {"x86_64": 202, "aarch64": 98}
_SHORT: Final = 0.0005
_ALL: Final = 1 << 30


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _futex() -> Callable[..., Any] | None:
    """futex(2) as call(number, address, operation, value, timeout or None); None where there is none."""
    if sys.platform != "linux" or platform.machine() not in _NUMBERS:
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    call.argtypes = (
        ctypes.c_long,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_uint32,
        ctypes.POINTER(_Timespec),
        ctypes.c_void_p,
        ctypes.c_uint32,
    )
    return call


_call: Final = _futex()
_NUMBER: Final = _NUMBERS.get(platform.machine(), 0)


CAN_SLEEP: Final = _call is not None
"""True if ranks sleep by futex(2)."""


def wake_all(address: int) -> None:
    """Wake all threads that sleep by futex(2) at an address."""
    if _call is not None:
        _call(_NUMBER, address, _FUTEX_WAKE, _ALL, None, None, 0)


class Doorbell:
    """The doorbell at `offset`, a multiple of 4, of shared memory. Look at `word[0]` before calling `ring`."""

    def __init__(self, memory: memoryview, offset: int) -> None:
        self.word = memory[offset : offset + 4].cast("I")
        self._cell = ctypes.c_uint32.from_buffer(memory, offset)
        self.address = ctypes.addressof(self._cell)

    def arm(self) -> None:
        """Announce that the owner is about to sleep."""
        self.word[0] = 1

    def disarm(self) -> None:
        """Announce that the owner is awake."""
        self.word[0] = 0

    def ring(self) -> None:
        """Wake the owner if it sleeps."""
        if self.word[0]:
            self.word[0] = 0
            if _call is not None:
                _call(_NUMBER, self.address, _FUTEX_WAKE, 1, None, None, 0)

    def sleep(self, seconds: float) -> None:
        """Sleep until rung, for at most `seconds`. Return immediately if rung since `arm`. May return early."""
        if _call is not None:
            whole = int(seconds)
            timeout = ctypes.byref(_Timespec(whole, int((seconds - whole) * 1e9)))
            _call(_NUMBER, self.address, _FUTEX_WAIT, 1, timeout, None, 0)
            return
        until = time.monotonic() + seconds
        while self.word[0] and (left := until - time.monotonic()) > 0:
            time.sleep(min(_SHORT, left))
