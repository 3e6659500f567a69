"""A rank of an elastic job that checks every sum, and writes down every step.

    elastic_rank.py FOLDER

The state is the number of steps and the sum of their numbers. A process writes its words to FOLDER/PID, a line each,
with the time first: `world RANK SIZE STEP` when it has the state in a new world, `step RANK SIZE STEP` after a step,
`error TEXT`, `wrong TEXT`, and at the end `left` or `done`. All end at the same step when there is a file FOLDER/stop.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import ronde

COUNT = 1000
STEP_SECONDS = 0.01


class Rank:
    """A training loop as a user writes it, with `changes_pending` and `regroup`."""

    def __init__(self, folder: Path) -> None:
        self._stop = folder / "stop"
        self._log = os.open(folder / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._state = np.zeros(2)

    def run(self) -> None:
        """Train until the file says stop, or this rank leaves."""
        world: ronde.Communicator | None = ronde.init()
        signal.signal(signal.SIGTERM, lambda *_: ronde.leave("SIGTERM"))
        fresh, failed = True, False
        while world is not None:
            try:
                if failed:
                    world, fresh, failed = ronde.regroup(), True, False
                elif fresh:
                    self._state, fresh = world.broadcast(self._state, root=0), False
                    self._tell_step("world", world)
                elif world.changes_pending():
                    world, fresh = ronde.regroup(), True
                elif not self._step(world):
                    self._tell("done")
                    return
            except ronde.RondeError as error:
                self._tell(f"error {' '.join(str(error).split())}")
                if failed:
                    raise
                failed = True
        self._tell("left")

    def _step(self, world: ronde.Communicator) -> bool:
        """Compute a step; False after the last."""
        number = self._state[0] + 1
        mine = np.full(COUNT, number * (world.rank + 1))
        mine[-1] = self._stop.exists()
        total = world.allreduce(mine)
        everybody = world.size * (world.size + 1) / 2
        if not (total[:-1] == number * everybody).all():
            self._tell(f"wrong {total[0]} at step {number} of {world.size} ranks")
        self._state = self._state + np.array([1, total[0] / everybody])
        if self._state[1] != number * (number + 1) / 2:
            self._tell(f"wrong state {self._state}")
        self._tell_step("step", world)
        time.sleep(STEP_SECONDS)
        return not total[-1]

    def _tell_step(self, word: str, world: ronde.Communicator) -> None:
        self._tell(f"{word} {world.rank} {world.size} {self._state[0]:.0f}")

    def _tell(self, words: str) -> None:
        os.write(self._log, f"{time.monotonic()} {words}\n".encode())


if __name__ == "__main__":
    Rank(Path(sys.argv[1])).run()
