"""Info: a mapping of strings to strings. Hints change nothing here; they are kept and given back."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from frontends.mpi.constants import MAX_INFO_KEY, MAX_INFO_VAL
from frontends.mpi.errors import error
from frontends.mpi.handles import Body, Handle
from transports import launchers
from transports.errors import ConfigError


class InfoBody(Body):
    """The items of an info."""

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        self.items = dict(items or {})


class Info(Handle):
    """A mapping of strings to strings."""

    __module__ = "frontends.mpi.MPI"
    null = "INFO_NULL"

    def _items(self) -> dict[str, str]:
        if self._body is None:
            raise error("ERR_INFO", "it is INFO_NULL")
        items: dict[str, str] = self._body.items
        return items

    @classmethod
    def Create(cls, items: Info | Mapping[str, str] | Iterable[tuple[str, str]] | None = None) -> Info:
        made = cls.of(InfoBody())
        if items is not None:
            made.update(items)
        return made

    @classmethod
    def Create_env(cls, args: Sequence[str] | None = None) -> Info:
        command = [args] if isinstance(args, str) else list(args or [])
        return cls.of(InfoBody(_environment(command)))

    def Free(self) -> None:
        self._items()
        Handle.free(self)  # not that of a subclass, which may call this method

    def Dup(self) -> Info:
        return type(self).of(InfoBody(self._items()))

    def Get(self, key: str) -> str | None:
        return self._items().get(key)

    def Set(self, key: str, value: str) -> None:
        items = self._items()
        _check("key", key, MAX_INFO_KEY, "ERR_INFO_KEY")
        _check("value", value, MAX_INFO_VAL, "ERR_INFO_VALUE")
        items[key] = value

    def Delete(self, key: str) -> None:
        if self._items().pop(key, None) is None:
            raise error("ERR_INFO_NOKEY", repr(key))

    def Get_nkeys(self) -> int:
        return len(self._items())

    def Get_nthkey(self, n: int) -> str:
        keys = list(self._items())
        if not 0 <= n < len(keys):
            raise error("ERR_INFO_KEY", f"n={n}: must be 0 to {len(keys) - 1}")
        return keys[n]

    # ---- the protocol of dictionaries

    def __len__(self) -> int:
        return 0 if self._body is None else len(self._items())

    def __contains__(self, key: object) -> bool:
        return self._body is not None and key in self._items()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, key: str) -> str:
        if key not in self:
            raise KeyError(key)
        return self._items()[key]

    def __setitem__(self, key: str, value: str) -> None:
        if self._body is None:
            raise KeyError(key)
        self.Set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.Delete(key)

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._items().get(key, default) if self._body is not None else default

    def keys(self) -> list[str]:
        return [] if self._body is None else list(self._items())

    def values(self) -> list[str]:
        return [] if self._body is None else list(self._items().values())

    def items(self) -> list[tuple[str, str]]:
        return [] if self._body is None else list(self._items().items())

    def update(self, items: Info | Mapping[str, str] | Iterable[tuple[str, str]] = (), **kwds: str) -> None:
        if self._body is None:
            raise KeyError("INFO_NULL")
        pairs: Iterable[Any] = items.items() if hasattr(items, "items") else items
        for key, value in [*pairs, *kwds.items()]:
            self.Set(key, value)

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            return self._items().pop(key)
        if default:
            return default[0]
        raise KeyError(key)

    def popitem(self) -> tuple[str, str]:
        if not len(self):
            raise KeyError("the info is empty")
        return self._items().popitem()

    def copy(self) -> Info:
        return self.Dup() if self._body is not None else type(self)()

    def clear(self) -> None:
        if self._body is not None:
            self._items().clear()

    def __reduce__(self) -> Any:
        if self._body is not None and not self._body.predefined:
            return type(self).Create, (self.items(),)
        return super().__reduce__()


Info.family = Info


class Informed(Handle):
    """A handle of an object that has hints: a communicator, a window, a file."""

    def _hints(self) -> dict[str, str]:
        """The hints of the object. Raises Exception for a null handle."""
        raise NotImplementedError

    def Set_info(self, info: Info) -> None:
        self._hints().update(info.items())

    def Get_info(self) -> Info:
        return Info.of(InfoBody(self._hints()))

    @property
    def info(self) -> Info:
        return self.Get_info()

    @info.setter
    def info(self, info: Info) -> None:
        self.Set_info(info)


def _check(name: str, text: str, most: int, error_class: str) -> None:
    """Raise TypeError for what is no string, Exception for one that is empty or too long."""
    if not isinstance(text, str):
        raise TypeError(f"{name}={text!r}: must be a str")
    if not 0 < len(text) <= most:
        raise error(error_class, f"{name}={text!r}: must have 1 to {most} characters")


def _environment(command: list[str]) -> dict[str, str]:
    found = {
        "command": command[0] if command else sys.executable,
        "thread_level": "MPI_THREAD_MULTIPLE",
    }
    with contextlib.suppress(FileNotFoundError):  # it may have been removed
        found["wdir"] = os.getcwd()
    if command[1:]:
        found["argv"] = " ".join(command[1:])
    with contextlib.suppress(ConfigError):  # `init` raises it
        launch = launchers.find(os.environ)
        if launch is not None and not launch.joins:
            found["maxprocs"] = str(launch.size)
    return found


def _predefined(name: str, body: InfoBody) -> Info:
    body.predefined = name
    return Info.of(body)


INFO_NULL: Final = Info()
INFO_ENV: Final = _predefined("INFO_ENV", InfoBody(_environment(sys.argv)))
