"""A rank of an elastic job that trains with `ronde.elastic`, checks every sum, and writes down every step.

    elastic_training.py FOLDER

The training is that of tests/collectives/elastic/oracle.py; the state also has the size of the world in each step.
Model and optimizer share the parameters, and a view of them: the optimizer changes them in place, the model reads them.
A process writes its words to FOLDER/PID, a line each, with the time first: `started SLOT` at its beginning; `world RANK
SIZE STEP` when it has the state in a new world; `step RANK SIZE STEP` after a step; `wrong TEXT`; at the end `left`, or
`done STEP PARAMETERS DIGEST`, the digest being that of the sizes; and then `open TEXT` if anything of its worlds is
left. All end at the same step when there is a file FOLDER/stop.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import ronde
from ronde.elastic import State, run
from tests.collectives.elastic.oracle import BATCH, MODULUS, divided, first_sampler, first_weights, gradient

STEP_SECONDS = 0.02
MOST_STEPS = 1 << 16


def empty_sizes() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The sizes of the world in each step, at the beginning."""
    return np.zeros(MOST_STEPS, np.uint8)


def digest(sizes: np.ndarray[Any, Any]) -> str:
    """The digest of the sizes in all steps."""
    return hashlib.blake2b(sizes.tobytes(), digest_size=8).hexdigest()


def _targets() -> dict[str, str]:
    """The open descriptors, with their files or sockets."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            found[entry.name] = os.readlink(entry)
    return found


class Trainee:
    """A process of the job."""

    def __init__(self, folder: Path) -> None:
        self._stop = folder / "stop"
        self._log = os.open(folder / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._targets: dict[str, str] = {}

    def run(self) -> None:
        """Train until the file says stop, or this rank leaves."""
        self._targets = _targets()
        self._tell(f"started {os.environ['RONDE_LOCAL_RANK']}")
        ronde.init()
        signal.signal(signal.SIGTERM, lambda *_: ronde.leave("SIGTERM"))
        weights = first_weights()
        state: Any = State(
            model={"weights": weights, "first": weights[:1]},
            optimizer=[weights],
            sampler=first_sampler(),
            sizes=empty_sizes(),
            step=0,
        )
        try:
            run(self._train)(state)
            self._tell(f"done {state.step} {','.join(map(str, state.model['weights']))} {digest(state.sizes)}")
        except SystemExit:
            self._tell("left")
            raise
        finally:
            self._close()

    def _close(self) -> None:
        """Nothing may be left of all the worlds."""
        ronde.shutdown()
        gc.collect()  # a circle of objects may keep memory of a world
        targets = _targets()
        more = [target for descriptor, target in targets.items() if descriptor not in self._targets]
        more += [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        if more:
            self._tell(f"open {', '.join(more)}")

    def _train(self, state: Any) -> None:
        world = ronde.world()
        self._tell(f"world {world.rank} {world.size} {state.step}")
        while self._step(world, state):
            state.commit()

    def _step(self, world: ronde.Communicator, state: Any) -> bool:
        """Compute a step; False after the last."""
        order, done = state.sampler.order(), state.sampler.done
        samples = state.sampler.take(BATCH)
        weights = state.model["weights"]
        total = world.allreduce(np.append(gradient(weights, [samples]), int(self._stop.exists())))
        right = gradient(weights, divided(order[done : state.sampler.done], world.size))
        if not np.array_equal(total[:-1], right):
            self._tell(f"wrong {total[:-1]} instead of {right} at step {state.step} of {world.size} ranks")
        state.optimizer[0] -= total[:-1] % MODULUS
        if state.optimizer[0] is not weights or state.model["first"][0] != weights[0]:
            self._tell(f"wrong model and optimizer have different arrays at step {state.step}")
        state.sizes[state.step] = world.size
        state.step += 1
        if state.sampler.done == state.sampler.count:
            state.sampler.next_epoch()
        self._tell(f"step {world.rank} {world.size} {state.step}")
        time.sleep(STEP_SECONDS)
        return not total[-1]

    def _tell(self, words: str) -> None:
        os.write(self._log, f"{time.monotonic()} {words}\n".encode())


if __name__ == "__main__":
    Trainee(Path(sys.argv[1])).run()
