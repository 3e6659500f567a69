"""Allreduce with fewer bytes: ranks send rounded, sparse or factored values, and send the error later.

    state = State()                                     # one per optimizer
    mean = TopK(0.01).allreduce(comm, gradient, "average", state=state, name="layer1.weight")

docs/compression.md gives each compressor's effect on bytes and accuracy, and when it pays.
"""

from __future__ import annotations

from collectives.compression.base import Compressor, Memory, State, Uncompressed
from collectives.compression.casts import BF16, FP16, Cast
from collectives.compression.int8 import Int8
from collectives.compression.powersgd import PowerSGD
from collectives.compression.topk import TopK

__all__ = ["BF16", "FP16", "Cast", "Compressor", "Int8", "Memory", "PowerSGD", "State", "TopK", "Uncompressed"]
