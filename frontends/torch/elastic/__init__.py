"""Horovod's elastic API for torch: training continues without lost ranks.

`run` catches the loss of a rank, regroups with the survivors and newcomers, restores the last commit and calls the
function again. A rank that is lost ends the job unless that is elastic: `ronde run --min-np N`.
"""

from __future__ import annotations

from frontends.torch.elastic.sampler import ElasticSampler
from frontends.torch.elastic.state import HostsUpdatedInterrupt, ObjectState, TorchState, run

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "TorchState", "run"]
