"""Rendezvous: ranks find each other before they have a transport.

`memory`, `file` and `tcp` implement the contract of `transports.store`. The server of `tcp` is `server` (with `sockets`
and `wire`). Behind its connections is `book`, the dictionary, or, in a `proxy` of another server, `forwarder`.
`bootstrap` lets the ranks of a job meet in a store. `causes` (the cause of an abort) and `attentive` (a store that
obeys an abort) build on any store.
"""

from __future__ import annotations

from transports.rendezvous.attentive import AttentiveStore
from transports.rendezvous.bootstrap import (
    REGROUPS,
    STORES,
    announce_end,
    first_meeting,
    give_up,
    group_path,
    host_identity,
    join,
    leave,
    open_store,
    pack_member,
    this_member,
    unpack_member,
)
from transports.rendezvous.causes import Causes
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.proxy import proxy_of
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.tcp import NoLoopback, TcpStore
from transports.rendezvous.wire import PURPOSE as STORE_PURPOSE
from transports.rendezvous.wire import format_url, parse_url

__all__ = [
    "REGROUPS",
    "STORES",
    "STORE_PURPOSE",
    "AttentiveStore",
    "Causes",
    "MemoryStore",
    "NoLoopback",
    "TcpStore",
    "TcpStoreServer",
    "announce_end",
    "first_meeting",
    "format_url",
    "give_up",
    "group_path",
    "host_identity",
    "join",
    "leave",
    "open_store",
    "pack_member",
    "parse_url",
    "proxy_of",
    "this_member",
    "unpack_member",
]
