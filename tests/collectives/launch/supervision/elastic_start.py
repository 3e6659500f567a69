"""elastic_train.py, in which rank 1 of the first world is killed before that world has begun.

    elastic_start.py MOMENT STEPS SECONDS_PER_STEP

MOMENT is `start`, before it calls init, or `met`, when the ranks have met and are about to connect. With `exit` it
exits with 0 at its start, and with `exit later` in step 30. With `fail slowly` every process but rank 0 fails 0.5 s
after its start, before it calls init. With `say` every process prints `begun` and its process id at its start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from collectives import Communicator
from tests.collectives.launch.supervision import elastic_train


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_later(world: Communicator, *arguments: Any, **options: Any) -> Any:
    global steps
    steps += 1
    if steps == 30:
        os._exit(0)
    return allreduce(world, *arguments, **options)


if __name__ == "__main__":
    moment = sys.argv.pop(1)
    steps, allreduce = 0, Communicator.allreduce
    if moment == "fail slowly" and os.environ.get("RONDE_RANK") != "0":
        print("failing", flush=True)
        time.sleep(0.5)
        sys.exit(9)
    if moment == "say":
        print("begun", os.getpid(), flush=True)
    elif os.environ.get("RONDE_RANK") == "1":
        if moment == "start":
            die()
        if moment == "exit":
            sys.exit(0)
        if moment == "exit later":
            Communicator.allreduce = exit_later  # type: ignore[method-assign]
        else:
            Communicator.connect = die  # type: ignore[assignment]
    elastic_train.main()
