"""Status: the envelope of a message that a call has received or found."""

from __future__ import annotations

from array import array
from typing import Any

from frontends.mpi.constants import ANY_SOURCE, ANY_TAG, UNDEFINED
from frontends.mpi.datatypes import BYTE, Datatype
from frontends.mpi.handles import SURFACE
from frontends.mpi.ints import as_int

_SOURCE, _TAG, _ERROR, _NBYTES, _CANCELLED = range(5)
_EMPTY = (ANY_SOURCE, ANY_TAG, 0, 0, 0)


class Status:
    """The envelope of a message: its source, tag, length and error."""

    __module__ = SURFACE

    def __init__(self, status: Status | None = None, /) -> None:
        if status is not None and not isinstance(status, Status):
            raise TypeError(f"{status!r}: must be a Status")
        self._words: array[int] = array("q", _EMPTY if status is None else status._words)

    def fill(self, source: int, tag: int, nbytes: int, cancelled: bool = False) -> None:
        """Describe a message."""
        words = self._words
        words[_SOURCE], words[_TAG], words[_ERROR] = source, tag, 0
        words[_NBYTES], words[_CANCELLED] = nbytes, cancelled

    def empty(self) -> None:
        """Describe no message."""
        self.fill(ANY_SOURCE, ANY_TAG, 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Status):
            return NotImplemented
        return self._words == other._words

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, int]:
        names = ("source", "tag", "error", "nbytes", "cancelled")
        return dict(zip(names, self._words, strict=True))

    def __setstate__(self, state: dict[str, int]) -> None:
        self._words = array("q", state.values())

    def __reduce__(self) -> Any:
        return type(self), (), self.__getstate__()

    def Get_source(self) -> int:
        return self._words[_SOURCE]

    def Set_source(self, source: int) -> None:
        self._words[_SOURCE] = source

    def Get_tag(self) -> int:
        return self._words[_TAG]

    def Set_tag(self, tag: int) -> None:
        self._words[_TAG] = tag

    def Get_error(self) -> int:
        return self._words[_ERROR]

    def Set_error(self, error: int) -> None:
        self._words[_ERROR] = error

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Number of whole elements; UNDEFINED if the message has parts of one."""
        size = datatype.layout.size
        nbytes = self._words[_NBYTES]
        if not size:
            return UNDEFINED if nbytes else 0
        return UNDEFINED if nbytes % size else nbytes // size

    def Get_elements(self, datatype: Datatype) -> int:
        """Number of basic elements."""
        layout = datatype.layout
        nbytes = self._words[_NBYTES]
        if not layout.size:
            return UNDEFINED if nbytes else 0
        full, rest = divmod(nbytes, layout.size)
        found = full * layout.elements
        while rest > 0:
            for dtype, number in layout.runs:
                part = min(number, rest // dtype.itemsize)
                found, rest = found + part, rest - part * dtype.itemsize
                if part < number:
                    return UNDEFINED if rest else found
        return found

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        layout = datatype.layout
        if not layout.elements:
            return
        full, rest = divmod(as_int(count, "count"), layout.elements)
        nbytes = full * layout.size
        while rest > 0:
            for dtype, number in layout.runs:
                part = min(number, rest)
                nbytes, rest = nbytes + part * dtype.itemsize, rest - part
        self._words[_NBYTES] = nbytes

    def Is_cancelled(self) -> bool:
        return bool(self._words[_CANCELLED])

    def Set_cancelled(self, flag: bool) -> None:
        self._words[_CANCELLED] = bool(flag)

    @property
    def source(self) -> int:
        return self._words[_SOURCE]

    @source.setter
    def source(self, source: int) -> None:
        self.Set_source(source)

    @property
    def tag(self) -> int:
        return self._words[_TAG]

    @tag.setter
    def tag(self, tag: int) -> None:
        self.Set_tag(tag)

    @property
    def error(self) -> int:
        return self._words[_ERROR]

    @error.setter
    def error(self, error: int) -> None:
        self.Set_error(error)

    @property
    def count(self) -> int:
        return self._words[_NBYTES]

    @count.setter
    def count(self, nbytes: int) -> None:
        self._words[_NBYTES] = nbytes

    @property
    def cancelled(self) -> bool:
        return self.Is_cancelled()

    @cancelled.setter
    def cancelled(self, flag: bool) -> None:
        self.Set_cancelled(flag)

    def tomemory(self) -> memoryview:
        return memoryview(self._words)

    def py2f(self) -> list[int]:
        return list(self._words)

    @classmethod
    def f2py(cls, arg: list[int]) -> Status:
        made = cls()
        made._words = array("q", arg)
        return made
