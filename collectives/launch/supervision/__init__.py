"""The supervision of a job's ranks on all its hosts, from their start to the report.

`supervise` runs a job by the decisions of a plan (`collectives.scaling`). Nodes that were started by hand meet
(`lead_nodes`, `join_nodes`), and `run_for_node_0` runs the ranks of such a node for node 0. `ask_job` talks to an
elastic job that runs.
"""

from __future__ import annotations

from collectives.launch.agent import OwnJob, run_for_node_0
from collectives.launch.supervision.control import ask_job, running_jobs
from collectives.launch.supervision.nodes import Meeting, given_secret, join_nodes, lead_nodes, parse_address
from collectives.launch.supervision.supervisor import supervise

__all__ = [
    "Meeting",
    "OwnJob",
    "ask_job",
    "given_secret",
    "join_nodes",
    "lead_nodes",
    "parse_address",
    "run_for_node_0",
    "running_jobs",
    "supervise",
]
