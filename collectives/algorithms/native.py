"""The transport's native collectives, for arrays on its devices: a schedule of one step.

The planner prefers them where the transport supports the dtype, the op and the block sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.registry import Cost, algorithm
from collectives.schedule import Geometry, Step, native


def _native(g: Geometry) -> Iterator[Step]:
    """Call the transport."""
    yield native("native")


for _collective in ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "alltoall"):
    algorithm(_collective, "native", cost=lambda g: Cost(0, 0), native=True)(_native)
