"""Doorbells: a rank sleeps until another process wakes it, by a futex where there is one, else by short sleeps.

A doorbell is a word in shared memory: 1 while its owner sleeps or is about to, else 0. The owner sets it, looks once
more whether there is anything to do, and sleeps; whoever has news makes them visible, then looks at the word and, if it
is 1, makes it 0 and wakes the owner. Several may ring at once, and late: all write 0, and an owner that was woken for
nothing goes to sleep again.

The ringer has no barrier between its news and its look at the word, which would cost more than the look. So the
processor may take the look first, miss a word that is just being set, and not ring. A sleep is bounded for that reason
too; see `loop`.
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


class Doorbell:
    """The doorbell at `offset`, a multiple of 4, of shared memory. Look at `word[0]` before calling `ring`."""

    def __init__(self, memory: memoryview, offset: int) -> None:
        self.word = memory[offset : offset + 4].cast("I")
        self._cell = ctypes.c_uint32.from_buffer(memory, offset)
        self._address = ctypes.addressof(self._cell)

    def arm(self) -> None:
        """The owner is about to sleep."""
        self.word[0] = 1

    def disarm(self) -> None:
        """The owner is awake."""
        self.word[0] = 0

    def ring(self) -> None:
        """Wake the owner if it sleeps."""
        if self.word[0]:
            self.word[0] = 0
            if _call is not None:
                _call(_NUMBER, self._address, _FUTEX_WAKE, 1, None, None, 0)

    def sleep(self, seconds: float) -> None:
        """Sleep until rung, at most so long; not at all if it has been rung since `arm`. May end early."""
        if _call is not None:
            whole = int(seconds)
            timeout = ctypes.byref(_Timespec(whole, int((seconds - whole) * 1e9)))
            _call(_NUMBER, self._address, _FUTEX_WAIT, 1, timeout, None, 0)
            return
        until = time.monotonic() + seconds
        while self.word[0] and (left := until - time.monotonic()) > 0:
            time.sleep(min(_SHORT, left))
