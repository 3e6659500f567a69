"""Starting ranks: the rooms of `ronde run` and of `run(fn)`; and connecting ranks that an engine such as Ray has
started.

`supervision` runs the ranks of a `job` on its `hosts`, by `processes` of each host. `calls` calls a function on new
processes or threads, and `GuestJob` and `Occupant` of it connect processes that an engine has placed. The command line
is in frontends. These rooms use the communicator from outside; only the package's face and frontends import them.
"""

from __future__ import annotations

from collectives.launch.calls.arguments import call_of, count_of, pickled_call, seconds_of, variables_of
from collectives.launch.calls.function import run
from collectives.launch.calls.guests import (
    GuestJob,
    Occupant,
    Place,
    Seat,
    WorkerLost,
    call_as_rank,
    free_address,
    in_rank_order,
    own_settings,
    show_line,
)
from collectives.launch.calls.outcome import (
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
    "call_of",
    "count_of",
    "dump",
    "failure",
    "free_address",
    "in_rank_order",
    "load",
    "own_settings",
    "pickled_call",
    "run",
    "seconds_of",
    "show_line",
    "unreadable",
    "variables_of",
]
