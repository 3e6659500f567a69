"""Checks the hosts of a cluster and the links between them, by asking a probe on each host.

    1. every probe tells the facts of its host          hosts that do not answer are left out from here on
    2. every probe listens
    3. all links that a job needs are tried at once     both directions
    4. their rates are measured, one link of a host at a time

Hosts are asked side by side, and each step has a limit, so that a host which does not answer costs that limit once.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from transports.auth import new_secret
from transports.errors import RondeError

LISTEN_SECONDS: Final = 3.0
REACH_SECONDS: Final = 8.0
"""Longer than a probe takes for all its connections."""
RATE_SECONDS: Final = 5.0
ALL_RATES_SECONDS: Final = 10.0
"""Time for the rates of all links; those that it does not suffice for are not measured."""

MEASUREMENTS: Final = 5
"""Number of times that a link is measured before it counts as slow."""

FEW: Final = 5
"""Up to so many hosts, every pair is tried."""

SLOW: Final = 4.0
"""A link is slow if the typical one is so many times as fast; see `typical`."""

Pair = tuple[int, int]


class HostProbe(Protocol):
    """The probe of a host. `name` is the host's, for messages."""

    name: str

    def ask(self, *question: object, seconds: float) -> Any:
        """The answer to a question. Raises RondeError if the probe cannot answer, or has not within that time."""


@dataclass
class HostFinding:
    """A host.

    problem    why it takes no part; "" if it does
    facts      see `facts_here`; empty if it did not answer
    interface  the interface with its address; "" if unknown
    ahead      seconds that its clock is ahead of the others', and how exact that is; None if unknown
    """

    name: str
    problem: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    address: str = ""
    port: int = 0
    interface: str = ""
    ahead: tuple[float, float] | None = None


@dataclass
class LinkFinding:
    """A link from one host to another, one direction of a pair. For the other fields see `Caller.reach`.

    rate  bits per second; None if it was not measured
    """

    source: str
    target: str
    state: str
    detail: str = ""
    latency: float | None = None
    clock: Sequence[float] | None = None
    packet: int | None = None
    lost: int = 0
    rate: float | None = None


@dataclass
class Findings:
    """The findings."""

    hosts: list[HostFinding]
    links: list[LinkFinding]


def check(
    probes: Sequence[HostProbe], pool: Executor, *, interface: str, start_seconds: float, rates: bool = True
) -> Findings:
    """Check the hosts of these probes, and the links between them.

    pool           runs the questions, as many at a time as hosts are asked side by side
    interface      name or address of the interface that the hosts must use; "" chooses
    start_seconds  time for the hosts to answer for the first time
    rates          measure the rates of links
    """
    return _Check(probes, pool).run(interface, start_seconds, rates)


class _Check:
    def __init__(self, probes: Sequence[HostProbe], pool: Executor) -> None:
        self._probes = probes
        self._pool = pool
        self._hosts = [HostFinding(probe.name) for probe in probes]
        self._links: dict[Pair, LinkFinding] = {}

    def run(self, interface: str, start_seconds: float, rates: bool) -> Findings:
        for number, facts in self._ask(self._alive, lambda number: ["facts"], start_seconds).items():
            self._hosts[number].facts = facts
        self._listen(interface)
        self._reach()
        if rates:
            self._measure()
        self._compare_clocks()
        return Findings(self._hosts, list(self._links.values()))

    @property
    def _alive(self) -> list[int]:
        return [number for number, host in enumerate(self._hosts) if not host.problem]

    def _ask(self, numbers: Sequence[int], question: Callable[[int], list[object]], seconds: float) -> dict[int, Any]:
        """The answers of these hosts, by number. A host that gives none has a problem."""

        def one(number: int) -> Any:
            try:
                return self._probes[number].ask(*question(number), seconds=seconds)
            except RondeError as error:
                self._hosts[number].problem = str(error)
                return None

        answers = dict(zip(numbers, self._pool.map(one, numbers), strict=True))
        return {number: answer for number, answer in answers.items() if answer is not None}

    def _listen(self, interface: str) -> None:
        secret, alive = new_secret(), self._alive

        def question(number: int) -> list[object]:
            others = [self._hosts[other] for other in alive if other != number]
            hints = [host.facts["reached"] for host in others if host.facts["reached"]]
            hints += self._hosts[number].facts["hints"]
            hints += [name for host in others for name in (host.name, host.facts["hostname"]) if " " not in name]
            return ["listen", secret, self._hosts[number].name, interface, hints]

        for number, answer in self._ask(alive, question, LISTEN_SECONDS).items():
            host = self._hosts[number]
            host.address, host.port = answer["address"], answer["port"]
            host.interface = next((name for name, own in host.facts["addresses"].items() if host.address in own), "")
        loopback = [host for host in self._hosts if host.address and ipaddress.ip_address(host.address).is_loopback]
        if any(host.address and host not in loopback for host in self._hosts):
            for host in loopback:
                host.problem = (
                    f"no address but {host.address} was found that leads to the other hosts; is its interface up?"
                )

    def _reach(self) -> None:
        wanted: dict[int, list[int]] = {number: [] for number in self._alive}
        for source, target in needed_links(self._alive):
            wanted[source].append(target)
        answers = self._ask(
            list(wanted), lambda number: ["reach", [self._target(other) for other in wanted[number]]], REACH_SECONDS
        )
        for source, attempts in answers.items():
            for target, attempt in zip(wanted[source], attempts, strict=True):
                found = {key: value for key, value in attempt.items() if key != "to"}
                self._links[source, target] = LinkFinding(self._hosts[source].name, self._hosts[target].name, **found)

    def _target(self, number: int) -> list[object]:
        host = self._hosts[number]
        return [host.name, host.address, host.port]

    def _measure(self) -> None:
        until = time.monotonic() + ALL_RATES_SECONDS
        working = [pair for pair in ring_links(self._alive) if pair in self._links and self._links[pair].state == "ok"]
        slow = working
        for _ in range(MEASUREMENTS):  # of a slow link: something else may have used it, or the processors
            for turn in turns(slow):
                self._measure_turn(turn, until)
            rates = {pair: rate for pair in working if (rate := self._links[pair].rate) is not None}
            slow = [pair for pair, rate in rates.items() if rate < typical(rates.values()) / SLOW]

    def _measure_turn(self, turn: Sequence[Pair], until: float) -> None:
        """Measure links that have no host in common; the better rate counts."""
        if time.monotonic() >= until:
            return
        targets = dict(turn)

        def one(source: int) -> tuple[float, str]:
            try:
                return self._probes[source].ask("rate", *self._target(targets[source]), seconds=RATE_SECONDS), ""
            except RondeError as error:
                return 0.0, str(error)

        for pair, (rate, problem) in zip(turn, self._pool.map(one, targets), strict=True):
            link = self._links[pair]
            if problem:
                link.state, link.detail = "stuck", problem
            else:
                link.rate = max(rate, link.rate or 0.0)

    def _compare_clocks(self) -> None:
        """Set how far each clock is ahead of the middle one, along the links whose ends have compared theirs."""
        alive = self._alive
        if not alive:
            return
        ahead: dict[int, tuple[float, float]] = {alive[0]: (0.0, 0.0)}
        reached = [alive[0]]
        for number in reached:
            offset, doubt = ahead[number]
            for (source, target), link in self._links.items():
                if link.clock is None or number not in (source, target):
                    continue
                other, sign = (target, 1.0) if number == source else (source, -1.0)
                if other not in ahead:
                    ahead[other] = offset + sign * link.clock[0], doubt + link.clock[1]
                    reached.append(other)
        middle = sorted(offset for offset, _ in ahead.values())[(len(ahead) - 1) // 2]
        for number, (offset, doubt) in ahead.items():
            self._hosts[number].ahead = offset - middle, doubt


def ring_links(numbers: Sequence[int]) -> list[Pair]:
    """The links of a ring of these hosts, in both directions; with FEW hosts those of every pair."""
    count = len(numbers)
    if count <= FEW:
        return [(a, b) for a in numbers for b in numbers if a != b]
    ring = [(numbers[index], numbers[(index + 1) % count]) for index in range(count)]
    return [*ring, *((b, a) for a, b in ring)]


def needed_links(numbers: Sequence[int]) -> list[Pair]:
    """The links that a job needs: those of the ring, and from every host to the first, which serves the store."""
    links = ring_links(numbers)
    return list(dict.fromkeys([*links, *((number, numbers[0]) for number in numbers[1:])]))


def turns(links: Sequence[Pair]) -> list[list[Pair]]:
    """The links in as few turns as a simple rule finds; in a turn no host has two."""
    found: list[tuple[set[int], list[Pair]]] = []
    for pair in links:
        busy, turn = next((one for one in found if not one[0] & set(pair)), (None, None))
        if busy is None or turn is None:
            found.append((set(pair), [pair]))
        else:
            busy |= set(pair)
            turn.append(pair)
    return [turn for _, turn in found]


def typical(rates: Iterable[float]) -> float:
    """The rate that a quarter of the links reach; 0 of none. The median would not do: of three hosts one slow one has
    most links."""
    ordered = sorted(rates)
    return float(ordered[3 * len(ordered) // 4]) if ordered else 0.0
