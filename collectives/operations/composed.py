"""Operations that are straight code: several exchanges, with computations between them, as one operation.

The next exchange may depend on the result of the one before, as in compression and Adasum; schedules cannot do that.
The operation is one job, so no other call of the communicator comes between its exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from collectives.execution import Executor, Peers
from collectives.operations.job import FunctionJob, Job
from collectives.operations.signature import Signature
from transports.errors import RondeError

T = TypeVar("T")


def compose(executor: Executor, body: Callable[[Peers], T], what: str, timeout: float, *, said: str = "") -> Job[T]:
    """The job that runs `body(peers)`; see Communicator.compose.

    said   the description in the signature of a named operation, equal on all ranks; by default `what`

    Raises TypeError, naming the argument, before anything is sent.
    """
    if not callable(body):
        raise TypeError(f"body={body!r}: must be a function of peers")
    if not isinstance(what, str):
        raise TypeError(f"what={what!r}: must be a string")

    def run(deadline: float) -> T:
        try:
            with np.errstate(all="ignore"):
                return body(Peers(executor, what, deadline))
        except RondeError:
            raise
        except BaseException as error:  # the others would wait for exchanges that never come
            executor.left(error, what)
            raise

    return FunctionJob(run, timeout, Signature("compose", detail=(said or what,)))
