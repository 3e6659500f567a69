"""Parameter servers: some ranks hold the parameters, and workers send changes to them, each at its own pace.

    shards.py        names of parameters are divided into shards, and shards among servers
    shard.py         the parameters of a shard: rounds, quorum, grace, staleness, snapshots; without communication
    synchronizer.py  `Synchronizer`: the messages between workers and servers, and ranks that come and go

Frameworks use it by way of NumPy arrays.
"""

from __future__ import annotations

from collectives.parameter_server.synchronizer import Synchronizer

__all__ = ["Synchronizer"]
