"""Arrays of more than 2**31 elements, on the real transports."""

from __future__ import annotations

import os

import numpy as np
import pytest

import collectives as ronde

COUNT = 2**31 + 5
NEEDED = 14 << 30
available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def combine() -> tuple[int, list[int]]:
    """The ends of the results of an allreduce and a broadcast of a huge array."""
    x = np.full(COUNT, 1 + ronde.rank(), np.uint8)
    x[-1] = 10 * (1 + ronde.rank())
    ronde.allreduce(x, out=x)
    ends = [int(x[0]), int(x[COUNT // 2]), int(x[-2]), int(x[-1])]
    assert int(x.min()) == 3
    x[-1] = ronde.rank() + 7
    ronde.broadcast(x, 1, out=x)
    return int(x[-1]), ends


@pytest.mark.skipif(available < NEEDED, reason=f"needs {NEEDED >> 30} GiB of free memory")
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_more_than_two_to_the_31_elements(transport: str) -> None:
    assert ronde.run(combine, np=2, transport=transport, timeout=400) == [(8, [3, 3, 3, 30])] * 2
