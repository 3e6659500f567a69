"""The supervision of a job's ranks on all its hosts, from their start to the report.

`supervise` runs a job by the decisions of a plan (`collectives.scaling`). Nodes that were started by hand meet (`lead`,
`come`), and `attend` runs the ranks of such a node for node 0. `ask_job` talks to an elastic job that runs.
"""

from __future__ import annotations

from collectives.launch.agent import OwnJob, attend
from collectives.launch.supervision.control import ask_job, running_jobs
from collectives.launch.supervision.nodes import Meeting, come, given_secret, lead, parse_address
from collectives.launch.supervision.supervisor import supervise

__all__ = [
    "Meeting",
    "OwnJob",
    "ask_job",
    "attend",
    "come",
    "given_secret",
    "lead",
    "parse_address",
    "running_jobs",
    "supervise",
]
