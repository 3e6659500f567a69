"""XLA's C structures for foreign function calls, the part used here: xla/ffi/api/c_api.h, version 0.3.

jaxlib contains that header: `jax.ffi.include_dir()`. Every structure begins with its size. Unless the major version
changes, XLA only appends fields; handler.py checks version and sizes before it reads a frame.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

MAJOR: Final = 0
MINOR: Final = 3
"""The version of the header that the structures are taken from."""

METADATA: Final = 1
"""XLA_FFI_Extension_Metadata: XLA asks for the handler's version and calls nothing."""

_HEAD: Final[list[tuple[str, Any]]] = [("struct_size", ctypes.c_size_t), ("extension_start", ctypes.c_void_p)]


class _Buffer(ctypes.Structure):
    _fields_ = [*_HEAD, ("dtype", ctypes.c_int), ("data", ctypes.c_void_p)]


class _Buffers(ctypes.Structure):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = [
        *_HEAD,
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("buffers", ctypes.c_void_p),
    ]

    def addresses(self) -> list[int]:
        """Return the address of each buffer's memory."""
        pointers = (ctypes.c_size_t * self.size).from_address(self.buffers)
        return [ctypes.c_size_t.from_address(pointer + _Buffer.data.offset).value for pointer in pointers]


class _Span(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class _Attributes(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    ]


class Version(ctypes.Structure):
    """XLA_FFI_Api_Version."""

    _fields_ = [*_HEAD, ("major", ctypes.c_int), ("minor", ctypes.c_int)]


class ErrorCreate(ctypes.Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = [*_HEAD, ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


class Api(ctypes.Structure):
    """XLA_FFI_Api, its beginning."""

    _fields_ = [
        *_HEAD,
        ("version", Version),
        ("internal", ctypes.c_void_p),
        ("error_create", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ErrorCreate))),
    ]


class _Extension(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p)]


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", ctypes.POINTER(_Metadata))]


class Frame(ctypes.Structure):
    """XLA_FFI_CallFrame, without the future at its end: the handler waits."""

    _fields_ = [
        *_HEAD,
        ("api", ctypes.POINTER(Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("args", _Buffers),
        ("rets", _Buffers),
        ("attributes", _Attributes),
    ]

    def metadata(self) -> _Metadata | None:
        """Return the structure to fill in if XLA asks for the handler's version; None if the frame is a call."""
        at = self.extension_start
        while at:
            base = _Extension.from_address(at)
            if base.type == METADATA:
                found: _Metadata = _MetadataExtension.from_address(at).metadata.contents
                return found
            at = base.next
        return None

    def attribute(self) -> bytes:
        """Return the handler's only attribute, a string."""
        span = _Span.from_address(self.attributes.values[0])
        return ctypes.string_at(span.ptr, span.len)
