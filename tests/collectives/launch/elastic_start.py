"""elastic_train.py, in which rank 1 of the first world is killed before that world has begun.

    elastic_start.py MOMENT STEPS SECONDS_PER_STEP

MOMENT is `start`, before it calls init, or `met`, when the ranks have met and are about to connect.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from collectives import Communicator
from tests.collectives.launch import elastic_train


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    moment = sys.argv.pop(1)
    if os.environ.get("RONDE_RANK") == "1":
        if moment == "start":
            die()
        Communicator.connect = die  # type: ignore[assignment]
    elastic_train.main()
