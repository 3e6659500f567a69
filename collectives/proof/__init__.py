"""Analysis of algorithms without communication: proof of correctness, simulation, and the order of exchanges.

All of it works on the programs of all ranks, the same data that the runtime executes. The runtime itself uses only the
exchange order, for GPUs, and the import of foreign schedules; the rest serves tests, pictures and tools.
"""

from __future__ import annotations

from collectives.proof.all_ranks import (
    ProofError,
    count_blocks,
    lower_ranks,
)
from collectives.proof.exchange_order import (
    exchange_rounds,
)
from collectives.proof.importing import (
    import_msccl,
)
from collectives.proof.network import (
    Network,
    Topology,
    parse_time,
)
from collectives.proof.simulator import (
    Activity,
    Timeline,
    simulate,
    simulate_on,
)

__all__ = [
    "Activity",
    "Network",
    "ProofError",
    "Timeline",
    "Topology",
    "count_blocks",
    "exchange_rounds",
    "import_msccl",
    "lower_ranks",
    "parse_time",
    "simulate",
    "simulate_on",
]
