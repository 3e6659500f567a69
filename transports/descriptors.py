"""The number of descriptors that this process may open."""

from __future__ import annotations

import contextlib
import math

try:
    import resource
except ImportError:  # not on Windows, where sockets have no such limit
    resource = None  # type: ignore[assignment]


def allow_many() -> float:
    """Raise the soft limit of open descriptors to the hard one, as processes with a connection to each rank need.
    Returns the limit then, infinite if there is none.

    Systems set a low soft limit for the sake of select(2), which Ronde does not use. Programs that this process starts
    inherit the limit. Nothing happens where the system refuses.
    """
    if resource is None:
        return math.inf
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):  # macOS refuses RLIM_INFINITY
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:  # a sandbox does not tell: the limit shows when it is reached
        return math.inf
    return math.inf if limit == resource.RLIM_INFINITY else limit
