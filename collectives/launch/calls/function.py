"""`run(fn)`: call a function on several ranks and get the results, from a script, a notebook or a test."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from collectives.config import Config
from collectives.launch.calls.arguments import call_of, count_of, pickled_call, seconds_of
from collectives.launch.calls.notebook import notebook_output
from collectives.launch.calls.outcome import Outcomes, Ranks
from collectives.launch.calls.process_ranks import ProcessRanks
from collectives.launch.calls.thread_ranks import ThreadRanks
from transports.errors import DeadlineExceeded

REPORT_SECONDS: Final = 1.5
"""Time to wait for the root cause after a failure that looks like a consequence."""


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

    The world communicator is initialized when `fn` is called, and closed when it returns. Ranks are new processes, and
    a script must call `run` under `if __name__ == "__main__"`. `fn`, its arguments and its results must be picklable;
    with `ronde[notebook]` they are pickled by cloudpickle where pickle cannot, so that `fn` may be a lambda, an inner
    function, or defined in a notebook. In Jupyter the cell shows what the ranks print, each line with its rank. With
    the transport "local" ranks are threads of this process instead, without these restrictions.

    transport  name of a transport, instead of the configured one
    timeout    seconds for the whole call; None for no limit

    Raises the error of the rank that failed first, with a note of its rank and traceback; RuntimeError if that error
    cannot be pickled, or if the rank died, with its exit status; DeadlineExceeded with the ranks that did not finish.
    The other ranks are ended first. Raises TypeError, ValueError or ConfigError for a bad argument, before it starts
    anything. Ranks that are threads cannot be ended from outside: after a failure their communicator is aborted, and a
    thread that does not use it runs on.
    """
    np, call = count_of("np", np), call_of("fn", fn, args, kwargs)
    deadline = math.inf if timeout is None else time.monotonic() + seconds_of("timeout", timeout)
    config = Config.load({} if transport is None else {"transport": transport})
    ranks: Ranks
    if config.transport == "local":
        ranks = ThreadRanks(np, config, call)
    else:
        ranks = ProcessRanks(np, config, *_pickle_call(*call), output=notebook_output())
    outcomes = Outcomes(range(np), REPORT_SECONDS)
    try:
        ranks.start()
        while not outcomes.decided and time.monotonic() < (until := min(deadline, outcomes.until)):
            for outcome in ranks.receive(until):
                outcomes.add(outcome, time.monotonic())
    finally:
        ranks.close(abort=outcomes.failed or bool(outcomes.waiting))
    values = outcomes.values()
    if outcomes.waiting:
        absent = ", ".join(map(str, sorted(outcomes.waiting)))
        raise DeadlineExceeded(f"run: not finished within timeout={timeout:g} s: rank {absent}")
    return values


def _pickle_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bytes, Callable[[object], bytes]]:
    """Pickle the call for another process; also the pickler to use for its result.

    Raises TypeError if that is impossible.
    """
    main = sys.modules["__main__"]
    interactive = not os.path.exists(getattr(main, "__file__", None) or "")
    if not interactive:  # pickle alone passes the function of a module by its name, the modules of a script included
        with contextlib.suppress(Exception):
            return pickle.dumps((fn, args, kwargs)), pickle.dumps
    try:
        from cloudpickle import dumps
    except ModuleNotFoundError:
        return _pickle_plainly(fn, args, kwargs, interactive), pickle.dumps
    return pickled_call("fn", (fn, args, kwargs), dumps), dumps


def _pickle_plainly(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], interactive: bool) -> bytes:
    remedy = (
        "install cloudpickle (pip install 'ronde[notebook]'), define it at the top level of a module, or use "
        "transport='local'"
    )
    try:
        pickle.dumps(fn)
    except Exception as error:
        raise TypeError(f"fn={fn!r}: ranks are processes and cannot import it ({error}); {remedy}") from error
    if interactive and getattr(fn, "__module__", None) == "__main__":
        raise TypeError(f"fn={fn!r}: ranks are processes and cannot import it from an interactive session; {remedy}")
    return pickled_call("fn", (fn, args, kwargs), pickle.dumps)
