"""Loosely coupled training: workers train by themselves for many steps, and combine their parameters now and then.

    library.py    the parameters of a framework as NumPy arrays
    fragments.py  the division of the parameters into fragments of equal size
    nesterov.py   the outer optimizer
    diloco.py     `DiLoCo` and `LocalSGD`: the schedule of outer rounds, and workers that come and go

A frontend makes classes of its own of `LocalSGD` and `DiLoCo`, with a `Library` for its arrays.
"""

from __future__ import annotations

from collectives.local_sgd.diloco import DiLoCo, LocalSGD
from collectives.local_sgd.library import Library
from collectives.local_sgd.nesterov import Nesterov

__all__ = ["DiLoCo", "Library", "LocalSGD", "Nesterov"]
