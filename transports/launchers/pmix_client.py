"""A PMIx client for one rank, run as a program of its own: `python pmix_client.py LIBRARY`.

It serves requests on its standard input and answers each on its standard output, a line each; values are hexadecimal:

    put KEY VALUE       ok
    fence               ok
    get KEY             ok VALUE
    (end of input)      the client finalises and ends
    anything that fails: error TEXT

It is the rank for the PMIx server, since it has the rank's environment. PMIx's library must not be in the rank itself:
it starts threads, its calls do not keep deadlines, a second PMIx_Init after PMIx_Finalize corrupts the heap (5.0), and
MPI in the same process uses it, too. This file imports the standard library only.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

_BOOL: Final = 1
_BYTE_OBJECT: Final = 27
_GLOBAL_SCOPE: Final = 3


class Proc(ctypes.Structure):
    """pmix_proc_t"""

    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class ByteObject(ctypes.Structure):
    """pmix_byte_object_t"""

    _fields_ = (("bytes", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Data(ctypes.Union):
    """The union in pmix_value_t, as far as it is used here; no member of it is larger."""

    _fields_ = (("flag", ctypes.c_bool), ("bo", ByteObject))


class Value(ctypes.Structure):
    """pmix_value_t"""

    _fields_ = (("type", ctypes.c_uint16), ("data", Data))


class Info(ctypes.Structure):
    """pmix_info_t"""

    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", Value))


class Failed(Exception):
    """A call of the library returned an error."""


class Client:
    """The rank's connection to the PMIx server."""

    def __init__(self, library: str) -> None:
        self._pmix: Any = ctypes.CDLL(library)
        self._pmix.PMIx_Error_string.restype = ctypes.c_char_p
        self._me = Proc()
        self._call("PMIx_Init", ctypes.byref(self._me), None, ctypes.c_size_t(0))

    def put(self, key: bytes, value: bytes) -> None:
        buffer = ctypes.create_string_buffer(value, len(value))
        given = Value(_BYTE_OBJECT, Data(bo=ByteObject(ctypes.addressof(buffer), len(value))))
        self._call("PMIx_Put", ctypes.c_uint8(_GLOBAL_SCOPE), key, ctypes.byref(given))
        self._call("PMIx_Commit")

    def fence(self) -> None:
        collect = Info(b"pmix.collect", 0, Value(_BOOL, Data(flag=True)))
        self._call("PMIx_Fence", None, ctypes.c_size_t(0), ctypes.byref(collect), ctypes.c_size_t(1))

    def get(self, key: bytes) -> bytes:
        """The value that rank 0 has put."""
        owner = Proc(self._me.nspace, 0)
        found = ctypes.POINTER(Value)()
        self._call("PMIx_Get", ctypes.byref(owner), key, None, ctypes.c_size_t(0), ctypes.byref(found))
        if found[0].type != _BYTE_OBJECT:
            raise Failed(f"key {key!r} holds a value of type {found[0].type}")
        return ctypes.string_at(found[0].data.bo.bytes, found[0].data.bo.size)

    def close(self) -> None:
        self._call("PMIx_Finalize", None, ctypes.c_size_t(0))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._pmix, name)(*arguments)
        if status != 0:
            text = self._pmix.PMIx_Error_string(ctypes.c_int(status))
            raise Failed(f"{name} failed: {(text or b'').decode('ascii', 'replace')} ({status})")


def main(library: str) -> None:
    """Serve requests until the end of input."""
    client: Client | None = None
    try:
        client = Client(library)
        _answer("ok")
        for line in sys.stdin:
            match line.split():
                case ["put", key, value]:
                    client.put(key.encode(), bytes.fromhex(value))
                    _answer("ok")
                case ["fence"]:
                    client.fence()
                    _answer("ok")
                case ["get", key]:
                    _answer(f"ok {client.get(key.encode()).hex()}")
                case _:
                    raise Failed("no request")
    except (OSError, AttributeError, Failed) as error:  # AttributeError: the library lacks a function
        _answer(f"error {error}")
    finally:
        if client is not None:
            client.close()


def _answer(text: str) -> None:
    sys.stdout.write(" ".join(text.split()) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
