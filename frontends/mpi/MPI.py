"""All public names of MPI for Python. Importing it initializes MPI, unless `rc.initialize` is False."""

# ruff: noqa: F401 - it is here that programs find the names
from __future__ import annotations

from typing import Any

from frontends.mpi.comm import (
    COMM_NULL as COMM_NULL,
)
from frontends.mpi.comm import (
    COMM_SELF as COMM_SELF,
)
from frontends.mpi.comm import (
    COMM_WORLD as COMM_WORLD,
)
from frontends.mpi.comm import (
    UNWEIGHTED as UNWEIGHTED,
)
from frontends.mpi.comm import (
    WEIGHTS_EMPTY as WEIGHTS_EMPTY,
)
from frontends.mpi.comm import (
    Comm as Comm,
)
from frontends.mpi.comm import (
    Intracomm as Intracomm,
)
from frontends.mpi.constants import *  # noqa: F403
from frontends.mpi.datatypes import (
    BY_CODE as BY_CODE,
)
from frontends.mpi.datatypes import (
    DATATYPE_NULL as DATATYPE_NULL,
)
from frontends.mpi.datatypes import (
    PREDEFINED as PREDEFINED,
)
from frontends.mpi.datatypes import (
    Datatype as Datatype,
)
from frontends.mpi.datatypes import (
    alignment as _typealign,
)
from frontends.mpi.environment import *  # noqa: F403
from frontends.mpi.environment import (
    Init as Init,
)
from frontends.mpi.errhandlers import (
    ERRHANDLER_NULL as ERRHANDLER_NULL,
)
from frontends.mpi.errhandlers import (
    ERRORS_ABORT as ERRORS_ABORT,
)
from frontends.mpi.errhandlers import (
    ERRORS_ARE_FATAL as ERRORS_ARE_FATAL,
)
from frontends.mpi.errhandlers import (
    ERRORS_RETURN as ERRORS_RETURN,
)
from frontends.mpi.errhandlers import (
    Errhandler as Errhandler,
)
from frontends.mpi.errors import (
    CODES as CODES,
)
from frontends.mpi.errors import (
    ERR_LASTCODE as ERR_LASTCODE,
)
from frontends.mpi.errors import (
    Add_error_class as Add_error_class,
)
from frontends.mpi.errors import (
    Add_error_code as Add_error_code,
)
from frontends.mpi.errors import (
    Add_error_string as Add_error_string,
)
from frontends.mpi.errors import (
    Exception as Exception,
)
from frontends.mpi.errors import (
    Get_error_class as Get_error_class,
)
from frontends.mpi.errors import (
    Get_error_string as Get_error_string,
)
from frontends.mpi.errors import (
    Remove_error_class as Remove_error_class,
)
from frontends.mpi.errors import (
    Remove_error_code as Remove_error_code,
)
from frontends.mpi.errors import (
    Remove_error_string as Remove_error_string,
)
from frontends.mpi.errors import (
    missing as missing,
)
from frontends.mpi.file import (
    FILE_NULL as FILE_NULL,
)
from frontends.mpi.file import (
    File as File,
)
from frontends.mpi.groups import (
    GROUP_EMPTY as GROUP_EMPTY,
)
from frontends.mpi.groups import (
    GROUP_NULL as GROUP_NULL,
)
from frontends.mpi.groups import (
    Group as Group,
)
from frontends.mpi.info import (
    INFO_ENV as INFO_ENV,
)
from frontends.mpi.info import (
    INFO_NULL as INFO_NULL,
)
from frontends.mpi.info import (
    Info as Info,
)
from frontends.mpi.intercomm import (
    Intercomm as Intercomm,
)
from frontends.mpi.matched import (
    MESSAGE_NO_PROC as MESSAGE_NO_PROC,
)
from frontends.mpi.matched import (
    MESSAGE_NULL as MESSAGE_NULL,
)
from frontends.mpi.matched import (
    Message as Message,
)
from frontends.mpi.memory import (
    BOTTOM as BOTTOM,
)
from frontends.mpi.memory import (
    BUFFER_AUTOMATIC as BUFFER_AUTOMATIC,
)
from frontends.mpi.memory import (
    IN_PLACE as IN_PLACE,
)
from frontends.mpi.memory import (
    Aint_add as Aint_add,
)
from frontends.mpi.memory import (
    Aint_diff as Aint_diff,
)
from frontends.mpi.memory import (
    Alloc_mem as Alloc_mem,
)
from frontends.mpi.memory import (
    BottomType as BottomType,
)
from frontends.mpi.memory import (
    BufferAutomaticType as BufferAutomaticType,
)
from frontends.mpi.memory import (
    Free_mem as Free_mem,
)
from frontends.mpi.memory import (
    Get_address as Get_address,
)
from frontends.mpi.memory import (
    InPlaceType as InPlaceType,
)
from frontends.mpi.memory import (
    buffer as buffer,
)
from frontends.mpi.ops import (
    BAND as BAND,
)
from frontends.mpi.ops import (
    BOR as BOR,
)
from frontends.mpi.ops import (
    BXOR as BXOR,
)
from frontends.mpi.ops import (
    LAND as LAND,
)
from frontends.mpi.ops import (
    LOR as LOR,
)
from frontends.mpi.ops import (
    LXOR as LXOR,
)
from frontends.mpi.ops import (
    MAX as MAX,
)
from frontends.mpi.ops import (
    MAXLOC as MAXLOC,
)
from frontends.mpi.ops import (
    MIN as MIN,
)
from frontends.mpi.ops import (
    MINLOC as MINLOC,
)
from frontends.mpi.ops import (
    NO_OP as NO_OP,
)
from frontends.mpi.ops import (
    OP_NULL as OP_NULL,
)
from frontends.mpi.ops import (
    PROD as PROD,
)
from frontends.mpi.ops import (
    REPLACE as REPLACE,
)
from frontends.mpi.ops import (
    SUM as SUM,
)
from frontends.mpi.ops import (
    Op as Op,
)
from frontends.mpi.pickles import (
    Pickle as Pickle,
)
from frontends.mpi.pickles import (
    pickle as pickle,
)
from frontends.mpi.predefined import (
    ABSENT as _ABSENT,
)
from frontends.mpi.rc import (
    rc as _rc,
)
from frontends.mpi.requests import (
    REQUEST_NULL as REQUEST_NULL,
)
from frontends.mpi.requests import (
    Grequest as Grequest,
)
from frontends.mpi.requests import (
    Prequest as Prequest,
)
from frontends.mpi.requests import (
    Request as Request,
)
from frontends.mpi.status import (
    Status as Status,
)
from frontends.mpi.topocomm import (
    Cartcomm as Cartcomm,
)
from frontends.mpi.topocomm import (
    Distgraphcomm as Distgraphcomm,
)
from frontends.mpi.topocomm import (
    Graphcomm as Graphcomm,
)
from frontends.mpi.topocomm import (
    Topocomm as Topocomm,
)
from frontends.mpi.topologies import (
    Compute_dims as Compute_dims,
)
from frontends.mpi.unavailable import (
    SESSION_NULL as SESSION_NULL,
)
from frontends.mpi.unavailable import (
    Session as Session,
)
from frontends.mpi.win import (
    WIN_NULL as WIN_NULL,
)
from frontends.mpi.win import (
    Win as Win,
)

memory = buffer
globals().update(CODES)
globals().update(PREDEFINED)
globals().update(dict.fromkeys(_ABSENT, DATATYPE_NULL))
_typedict: dict[str, Datatype] = BY_CODE


def __getattr__(name: str) -> Any:
    if name in ("_sizeof", "_addressof", "_handleof", "__pyx_capi__"):
        raise AttributeError(f"ronde.mpi has no {name}: it has no interface for C; build with mpi4py and an MPI")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = sorted(name for name in globals() if not name.startswith("_") and name not in ("Any", "annotations"))

if _rc.initialize:
    Init()
