"""Horovod's elastic API, as far as a world with a fixed set of processes allows: training goes on without lost ranks.

`run` catches the loss of a rank, lets the survivors form a smaller world, brings the state back to its last commit and
calls the function again. Ranks are not added: there is no host discovery. Start the job with `ronde run --keep-going`,
or the launcher ends it with the first rank that fails.
"""

from __future__ import annotations

from frontends.torch.elastic.sampler import ElasticSampler
from frontends.torch.elastic.state import ObjectState, TorchState, run

__all__ = ["ElasticSampler", "ObjectState", "TorchState", "run"]
