"""Difference between a rank's clock and that of rank 0."""

from __future__ import annotations

from typing import Final

import numpy as np

from collectives.execution import Peers
from collectives.metering import now

_ROUNDS: Final = 8


def compare_clocks(peers: Peers) -> tuple[int, int]:
    """(offset, error) in nanoseconds: this rank's clock plus the offset is the clock of rank 0, give or take the error.

    As in the Network Time Protocol (Mills 1991), but with bounds in place of averages. In each round all ranks tell
    when they began it, and when they had heard from everyone in the one before. What a rank hears was told before:
    that bounds its offset from one side, and what rank 0 heard of it from the other. The error is half of what is left
    between the best bounds, so it is at most half the time of the quickest round. It holds at the time of the
    comparison: clocks of hosts drift apart, typically by microseconds a second.
    """
    lowest, highest = -(2**62), 2**62
    sent = heard = 0
    for number in range(_ROUNDS + 1):
        before = sent
        sent = now()
        table = peers.allgather(np.array([sent, heard], np.int64))
        heard = now()
        zero_sent, zero_heard = table[0].tolist()
        lowest = max(lowest, zero_sent - heard)
        if number:
            highest = min(highest, zero_heard - before)
    if peers.rank == 0:
        return 0, 0
    return (lowest + highest) // 2, (highest - lowest + 1) // 2
