"""Arrays that are born shared: large NumPy arrays in an arena, which the other ranks of the host read where they lie.

NumPy's memory handler (NEP 49) is set for the context of the caller. Its functions are machine code
(jit/allocator.py). The arena is one of the process (transports/arenas.py); ranks find it by themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import threading
import time
from types import TracebackType
from typing import Any, Final

from collectives.jit import Allocation, ArrayKeeper, MachineCode, load
from collectives.numeric import is_integer
from transports.arenas import HANDLER, PAGE, Arena, supported
from transports.errors import ConfigError

log = logging.getLogger("ronde.sharing")

LEAST_BYTES: Final = 1 << 16
"""The smallest array that is born shared."""
_LEAST_LIMIT: Final = 1 << 20
_MOST_LIMIT: Final = 1 << 62
"""Bytes: an address has 63 bits."""
_PART_OF_MEMORY: Final = 2
"""The default limit is the memory of the machine, divided by this."""
_KEPT_BYTES: Final = 256 << 20
"""The most bytes of arrays that are gone which stay with the process for new arrays."""
_COMPILE_SECONDS: Final = 600.0
_CAPSULE: Final = b"mem_handler"
_SET_HANDLER: Final = 304
_GET_HANDLER: Final = 305
_DEFAULT_HANDLER: Final = 306
"""Places of functions and of the default handler in NumPy's C API."""


class SharedArrays:
    """The result of `share_arrays`: a context, whose end is `close`."""

    def __init__(self, sharing: _Sharing, before: Any) -> None:
        self._sharing = sharing
        self._before = before
        self._process = os.getpid()
        self._open = True

    def close(self) -> None:
        """Have new arrays of this thread born as before. With the last of these contexts in the process, the arrays
        that there are become ordinary ones. Idempotent."""
        if self._open:
            self._open = False
            self._sharing.leave(self._before, self._process)

    def __enter__(self) -> SharedArrays:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def begin_sharing(limit: int | None) -> SharedArrays:
    """See `startup.share_arrays`."""
    if limit is not None and not is_integer(limit):
        raise TypeError(f"limit={limit!r}: must be an int, the bytes of all arrays, or None")
    if limit is not None and not _LEAST_LIMIT <= limit < _MOST_LIMIT:
        raise ValueError(f"limit={limit}: must be at least {_LEAST_LIMIT} bytes, and less than {_MOST_LIMIT}")
    return _PROCESS.get().enter(None if limit is None else int(limit))


def is_sharing() -> bool:
    """True if this process has an arena, in which arrays of some of its threads are born."""
    return _PROCESS.is_sharing()


def not_shared() -> int:
    """The number of arrays of this process that were to be born shared, and for which the arena was full."""
    return _PROCESS.refused()


class _Allocator(ctypes.Structure):
    """NumPy's PyDataMemAllocator."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


class _Handler(ctypes.Structure):
    """NumPy's PyDataMem_Handler."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator))


class _Sharing:
    """The allocator of this process and its arena. It is never released: arrays call its functions when they end."""

    def __init__(self, code: MachineCode) -> None:
        api = ctypes.pythonapi
        pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
        capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            ("PyCapsule_New", api)
        )
        numpy_api = importlib.import_module("numpy._core._multiarray_umath")._ARRAY_API
        table = (ctypes.c_size_t * (_DEFAULT_HANDLER + 1)).from_address(pointer(numpy_api, None))
        self._set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
        self._get_handler = ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET_HANDLER])
        default = ctypes.py_object.from_address(table[_DEFAULT_HANDLER]).value
        usual = _Handler.from_address(pointer(default, _CAPSULE)).allocator
        fields = Allocation(*(getattr(usual, name) or 0 for name, _ in _Allocator._fields_))
        self.keeper = ArrayKeeper(code, fields, LEAST_BYTES)
        self._handler = _Handler(HANDLER.encode(), 1, _Allocator(*self.keeper.functions))
        self._capsule = capsule(ctypes.addressof(self._handler), _CAPSULE, None)
        for immortal in (self._handler, self._capsule):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(immortal))
        self._lock = threading.RLock()
        self._arena: Arena | None = None
        self._limit = 0
        self._users = 0
        self._renews = False
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork_in_parent, after_in_child=self._after_fork
        )

    @property
    def has_arena(self) -> bool:
        """True while a context is open."""
        return self._arena is not None

    def enter(self, limit: int | None) -> SharedArrays:
        """See begin_sharing."""
        with self._lock:
            if self._arena is None:
                self._limit = _rounded(limit or _usual_limit())
                try:
                    self._begin_arena(self._limit)
                except OSError as error:
                    raise ConfigError(f"limit={self._limit}: {error.strerror or error}") from error
            elif limit is not None and _rounded(limit) != self._limit:
                raise ValueError(f"limit={limit}: the arena of this process has {self._limit} bytes")
            self._users += 1
            return SharedArrays(self, self._set_handler(self._capsule))

    def leave(self, before: Any, process: int) -> None:
        """Undo `enter` in `process`; that of a parent counts no more in a forked child."""
        if self._get_handler() is self._capsule:
            self._set_handler(before)
        if process == os.getpid():
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._end_arena()

    def _begin_arena(self, nbytes: int) -> None:
        arena = Arena(nbytes)
        try:
            self.keeper.begin(arena.begin, nbytes, min(_KEPT_BYTES, nbytes // 4))
        except BaseException:
            arena.hide()
            arena.close()
            raise
        self._arena = arena

    def _end_arena(self) -> None:
        """Make all arrays ordinary ones. Whatever other threads write to them meanwhile, peers read it: see
        transports.arenas."""
        arena, self._arena = self._arena, None
        if arena is not None:
            books, nbytes = self.keeper.retire()
            arena.hide()
            try:
                arena.make_private(nbytes)
            except OSError as error:
                log.warning("arrays born shared cannot be made private (%s); a forked child that uses them ends", error)
            self.keeper.settle(books, nbytes)

    # ---- forks

    def _before_fork(self) -> None:
        self._lock.acquire()  # until after the fork: no other thread begins or ends an arena meanwhile
        self._renews = self._arena is not None
        self._end_arena()

    def _after_fork_in_parent(self) -> None:
        if self._renews:
            with contextlib.suppress(OSError):  # new arrays are ordinary ones then
                self._begin_arena(max(_LEAST_LIMIT, self._limit - self.keeper.used))
        self._lock.release()

    def _after_fork(self) -> None:
        self.keeper.after_fork()
        self._lock = threading.RLock()
        self._users = 0


class _Process:
    """The allocator of this process, made when it is first wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sharing: _Sharing | None = None

    def get(self) -> _Sharing:
        """The allocator. Raises ConfigError if there can be none."""
        if not supported():
            raise ConfigError("share_arrays: needs Linux, whose memory files (memfd_create) other processes can map")
        with self._lock:
            if self._sharing is None:
                code = load(time.monotonic() + _COMPILE_SECONDS)
                if not isinstance(code, MachineCode):
                    raise ConfigError(f"share_arrays: its allocator is machine code, ronde[jit]: {code}")
                self._sharing = _Sharing(code)
            return self._sharing

    def is_sharing(self) -> bool:
        """See is_sharing."""
        return self._sharing is not None and self._sharing.has_arena

    def refused(self) -> int:
        """See not_shared."""
        return 0 if self._sharing is None else self._sharing.keeper.refused


_PROCESS: Final = _Process()


def _usual_limit() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _PART_OF_MEMORY


def _rounded(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
