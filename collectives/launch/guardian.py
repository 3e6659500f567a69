"""Ends the ranks when the launcher was killed so hard that it could not. A script of its own; imports nothing of Ronde.

It reads from a pipe whose other end only the launcher holds: "+4242" when the process group 4242 has started, "-4242"
when it has ended. The end of the pipe means that the launcher is gone, and every group that is left is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
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
