"""Horovod's elastic API for torch: training continues without lost ranks.

`run` catches the loss of a rank, shrinks the world to the survivors, restores the last commit and calls the function
again. Ranks are never added: there is no host discovery. Start the job with `ronde run --keep-going`, or the launcher
ends it with the first rank that fails.
"""

from __future__ import annotations

from frontends.torch.elastic.sampler import ElasticSampler
from frontends.torch.elastic.state import ObjectState, TorchState, run

__all__ = ["ElasticSampler", "ObjectState", "TorchState", "run"]
