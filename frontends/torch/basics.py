"""Start of a job for torch: ranks from torchrun by torch's own store, from other launchers as everywhere."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import collectives
from collectives import ProcessSet
from frontends.horovod import start
from frontends.torch.stores import open_store
from transports import launchers
from transports.numbers import Numbers

_meetings = Numbers()
"""Every init of the process has a room of its own in torch's store."""


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Connect to the other ranks of the launcher (docs/launching.md); without one, make a world of one rank. Further
    calls do nothing.

    comm          must be None; Horovod's lists of MPI ranks are not supported: use process sets
    process_sets  sets to create at once, the same on all ranks. "dynamic" means None: sets can always be added

    Raises HorovodInternalError if the ranks do not connect in time, ValueError for a bad argument.
    """
    start(comm, process_sets, _from_torchrun)


def _from_torchrun(resources: contextlib.ExitStack) -> dict[str, Any]:
    """Return rank, size, store and secret of a process started by torchrun, using torch's store as rendezvous; {}
    otherwise."""
    env = os.environ
    launch = launchers.find(env)
    if launch is None or launch.family != "torchrun":
        return {}
    number, count = launch.rank, launch.size
    config = collectives.Config.load()
    seconds = config.connect_timeout
    served = dist.TCPStore(
        env["MASTER_ADDR"],
        int(env["MASTER_PORT"]),
        count,
        is_master=number == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
    )
    resources.callback(lambda: served)  # torch's master lives as long as this object
    attempt = f"{env.get('TORCHELASTIC_RESTART_COUNT', '0')}.{next(_meetings)}"
    meeting = dist.PrefixStore(f"horovod/{attempt}", served)
    store, secret = open_store(meeting, number, time.monotonic() + seconds, resources, config.load_tls())
    return {"rank": number, "size": count, "store": store, "secret": secret}
