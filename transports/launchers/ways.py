"""The contract of a way to meet: how the ranks of a launcher reach the store in which they find each other."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass

from transports.store import Store
from transports.tls import Tls


@dataclass
class History:
    """The earlier meetings of a process in a job, as the next ones need them.

    number     how many there were; the same on all ranks
    published  the addresses of rank 0's host and the secret that rank 0 has published in the first; None before
    """

    number: int = 0
    published: tuple[list[str], bytes] | None = None


@dataclass(frozen=True)
class Meeting:
    """One meeting of the ranks of a job, as one of them sees it.

    job        the job's id, see Launch
    history    the meetings of this process in the job before this one
    one_host   True if the launcher says that all ranks are on one host
    interface  the interface or address that rank 0 listens on; "" for all that may lead there
    deadline   the time of time.monotonic() at which the rank gives up
    resources  closed when the rank leaves; what a way opens goes there
    """

    rank: int
    size: int
    job: str
    history: History
    one_host: bool
    interface: str
    deadline: float
    tls: Tls | None
    resources: contextlib.ExitStack

    @property
    def purpose(self) -> bytes:
        """The purpose of a store for this meeting, see TcpStoreServer: that of another job or meeting is refused."""
        return os.fsencode(f"store of {self.job}, meeting {self.history.number}")


class Way(ABC):
    """A way to meet. It is chosen on each rank by itself, from variables that are alike on all ranks."""

    @abstractmethod
    def describe(self) -> str:
        """The way in which the ranks meet, in a few words. Never a secret."""

    @abstractmethod
    def missing(self) -> str | None:
        """The requirement that is missing; None if the way can be used. No network."""

    @abstractmethod
    def open(self, meeting: Meeting) -> tuple[Store, bytes]:
        """The store and the job's secret. Collective. Raises ConfigError, RendezvousError, DeadlineExceeded."""
