"""The function that compiled programs call on the CPU: a ctypes callback that reads XLA's call frame.

It accesses the memory of operands and results directly, without copies, and releases the interpreter lock while it
waits for other ranks. An exception in it becomes a JaxRuntimeError of the program with the same text.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass, field
from typing import Any, Final

import jax

from frontends.jax.call_frames import MAJOR, MINOR, ErrorCreate, Frame, Version
from frontends.jax.call_sites import decode
from frontends.jax.requests import perform
from transports.errors import (
    AbortedError,
    ClosedError,
    ConfigError,
    ConnectError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    described,
)

TARGET: Final = "ronde"
"""The name by which programs call it."""

_INTERNAL: Final = 13
_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (MismatchError, 9),  # FAILED_PRECONDITION
    (DeadlineExceeded, 4),
    (AbortedError, 10),
    (ClosedError, 10),
    (PeerLost, 14),  # UNAVAILABLE
    (ConnectError, 14),
    (ValueError, 3),  # INVALID_ARGUMENT
    (TypeError, 3),
)


@dataclass
class _Handler:
    """The callback, and the reason why it cannot be used with this XLA; empty if it can."""

    obstacle: str = "XLA has not asked for the handler's version"
    function: Any = field(init=False)

    def __post_init__(self) -> None:
        self.function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Frame))(self)

    def register(self) -> None:
        """Register the callback with XLA, which asks for its version at once."""
        jax.local_devices(backend="cpu")  # before there is one, nothing is asked
        address = ctypes.cast(self.function, ctypes.c_void_p).value
        try:
            jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform="cpu")
        except RuntimeError as error:
            self.obstacle = f"XLA does not take the handler: {error}"

    def __call__(self, pointer: Any) -> int | None:
        frame = pointer.contents
        metadata = frame.metadata()
        if metadata is not None:
            self.obstacle = obstacle_of(frame)
            metadata.version.major, metadata.version.minor, metadata.traits = MAJOR, MINOR, 0
            return None
        try:
            site = decode(frame.attribute())
            _, *operands = frame.args.addresses()  # the first is the token
            _, *results = frame.rets.addresses()
            perform(site.request, *site.arrays(operands, results))
        except BaseException as error:  # noqa: BLE001 - there is no Python caller; it goes on as XLA's error
            return _error(frame, error)
        return None


@functools.cache
def registered() -> _Handler:
    """Return the handler, registered at the first call; XLA keeps it until the process ends."""
    handler = _Handler()
    handler.register()
    return handler


def obstacle_of(frame: Frame) -> str:
    """Return the reason why this XLA's frames cannot be read; empty if they can."""
    version = frame.api.contents.version
    if version.major != MAJOR or version.minor < MINOR:
        return f"XLA's FFI has version {version.major}.{version.minor}, must be {MAJOR}.{MINOR} or later"
    for name, found, known in (
        ("call frame", frame.struct_size, Frame),
        ("version", version.struct_size, Version),
        ("arguments", frame.args.struct_size, type(frame.args)),
        ("attributes", frame.attributes.struct_size, type(frame.attributes)),
    ):
        if found < ctypes.sizeof(known):
            return f"XLA's {name} structure has {found} bytes, must have {ctypes.sizeof(known)}"
    return ""


def _error(frame: Frame, error: BaseException) -> int | None:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), _INTERNAL)
    text = described(error).encode()
    size = ErrorCreate.code.offset + ErrorCreate.code.size
    created: int | None = frame.api.contents.error_create(ErrorCreate(size, None, text, code))
    return created


def path() -> str:
    """Return how compiled programs call Ronde: "ffi", or "callback" if XLA's interface has another version.

    The environment variable RONDE_JAX_PATH chooses: ffi, callback, or auto. Raises ConfigError for another value, and
    for ffi if it is not possible.
    """
    chosen = os.environ.get("RONDE_JAX_PATH") or "auto"
    if chosen not in ("auto", "ffi", "callback"):
        raise ConfigError(f"RONDE_JAX_PATH={chosen!r}: must be auto, ffi or callback")
    if chosen == "callback":
        return "callback"
    obstacle = registered().obstacle
    if obstacle and chosen == "ffi":
        raise ConfigError(f"RONDE_JAX_PATH='ffi': {obstacle}")
    return "callback" if obstacle else "ffi"
