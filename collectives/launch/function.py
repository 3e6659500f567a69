"""`run(fn)`: call a function on several ranks and get the results, from a script, a notebook or a test."""

from __future__ import annotations

import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from collectives.config import Config
from collectives.launch.blame import is_consequence
from collectives.launch.outcome import Failure, Outcome, Ranks, Success, cause
from collectives.launch.process_ranks import ProcessRanks
from collectives.launch.thread_ranks import ThreadRanks
from transports.errors import DeadlineExceeded

REPORT: Final = 1.5
"""Seconds to wait for the cause after a failure that looks like a consequence."""


def run(
    fn: Callable[..., Any],
    np: int = 4,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    transport: str | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on `np` ranks of this machine; the results in rank order.

    In it the world communicator is ready; it is closed when the function returns. Ranks are new processes, so that
    `fn`, its arguments and its results must be picklable (a function at the top level of a module), and a script that
    calls `run` must do so under `if __name__ == "__main__"`. With the transport "local" ranks are threads of this
    process instead, and anything goes.

    transport  a transport's name, instead of the configured one
    timeout    seconds for the whole call; None for no bound

    Raises what the rank that failed first raised, with a note of its rank and traceback; RuntimeError if its error
    cannot be pickled, or if the rank died, naming its status; DeadlineExceeded naming the ranks that did not finish.
    The other ranks are ended first. TypeError, ValueError or ConfigError, before anything is started, for a bad
    argument. Ranks that are threads cannot be ended from outside: after a failure their communicator is aborted, and
    one that does not use it may run on.
    """
    if not callable(fn):
        raise TypeError(f"fn={fn!r}: must be callable")
    if not isinstance(np, int) or isinstance(np, bool) or np < 1:
        raise ValueError(f"np={np!r}: must be an integer, 1 or more")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: must be a positive number of seconds, or None")
    config = Config.load({} if transport is None else {"transport": transport})
    call = (fn, tuple(args), dict(kwargs or {}))
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    ranks: Ranks
    if config.transport == "local":
        ranks = ThreadRanks(np, config, call)
    else:
        ranks = ProcessRanks(np, config, _pickled(*call))
    outcomes: list[Outcome] = []
    try:
        ranks.start()
        outcomes = _collect(ranks, np, deadline)
    finally:
        ranks.end(at_once=sum(isinstance(outcome, Success) for outcome in outcomes) < np)
    return _results(outcomes, np, timeout)


def _collect(ranks: Ranks, np: int, deadline: float) -> list[Outcome]:
    """Outcomes in order of arrival: all of them, or those until there is a failure that explains itself, or until the
    deadline."""
    outcomes: list[Outcome] = []
    until = deadline
    while len(outcomes) < np and time.monotonic() < until:
        outcomes += ranks.receive(until)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if failures and not is_consequence(cause(failures).error):
            break
        if failures and until == deadline:
            until = min(deadline, time.monotonic() + REPORT)
    return outcomes


def _results(outcomes: Sequence[Outcome], np: int, timeout: float | None) -> list[Any]:
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if failures:
        cause(failures).reraise()
    values = {outcome.rank: outcome.value for outcome in outcomes if isinstance(outcome, Success)}
    absent = [str(rank) for rank in range(np) if rank not in values]
    if absent:
        raise DeadlineExceeded(f"run: not finished within timeout={timeout:g} s: rank {', '.join(absent)}")
    return [values[rank] for rank in range(np)]


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The call as bytes for another process. Raises TypeError for what cannot go there."""
    remedy = "define it at the top level of a module, or use transport='local'"
    try:
        pickle.dumps(fn)
    except Exception as error:
        raise TypeError(f"fn={fn!r}: ranks are processes and cannot import it ({error}); {remedy}") from error
    main = sys.modules["__main__"]
    if getattr(fn, "__module__", None) == "__main__" and not os.path.exists(getattr(main, "__file__", None) or ""):
        raise TypeError(f"fn={fn!r}: ranks are processes and cannot import it from an interactive session; {remedy}")
    try:
        return pickle.dumps((fn, args, kwargs))
    except Exception as error:
        raise TypeError(f"args and kwargs: must be picklable, because ranks are processes: {error}") from error
