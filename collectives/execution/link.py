"""Measures the links between hosts when a world over several hosts is made, so that the cost model knows them.

The first rank of each host sends to that of the next host and receives from that of the previous one, all at the same
time, as a ring does. Small messages give the latency, large ones the time per byte:

    host A  0 1     0 -> 2 -> 4 -> 0
    host B  2 3
    host C  4 5

The slowest host counts, since a collective waits for it. All ranks get the same figures.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from collectives.execution.executor import Executor
from collectives.execution.peers import maximum
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

    It takes some 20 to 100 milliseconds, or 100 times the latency. Raises as `Executor.run`.
    """
    exchange = _Exchange(transport, trial, hosts, deadline, clock)

    def slowest(seconds: float) -> float:
        return float(maximum(trial, [seconds], deadline)[0])

    latency = slowest(min([exchange.round_trip(_SMALL_BYTES) for _ in range(_SMALL_RUNS)][1:])) / 2
    per_byte = 0.0
    for nbytes in _LARGE_BYTES:
        before, seconds = math.inf, slowest(exchange.round_trip(nbytes))
        while seconds <= _LESS * before:
            before, seconds = seconds, slowest(exchange.round_trip(nbytes))
        seconds = max(min(before, seconds) - 2 * latency, 0.0)
        per_byte = seconds / nbytes
        if seconds >= max(_LONG_ENOUGH, _MANY * latency):
            break
    if trial.rank == 0:
        log.info("measured the links between hosts: %.0f us, %.3f ns per byte", latency * 1e6, per_byte * 1e9)
    return LinkCost(latency, per_byte)


class _Exchange:
    """Messages around the ring of hosts."""

    def __init__(
        self, transport: Transport, trial: Executor, hosts: tuple[int, ...], deadline: float, clock: Clock
    ) -> None:
        heads = [trial.ranks[members[0]] for members in by_host(hosts, len(trial.ranks))]
        self._transport, self._trial, self._deadline, self._clock = transport, trial, deadline, clock
        self._next = self._previous = -1
        if transport.rank in heads:
            place = heads.index(transport.rank)
            self._next, self._previous = heads[(place + 1) % len(heads)], heads[place - 1]

    def round_trip(self, nbytes: int) -> float:
        """Seconds in which `nbytes` bytes go to the next host and a byte comes back, from a moment at which the ring is
        ready; 0 on ranks that are not first on their host."""
        if self._next < 0:
            return 0.0
        self._sendrecv(self._next, self._previous, 1)
        began = self._clock()
        self._sendrecv(self._next, self._previous, nbytes)
        self._sendrecv(self._previous, self._next, 1)
        return self._clock() - began

    def _sendrecv(self, to: int, source: int, nbytes: int) -> None:
        data, view = memoryview(bytearray(nbytes)), memoryview(bytearray(nbytes))
        sending = self._transport.sendrecv(to, source, self._trial.tag, data, view, self._deadline, nbytes)
        sending.wait(self._deadline)
