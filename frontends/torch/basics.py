"""The beginning and the end, and who one is: Horovod's functions without tensors."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import collectives
from collectives import cross_rank, cross_size, is_initialized, local_rank, local_size, rank, shutdown, size
from collectives.process_sets import ProcessSet
from frontends.torch.errors import as_horovod
from frontends.torch.names import numbers
from frontends.torch.stores import open_store
from transports import registry
from transports.rendezvous.bootstrap import job_from_environment

_meetings = itertools.count()
"""Every init of the process has a room of its own in torch's store."""

__all__ = ["cross_rank", "cross_size", "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size"]


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Find the other ranks: those of `ronde run`, of torchrun, or none. Does nothing if that has been done.

    comm          None; Horovod's lists of MPI ranks have no meaning here: use process sets
    process_sets  sets to make at once, the same on all ranks. "dynamic" is taken for None: sets can always be added

    Raises HorovodInternalError if the ranks do not come together, ValueError for a bad argument.
    """
    if comm is not None:
        raise ValueError(f"comm={comm!r}: must be None; use process_sets for groups of ranks")
    if is_initialized():
        return
    numbers.forget()
    sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    with as_horovod(), contextlib.ExitStack() as resources:
        collectives.init(process_sets=sets, **_from_torchrun(resources))
        atexit.register(resources.pop_all().close)


def _from_torchrun(resources: contextlib.ExitStack) -> dict[str, Any]:
    """Rank, size, store and secret for a process of torchrun, which all meet in torch's store."""
    env = os.environ
    if job_from_environment(env) is not None or not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(env):
        return {}
    number, count = int(env["RANK"]), int(env["WORLD_SIZE"])
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


def is_homogeneous() -> bool:
    """True if all hosts have equally many ranks."""
    hosts = [member.host for member in collectives.world().members]
    return len({hosts.count(host) for host in hosts}) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what happens from now on to a file for chrome://tracing or Perfetto, one per rank. There are no cycles."""
    collectives.start_timeline(file_path)


def stop_timeline() -> None:
    """Finish the file."""
    collectives.stop_timeline()


def mpi_threads_supported() -> bool:
    """False: there is no MPI. Operations may be called from any thread."""
    return False


def mpi_enabled() -> bool:
    """False."""
    return False


def mpi_built() -> bool:
    """False."""
    return False


def gloo_enabled() -> bool:
    """False: TCP and shared memory are Ronde's own."""
    return False


def gloo_built() -> bool:
    """False."""
    return False


def nccl_built() -> int:
    """NCCL's version as an int if it can be used here, else 0."""
    return 0 if registry.backend("nccl").usable() else 1


def cuda_built() -> bool:
    """True if CUDA tensors can go over NCCL here."""
    return bool(nccl_built())


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def rocm_built() -> bool:
    """False."""
    return False
