"""Ronde: collective communication in pure Python.

    import numpy as np
    import ronde

    ronde.init()
    total = ronde.allreduce(np.ones(3) * ronde.rank())
    ronde.shutdown()

The functions here act on the world communicator. `Communicator` has the same as methods; its docstring explains arrays,
order, names and errors.

A framework has a module of its own, which is imported when it is first used: `ronde.torch`, `ronde.tensorflow`,
`ronde.keras`, `ronde.jax`, `ronde.mxnet`, and `ronde.numpy` for loops written by hand. `import ronde.torch as hvd`
replaces `import horovod.torch as hvd`, `from ronde.mpi import MPI` replaces `from mpi4py import MPI`. `ronde.ray`
starts ranks in a Ray cluster, `ronde.horovod` has `horovod.run`, `ronde.compression` the compressors, `ronde.elastic`
state for ranks that come and go, `ronde.local_sgd` loosely coupled training, `ronde.parameter_server` asynchronous SGD.

This package only re-exports: the code is in `collectives`, `frontends` and `transports`. They are imported when a name
is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collectives import *  # noqa: F403
    from collectives import __all__ as __all__
    from collectives import __version__ as __version__
    from frontends.top import top as top
    from ronde import compression as compression
    from ronde import dask as dask
    from ronde import elastic as elastic
    from ronde import horovod as horovod
    from ronde import jax as jax
    from ronde import keras as keras
    from ronde import local_sgd as local_sgd
    from ronde import mpi as mpi
    from ronde import mxnet as mxnet
    from ronde import numpy as numpy
    from ronde import parameter_server as parameter_server
    from ronde import ray as ray
    from ronde import spark as spark
    from ronde import tensorflow as tensorflow
    from ronde import torch as torch

_MODULES: Final = (
    "compression",
    "dask",
    "elastic",
    "horovod",
    "jax",
    "keras",
    "local_sgd",
    "mpi",
    "mxnet",
    "numpy",
    "parameter_server",
    "ray",
    "spark",
    "tensorflow",
    "torch",
)
"""Modules that are imported when they are first used. They are not in `__all__`: a star import loads no framework."""


_FUNCTIONS: Final = {"top": "frontends.top"}
"""Functions of frontends, which need no world communicator, and their modules."""


def __getattr__(name: str) -> Any:
    """Import a module, a function, or all names of `collectives`, at the first use."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if "__all__" not in globals():
        collectives = importlib.import_module("collectives")
        globals().update(
            {each: getattr(collectives, each) for each in (*collectives.__all__, "__version__", "__all__")}
        )
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__getattr__("__all__"), *_MODULES, *_FUNCTIONS, "__version__"})


def _check_packages() -> None:
    """Raise ImportError if packages or modules of other projects are found in place of Ronde's."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in ("collectives", "frontends", "transports"):
        spec = importlib.util.find_spec(name)
        found = "nothing" if spec is None else spec.origin or "a folder without an __init__.py"
        own = os.path.realpath(os.path.join(home, name))  # in an archive, too, where there are no files
        if spec is None or spec.origin is None or os.path.realpath(os.path.dirname(spec.origin)) != own:
            raise ImportError(
                f"Ronde, in {home}, needs its package {name!r}, but Python finds {found} first: rename that, or start "
                f"the program from another folder (python -P leaves out the folder of the program)"
            )


_check_packages()
