"""The name mpi4py for programs that are not changed, and the functions of that package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from frontends.mpi.errors import missing
from frontends.mpi.rc import rc

VERSION: Final = "4.1.2"
"""The version of mpi4py whose API this is: programs that are not changed look for it."""
_NAME: Final = "mpi4py"
_HERE: Final = "frontends.mpi"


class _Alias(Loader):
    """Gives a module of this room for one of mpi4py."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(self._target)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: it was executed under its own name."""

    def get_code(self, fullname: str) -> Any:
        """The code of the module, for `python -m`."""
        found = importlib.util.find_spec(self._target)
        assert found is not None
        loader: Any = found.loader
        return loader.get_code(self._target)


class _Distribution(Distribution):
    """The package that programs look for with `importlib.metadata`: its name and version."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {VERSION}\nSummary: that of Ronde, without MPI\n"

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path


class _Finder(DistributionFinder):
    """Finds mpi4py and its modules in this room."""

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        asked = DistributionFinder.Context() if context is None else context
        if asked.path is sys.path and asked.name in (None, _NAME):  # not those of a folder
            yield _Distribution()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        name = _HERE + fullname[len(_NAME) :]
        found = importlib.util.find_spec(name)
        if found is None:
            return None
        return ModuleSpec(
            fullname, _Alias(name), origin=found.origin, is_package=found.submodule_search_locations is not None
        )


def install() -> None:
    """Give this room the name mpi4py, in this process: `from mpi4py import MPI` finds it. Raises ImportError if mpi4py
    itself was imported before."""
    known = sys.modules.get(_NAME)
    if known is not None:
        if getattr(known, "__name__", "") != _HERE:
            raise ImportError("mpi4py was imported before: install the alias first")
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        sys.modules[f"{_NAME}.rc"] = cast("ModuleType", rc)  # an object, as in mpi4py: `import mpi4py.rc` gives it


def get_include() -> str:
    """Raise NotImplementedError: there are no headers."""
    raise missing("get_include", "it has no interface for C and Cython; build the extension with mpi4py and an MPI")


def get_config() -> dict[str, str]:
    """The settings of the compiler: none."""
    return {}


def profile(name: str, *, path: Any = None) -> None:
    """Raise ValueError: there is no library to be profiled."""
    raise ValueError(f"name={name!r}: ronde.mpi has no interface for profilers; ronde's timeline shows its calls")
