"""The smallest elastic training loop: the weights count the steps, so that a lost or doubled one shows.

    elastic_train.py STEPS SECONDS_PER_STEP

It prints `start`, `world`, `left` and `done` with its process id, rank, size and step. Rank 0 waits at STEPS / 2 until
the file named by HOLD, if any, is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import ronde
from transports.errors import ConfigError, RondeError


def main() -> None:
    steps, seconds = int(sys.argv[1]), float(sys.argv[2])
    world = ronde.init()
    signal.signal(signal.SIGTERM, lambda *_: ronde.world().leave("SIGTERM"))
    state = np.zeros(3)

    def tell(word: str) -> None:
        print(word, os.getpid(), world.rank, world.size, int(state[0]), flush=True)

    state = world.broadcast(state, root=0)
    tell("start")
    while state[0] < steps:
        try:
            if world.changes_pending():
                regrouped = ronde.regroup()
                if regrouped is None:
                    tell("left")
                    return
                world = regrouped
                state = world.broadcast(state, root=0)
                tell("world")
            state = state + world.allreduce(np.ones(3)) / world.size
            time.sleep(seconds)
        except ConfigError:
            raise
        except RondeError:
            regrouped = ronde.regroup()
            assert regrouped is not None
            world = regrouped
            state = world.broadcast(state, root=0)
            tell("world")
    assert (state == steps).all(), state
    tell("done")


if __name__ == "__main__":
    main()
