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
"""Seconds of a message after which no larger one is measured."""
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

    It takes some 10 to 50 milliseconds. Raises as `Executor.run`.
    """
    exchange = _Exchange(transport, trial, hosts, deadline, clock)

    def slowest(seconds: float) -> float:
        return float(maximum(trial, [seconds], deadline)[0])

    latency = slowest(min([exchange.seconds(_SMALL_BYTES) for _ in range(_SMALL_RUNS)][1:]))
    per_byte = 0.0
    for nbytes in _LARGE_BYTES:
        seconds = slowest(exchange.seconds(nbytes))
        per_byte = max(seconds - latency, 0.0) / nbytes
        if seconds >= _LONG_ENOUGH:
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

    def seconds(self, nbytes: int) -> float:
        """Seconds of one exchange of `nbytes` bytes on this rank, from a moment at which the ring is ready; 0 on ranks
        that are not first on their host."""
        if self._next < 0:
            return 0.0
        data, view = memoryview(bytearray(nbytes)), memoryview(bytearray(nbytes))
        token, taken = memoryview(bytearray(1)), memoryview(bytearray(1))
        self._sendrecv(token, taken)
        began = self._clock()
        self._sendrecv(data, view)
        return self._clock() - began

    def _sendrecv(self, data: memoryview, view: memoryview) -> None:
        sending = self._transport.sendrecv(
            self._next, self._previous, self._trial.tag, data, view, self._deadline, len(data)
        )
        sending.wait(self._deadline)
