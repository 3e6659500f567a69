"""A job as the user describes it: the program, its hosts, and the treatment of its ranks.

`NamedHost` is a host in a list, a file or an allocation of Slurm. A `Discovery` names the hosts of an elastic job again
and again.
"""

from __future__ import annotations

from collectives.launch.job.discovery import (
    Discovery,
    DiscoveryError,
    Dns,
    Fixed,
    HostFile,
    Script,
    check_script,
    discovery_mark,
    slurm_job,
)
from collectives.launch.job.host_list import NamedHost, allocated, parse_file, parse_list, share_out
from collectives.launch.job.job import Elastic, Job, Place, StartError

__all__ = [
    "Discovery",
    "DiscoveryError",
    "Dns",
    "Elastic",
    "Fixed",
    "HostFile",
    "Job",
    "NamedHost",
    "Place",
    "Script",
    "StartError",
    "allocated",
    "check_script",
    "discovery_mark",
    "parse_file",
    "parse_list",
    "share_out",
    "slurm_job",
]
