"""Attributes: values that a program keeps with datatypes, communicators and windows, under keys that it makes."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple

from frontends.mpi.constants import FIRST_KEYVAL, KEYVAL_INVALID
from frontends.mpi.errors import Exception as MPIException
from frontends.mpi.errors import error
from frontends.mpi.handles import Body, Handle
from transports.numbers import Numbers


class Keyval(NamedTuple):
    """A key.

    kind     the base class of the handles that may have it
    copy     copies the value when the object is duplicated: a function of handle, key and value, True or False
    delete   told of a value that is deleted
    """

    kind: type[Handle]
    copy: Callable[..., Any] | bool | None
    delete: Callable[..., Any] | None


_numbers: Final = Numbers(FIRST_KEYVAL)
_keyvals: Final[dict[int, Keyval]] = {}


class AttributedBody(Body):
    """An object with attributes and a name."""

    def __init__(self) -> None:
        self.attributes: dict[int, tuple[Keyval, Any]] = {}
        self.name = ""


class Attributed(Handle):
    """A handle of an object with attributes.

    error_class   the class of errors of null handles
    """

    error_class: ClassVar[str] = "ERR_OTHER"

    def _attributes(self) -> dict[int, tuple[Keyval, Any]]:
        if self._body is None:
            raise error(self.error_class, f"it is {self.null}")
        found: dict[int, tuple[Keyval, Any]] = self._body.attributes
        return found

    def Get_attr(self, keyval: int) -> Any:
        attributes = self._attributes()
        if keyval in attributes:
            return attributes[keyval][1]
        if keyval in _keyvals:
            return None
        return self._predefined_attribute(keyval)

    def _predefined_attribute(self, keyval: int) -> Any:
        raise error("ERR_KEYVAL", f"keyval={keyval}: no key has this number")

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        attributes = self._attributes()
        key = _keyvals.get(keyval)
        if key is None or not isinstance(self, key.kind):
            raise error("ERR_KEYVAL", f"keyval={keyval}: must be a key of {type(self).__name__}.Create_keyval")
        if keyval in attributes:
            self.Delete_attr(keyval)
        attributes[keyval] = key, attrval

    def Delete_attr(self, keyval: int) -> None:
        attributes = self._attributes()
        if keyval not in attributes:
            if keyval not in _keyvals:
                raise error("ERR_KEYVAL", f"keyval={keyval}: no key has this number")
            return
        key, value = attributes.pop(keyval)
        if key.delete is not None:
            _call(key.delete, self, keyval, value)

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: Callable[..., Any] | bool | None = None,
        delete_fn: Callable[..., Any] | None = None,
        nopython: bool = False,
    ) -> int:
        number = next(_numbers)
        _keyvals[number] = Keyval(cls.family, copy_fn, delete_fn)
        return number

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        if _keyvals.pop(keyval, None) is None:
            raise error("ERR_KEYVAL", f"keyval={keyval}: no key has this number")
        return KEYVAL_INVALID

    def Get_name(self) -> str:
        if self._body is None:
            return f"MPI_{self.null}"
        return str(self._body.name)

    def Set_name(self, name: str) -> None:
        self._attributes()
        self._body.name = str(name)

    @property
    def name(self) -> str:
        return self.Get_name()

    @name.setter
    def name(self, name: str) -> None:
        self.Set_name(name)

    def delete_attributes(self) -> None:
        """Delete all attributes of an object that is freed, the one that was set last first."""
        for keyval in reversed(list(self._attributes())):
            self.Delete_attr(keyval)

    def copy_attributes(self, target: Attributed) -> None:
        """Copy the attributes to a duplicate, as their keys tell."""
        for keyval, (key, value) in list(self._attributes().items()):
            if not key.copy:
                continue
            copied = value if key.copy is True else _call(key.copy, self, keyval, value)
            if copied is not NotImplemented:
                target._attributes()[keyval] = key, copied


def _call(function: Callable[..., Any], handle: Handle, keyval: int, value: Any) -> Any:
    """Call a function of the program. Raises MPI's Exception after it has shown that of the function."""
    try:
        return function(handle, keyval, value)
    except BaseException as cause:
        traceback.print_exception(cause)
        if isinstance(cause, MPIException):
            raise
        raise error("ERR_OTHER", f"a function of attribute {keyval} raised {cause!r}") from cause
