"""Ranks from TF_CONFIG, the variable that describes a TensorFlow cluster to its processes.

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}}

The chief, if there is one, is rank 0; the workers follow in order. The store is served at the address of rank 0, in
place of TensorFlow's server. TF_CONFIG contains no secret, so RONDE_SECRET must be set (docs/security.md).
https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import collectives
from transports.errors import ConfigError
from transports.rendezvous import RONDE, TcpStoreServer, job_from_environment, parse_url

VARIABLE: Final = "TF_CONFIG"
_TORCHRUN: Final = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_SHAPE: Final = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class ClusterTask:
    """A process of a cluster. `store_address` is the address of rank 0, host:port."""

    rank: int
    size: int
    store_address: str


def parse_task(text: str) -> ClusterTask | None:
    """Parse TF_CONFIG; None if it has no cluster. Raises ConfigError for a bad value, or a task that is not a rank."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{VARIABLE}: is not JSON ({error}); must be such as {_SHAPE}") from None
    if not isinstance(config, dict) or not config.get("cluster"):
        return None
    match config:
        case {"cluster": dict(cluster), "task": {"type": str(kind), "index": int() | str() as index}}:
            number = str(index)
        case _:
            raise ConfigError(f"{VARIABLE}={text!r}: must be such as {_SHAPE}")
    jobs = {job: _addresses(job, cluster.get(job, [])) for job in ("chief", "worker")}
    if kind not in jobs:
        raise ConfigError(f"{VARIABLE}: a task of type {kind!r} has nothing to do; ranks are of type chief or worker")
    if not number.isdecimal() or int(number) >= len(jobs[kind]):
        raise ConfigError(f"{VARIABLE}: the task's index is {index!r}; there are {len(jobs[kind])} of type {kind}")
    if len(jobs["chief"]) > 1:
        raise ConfigError(f"{VARIABLE}: has {len(jobs['chief'])} chiefs; must have one, or none")
    tasks = [*jobs["chief"], *jobs["worker"]]
    rank = int(number) + (len(jobs["chief"]) if kind == "worker" else 0)
    return ClusterTask(rank, len(tasks), tasks[0])


def from_tf_config(_: contextlib.ExitStack) -> dict[str, Any]:
    """Return rank, size, store and secret for `collectives.init`; {} without TF_CONFIG or under `ronde run` or
    torchrun.

    Rank 0 serves the store until its process ends. Raises ConfigError naming the variable and the fault,
    RendezvousError if rank 0 cannot listen at its address.
    """
    env = os.environ
    if VARIABLE not in env or job_from_environment(env) is not None or set(env) >= _TORCHRUN:
        return {}
    task = parse_task(env[VARIABLE])
    if task is None or task.size == 1:
        return {}
    job = job_from_environment(_as_ronde_run(task, env))
    assert job is not None
    if job.rank == 0:
        _serve(job.store, job.secret)
    return {"rank": job.rank, "size": job.size, "store": job.store, "secret": job.secret}


def _as_ronde_run(task: ClusterTask, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `ronde run` would set for this process."""
    if RONDE.secret not in env:
        raise ConfigError(
            f"{RONDE.secret}: is needed with {VARIABLE}, the same for all {task.size} tasks. `python -c 'import "
            "secrets; print(secrets.token_hex(32))'` makes one; set it, but to nothing, to go without authentication"
        )
    return {
        RONDE.rank: str(task.rank),
        RONDE.size: str(task.size),
        RONDE.store: f"tcp://{task.store_address}",
        RONDE.secret: env[RONDE.secret],
    }


def _addresses(job: str, given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(address, str) for address in given):
        raise ConfigError(f"{VARIABLE}: cluster.{job} must be a list of addresses, host:port, not {given!r}")
    for address in given:
        parse_url(f"tcp://{address}")
    return list(given)


@functools.cache
def _serve(url: str, secret: bytes) -> TcpStoreServer:
    """Serve a store at an address until the process ends, so that `init` can be called again."""
    host, port = parse_url(url)
    server = TcpStoreServer(host, port, secret=secret, tls=collectives.Config.load().load_tls())
    server.start()
    atexit.register(server.close)
    return server
