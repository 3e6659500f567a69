"""The login by which ssh has started this process: from where, to which address, and its sshd."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

from collectives.launch.store_keeper import free_port
from transports.liveness import children_of

_SSHD: Final = ("sshd", "sshd-session")


def address_here() -> str:
    """The address of this host to which ssh has connected; "" if another program has started this process."""
    words = _connection()
    return words[2] if words else ""


def free_address_here() -> tuple[str, int]:
    """The same, and a port that is free now."""
    address = address_here()
    try:
        return address, free_port(address)
    except OSError:  # the address is that of a gateway
        return address, free_port("")


def address_of_launcher() -> list[str]:
    """The address from which ssh or srun has started this process, if they say it."""
    return _connection()[:1] or os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "").split()


def end_sshd() -> None:
    """End the sshd that serves this login, if it serves nothing else: for a process whose peer does not answer.

    sshd would wait until TCP gives up, a quarter of an hour after this process has ended. A connection that the user
    shares among several logins (ControlMaster) is left alone. Nothing happens on systems without /proc.
    """
    sshd = os.getppid()
    with contextlib.suppress(OSError):  # it has ended, or is not ours to end
        if _connection() and Path(f"/proc/{sshd}/comm").read_text().strip() in _SSHD and len(children_of(sshd)) == 1:
            os.kill(sshd, signal.SIGTERM)


def _connection() -> list[str]:
    """Address and port of the client, then those of this host; empty if there is no login by ssh."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words if len(words) == 4 else []
