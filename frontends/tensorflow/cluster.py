"""Ranks from TF_CONFIG, the variable by which clusters tell TensorFlow's processes of each other.

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}}

The chief, if there is one, is rank 0, and the workers follow in order. The ranks meet at the address of rank 0, which
listens there in place of TensorFlow's server. The secret comes from RONDE_SECRET, as everywhere (docs/security.md):
TF_CONFIG has none, and whoever reaches that address could otherwise be a rank.
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
from transports.rendezvous.bootstrap import RONDE, job_from_environment
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.wire import parse_url

VARIABLE: Final = "TF_CONFIG"
_TORCHRUN: Final = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_SHAPE: Final = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Place:
    """A process in a cluster. `meeting` is the address of rank 0: host and port."""

    rank: int
    size: int
    meeting: str


def place_in(text: str) -> Place | None:
    """The place that a TF_CONFIG gives; None if it names no cluster. Raises ConfigError for what makes no rank."""
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
    return Place(rank, len(tasks), tasks[0])


def from_tf_config(_: contextlib.ExitStack) -> dict[str, Any]:
    """Rank, size, store and secret for `collectives.init`, as TF_CONFIG tells; {} without it, and for the processes of
    `ronde run` and torchrun. Rank 0 serves the store until its process ends.

    Raises ConfigError naming the variable and what is wrong with it, RendezvousError if rank 0 cannot listen at its
    address.
    """
    env = os.environ
    if VARIABLE not in env or job_from_environment(env) is not None or set(env) >= _TORCHRUN:
        return {}
    place = place_in(env[VARIABLE])
    if place is None or place.size == 1:
        return {}
    job = job_from_environment(_as_ronde_run(place, env))
    assert job is not None
    if job.rank == 0:
        _serve(job.store, job.secret)
    return {"rank": job.rank, "size": job.size, "store": job.store, "secret": job.secret}


def _as_ronde_run(place: Place, env: Mapping[str, str]) -> dict[str, str]:
    """What `ronde run` would have told a process at such a place."""
    if RONDE.secret not in env:
        raise ConfigError(
            f"{RONDE.secret}: is needed with {VARIABLE}, the same for all {place.size} tasks. `python -c 'import "
            "secrets; print(secrets.token_hex(32))'` makes one; set it, but to nothing, to go without authentication"
        )
    return {
        RONDE.rank: str(place.rank),
        RONDE.size: str(place.size),
        RONDE.store: f"tcp://{place.meeting}",
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
    """Serve a store at an address for as long as the process lives: `init` may be called again, and meets there."""
    host, port = parse_url(url)
    server = TcpStoreServer(host, port, secret=secret, tls=collectives.Config.load().load_tls())
    server.start()
    atexit.register(server.close)
    return server
