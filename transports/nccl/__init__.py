"""NCCL for arrays on NVIDIA GPUs, through NVIDIA's nccl4py. Another transport carries data in host memory.

The transport "nccl" requires NCCL: ranks that cannot use it get an error. As the companion of another transport (such
as "auto") NCCL carries arrays on GPUs if all ranks can use it.

CUDA is imported when the first array on a GPU is communicated, not before.
"""

from __future__ import annotations

import glob
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from transports import registry
from transports.base import Group, Transport
from transports.errors import ConfigError
from transports.native import NativeCollectives
from transports.nccl.api import NcclApi
from transports.nccl.companion import NcclCollectives
from transports.nccl.transport import NcclTransport
from transports.settings import pairs

__all__ = ["NcclCollectives", "NcclTransport", "Options", "accompany", "create", "usable"]

MODULES: Final = ("nccl", "cuda.bindings", "cupy")
INSTALL: Final = f"{sys.executable} -m pip install 'ronde[cuda12]' (or 'ronde[cuda13]', as the driver's CUDA is)"
_DEVICE_FILES: Final = ("/dev/nvidia[0-9]*", "/dev/dxg")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the transport `nccl`. Raises ConfigError for a bad value.

    host          name of the transport for data in host memory
    host_options  settings of the transport `host`, each "setting=value"
    """

    host: str = "auto"
    host_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.host == NcclTransport.name:
            raise ConfigError(f"host={self.host!r}: must be another transport")


def create(group: Group, options: Options) -> Transport:
    """A transport that is not yet open. No I/O. Raises ConfigError if a package is missing, and for a bad setting of
    the transport `host`."""
    absent = missing()
    if absent:
        raise ConfigError(absent)
    texts = pairs(options.host_options, "setting host_options of transport 'nccl'")
    settings = registry.make_options(options.host, texts)
    return NcclTransport(registry.backend(options.host).create(group, settings), load, usable)


def accompany(transport: Transport) -> NativeCollectives | None:
    """NCCL beside an open transport, which must close NCCL before itself. None if this process cannot use NCCL; the
    other ranks are informed in both cases. Raises RendezvousError."""
    companion = NcclCollectives(transport, load, usable, required=False)
    return companion if companion.open() else None


def load() -> NcclApi:
    """NCCL by nccl4py. Raises ConfigError with the command that installs the missing packages."""
    absent = missing()
    if absent:
        raise ConfigError(absent)
    from transports.nccl.real import RealNccl

    return RealNccl()


def missing() -> str | None:
    """The packages that are not installed, and how to install them; None if all are there. Imports none of them."""
    absent = [name for name in MODULES if not _there(name)]
    return f"NCCL needs {', '.join(absent)}, not installed: {INSTALL}" if absent else None


def usable() -> str | None:
    """None if this process can probably use NCCL, else the reason why not. No GPU is initialized."""
    absent = missing()
    if absent:
        return absent
    if not any(glob.glob(pattern) for pattern in _DEVICE_FILES):
        return f"no NVIDIA GPU was found: none of {', '.join(_DEVICE_FILES)} exists"
    return None


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
