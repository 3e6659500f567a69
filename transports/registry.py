"""Transports by name: built-in ones are imported when they are first asked for, others come by entry point.

A third party offers a transport by an entry point of the group `ronde.transports`, whose name is the transport's and
whose value is a module or object that fulfils `transports.base.Backend`:

    [project.entry-points."ronde.transports"]
    mylink = "mypackage.ronde_transport"

A built-in name cannot be taken over.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from transports.base import Backend
from transports.errors import ConfigError
from transports.settings import Values, build, did_you_mean

ENTRY_POINTS: Final = "ronde.transports"
BUILT_IN: Final[Mapping[str, str]] = {
    "auto": "transports.auto",
    "faulty": "transports.faulty",
    "local": "transports.local",
    "nccl": "transports.nccl",
    "shm": "transports.shm",
    "tcp": "transports.tcp",
}
_PROMISED: Final = ("Options", "create", "usable")


def names() -> tuple[str, ...]:
    """The names of all transports, sorted. Nothing is imported."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))}))


def backend(name: str) -> Backend:
    """The backend called `name`, imported now.

    Raises ConfigError if there is none, if a package that it needs is not installed (the text says what to install),
    or if it does not offer what a backend must.
    """
    found: Any
    if name in BUILT_IN:
        found = importlib.import_module(BUILT_IN[name])
    else:
        found = _load(_entry_point(name))
    absent = [promised for promised in _PROMISED if not hasattr(found, promised)]
    if absent:
        raise ConfigError(f"transport {name!r} ({found!r}) is no backend: it lacks {', '.join(absent)}")
    return cast(Backend, found)


def options_class(name: str) -> type[Any]:
    """The dataclass of the settings of transport `name`. Raises as `backend` does."""
    return backend(name).Options


def make_options(name: str, values: Values) -> Any:
    """The options of transport `name`: its defaults, and `values`, which maps a setting to (value, source).

    Texts are read as `transports.settings.build` says. Raises ConfigError naming the setting, the value, its source
    and what is allowed.
    """
    return build(options_class(name), f"transport {name!r}", values)


def _entry_point(name: str) -> EntryPoint:
    for point in entry_points(group=ENTRY_POINTS, name=name):
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
