"""No object shows a secret in its repr, which gets into logs and tracebacks."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

import collectives

SECRETS = re.compile(r"(.*_)?(secret|password|token|authkey|variables|environment|env|passed_on): .*|key: bytes")
"""Fields with a secret; the environment of a rank holds the job's."""


def modules() -> Iterator[ModuleType]:
    for package in ("collectives", "transports", "frontends.command_line", "frontends.spark", "frontends.dask"):
        folders = [os.path.join(os.path.dirname(collectives.__path__[0]), *package.split("."))]
        for found in pkgutil.walk_packages(folders, f"{package}.", onerror=lambda name: None):
            try:
                yield importlib.import_module(found.name)
            except ImportError:
                continue


def test_l12_no_repr_shows_a_secret() -> None:
    shown, seen = [], set()
    for module in modules():
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if not kind.__module__.startswith(("collectives.", "transports.", "frontends.")) or kind in seen:
                continue
            seen.add(kind)
            own = "__repr__" in vars(kind) and "dataclass" not in getattr(kind.__repr__, "__qualname__", "")
            if dataclasses.is_dataclass(kind):
                own = own and kind.__repr__.__qualname__ == f"{kind.__qualname__}.__repr__" and _written(kind)
                shown += [
                    f"{kind.__module__}.{kind.__name__}.{item.name}"
                    for item in dataclasses.fields(kind)
                    if SECRETS.fullmatch(f"{item.name}: {item.type}") and item.repr and not own
                ]
            elif issubclass(kind, tuple) and hasattr(kind, "_fields") and not own:
                shown += [f"{kind.__module__}.{kind.__name__}.{name}" for name in kind._fields if name == "secret"]
    assert len(seen) > 300
    assert shown == []


def _written(kind: type) -> bool:
    """True if the class has a repr of its own in its source."""
    try:
        return "def __repr__" in inspect.getsource(kind)
    except (OSError, TypeError):
        return False


@pytest.mark.parametrize("secret", [b"0123456789abcdef-is-secret"])
def test_l12_the_place_of_a_rank(secret: bytes) -> None:
    from collectives.startup import _Place
    from transports.rendezvous import MemoryStore

    assert "is-secret" not in repr(_Place(0, 1, MemoryStore(), secret))
