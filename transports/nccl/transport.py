"""The transport "nccl": another transport for data in host memory, and NCCL for data in GPU memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from transports.base import LinkCost, Request, Transport
from transports.errors import RondeError
from transports.nccl.api import NcclApi
from transports.nccl.companion import NcclCollectives

A = TypeVar("A")
T = TypeVar("T")


class NcclTransport(Transport):
    """Frames go by the transport `host`, native collectives by NCCL."""

    name = "nccl"

    def __init__(self, host: Transport, load: Callable[[], NcclApi], usable: Callable[[], str | None]) -> None:
        super().__init__(host.group)
        self.host = host
        self._native = NcclCollectives(host, load, usable, required=True)

    @property
    def authenticated(self) -> bool:
        return self.host.authenticated

    @property
    def failure(self) -> RondeError | None:
        return self.host.failure

    def open(self, deadline: float) -> None:
        self.host.open(deadline)
        try:
            self._native.open()
        except RondeError as error:
            self.host.abort(error)
            self.host.close(deadline)
            raise

    def isend(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return self.host.isend(peer, tag, view, check)

    def irecv(self, peer: int, tag: int, view: memoryview, check: int = 0) -> Request:
        return self.host.irecv(peer, tag, view, check)

    def wait_any(self, requests: Sequence[Request], deadline: float) -> list[int]:
        return self.host.wait_any(requests, deadline)

    def abort(self, cause: RondeError) -> None:
        self.host.abort(cause)

    @property
    def entered(self) -> bool:
        return self.host.entered

    def unlocked(self, function: Callable[[], T]) -> T:
        return self.host.unlocked(function)

    def interrupted(self) -> None:
        self.host.interrupted()

    def close(self, deadline: float) -> None:
        try:
            self._native.close(deadline)
        finally:
            self.host.close(deadline)

    def link_costs(self) -> tuple[LinkCost, LinkCost]:
        return self.host.link_costs()

    def ability(self, kind: type[A]) -> A | None:
        return self._native if isinstance(self._native, kind) else self.host.ability(kind)
