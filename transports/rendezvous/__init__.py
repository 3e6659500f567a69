"""Rendezvous: ranks find each other before they have a transport.

`memory`, `file` and `tcp` (with `server`, `sockets` and `wire`) implement the contract of `transports.store`.
`bootstrap` reads the launcher's environment and lets the ranks of a job meet in a store. `once` (one decision for all
ranks), `causes` (the cause of an abort) and `attentive` (a store that obeys an abort) build on any store.
"""

from __future__ import annotations

from transports.rendezvous.attentive import AttentiveStore
from transports.rendezvous.bootstrap import (
    RONDE,
    SHRINKS,
    Job,
    check_not_taken,
    job_from_environment,
    job_to_environment,
    join,
    next_meeting,
    open_store,
    take,
    this_member,
    world_of_one,
)
from transports.rendezvous.causes import Causes
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.once import decide, decided
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.wire import parse_url

__all__ = [
    "RONDE",
    "SHRINKS",
    "AttentiveStore",
    "Causes",
    "Job",
    "MemoryStore",
    "TcpStoreServer",
    "check_not_taken",
    "decide",
    "decided",
    "job_from_environment",
    "job_to_environment",
    "join",
    "next_meeting",
    "open_store",
    "parse_url",
    "take",
    "this_member",
    "world_of_one",
]
