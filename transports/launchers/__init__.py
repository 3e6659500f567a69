"""Launchers: which one started this process, which rank of how many it is, and how the ranks reach a common store.

`families` is the table of launchers, by precedence; `nesting` tells which of several is the innermost. Each gives
`ways` to meet: in a store that a launcher serves or the user names (`given`), at an address that all know (`address`),
or through values that the launcher carries from rank 0 to the others (`keyvalue`, with `pmi`, `pmix`, `torch_store` and
`horovod_store`). Where rank 0 serves the store itself (`serving`), the others look for it (`dialing`). `starter` is the
launcher's process on this host. `ronde` is the environment that our own launchers set.
"""

from __future__ import annotations

from transports.launchers.detection import (
    VARIABLE,
    check_rank_is_told,
    check_started_once,
    check_torch_is_told,
    describe,
    find,
    without_launchers,
)
from transports.launchers.hosts import expand
from transports.launchers.launch import Launch, check_not_taken, mark_as_rank, meet
from transports.launchers.ronde import OF_A_RANK, Job, job_from_environment, job_to_environment
from transports.launchers.secret import given_secret
from transports.launchers.starter import Starter, find_starter
from transports.launchers.ways import History

__all__ = [
    "OF_A_RANK",
    "VARIABLE",
    "History",
    "Job",
    "Launch",
    "Starter",
    "check_not_taken",
    "check_rank_is_told",
    "check_started_once",
    "check_torch_is_told",
    "describe",
    "expand",
    "find",
    "find_starter",
    "given_secret",
    "job_from_environment",
    "job_to_environment",
    "mark_as_rank",
    "meet",
    "without_launchers",
]
