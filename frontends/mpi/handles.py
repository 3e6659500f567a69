"""Handles: the objects of a program that refer to objects of MPI, as integers do in C."""

from __future__ import annotations

import sys
import weakref
from typing import Any, ClassVar, Final, Self

from transports.numbers import Numbers

SURFACE: Final = "frontends.mpi.MPI"
"""The module with all public names, where pickles look for predefined objects."""


class Body:
    """An object of MPI, to which handles refer.

    predefined  the name of a predefined object, which is never freed; empty for others
    """

    predefined: str = ""


_numbers: Final = Numbers(1)
_bodies: Final[weakref.WeakValueDictionary[int, Body]] = weakref.WeakValueDictionary()
_numbers_of: Final[weakref.WeakKeyDictionary[Body, int]] = weakref.WeakKeyDictionary()


class Handle:
    """A handle. Two are equal if they refer to the same object; null handles refer to none.

    family   the base class whose handles can be made from each other
    null     the name of the null handle
    """

    family: ClassVar[type[Any]] = object
    null: ClassVar[str] = ""
    _body: Any = None

    def __new__(cls, other: Any = None, /) -> Self:
        made = super().__new__(cls)
        if other is not None:
            if not isinstance(other, cls.family):
                raise TypeError(f"{other!r}: must be a {cls.family.__name__}")
            cls._copy(made, other)
            if made._body is not None and not cls._admits(made._body):
                raise TypeError(f"{other!r}: is no {cls.__name__}")
        return made

    @classmethod
    def _admits(cls, body: Any) -> bool:
        """True if handles of this class may refer to the object."""
        return True

    @staticmethod
    def _copy(made: Any, other: Any) -> None:
        made._body = other._body

    @classmethod
    def of(cls, body: Any) -> Self:
        """A handle of a body."""
        made = cls.__new__(cls)
        made._body = body
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self.family):
            return NotImplemented
        return self._body is other._body

    def __ne__(self, other: object) -> bool:
        if not isinstance(other, self.family):
            return NotImplemented
        return self._body is not other._body

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return self._body is not None

    def __reduce__(self) -> Any:
        name = self.null if self._body is None else self._body.predefined
        if not name:
            raise ValueError(f"{type(self).__name__}: only predefined and null objects can be pickled")
        canonical = getattr(sys.modules[SURFACE], name)
        return name if canonical is self else (_restored, (type(self), name))

    @property
    def is_canonical(self) -> bool:
        """True for the handle of a predefined object that the module has, which is never freed."""
        body = self._body
        return body is not None and getattr(sys.modules[SURFACE], body.predefined or "-", None) is self

    def __copy__(self) -> Any:
        return _copied(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return _copied(self)

    @property
    def handle(self) -> int:
        """A number for the object that the handle refers to; 0 for a null handle."""
        body = self._body
        if body is None:
            return 0
        number = _numbers_of.get(body)
        if number is None:
            new = next(_numbers)
            _bodies[new] = body
            number = _numbers_of.setdefault(body, new)  # another thread may have been first
        return number

    @classmethod
    def fromhandle(cls, handle: int) -> Self:
        """The handle of the object with a number."""
        if handle == 0:
            return cls()
        body = _bodies.get(handle)
        if body is None:
            raise ValueError(f"handle={handle}: no object has this number")
        return cls.of(body)

    def toint(self) -> int:
        return self.handle

    @classmethod
    def fromint(cls, arg: int, /) -> Any:
        return cls.fromhandle(arg)

    def py2f(self) -> int:
        return self.handle

    @classmethod
    def f2py(cls, arg: int) -> Any:
        return cls.fromhandle(arg)

    def free(self) -> None:
        """Free the object, unless it is predefined; a null handle stays one."""
        body = self._body
        if body is None:
            return
        if body.predefined:
            if getattr(sys.modules[SURFACE], body.predefined) is not self:
                self._body = None
            return
        self._release()
        self._body = None

    def _release(self) -> None:
        """Free an object that is not predefined; the default only drops the reference."""


def _restored(kind: type[Handle], name: str) -> Handle:
    return kind(getattr(sys.modules[SURFACE], name))


def _copied(handle: Handle) -> Any:
    reduced = handle.__reduce__()
    return handle if isinstance(reduced, str) else reduced[0](*reduced[1])
