"""Hosts, their ranks and a store: everything that a case needs, and worlds on it with what a case wants to know."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from tests.netns.crew import Crew, Run
from tests.netns.jobs import Story, World
from tests.netns.network import Network
from transports.rendezvous.server import TcpStoreServer

CONNECT_SECONDS = 20.0
CALL_SECONDS = 30.0
_WHERE = re.compile(r"\[in \w+\(.*\)(, call \d+, \w+: .+)?\]$")
"""The collective, and the step of it, if it had begun when the error came."""


class Site:
    """A network with ranks on its hosts. A context.

    hosts  the host of each rank, by name
    """

    def __init__(self, hosts: Sequence[str], *, ipv6: bool = False) -> None:
        self.names = tuple(hosts)
        self.network = Network(tuple(dict.fromkeys(hosts)), ipv6=ipv6)
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Site:
        with contextlib.ExitStack() as resources:
            resources.enter_context(self.network)
            self.crew = resources.enter_context(Crew([self.network.hosts[name] for name in self.names]))
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @property
    def size(self) -> int:
        return len(self.names)

    def ranks_on(self, host: str) -> set[int]:
        """The ranks on a host."""
        return {rank for rank, name in enumerate(self.names) if name == host}

    @contextlib.contextmanager
    def renamed(self, name: str, entry: str) -> Iterator[None]:
        """Call all hosts `name`, and have `entry` and nothing else in their /etc/hosts, for a while."""
        with contextlib.ExitStack() as restored:
            for host in self.network.hosts.values():
                restored.enter_context(host.renamed(name, entry))
            yield

    @contextlib.contextmanager
    def running(
        self, job: Callable[..., Any], *args: Any, config: Mapping[str, Any], store_on: str | None = None
    ) -> Iterator[Run]:
        """Every rank does `job(link, rank, world, *args)` in a world with these settings, whose store is served on a
        host, by default the first. At the end the network is healed."""
        keeper = self.network.hosts[store_on or self.names[0]]
        secret = secrets.token_bytes(32)
        server = TcpStoreServer(keeper.address, secret=secret)
        keeper.within(server.start)
        settings = {"timeout": CALL_SECONDS, "connect_timeout": CONNECT_SECONDS, **config}
        world = World(self.size, server.url, secret, settings)
        try:
            with self.crew.begin(job, world, *args) as run:
                try:
                    yield run
                finally:
                    self.network.heal()
        finally:
            server.close()


def check_sound(stories: Sequence[Story]) -> None:
    """Nothing failed on any rank."""
    for story in stories:
        assert story.failure is None, f"{story} failed: {story.failure}"


def detection(story: Story, culprits: Sequence[Story], fault_at: float, bound: float, closing: float = 1.0) -> float:
    """Seconds from a fault to the error of a rank, checked: it is PeerLost, names one of `culprits` with host and
    process, and the collective and its step; it came within `bound` seconds, and within `closing` more all was
    released."""
    failure = story.failure
    assert failure is not None, f"{story} noticed nothing"
    assert failure.kind == "PeerLost", f"{story}: {failure}"
    named = [culprit for culprit in culprits if str(culprit) in failure.message]
    assert named, f"{story} names none of {[str(culprit) for culprit in culprits]}: {failure.message}"
    assert failure.peer in [culprit.rank for culprit in culprits], f"{story} is about rank {failure.peer}: {failure}"
    assert _WHERE.search(failure.message), f"{story} does not say where: {failure.message}"
    seconds = failure.at - fault_at
    assert seconds <= bound, f"{story} took {seconds:.2f} s to notice, {bound} allowed: {failure.message}"
    assert story.closed - fault_at <= bound + closing, f"{story} took {story.closed - failure.at:.2f} s to close"
    return seconds
