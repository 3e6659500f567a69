"""Rendezvous: ranks find each other before they have a transport.

`memory`, `file` and `tcp` (with `server`, `sockets` and `wire`) implement the contract of `transports.store`.
`bootstrap` lets the ranks of a job meet in a store. `once` (one decision for all ranks), `causes` (the cause of an
abort) and `attentive` (a store that obeys an abort) build on any store.
"""

from __future__ import annotations

from transports.rendezvous.attentive import AttentiveStore
from transports.rendezvous.bootstrap import (
    SHRINKS,
    STORES,
    join,
    next_meeting,
    open_store,
    this_member,
    world_of_one,
)
from transports.rendezvous.causes import Causes
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.once import decide, decided
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.tcp import TcpStore
from transports.rendezvous.wire import PURPOSE as STORE_PURPOSE
from transports.rendezvous.wire import format_url, parse_url

__all__ = [
    "SHRINKS",
    "STORES",
    "STORE_PURPOSE",
    "AttentiveStore",
    "Causes",
    "MemoryStore",
    "TcpStore",
    "TcpStoreServer",
    "decide",
    "decided",
    "format_url",
    "join",
    "next_meeting",
    "open_store",
    "parse_url",
    "this_member",
    "world_of_one",
]
