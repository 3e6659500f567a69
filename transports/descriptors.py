"""The number of descriptors that this process may open, and errors for want of one."""

from __future__ import annotations

import contextlib
import errno
import math
import os

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


def lacks(error: Exception) -> bool:
    """Return True for an error for want of a descriptor."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def explained(error: OSError) -> str:
    """The text of an error of the system. If it lacks descriptors: with the limit and the remedy."""
    if error.errno == errno.ENFILE:
        return f"{error}. All processes of this host have as many files open as the system allows (fs.file-max)"
    if error.errno != errno.EMFILE:
        return str(error)
    limit = "its limit" if resource is None else f"its limit, {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
    return (
        f"{error}. Process {os.getpid()} has as many descriptors open as {limit}: close communicators and files that "
        "are not needed any more, drop arrays in windows, or raise the limit (ulimit -n)"
    )
