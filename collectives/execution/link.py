"""Measures the links between hosts when a world over several hosts is made, so that the cost model knows them.

The first rank of each host sends to that of the next host and receives from that of the previous one, all at the same
time, as a ring does. Small messages give the latency, large ones the time per byte:

    host A  0 1     0 -> 2 -> 4 -> 0
    host B  2 3
    host C  4 5

The slowest message counts, since a collective waits for it. A large one is as slow as the link of its sender or that of
its receiver, so a host's link is taken to be as fast as the faster one of its two messages:

    seconds per byte of the messages  A -> B 1    B -> C 4    C -> A 4
    of the links                      A 1         B 1         C 4

All ranks get the same figures.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from collectives.execution.executor import Executor
from collectives.execution.peers import maximum
from collectives.planning import told_apart
from collectives.schedule import by_host
from transports.base import LinkCost, Transport

log = logging.getLogger("ronde.links")

_SMALL_BYTES: Final = 8
_SMALL_RUNS: Final = 8
"""Small messages. The first warms up; the shortest of the others counts."""
_LARGE_BYTES: Final = (1 << 17, 1 << 19, 1 << 21, 1 << 23)
"""Sizes of large messages, in this order. A switch may let a burst of some ten KiB pass faster than its rate."""
_LONG_ENOUGH: Final = 0.008
"""Seconds, beyond the latencies, of a message after which no larger one is measured."""
_MANY: Final = 4
"""The same in latencies: a message that takes few of them waits for TCP as well, whose window it does not fill."""
_LESS: Final = 0.8
"""A large message is sent again until it takes more than this part of the time before: TCP's windows grow with the
bytes that have arrived, so that the first ones take several round trips."""
_MORE: Final = 5
"""Messages that are sent again as long as links seem to differ: one that was delayed must not make a slow link."""
Clock = Callable[[], float]


def measure_link(
    transport: Transport,
    trial: Executor,
    hosts: tuple[int, ...],
    deadline: float,
    clock: Clock = time.perf_counter,
) -> LinkCost:
    """Return the cost of a message between hosts, the same on all ranks. Collective.

    trial     an executor that nothing else uses
    hosts     the host number of every rank of the executor; two hosts at least
    deadline  of time.monotonic()

    It takes some 20 to 100 milliseconds, or 100 times the latency, and three times that where links differ. Raises as
    `Executor.run`.
    """
    exchange = _Exchange(transport, trial, hosts, deadline, clock)

    def slowest(seconds: float) -> float:
        return float(maximum(trial, [seconds], deadline)[0])

    def arrivals(nbytes: int) -> list[float]:
        table = [0.0] * exchange.hosts
        table[exchange.place] = exchange.arrival(nbytes)
        return [float(seconds) for seconds in maximum(trial, table, deadline)]

    latency = slowest(min([exchange.round_trip() for _ in range(_SMALL_RUNS)][1:])) / 2
    per_byte: list[float] = []
    for nbytes in _LARGE_BYTES:
        before, seconds = [math.inf], arrivals(nbytes)
        while max(seconds) <= _LESS * max(before):
            before, seconds = seconds, arrivals(nbytes)
        least = [max(min(pair) - latency, 0.0) for pair in zip(before, seconds, strict=True)]
        per_byte = [one / nbytes for one in least]
        if max(least) >= max(_LONG_ENOUGH, _MANY * latency):
            break
    for _ in range(_MORE):
        if not links_of(per_byte):
            break
        more = [max(one - latency, 0.0) / nbytes for one in arrivals(nbytes)]
        per_byte = [min(pair) for pair in zip(per_byte, more, strict=True)]
    cost = LinkCost(latency, max(per_byte), links_of(per_byte))
    if trial.rank == 0:
        text = f"{cost.latency * 1e6:.0f} us, {cost.per_byte * 1e9:.3f} ns per byte"
        text += f", by host {', '.join(f'{one * 1e9:.3f}' for one in cost.hosts)}" if cost.hosts else ""
        log.info("measured the links between hosts: %s", text)
    return cost


def links_of(messages: Sequence[float]) -> tuple[float, ...]:
    """Return the seconds per byte of each host's link, empty if they are alike, where that of the message that it
    receives around the ring is in `messages`. Where neither end of a message is so slow, as with an uplink between
    them, both count as slow."""
    rounded = told_apart(messages)
    links = [min(one, rounded[(host + 1) % len(rounded)]) for host, one in enumerate(rounded)]
    for host, one in enumerate(rounded):
        if max(links[host - 1], links[host]) < one:
            links[host - 1] = links[host] = one
    return told_apart(links) if links else ()


class _Exchange:
    """Messages around the ring of hosts."""

    def __init__(
        self, transport: Transport, trial: Executor, hosts: tuple[int, ...], deadline: float, clock: Clock
    ) -> None:
        heads = [trial.ranks[members[0]] for members in by_host(hosts, len(trial.ranks))]
        self._transport, self._trial, self._deadline, self._clock = transport, trial, deadline, clock
        self.hosts, self.place = len(heads), hosts[trial.rank]
        self._next = self._previous = -1
        if transport.rank in heads:
            self._next, self._previous = heads[(self.place + 1) % len(heads)], heads[self.place - 1]

    def round_trip(self) -> float:
        """Seconds in which a small message goes to the next host and a byte comes back, from a moment at which the ring
        is ready; 0 on ranks that are not first on their host."""
        if self._next < 0:
            return 0.0
        self._sendrecv(self._next, self._previous, 1)
        began = self._clock()
        self._sendrecv(self._next, self._previous, _SMALL_BYTES)
        self._sendrecv(self._previous, self._next, 1)
        return self._clock() - began

    def arrival(self, nbytes: int) -> float:
        """Seconds in which `nbytes` bytes come from the previous host, from a moment at which the ring is ready; 0 on
        ranks that are not first on their host."""
        if self._next < 0:
            return 0.0
        self._sendrecv(self._next, self._previous, 1)
        began = self._clock()
        return self._sendrecv(self._next, self._previous, nbytes) - began

    def _sendrecv(self, to: int, source: int, nbytes: int) -> float:
        """Send and receive, and return the time at which the bytes were received."""
        data, view = memoryview(bytearray(nbytes)), memoryview(bytearray(nbytes))
        sending = self._transport.sendrecv(to, source, self._trial.tag, data, view, self._deadline, nbytes)
        received = self._clock()
        sending.wait(self._deadline)
        return received
