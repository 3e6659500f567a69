"""The envelope of a message: who sent it, with which tag, and what it holds. The frame's check tells the dtype."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypedDict

import numpy as np

from collectives.arrays import ML_DTYPES, can_be_sent, named_dtype

SENDABLE: Final = frozenset(filter(can_be_sent, map(np.dtype, np.typecodes["All"])))
"""The dtypes of NumPy itself that arrays in messages may have."""
OBJECT_CHECK: Final = zlib.crc32(b"a pickled object")
"""The check of a message that holds a Python object."""


@dataclass(slots=True)
class Status:
    """The envelope of a message. `probe` and `iprobe` return one; a receive fills the one that it is given.

    source  the rank that sent the message; -1 as long as the status is not filled
    tag     its tag; -1 as long as the status is not filled
    dtype   the dtype of its elements; None for a Python object
    count   the number of its elements; for an object the number of bytes of its pickle
    nbytes  the number of its bytes
    """

    source: int = -1
    tag: int = -1
    dtype: np.dtype[Any] | None = None
    count: int = 0
    nbytes: int = 0

    def fill(self, source: int, tag: int, dtype: np.dtype[Any] | None, nbytes: int) -> None:
        """Describe a message of so many bytes."""
        self.source, self.tag, self.dtype, self.nbytes = source, tag, dtype, nbytes
        self.count = nbytes if dtype is None else nbytes // dtype.itemsize

    def __str__(self) -> str:
        held = f"an object of {self.nbytes} bytes" if self.dtype is None else f"{self.count} elements of {self.dtype}"
        return f"a message from rank {self.source} with tag {self.tag}: {held}"


@cache
def check_of(dtype: np.dtype[Any]) -> int:
    """The check of a message with elements of a dtype."""
    return zlib.crc32(dtype.name.encode())


@cache
def _names() -> dict[int, str]:
    """The name of every dtype that can be sent, by the check of its messages."""
    return {zlib.crc32(name.encode()): name for name in (*(dtype.name for dtype in SENDABLE), *ML_DTYPES)}


def dtype_of(check: int) -> np.dtype[Any] | None:
    """The dtype of a message with this check; None if it holds no array. Raises as `named_dtype`."""
    name = _names().get(check)
    return None if name is None else named_dtype(name)


class ReceiveOptions(TypedDict, total=False):
    """The options of a receive, for overloads."""

    tag: int | None
    timeout: float | None
    status: Status | None
    shorter: bool
