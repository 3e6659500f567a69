"""All algorithms. Importing this package registers them; third parties add theirs with `@algorithm(...)`.

Every algorithm here works for any number of ranks.
"""

from __future__ import annotations

from collectives.algorithms import (
    bruck,
    direct,
    direct_segmented,
    dissemination,
    halving_doubling,
    hierarchical,
    linear,
    native,
    pairwise,
    pipeline,
    recursive_doubling,
    ring,
    scatter_allgather,
    single_copy,
    tree,
    windowed,
)
from collectives.algorithms.registry import Algorithm, Cost, algorithm, algorithms

__all__ = [
    "Algorithm",
    "Cost",
    "algorithm",
    "algorithms",
    "bruck",
    "direct",
    "direct_segmented",
    "dissemination",
    "halving_doubling",
    "hierarchical",
    "linear",
    "native",
    "pairwise",
    "pipeline",
    "recursive_doubling",
    "ring",
    "scatter_allgather",
    "single_copy",
    "tree",
    "windowed",
]
