"""Ronde: collective communication in pure Python.

    import numpy as np
    import ronde

    ronde.init()
    total = ronde.allreduce(np.ones(3) * ronde.rank())
    ronde.shutdown()

The functions here act on the world communicator. `Communicator` has the same as methods; its docstring explains arrays,
order, names and errors.

The names are imported at the first use of one, so that a room can be used without all others: a viewer of a job needs
few of them.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from collectives.version import __version__ as __version__

if TYPE_CHECKING:
    from collectives.public import *  # noqa: F403
    from collectives.public import __all__ as __all__


def __getattr__(name: str) -> Any:
    """Import a module, or all public names, at the first use."""
    if name == "__all__" or not name.startswith("__"):
        found = importlib.util.find_spec(f"{__name__}.{name}")
        if found is not None and found.origin is not None:  # a folder alone is no module
            return importlib.import_module(f"{__name__}.{name}")
        public = importlib.import_module(f"{__name__}.public")
        globals().update({each: getattr(public, each) for each in (*public.__all__, "__all__")})
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
