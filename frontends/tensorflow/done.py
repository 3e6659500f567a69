"""The function that TensorFlow wants called when an asynchronous kernel is done, kept beyond the call that brought it.

`compute` of an asynchronous kernel is given a C++ `std::function<void()>` that lives as long as that call does; so
TensorFlow 2.21's C interface alone cannot end a kernel later. It is moved here, as its move constructor would: in
libstdc++ it is four words, of which the first two hold what it calls, the third manages these and the fourth calls
them, and one whose third is null is empty (bits/std_function.h, the same since GCC 4). Where a look at these words
does not show two functions of TensorFlow's, nothing is moved, and the thread that has brought it waits.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, byref, c_char_p, c_int, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Final

_Words = c_uint64 * 4
_Manage = CFUNCTYPE(ctypes.c_bool, c_void_p, c_void_p, c_int)
_Invoke = CFUNCTYPE(None, c_void_p)
_MANAGER, _INVOKER = 2, 3
_DESTROY: Final = 3


class _Where(ctypes.Structure):
    """Dl_info, what dladdr tells of an address."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("address", c_void_p))


class Done:
    """Calls it once. `wait` returns when it may have to live no longer."""

    def __init__(self, address: int, run: Callable[[int], Any], movable: bool) -> None:
        """`run` calls what is at an address."""
        self._address = address
        self._run = run
        self._moved: Any = None
        self._over: threading.Event | None = None
        if movable:
            there = _Words.from_address(address)
            self._moved = _Words(*there)
            there[_MANAGER] = 0
        else:
            self._over = threading.Event()

    def __call__(self) -> None:
        """TensorFlow goes on, in threads of its own."""
        if self._over is not None:
            self._run(self._address)
            self._over.set()
            return
        words, self._moved = self._moved, None
        _Invoke(words[_INVOKER])(byref(words))
        _Manage(words[_MANAGER])(byref(words), byref(words), _DESTROY)

    def wait(self) -> None:
        """Before this returns, the call that brought it must not."""
        if self._over is not None:
            self._over.wait()


def movable(address: int, library: ctypes.CDLL) -> bool:
    """True if what is there looks like a libstdc++ function of TensorFlow's."""
    if not hasattr(library, "_ZSt25__throw_bad_function_callv") or not hasattr(library, "dladdr"):
        return False
    library.dladdr.argtypes = (c_void_p, c_void_p)
    words, where = _Words.from_address(address), _Where()
    return all(
        library.dladdr(words[word], byref(where)) and Path(where.file.decode()).name.startswith("libtensorflow")
        for word in (_MANAGER, _INVOKER)
    )
