"""The job as `ronde run` and `run` describe it to the ranks that they start, in variables with Ronde's prefix.

A user may set them by hand, too: rank, size, the store and the secret. Rank 0 then serves the store itself if its
address is one of this host's and nobody serves it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from transports.errors import ConfigError
from transports.launchers import secret as secrets
from transports.launchers.variables import Env, integer
from transports.rendezvous import STORES


@dataclass(frozen=True)
class Job:
    """The job as a launcher describes it to a process.

    store        URL, see `open_store`
    secret       the per-job secret; empty means that nothing is authenticated. It is not shown in the repr
    local_rank   place among the `local_size` ranks of the same host; None where the launcher does not say
    name         the job's id, for messages
    joins        True for a newcomer to a job that runs: `rank` is the number by which the launcher knows it, and
                 `size` says nothing
    """

    rank: int
    size: int
    store: str
    secret: bytes = field(default=b"", repr=False)
    local_rank: int | None = None
    local_size: int | None = None
    name: str = ""
    joins: bool = False


RANK: Final = "RONDE_RANK"
SIZE: Final = "RONDE_SIZE"
JOIN: Final = "RONDE_JOIN"
"""In place of the two, for a newcomer to a job that runs: its number, which no process of the job has had."""
LOCAL_RANK: Final = "RONDE_LOCAL_RANK"
LOCAL_SIZE: Final = "RONDE_LOCAL_SIZE"
STORE: Final = "RONDE_STORE"
NAME: Final = "RONDE_JOB"
"""Set by a launcher of ours, which serves the store; not by hand."""
TAKEN: Final = "RONDE_RANK_PROCESS"
"""The variable in which a rank notes its process id, rank and job, for the processes that it starts."""
OF_A_RANK: Final = (
    *(RANK, SIZE, JOIN, LOCAL_RANK, LOCAL_SIZE, STORE, secrets.VARIABLE, secrets.FILE_VARIABLE, NAME, TAKEN),
)
"""Variables with Ronde's prefix that hold for one process, or are secret: they are never passed on."""


def started_by_ours(env: Env) -> bool:
    """True if a launcher of ours has started this process, or one of which it has inherited its variables."""
    return NAME in env and (RANK in env or JOIN in env)


def job_from_environment(env: Env) -> Job | None:
    """The job of `ronde run` that this process belongs to; None if it was not started as a rank.

    Rank and size are required, or the number of a newcomer. With more than one rank, the store and the secret are
    required, too. The secret is in hexadecimal; an empty one means no authentication. Raises ConfigError naming the
    variable, its value (except the secret's) and the allowed values.
    """
    if RANK not in env and SIZE not in env:
        return _newcomer(env) if JOIN in env else None
    size = integer(env, SIZE, 1, None, f"is needed with {RANK}")
    rank = integer(env, RANK, 0, size - 1, f"is needed with {SIZE}")
    local_rank = local_size = None
    if LOCAL_RANK in env or LOCAL_SIZE in env:
        local_size = integer(env, LOCAL_SIZE, 1, size, f"is needed with {LOCAL_RANK}")
        local_rank = integer(env, LOCAL_RANK, 0, local_size - 1, f"is needed with {LOCAL_SIZE}")
    store = env.get(STORE, "memory:" if size == 1 else None)
    if store is None:
        raise ConfigError(f"{STORE}: is needed when {SIZE} is more than 1: {STORES}")
    secret = secrets.given_secret(env)
    if secret is None and size > 1:
        raise ConfigError(
            f"{secrets.VARIABLE}: is needed when {SIZE} is more than 1, or {secrets.FILE_VARIABLE}; set it, but to "
            f"nothing, to go without authentication"
        )
    return Job(rank, size, store, secret or b"", local_rank, local_size, env.get(NAME, ""))


def _newcomer(env: Env) -> Job:
    number = integer(env, JOIN, 1, None, "")
    for variable in (STORE, secrets.VARIABLE):
        if variable not in env and (variable == STORE or secrets.FILE_VARIABLE not in env):
            raise ConfigError(f"{variable}: is needed with {JOIN}, the same as for the ranks that run")
    secret = secrets.given_secret(env) or b""
    return Job(number, number + 1, env[STORE], secret, name=env.get(NAME, ""), joins=True)


def job_to_environment(job: Job) -> dict[str, str]:
    """The environment variables of a rank, from which `job_from_environment` returns `job`."""
    place = {JOIN: str(job.rank)} if job.joins else {RANK: str(job.rank), SIZE: str(job.size)}
    values = {
        **place,
        STORE: job.store,
        secrets.VARIABLE: job.secret.hex(),
        NAME: job.name,
    }
    if job.local_rank is not None and job.local_size is not None:
        values |= {LOCAL_RANK: str(job.local_rank), LOCAL_SIZE: str(job.local_size)}
    return values
