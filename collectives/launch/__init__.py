"""Starting ranks: the `ronde` command and `run(fn)`; and connecting ranks that an engine such as Ray has started.

`ronde run` starts a program as processes and supervises them; `run` calls a function on new processes or threads.
`GuestJob` and `Occupant` connect processes that an engine has placed (`guests`). This room uses the communicator from
outside; only the package's face and the frontends of engines may import it.
"""

from __future__ import annotations

from collectives.launch.function import run
from collectives.launch.guests import (
    GuestJob,
    Occupant,
    Place,
    Seat,
    WorkerLost,
    call_as_rank,
    free_address,
    in_rank_order,
    own_settings,
)
from collectives.launch.outcome import (
    REPORT_SECONDS,
    ElasticOutcomes,
    Failure,
    Outcomes,
    Success,
    dump,
    failure,
    load,
    unreadable,
)

__all__ = [
    "REPORT_SECONDS",
    "ElasticOutcomes",
    "Failure",
    "GuestJob",
    "Occupant",
    "Outcomes",
    "Place",
    "Seat",
    "Success",
    "WorkerLost",
    "call_as_rank",
    "dump",
    "failure",
    "free_address",
    "in_rank_order",
    "load",
    "own_settings",
    "run",
    "unreadable",
]
