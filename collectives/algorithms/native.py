"""The transport's own collectives, for arrays on its devices: one step, which is all there is to see.

Where it can be used it is, as it is made for those devices and their links. Others are chosen where the transport has
none for a dtype or an operation, or not for parts of different sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.schedule import Geometry, Step, native


def _whole(g: Geometry) -> Iterator[Step]:
    """Whatever the transport does."""
    yield native("native")


for _collective in ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "alltoall"):
    algorithm(
        _collective,
        "native",
        traffic=lambda g: Fraction(0),
        cost=lambda g: Cost(0, 0),
        native=True,
    )(_whole)
