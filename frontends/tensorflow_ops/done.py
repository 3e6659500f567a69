"""The completion callback of an asynchronous kernel, kept beyond the call that passed it.

TensorFlow passes `compute` a C++ `std::function<void()>` that is only valid during the call, so its C interface alone
cannot complete a kernel later (TensorFlow 2.21). It is moved here, as its move constructor would do. In libstdc++ a
std::function is four words: two of captured data, the manager function, and the invoker function; the manager is null
in an empty one (bits/std_function.h, unchanged since GCC 4).

    | data 0 | data 1 | manager | invoker |

If the last two words are not addresses in TensorFlow's library, nothing is moved, and the calling thread waits.
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


class _AddressInfo(ctypes.Structure):
    """Dl_info, the result of dladdr."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("address", c_void_p))


class Done:
    """Calls the callback once."""

    def __init__(self, address: int, run: Callable[[int], Any], movable: bool) -> None:
        """`run` calls the function at an address; used if it was not moved."""
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
        """Complete the kernel. TensorFlow continues in its own threads."""
        if self._over is not None:
            self._run(self._address)
            self._over.set()
            return
        words, self._moved = self._moved, None
        _Invoke(words[_INVOKER])(byref(words))
        _Manage(words[_MANAGER])(byref(words), byref(words), _DESTROY)

    def wait(self) -> None:
        """Block until the memory of the callback is no longer needed: not at all if it was moved."""
        if self._over is not None:
            self._over.wait()


def movable(address: int, library: ctypes.CDLL) -> bool:
    """True if the object at the address looks like a libstdc++ function of TensorFlow's library."""
    if not hasattr(library, "_ZSt25__throw_bad_function_callv") or not hasattr(library, "dladdr"):
        return False
    library.dladdr.argtypes = (c_void_p, c_void_p)
    words, where = _Words.from_address(address), _AddressInfo()
    return all(
        library.dladdr(words[word], byref(where)) and Path(where.file.decode()).name.startswith("libtensorflow")
        for word in (_MANAGER, _INVOKER)
    )
