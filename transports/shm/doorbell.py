"""Doorbells: a rank sleeps until another process wakes it, by a futex where there is one, else by short sleeps.

A doorbell is a word in shared memory: 1 while its owner sleeps or is about to sleep, 2 while it does so on a
descriptor, else 0. The owner sets the word, checks once more for work, and sleeps. A rank that has published data for
the owner reads the word; if it is not 0, the rank sets it to 0 and wakes the owner: by the futex, or by a datagram to
the socket whose descriptor the owner watches together with those of other transports. Several ranks may ring at the
same time, and late: all write 0, and an owner without work sleeps again.

The ringing rank has no barrier between its data and its read of the word, since a barrier costs more than the read. So
the processor may read the word first, miss that it is just being set, and not ring. This is one reason why every sleep
is bounded; see `loop`.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from transports.compiled import BY_FUTEX
from transports.locks import let_go
from transports.shm.fence import barrier

_FUTEX_WAIT: Final = 0
_FUTEX_WAKE: Final = 1
_NUMBERS: Final = {"x86_64": 202, "aarch64": 98}
_SHORT: Final = 0.0005
_ALL: Final = 1 << 30
_BY_DESCRIPTOR: Final = 2


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


HAS_DESCRIPTOR: Final = sys.platform == "linux"
"""True if ranks can sleep on a descriptor: of a socket with an abstract name, which ends with its process."""


def wake_all(address: int) -> None:
    """Wake all threads that sleep by futex(2) at an address."""
    if _call is not None:
        _call(_NUMBER, address, _FUTEX_WAKE, _ALL, None, None, 0)


class WakeupSockets:
    """The sockets of the ranks of a board, as one of them uses them: it reads its own, and sends to those of others.
    They are made when a rank first sleeps on a descriptor, or wakes one that does. Threads may call it concurrently.

    name  of the board; whoever learns it can wake ranks, and nothing else
    """

    def __init__(self, name: str, rank: int) -> None:
        self._name = name
        self._rank = rank
        self._lock = threading.RLock()
        self._own: socket.socket | None = None
        self._sender: socket.socket | None = None

    def fileno(self) -> int:
        """The descriptor of this rank's socket."""
        with self._lock:
            if self._own is None:
                self._own = _datagram_socket()
                self._own.bind(self._address(self._rank))
            return self._own.fileno()

    def wake(self, rank: int) -> None:
        """Make the descriptor of `rank` readable."""
        with self._lock:
            if self._sender is None:
                self._sender = _datagram_socket()
            # A rank that has closed needs no wakeup, and one whose queue is full has wakeups left.
            with contextlib.suppress(ConnectionRefusedError, BlockingIOError):
                self._sender.sendto(b"", self._address(rank))

    def drain(self) -> None:
        """Forget all wakeups of this rank."""
        with self._lock, contextlib.suppress(BlockingIOError):
            while self._own is not None:
                self._own.recv(1)

    def interrupted(self) -> None:
        """An interrupt has left a call of this thread: release the lock if it still holds it."""
        let_go(self._lock)

    def close(self) -> None:
        """Close the sockets. Idempotent; afterwards nobody calls the other methods."""
        for one in (self._own, self._sender):
            if one is not None:
                one.close()

    def _address(self, rank: int) -> bytes:
        return f"\0{self._name}-{rank}".encode()


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


class Doorbell:
    """The doorbell of `rank` at `offset`, a multiple of 4, of shared memory. Look at `word[0]` before calling `ring`.
    Without `sockets` its owner never sleeps on a descriptor. A loop watches that descriptor for its owner."""

    closed = False
    sure = False

    def __init__(self, memory: memoryview, offset: int, sockets: WakeupSockets | None = None, rank: int = 0) -> None:
        self.word = memory[offset : offset + 4].cast("I")
        self._cell = ctypes.c_uint32.from_buffer(memory, offset)
        self.address = ctypes.addressof(self._cell)
        self._sockets = sockets
        self._rank = rank

    def fileno(self) -> int:
        """The descriptor that is readable when the doorbell was rung. The owner calls it."""
        assert self._sockets is not None
        return self._sockets.fileno()

    def ready(self, events: int) -> None:
        """Forget the wakeups that have come by the descriptor."""
        if self._sockets is not None:
            self._sockets.drain()

    def arm(self, *, by_descriptor: bool = False) -> bool:
        """Announce that the owner is about to sleep, and has yet to look for work. False if there is no descriptor to
        sleep on."""
        if by_descriptor and (self._sockets is None or not HAS_DESCRIPTOR):
            return False
        self.word[0] = _BY_DESCRIPTOR if by_descriptor else BY_FUTEX
        barrier()
        return True

    def disarm(self) -> None:
        """Announce that the owner is awake."""
        self.word[0] = 0

    def ring(self) -> None:
        """Wake the owner if it sleeps."""
        state = self.word[0]
        if state:
            self.word[0] = 0
            if state == _BY_DESCRIPTOR:
                assert self._sockets is not None
                self._sockets.wake(self._rank)
            elif _call is not None:
                _call(_NUMBER, self.address, _FUTEX_WAKE, 1, None, None, 0)

    def sleep(self, seconds: float) -> None:
        """Sleep until rung, for at most `seconds`. Return immediately if rung since `arm`. May return early."""
        if _call is not None:
            whole = int(seconds)
            timeout = ctypes.byref(_Timespec(whole, int((seconds - whole) * 1e9)))
            _call(_NUMBER, self.address, _FUTEX_WAIT, BY_FUTEX, timeout, None, 0)
            return
        until = time.monotonic() + seconds
        while self.word[0] and (left := until - time.monotonic()) > 0:
            time.sleep(min(_SHORT, left))
