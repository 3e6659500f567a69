"""All algorithms, by collective and name: generators of steps for any number of ranks.

Importing this package registers them. A new algorithm is a generator with `@algorithm(...)` in a module that this file
imports. Modules see only `collectives.schedule` and each other; the prover checks every registered algorithm.
"""

from __future__ import annotations

from collectives.algorithms import (
    bruck,
    circulant,
    circulant_broadcast,
    direct,
    direct_segmented,
    dissemination,
    double_tree,
    halving_doubling,
    hierarchical,
    host_exchange,
    host_trees,
    linear,
    msccl,
    native,
    pairwise,
    pipeline,
    prefix,
    recursive_doubling,
    ring,
    scatter_allgather,
    single_copy,
    tree,
    windowed,
)
from collectives.algorithms.msccl import read_msccl
from collectives.algorithms.registry import Algorithm, Cost, Generator, add, algorithm, algorithms
from collectives.algorithms.symmetry import Relation, Symmetry

__all__ = [
    "Algorithm",
    "Cost",
    "Generator",
    "Relation",
    "Symmetry",
    "add",
    "algorithm",
    "algorithms",
    "bruck",
    "circulant",
    "circulant_broadcast",
    "direct",
    "direct_segmented",
    "dissemination",
    "double_tree",
    "halving_doubling",
    "hierarchical",
    "host_exchange",
    "host_trees",
    "linear",
    "msccl",
    "native",
    "pairwise",
    "pipeline",
    "prefix",
    "read_msccl",
    "recursive_doubling",
    "ring",
    "scatter_allgather",
    "single_copy",
    "tree",
    "windowed",
]
