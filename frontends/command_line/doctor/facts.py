"""The description of this host: frameworks and GPU software with their versions, addresses, and its login. No framework
is imported."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import re
import socket
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from collectives.launch.hosts import address_here, address_of_launcher
from collectives.version import __version__
from transports.interfaces import interfaces, mtu
from transports.rendezvous import this_member

FRAMEWORKS: Final = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "keras": ("keras",),
    "jax": ("jax",),
    "mxnet": ("mxnet",),
}
"""The module of `ronde` for a framework, and the distributions that bring it."""

GPU: Final = {
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "nccl4py": ("nccl4py",),
    "cuda-bindings": ("cuda-bindings",),
    "CUDA": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
    "NCCL": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}
"""Software for arrays on GPUs, and the distributions that bring it."""

PACKAGES: Final = (
    *("numpy", "msgpack", "ml_dtypes", "torch", "tensorflow", "tensorflow-cpu", "jax", "keras", "mxnet", "cupy"),
)
"""Distributions whose versions must be the same on all hosts."""

_DRIVER: Final = Path("/proc/driver/nvidia/version")


def frameworks() -> dict[str, str | None]:
    """Framework -> version; None for one that is not installed."""
    return {name: first_version(distributions) for name, distributions in FRAMEWORKS.items()}


def gpu_software() -> dict[str, str | None]:
    """Software -> version, the driver included; None for what is not installed.

    NCCL is that of a package, or else the library of the system.
    """
    found = {name: first_version(distributions) for name, distributions in GPU.items()}
    found["NCCL"] = found["NCCL"] or system_nccl()
    found["driver"] = driver_version(_DRIVER.read_text("utf-8") if _DRIVER.is_file() else "")
    return found


def first_version(distributions: Iterable[str]) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def system_nccl() -> str | None:
    """The version of the system's NCCL library; None if there is none that can be loaded."""
    path = ctypes.util.find_library("nccl")
    if path is None:
        return None
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else nccl_version(number.value)


def nccl_version(number: int) -> str:
    """The version that NCCL encodes as a number: 22703 is 2.27.3; before 2.9, 2804 was 2.8.4."""
    major = 10000 if number >= 10000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def driver_version(text: str) -> str | None:
    """The version of NVIDIA's driver in the text of /proc/driver/nvidia/version."""
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else None


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
    return {
        "hostname": socket.gethostname(),
        "identity": this_member().host,
        "reached": address_here(),
        "hints": address_of_launcher(),
        "versions": versions(),
        "addresses": addresses,
        "mtu": {name: mtu(name) for name, found in addresses.items() if found},
    }


def versions() -> dict[str, str]:
    """The versions of Python, Ronde, and the packages that are installed."""
    found = {"python": platform.python_version(), "ronde": __version__}
    installed = {package: first_version([package]) for package in PACKAGES}
    return found | {package: version for package, version in installed.items() if version is not None}
