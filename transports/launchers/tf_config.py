"""TF_CONFIG, the variable that describes a TensorFlow cluster to its processes.

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}}

The chief, if there is one, is rank 0; the workers follow in order. The store is served at the address of rank 0, in
place of TensorFlow's server.
https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from transports.errors import ConfigError
from transports.rendezvous import parse_url

VARIABLE: Final = "TF_CONFIG"
_SHAPE: Final = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class ClusterTask:
    """A process of a cluster. `address` is the address of rank 0, host and port; `tasks` are the addresses of all."""

    rank: int
    size: int
    address: tuple[str, int]
    tasks: tuple[str, ...]


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
    tasks = (*jobs["chief"], *jobs["worker"])
    rank = int(number) + (len(jobs["chief"]) if kind == "worker" else 0)
    return ClusterTask(rank, len(tasks), parse_url(f"tcp://{tasks[0]}"), tasks)


def _addresses(job: str, given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(address, str) for address in given):
        raise ConfigError(f"{VARIABLE}: cluster.{job} must be a list of addresses, host:port, not {given!r}")
    for address in given:
        parse_url(f"tcp://{address}")
    return list(given)
