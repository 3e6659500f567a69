"""Kills the ranks after the launcher was killed. A program of its own, which imports nothing of Ronde.

It reads lines from a pipe whose other end only the launcher holds: "+4242" when process group 4242 has started, "-4242"
when it has ended. At the end of the pipe the launcher is gone, and every group that is left is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Keep the set of process groups until the launcher is gone, then kill them."""
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
