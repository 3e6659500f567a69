"""The srun that has started a task, on the same host. It is not an ancestor of the task: a daemon of Slurm's is."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from transports.launchers.variables import Env

PORT: Final = "SLURM_SRUN_COMM_PORT"
"""The port on which srun listens to the daemons of its tasks."""
DAEMON: Final = "slurmstepd"
_LISTENING: Final = "0A"


def client_of(env: Env) -> int:
    """The process id of the srun that has started the task with these variables; 0 if it cannot be seen here."""
    port = env.get(PORT, "")
    if not re.fullmatch("[0-9]{1,5}", port):
        return 0
    sockets = _listening(int(port))
    for name in os.listdir("/proc") if sockets else ():
        if name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if Path(f"/proc/{name}/comm").read_text() == "srun\n" and _has(name, sockets):
                    return int(name)
    return 0


def _listening(port: int) -> set[str]:
    """The sockets that listen on a port, as the links of descriptors name them."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as lines:
            next(lines)
            for line in lines:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{inode}]")
    return found


def _has(pid: str, sockets: set[str]) -> bool:
    folder = f"/proc/{pid}/fd"
    for descriptor in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # the process has closed this one
            if os.readlink(f"{folder}/{descriptor}") in sockets:
                return True
    return False
