"""Ranks over shared memory, for its tests."""

from __future__ import annotations

import time
from typing import Any

from tests.transports.groups import soon
from transports import shm
from transports.base import Group
from transports.engine import Engine
from transports.shm import Options, ShmTransport
from transports.shm.link import ShmLink

BOTH = (0, 1)
SECONDS = 40.0


def make(group: Group) -> ShmTransport:
    return shm.create(group, Options())


def small_rings(group: Group) -> ShmTransport:
    return shm.create(group, Options(ring_bytes=1024))


def briefly(seconds: float) -> float:
    return time.monotonic() + seconds


def shm_link(t: Engine) -> ShmLink:
    """The link of an open transport to the ranks of its host."""
    (found,) = (link for link in t.links if isinstance(link, ShmLink))
    return found


def sleeps(t: Engine, peer: int) -> bool:
    return bool(shm_link(t).bells_of((peer,))[0].word[0])


def await_sleep(t: Any, peer: int) -> None:
    """Wait until a rank sleeps at its doorbell."""
    end = soon()
    while not sleeps(t, peer):
        assert time.monotonic() < end, f"rank {peer} never slept"
        time.sleep(0.0005)
