"""A job to be looked at: python job.py MODE [FOLDER]. It ends once FOLDER, or $JOB_FOLDER, has a file `stop`.

steps       each rank sleeps a little between its calls
straggler   the same, and the last rank sleeps longer
hang        rank 1 stays away from the fifth call
order       rank 1 makes another call than the others: it is a failure
dies        rank 1 ends itself
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import ronde


def stay_away(folder: Path) -> None:
    while not (folder / "stop").exists():
        time.sleep(0.05)


def main(mode: str, folder: Path) -> None:
    ronde.init()
    rank, last = ronde.rank(), ronde.size() - 1
    gradients, weights = np.ones(1000, np.float32), np.ones(50_000, np.float32)
    step = 0
    while True:
        time.sleep(0.2 if mode == "straggler" and rank == last else 0.005)
        if step == 4 and mode == "hang" and rank == 1:
            stay_away(folder)
        if step == 4 and mode == "order" and rank == 1:
            ronde.barrier()
        if step == 4 and mode == "dies" and rank == 1:
            os._exit(3)
        ronde.allreduce(gradients)
        ronde.broadcast(weights, root=0)
        if ronde.allreduce(float((folder / "stop").exists()), op="max") > 0:
            break
        step += 1
        if rank == 0 and step == (4 if mode == "hang" else 10):
            (folder / "ready").touch()
            print("ready", flush=True)
    ronde.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else os.environ["JOB_FOLDER"]))
