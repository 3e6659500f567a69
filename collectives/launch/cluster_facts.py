"""A host's description of itself that `ronde doctor` compares with those of other hosts."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any, Final

from collectives.launch.installed import first_version
from collectives.version import __version__
from transports.interfaces import interfaces, mtu
from transports.rendezvous import this_member

PACKAGES: Final = (
    "numpy",
    "msgpack",
    "ml_dtypes",
    "torch",
    "tensorflow",
    "tensorflow-cpu",
    "jax",
    "keras",
    "mxnet",
    "cupy",
)


def facts_here() -> dict[str, Any]:
    """The facts of this host, in JSON's types. Nothing is imported for the versions.

    identity   the same for processes of one host, different for others
    reached    the address to which ssh has connected; "" without ssh
    hints      addresses that lead to other hosts: that from which ssh or srun has started this process
    versions   of Python, Ronde and those of PACKAGES that are installed
    addresses  of each interface
    mtu        of each interface that has an address, in bytes
    """
    addresses = interfaces()
    ssh = os.environ.get("SSH_CONNECTION", "").split()
    by_ssh = len(ssh) == 4
    launcher = ssh[0] if by_ssh else os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    return {
        "hostname": socket.gethostname(),
        "identity": this_member().host,
        "reached": ssh[2] if by_ssh else "",
        "hints": [launcher] if launcher else [],
        "versions": versions(),
        "addresses": addresses,
        "mtu": {name: mtu(name) for name, found in addresses.items() if found},
    }


def versions() -> dict[str, str]:
    """The versions of Python, Ronde, and the packages that are installed."""
    found = {"python": platform.python_version(), "ronde": __version__}
    installed = {package: first_version([package]) for package in PACKAGES}
    return found | {package: version for package, version in installed.items() if version is not None}
