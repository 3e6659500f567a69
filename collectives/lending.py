"""Whether the ranks of a window can read each other's private memory; found out by trying."""

from __future__ import annotations

import secrets
from typing import Final

from transports.errors import PeerLost
from transports.onesided import Window

_PROBE_BYTES: Final = 32
_LAST_EPOCH: Final = 2


def can_lend(window: Window, deadline: float) -> bool:
    """True if every rank can `read` what every other one lends; the same answer on all of them. Collective, before
    anything else is done with the window: it uses its first epochs and bytes. Raises what Window.wait does."""
    peers = [index for index in range(len(window.ranks)) if index != window.index]
    probe = memoryview(secrets.token_bytes(_PROBE_BYTES))
    own = window.view(window.index)
    own[:_PROBE_BYTES] = probe
    window.lend(probe)
    window.publish(_LAST_EPOCH - 1)
    able = True
    for index in peers:
        window.wait(index, _LAST_EPOCH - 1, deadline)
        able = able and _reads(window, index)
    own[_PROBE_BYTES] = able
    window.publish(_LAST_EPOCH)
    for index in peers:
        window.wait(index, _LAST_EPOCH, deadline)
    return all(window.view(index)[_PROBE_BYTES] for index in range(len(window.ranks)))


def _reads(window: Window, index: int) -> bool:
    """Whether what a position has lent can be read, and is that: a number may be another process's elsewhere."""
    found = bytearray(_PROBE_BYTES)
    try:
        window.read(index, 0, 0, memoryview(found))
    except PeerLost:
        return False
    return found == window.view(index)[:_PROBE_BYTES]
