"""Shared memory inside a host, TCP across hosts, chosen per peer.

The ranks of every host open a link among themselves, and all ranks open one across hosts, each only if it is needed: a
single host needs no TCP, one rank per host needs no shared memory. If the ranks of a host cannot use shared memory they
use TCP, and log this once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from transports import registry
from transports.base import Group, LinkCost, Transport
from transports.engine import Engine, Link
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError
from transports.native import NativeCollectives
from transports.settings import pairs

A = TypeVar("A")

log = logging.getLogger("ronde.auto")
_NEWS: Final = logging.WARNING if sys.platform == "linux" else logging.INFO
"""The level of the line that tells that a host has no shared memory: elsewhere it never has."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the transport `auto`. Raises ConfigError for a bad value.

    intra          name of the transport whose link joins the ranks of one host
    inter          name of the transport whose link joins hosts
    intra_options  settings of the transport `intra`, each "setting=value"
    inter_options  settings of the transport `inter`, each "setting=value"
    device         name of the transport whose collectives serve arrays on devices, if all ranks can use it; empty for
                   none
    """

    intra: str = "shm"
    inter: str = "tcp"
    intra_options: tuple[str, ...] = ()
    inter_options: tuple[str, ...] = ()
    device: str = "nccl"

    def __post_init__(self) -> None:
        for setting, name in (("intra", self.intra), ("inter", self.inter)):
            if not registry.has_links(name):
                raise ConfigError(f"{setting}={name!r}: must be a transport that has links, such as 'shm' or 'tcp'")


def create(group: Group, options: Options) -> Transport:
    """The transport, not yet open. No I/O. Raises ConfigError for a bad inner setting."""
    return AutoTransport(group, options)


def usable() -> str | None:
    """None if one of the two default transports can be used."""
    defaults = Options()
    reasons = [registry.backend(name).usable() for name in (defaults.intra, defaults.inter)]
    return None if None in reasons else "; ".join(map(str, reasons))


class AutoTransport(Engine):
    """See the module."""

    name = "auto"

    def __init__(self, group: Group, options: Options | None = None) -> None:
        self._options = options or Options()
        self._intra_options = _settings(self._options.intra, self._options.intra_options, "intra_options")
        self._inter_options = _settings(self._options.inter, self._options.inter_options, "inter_options")
        self._accompany = None if not self._options.device else _accompaniment(self._options.device)
        affinity = all(getattr(options, "affinity", True) for options in (self._intra_options, self._inter_options))
        super().__init__(group, "automatic transport", affinity=affinity)
        self._native: NativeCollectives | None = None

    def open(self, deadline: float) -> None:
        super().open(deadline)
        if self._accompany is not None:
            try:
                self._native = self._accompany(self)
            except BaseException as error:
                self.abort(self.life.cause(error, "gave up opening the transport"))
                self.close(deadline)
                raise

    def close(self, deadline: float) -> None:
        native, self._native = self._native, None
        try:
            if native is not None:
                native.close(deadline)
        finally:
            super().close(deadline)

    def ability(self, kind: type[A]) -> A | None:
        return self._native if isinstance(self._native, kind) else super().ability(kind)

    def link_costs(self) -> tuple[LinkCost, LinkCost]:
        """The costs of the configured transports, not of those in use, so that all hosts agree."""
        intra = registry.backend(self._options.intra).create(self.group, self._intra_options)
        inter = registry.backend(self._options.inter).create(self.group, self._inter_options)
        return intra.link_costs()[0], inter.link_costs()[1]

    def _choose(self, deadline: float) -> tuple[Link, ...]:
        members = self.group.members
        here = tuple(rank for rank, member in enumerate(members) if member.host == members[self.rank].host)
        links: list[Link] = []
        if len(here) > 1 or self.size == 1:
            inside = registry.linking(self._options.intra).link(self, here, self._intra_options)
            if self._agree(inside, here, deadline):
                links.append(inside)
        if not links or len(here) < self.size:
            links.append(registry.linking(self._options.inter).link(self, range(self.size), self._inter_options))
        return tuple(links)

    def _agree(self, link: Link, here: tuple[int, ...], deadline: float) -> bool:
        """True if all ranks of this host can use the link inside it. The same result on each of them."""
        store, name = self.group.store.prefixed("auto"), self._options.intra
        own = (registry.backend(name).usable() or link.shortage() or "").encode()
        table = f"usable/{here[0]}"
        try:
            reasons = store.gather(table, here.index(self.rank), len(here), own, deadline)
        except DeadlineExceeded:
            rank = next((here[place] for place, row in enumerate(store.rows(table)) if row is None), here[0])
            text = f"{self.group.describe(rank)} did not open the transport in time"
            raise DeadlineExceeded(text, rank=self.rank, peer=rank) from None
        except ValueError as error:
            raise RendezvousError(f"the store holds invalid data of transport {name!r}: {error}") from error
        for rank, reason in zip(here, reasons, strict=True):
            if reason:
                if self.rank == here[0]:
                    log.log(
                        _NEWS,
                        "transport %r cannot be used by %s: %s; the ranks of its host use %r instead",
                        name,
                        self.group.describe(rank),
                        reason.decode(errors="replace"),
                        self._options.inter,
                    )
                return False
        return True


def _settings(name: str, texts: tuple[str, ...], source: str) -> Any:
    return registry.make_options(name, pairs(texts, f"setting {source} of transport 'auto'"))


def _accompaniment(name: str) -> Callable[[Transport], NativeCollectives | None]:
    """The function that makes native collectives beside an open transport. Raises ConfigError if `name` has none."""
    found: Callable[[Transport], NativeCollectives | None] | None = getattr(registry.backend(name), "accompany", None)
    if found is None:
        raise ConfigError(f"device={name!r}: must be a transport that can accompany another, or empty")
    return found
