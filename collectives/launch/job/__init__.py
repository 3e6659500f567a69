"""A job as the user describes it: the program, its hosts, and the treatment of its ranks.

`NamedHost` is a host in a list, a file or an allocation of Slurm. A `Discovery` names the hosts of an elastic job again
and again.
"""

from __future__ import annotations

from collectives.launch.job.discovery import (
    AllocationEnded,
    Discovery,
    DiscoveryError,
    discovery_mark,
    dns,
    fixed,
    host_file,
    script,
    slurm_job,
)
from collectives.launch.job.host_list import NamedHost, allocated, check_slots, parse_file, parse_list, share_out
from collectives.launch.job.job import Elastic, Job, Place, StartError

__all__ = [
    "AllocationEnded",
    "Discovery",
    "DiscoveryError",
    "Elastic",
    "Job",
    "NamedHost",
    "Place",
    "StartError",
    "allocated",
    "check_slots",
    "discovery_mark",
    "dns",
    "fixed",
    "host_file",
    "parse_file",
    "parse_list",
    "script",
    "share_out",
    "slurm_job",
]
