"""The processes of ranks on this machine: their environment, their start, signals and end, and their output.

`RankProcesses` starts ranks and ends them with everything that they have started; a `Guardian` does so when the
launcher was killed. `Relay` passes the output of ranks on, to stdout and stderr and to files.
"""

from __future__ import annotations

from collectives.launch.processes.environment import (
    PASSED_ON,
    check_free,
    exported,
    passed_on,
    rank_environment,
    torch_address,
)
from collectives.launch.processes.guardian import marked
from collectives.launch.processes.output import STDERR, STDOUT, LineSplitter, Relay, Tail, prefix_of, rank_folder
from collectives.launch.processes.processes import (
    Guardian,
    adopt_orphans,
    describe_status,
    exit_code,
    fill_standard_descriptors,
    signal_group,
    signal_process,
    signals_as_bytes,
    spawn,
    start_script,
)
from collectives.launch.processes.rank_processes import RankProcesses

__all__ = [
    "PASSED_ON",
    "STDERR",
    "STDOUT",
    "Guardian",
    "LineSplitter",
    "RankProcesses",
    "Relay",
    "Tail",
    "adopt_orphans",
    "check_free",
    "describe_status",
    "exit_code",
    "exported",
    "fill_standard_descriptors",
    "marked",
    "passed_on",
    "prefix_of",
    "rank_environment",
    "rank_folder",
    "signal_group",
    "signal_process",
    "signals_as_bytes",
    "spawn",
    "start_script",
    "torch_address",
]
