"""The nodes that Slurm has allocated to this job, for `ronde run` inside sbatch and salloc."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from collectives.launch.host_list import Host
from transports import launchers
from transports.errors import ConfigError

_NODES: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_TASKS: Final = "SLURM_TASKS_PER_NODE"
_NO_TASKS: Final = ("batch", "extern", "interactive", "4294967290", "4294967291", "4294967292")
"""Steps that are a user's shell or script; the numbers are those of slurm.h (SLURM_INTERACTIVE_STEP and others)."""


def allocated(environment: Mapping[str, str]) -> list[Host] | None:
    """The nodes with the numbers of their tasks; None outside of an allocation, and for a process that srun started.

    Raises ConfigError for variables that cannot be read, and if srun has started this launcher several times.
    """
    if "SLURM_JOB_ID" not in environment or environment.get(launchers.VARIABLE) == "none":
        return None
    if environment.get("SLURM_STEP_ID", "batch") not in _NO_TASKS:
        if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
            raise ConfigError(
                f"srun has started {environment['SLURM_STEP_NUM_TASKS']} copies of this launcher: start `ronde run` "
                f"once, in sbatch or salloc, or start the program itself by srun"
            )
        return None
    name = next((name for name in _NODES if name in environment), None)
    if name is None:
        return None
    nodes = launchers.expand(environment[name], name)
    tasks = tasks_per_node(environment.get(_TASKS, f"1(x{len(nodes)})"))
    if len(tasks) != len(nodes):
        raise ConfigError(
            f"{_TASKS}={environment[_TASKS]!r}: describes {len(tasks)} nodes, but {name} has {len(nodes)}"
        )
    return [Host(node, node, count) for node, count in zip(nodes, tasks, strict=True)]


def tasks_per_node(text: str) -> list[int]:
    """'2(x3),1' as [2, 2, 2, 1]. Raises ConfigError."""
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", item)
        if match is None or not int(match[1]):
            raise ConfigError(f"{_TASKS}={text!r}: must be numbers of tasks, such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
