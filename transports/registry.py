"""Transports by name. Built-in ones are imported on first use; packages add others by entry points.

A package adds a transport by an entry point of the group `ronde.transports`. Its name is the transport's name, its
value a module or object that implements `transports.base.Backend`:

    [project.entry-points."ronde.transports"]
    mylink = "mypackage.ronde_transport"

A built-in name cannot be replaced.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from transports.base import Backend
from transports.engine import Linking
from transports.errors import ConfigError
from transports.settings import Values, build, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS: Final = "ronde.transports"
BUILT_IN: Final[Mapping[str, str]] = {
    "auto": "transports.auto",
    "faulty": "transports.faulty",
    "local": "transports.local",
    "nccl": "transports.nccl",
    "shm": "transports.shm",
    "tcp": "transports.tcp",
}
_REQUIRED: Final = ("Options", "create", "usable")


def names() -> tuple[str, ...]:
    """The names of all transports, sorted. Nothing is imported."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in _entry_points())}))


def exists(name: str) -> bool:
    """True if there is a transport called `name`. Unlike `names`, it reads no metadata of packages for a built-in one,
    which takes long where they lie on a file system that many ranks read at once."""
    return name in BUILT_IN or name in names()


def backend(name: str) -> Backend:
    """The backend called `name`, imported now.

    Raises ConfigError if the name is unknown, if a required package is not installed (the text has the command that
    installs it), or if the backend lacks a name of `transports.base.Backend`.
    """
    found: Any
    if name in BUILT_IN:
        found = importlib.import_module(BUILT_IN[name])
    else:
        found = _load(_entry_point(name))
    absent = [attribute for attribute in _REQUIRED if not hasattr(found, attribute)]
    if absent:
        raise ConfigError(f"transport {name!r} ({found!r}) is not a backend: it lacks {', '.join(absent)}")
    return cast(Backend, found)


def has_links(name: str) -> bool:
    """True if other transports can use the links of this one."""
    return hasattr(backend(name), "link")


def linking(name: str) -> Linking:
    """The backend called `name`, which has links. Raises as `backend` does."""
    return cast(Linking, backend(name))


def options_class(name: str) -> type[Any]:
    """The dataclass of the settings of transport `name`. Raises as `backend` does."""
    return backend(name).Options


def remove_abandoned(directory: str = "") -> None:
    """Remove from this host's shared memory what processes of this user that were killed have left there.

    directory  that of shm's option; "" is its default
    """
    importlib.import_module(BUILT_IN["shm"]).remove_abandoned(directory)


def make_options(name: str, values: Values) -> Any:
    """The options of transport `name`: its defaults, and `values`, which maps a setting to (value, source).

    `transports.settings.build` parses texts. Raises ConfigError naming the setting, the value, its source and the
    allowed values.
    """
    return build(options_class(name), f"transport {name!r}", values)


def _entry_points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # here, since a built-in transport needs none

    return entry_points(group=ENTRY_POINTS)


def _entry_point(name: str) -> EntryPoint:
    for point in _entry_points():
        if point.name == name:
            return point
    known = names()
    raise ConfigError(f"unknown transport {name!r}{did_you_mean(name, known)}; known are: {', '.join(known)}")


def _load(point: EntryPoint) -> object:
    try:
        return point.load()
    except ModuleNotFoundError as error:
        package = point.dist.name if point.dist else point.module
        extras = f"[{','.join(point.extras)}]" if point.extras else ""
        raise ConfigError(
            f"transport {point.name!r} needs module {error.name!r}, which is not installed: "
            f"{sys.executable} -m pip install '{package}{extras}'"
        ) from error
