"""TF_CONFIG, the variable that describes a TensorFlow cluster to its processes.

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]},
     "task": {"type": "worker", "index": 1}}

The chief, if there is one, is rank 0; the workers follow in order, then the parameter servers (ps). The store is served
at the address of rank 0, in place of TensorFlow's server.
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
_RANKS: Final = ("chief", "worker", "ps")
"""The types of tasks that are ranks, in the order of the ranks."""


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
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{VARIABLE}: is not JSON ({error}); must be such as {_SHAPE}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{VARIABLE}={text!r}: must be such as {_SHAPE}")
    if not config.get("cluster"):
        return None
    match config:
        case {"cluster": dict(cluster), "task": {"type": str(kind), "index": int() | str() as index}}:
            number = str(index)
        case _:
            raise ConfigError(f"{VARIABLE}={text!r}: must be such as {_SHAPE}")
    jobs = {job: _addresses(job, cluster.get(job, [])) for job in _RANKS}
    if kind not in jobs:
        names = f"{', '.join(_RANKS[:-1])} or {_RANKS[-1]}"
        raise ConfigError(f"{VARIABLE}: a task of type {kind!r} has nothing to do; ranks are of type {names}")
    if not number.isdecimal() or int(number) >= len(jobs[kind]):
        raise ConfigError(f"{VARIABLE}: the task's index is {index!r}; there are {len(jobs[kind])} of type {kind}")
    if len(jobs["chief"]) > 1:
        raise ConfigError(f"{VARIABLE}: has {len(jobs['chief'])} chiefs; must have one, or none")
    if not jobs["chief"] and not jobs["worker"]:
        raise ConfigError(f"{VARIABLE}: has parameter servers only; must have a chief or workers")
    tasks = tuple(address for job in _RANKS for address in jobs[job])
    rank = int(number) + sum(len(jobs[job]) for job in _RANKS[: _RANKS.index(kind)])
    return ClusterTask(rank, len(tasks), parse_url(f"tcp://{tasks[0]}"), tasks)


def _addresses(job: str, given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(address, str) for address in given):
        raise ConfigError(f"{VARIABLE}: cluster.{job} must be a list of addresses, host:port, not {given!r}")
    for address in given:
        try:
            parse_url(f"tcp://{address}")
        except ConfigError:
            raise ConfigError(f"{VARIABLE}: cluster.{job} has {address!r}; an address must be host:port") from None
    return list(given)
