"""The environment of MPI: its beginning and end, versions, clocks, names."""

from __future__ import annotations

import atexit
import socket
import threading
import time
from typing import Any, Final

import collectives
from frontends.mpi.comm import COMM_SELF, COMM_WORLD
from frontends.mpi.comm_base import checked_buffer
from frontends.mpi.constants import SUBVERSION, THREAD_MULTIPLE, VERSION
from frontends.mpi.errors import missing
from frontends.mpi.info import INFO_NULL, Info
from frontends.mpi.operations import Ended
from frontends.mpi.processes import current
from frontends.mpi.rc import rc
from frontends.mpi.requests import Request

__all__ = [
    "Attach_buffer",
    "Close_port",
    "Detach_buffer",
    "Finalize",
    "Flush_buffer",
    "Get_abi_fortran_info",
    "Get_abi_info",
    "Get_abi_version",
    "Get_hw_resource_info",
    "Get_library_version",
    "Get_processor_name",
    "Get_version",
    "Iflush_buffer",
    "Init",
    "Init_thread",
    "Is_finalized",
    "Is_initialized",
    "Is_thread_main",
    "Lookup_name",
    "Open_port",
    "Pcontrol",
    "Publish_name",
    "Query_thread",
    "Register_datarep",
    "Unpublish_name",
    "Wtick",
    "Wtime",
    "get_vendor",
]


class _State:
    """True for what has happened in this process."""

    finalized = False


_state: Final = _State()


def Init() -> None:
    """Meet the other ranks. Collective."""
    Init_thread()


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    """Meet the other ranks. Collective. Returns the level of threads, which is always the highest."""
    if not collectives.is_initialized():
        collectives.init()
    if rc.finalizes:
        atexit.register(_delete_own_attributes)
    return THREAD_MULTIPLE


def _delete_own_attributes() -> None:
    """Tell the program that this rank ends, if it has asked for that by an attribute of COMM_SELF."""
    if collectives.is_initialized():
        COMM_SELF.delete_attributes()


def Finalize() -> None:
    """Wait for what is in flight, and part from the other ranks. Collective."""
    if not collectives.is_initialized():
        return
    _delete_own_attributes()
    current().flush()
    COMM_WORLD.Barrier()
    _state.finalized = True
    collectives.shutdown()


def Is_initialized() -> bool:
    return collectives.is_initialized() or _state.finalized


def Is_finalized() -> bool:
    return _state.finalized and not collectives.is_initialized()


def Query_thread() -> int:
    return THREAD_MULTIPLE


def Is_thread_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def Get_version() -> tuple[int, int]:
    return VERSION, SUBVERSION


def Get_library_version() -> str:
    return f"Ronde {collectives.__version__}: MPI for Python without MPI"


def Get_abi_version() -> tuple[int, int]:
    return -1, -1


def Get_abi_info() -> Info:
    raise missing("Get_abi_info", "it has no binary interface")


def Get_abi_fortran_info() -> Info:
    raise missing("Get_abi_fortran_info", "it has no binary interface")


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    numbers = [int(part) for part in collectives.__version__.split(".")[:3] if part.isdigit()]
    major, minor, micro = (*numbers, 0, 0, 0)[:3]
    return "Ronde", (major, minor, micro)


def Get_processor_name() -> str:
    return socket.gethostname()


def Get_hw_resource_info() -> Info:
    return Info.Create()


def Wtime() -> float:
    return time.perf_counter()


def Wtick() -> float:
    return time.get_clock_info("perf_counter").resolution


def Pcontrol(level: int) -> None:
    """Do nothing: there is no profiler."""


def Attach_buffer(buf: Any) -> None:
    """Keep a buffer. Buffered sends need none."""
    current().buffer = checked_buffer(buf)


def Detach_buffer() -> Any:
    """Wait for the buffered sends, and give the buffer back."""
    process = current()
    process.flush()
    found, process.buffer = process.buffer, None
    return found


def Flush_buffer() -> None:
    """Wait for the buffered sends."""
    current().flush()


def Iflush_buffer() -> Request:
    """Wait for the buffered sends."""
    Flush_buffer()
    return Request.begun(Ended((-1, -1, 0, False)))


def Open_port(info: Info = INFO_NULL) -> str:
    raise missing("Open_port", "start all ranks together, with ronde run -np N")


def Close_port(port_name: str) -> None:
    raise missing("Close_port", "start all ranks together, with ronde run -np N")


def Publish_name(service_name: str, port_name: str, info: Info = INFO_NULL) -> None:
    raise missing("Publish_name", "start all ranks together, with ronde run -np N")


def Unpublish_name(service_name: str, port_name: str, info: Info = INFO_NULL) -> None:
    raise missing("Unpublish_name", "start all ranks together, with ronde run -np N")


def Lookup_name(service_name: str, info: Info = INFO_NULL) -> str:
    raise missing("Lookup_name", "start all ranks together, with ronde run -np N")


def Register_datarep(*arguments: Any, **options: Any) -> None:
    raise missing("Register_datarep", "files have the native representation")
