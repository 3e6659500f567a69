"""Pickles: the serialization of Python objects. A program may replace it, for example by that of cloudpickle."""

from __future__ import annotations

import pickle as _pickle
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from frontends.mpi.handles import SURFACE
from frontends.mpi.ints import from_environment
from frontends.mpi.memory import Bytes, buffer

_HIGHEST: Final = _pickle.HIGHEST_PROTOCOL
_PROTOCOL: Final = from_environment("MPI4PY_PICKLE_PROTOCOL", -1, _HIGHEST, default=_HIGHEST)
_THRESHOLD: Final = from_environment("MPI4PY_PICKLE_THRESHOLD", 0, default=1 << 18)


class Pickle:
    """The serialization of objects.

    dumps      gives the bytes of an object; with `protocol` as second argument if that is not None
    loads      gives the object of bytes
    protocol   protocol of pickles, by default MPI4PY_PICKLE_PROTOCOL of the environment, or the highest
    threshold  bytes from which on buffers travel apart from the pickle, by default MPI4PY_PICKLE_THRESHOLD, or 256 KiB
    """

    __module__ = SURFACE

    def __init__(
        self,
        dumps: Callable[..., Any] | None = None,
        loads: Callable[..., Any] | None = None,
        protocol: int | None = None,
        threshold: int | None = None,
    ) -> None:
        self.is_default = dumps is None and loads is None
        self._dumps = _pickle.dumps if dumps is None else dumps
        self._loads = _pickle.loads if loads is None else loads
        self._has_pickles = dumps is None
        self._protocol = protocol
        self._threshold = threshold

    @property
    def PROTOCOL(self) -> int | None:
        """Protocol of pickles, the second argument of `dumps`. None stands for the default, and leaves the argument out
        for a `dumps` of the program."""
        return _PROTOCOL if self._protocol is None and self._has_pickles else self._protocol

    @PROTOCOL.setter
    def PROTOCOL(self, protocol: int | None) -> None:
        self._protocol = protocol

    @property
    def THRESHOLD(self) -> int:
        """Bytes from which on buffers travel apart from the pickle; None stands for the default."""
        return _THRESHOLD if self._threshold is None else self._threshold

    @THRESHOLD.setter
    def THRESHOLD(self, nbytes: int | None) -> None:
        self._threshold = nbytes

    def dumps(self, obj: Any) -> bytes:
        """The bytes of an object."""
        protocol = self.PROTOCOL
        return self._dumps(obj) if protocol is None else self._dumps(obj, protocol)

    def loads(self, data: Any) -> Any:
        """The object of bytes."""
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[buffer]]:
        """The bytes of an object, and its large buffers, which are not in them."""
        buffers: list[buffer] = []

        def keep_apart(found: _pickle.PickleBuffer) -> bool:
            raw = found.raw()
            if raw.nbytes < self.THRESHOLD:
                return True
            buffers.append(buffer.frombuffer(raw))
            return False

        protocol = 5 if self.PROTOCOL is None or self.PROTOCOL < 0 else max(5, self.PROTOCOL)
        return self._dumps(obj, protocol, buffer_callback=keep_apart), buffers

    def loads_oob(self, data: Any, buffers: Iterable[Any]) -> Any:
        """The object of bytes and large buffers."""
        return self._loads(data, buffers=buffers)


pickle: Final = Pickle()
"""The serialization of all objects that travel."""


def encoded(obj: Any) -> Bytes:
    """The bytes of an object as an array."""
    return np.frombuffer(pickle.dumps(obj), np.uint8)
