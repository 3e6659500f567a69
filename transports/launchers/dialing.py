"""The search for a store at several addresses."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Final

from transports.errors import RendezvousError
from transports.launchers.ways import Meeting
from transports.rendezvous import NoLoopback, TcpStore, format_url
from transports.store import Store

ATTEMPT_SECONDS: Final = 2.0
"""Seconds for one address to answer, before the next is tried."""
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.5


def dial(addresses: Sequence[tuple[str, int]], secret: bytes, meeting: Meeting, *purposes: bytes) -> Store:
    """The store at the first of `addresses` where one with this secret and one of `purposes` answers.

    Servers of other jobs are refused, and the next address is tried. All are tried again until the deadline, with
    pauses: no event announces that a server has started or that a name resolves. Raises RendezvousError naming what
    failed at each address.
    """
    pause = FIRST_PAUSE
    causes: dict[str, str] = {}
    waiting = threading.Event()
    while True:
        for (host, port), purpose in itertools.product(addresses, purposes):
            store = TcpStore(host, port, secret, connect_deadline=meeting.deadline, tls=meeting.tls, purpose=purpose)
            left = meeting.deadline - time.monotonic()
            try:
                store.with_timeout(min(ATTEMPT_SECONDS, max(left, FIRST_PAUSE))).peek("anything")
            except RendezvousError as error:
                store.close()
                if isinstance(error, NoLoopback) and len(addresses) == 1:
                    raise
                causes[format_url(host, port)] = error.message
            except BaseException:
                store.close()
                raise
            else:
                meeting.resources.callback(store.close)
                return store
        if time.monotonic() + pause >= meeting.deadline:
            raise RendezvousError(
                f"rank {meeting.rank} of {meeting.size} did not find the store that rank 0 serves: "
                + "; ".join(causes.values()),
                rank=meeting.rank,
                peer=0,
            )
        waiting.wait(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
