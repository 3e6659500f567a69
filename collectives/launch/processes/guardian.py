"""Kills the ranks after the launcher was killed. A program of its own, which imports nothing of Ronde.

It reads lines from a pipe whose other end only the launcher holds: "+4242" when process group 4242 has started, "-4242"
when it has ended, and "=" with the marks of a process in hexadecimal: the variables by which it and whatever it starts
can be known. At the end of the pipe the launcher is gone, and every group that is left is killed, and every process
with the marks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def marked(kinds: set[frozenset[bytes]]) -> list[int]:
    """The processes of this user that began with all variables ("NAME=value") of one of `kinds`, but not this one. None
    on systems without proc(5)."""
    found = []
    for name in os.listdir("/proc") if kinds and os.path.isdir("/proc/self") else []:
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # it is another user's
                variables = set(file.read().split(b"\0"))
                if any(kind <= variables for kind in kinds):
                    found.append(int(name))
    return found


def main() -> None:
    """Keep the set of process groups and marks until the launcher is gone, then kill them."""
    groups: set[int] = set()
    kinds: set[frozenset[bytes]] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        elif line.startswith("="):
            kinds.add(frozenset(map(bytes.fromhex, line[1:].split())))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for pid in marked(kinds):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
