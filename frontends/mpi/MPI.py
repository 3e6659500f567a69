"""All public names of MPI for Python. Importing it initializes MPI, unless `rc.initialize` is False."""

# ruff: noqa: F401 - it is here that programs find the names
from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    BY_CODE as _typedict,
)
from frontends.mpi.datatypes import (
    DATATYPE_NULL as DATATYPE_NULL,
)
from frontends.mpi.datatypes import (
    PREDEFINED as _PREDEFINED,
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
    CODES as _CODES,
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
    missing as _missing,
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
from frontends.mpi.sessions import (
    SESSION_NULL as SESSION_NULL,
)
from frontends.mpi.sessions import (
    Session as Session,
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
from frontends.mpi.win import (
    WIN_NULL as WIN_NULL,
)
from frontends.mpi.win import (
    Win as Win,
)

_OTHERS = ("Any", "FOREVER", "Final", "PATIENCE", "TAG_LIMIT", "TYPE_CHECKING", "annotations")
"""Names of this file that are not MPI's."""

memory = buffer
# The error classes and the predefined datatypes, for type checkers.
SUCCESS: int
ERR_BUFFER: int
ERR_COUNT: int
ERR_TYPE: int
ERR_TAG: int
ERR_COMM: int
ERR_RANK: int
ERR_REQUEST: int
ERR_ROOT: int
ERR_GROUP: int
ERR_OP: int
ERR_TOPOLOGY: int
ERR_DIMS: int
ERR_ARG: int
ERR_UNKNOWN: int
ERR_TRUNCATE: int
ERR_OTHER: int
ERR_INTERN: int
ERR_IN_STATUS: int
ERR_PENDING: int
ERR_ACCESS: int
ERR_AMODE: int
ERR_ASSERT: int
ERR_BAD_FILE: int
ERR_BASE: int
ERR_CONVERSION: int
ERR_DISP: int
ERR_DUP_DATAREP: int
ERR_FILE_EXISTS: int
ERR_FILE_IN_USE: int
ERR_FILE: int
ERR_INFO_KEY: int
ERR_INFO_NOKEY: int
ERR_INFO_VALUE: int
ERR_INFO: int
ERR_IO: int
ERR_KEYVAL: int
ERR_LOCKTYPE: int
ERR_NAME: int
ERR_NO_MEM: int
ERR_NOT_SAME: int
ERR_NO_SPACE: int
ERR_NO_SUCH_FILE: int
ERR_PORT: int
ERR_PROC_ABORTED: int
ERR_QUOTA: int
ERR_READ_ONLY: int
ERR_RMA_ATTACH: int
ERR_RMA_CONFLICT: int
ERR_RMA_FLAVOR: int
ERR_RMA_RANGE: int
ERR_RMA_SHARED: int
ERR_RMA_SYNC: int
ERR_SERVICE: int
ERR_SESSION: int
ERR_SIZE: int
ERR_SPAWN: int
ERR_UNSUPPORTED_DATAREP: int
ERR_UNSUPPORTED_OPERATION: int
ERR_VALUE_TOO_LARGE: int
ERR_WIN: int
ERR_ERRHANDLER: int
ERR_ABI: int
ERR_REVOKED: int
ERR_PROC_FAILED: int
ERR_PROC_FAILED_PENDING: int

PACKED: Datatype
BYTE: Datatype
AINT: Datatype
OFFSET: Datatype
COUNT: Datatype
CHAR: Datatype
WCHAR: Datatype
SIGNED_CHAR: Datatype
SHORT: Datatype
INT: Datatype
LONG: Datatype
LONG_LONG: Datatype
UNSIGNED_CHAR: Datatype
UNSIGNED_SHORT: Datatype
UNSIGNED: Datatype
UNSIGNED_LONG: Datatype
UNSIGNED_LONG_LONG: Datatype
FLOAT: Datatype
DOUBLE: Datatype
LONG_DOUBLE: Datatype
C_BOOL: Datatype
INT8_T: Datatype
INT16_T: Datatype
INT32_T: Datatype
INT64_T: Datatype
UINT8_T: Datatype
UINT16_T: Datatype
UINT32_T: Datatype
UINT64_T: Datatype
FLOAT16_T: Datatype
FLOAT32_T: Datatype
FLOAT64_T: Datatype
C_COMPLEX: Datatype
C_FLOAT_COMPLEX: Datatype
C_DOUBLE_COMPLEX: Datatype
C_LONG_DOUBLE_COMPLEX: Datatype
CXX_BOOL: Datatype
CXX_FLOAT_COMPLEX: Datatype
CXX_DOUBLE_COMPLEX: Datatype
CXX_LONG_DOUBLE_COMPLEX: Datatype
CHARACTER: Datatype
LOGICAL: Datatype
INTEGER: Datatype
REAL: Datatype
DOUBLE_PRECISION: Datatype
COMPLEX: Datatype
DOUBLE_COMPLEX: Datatype
LOGICAL1: Datatype
LOGICAL2: Datatype
LOGICAL4: Datatype
LOGICAL8: Datatype
INTEGER1: Datatype
INTEGER2: Datatype
INTEGER4: Datatype
INTEGER8: Datatype
REAL2: Datatype
REAL4: Datatype
REAL8: Datatype
COMPLEX8: Datatype
COMPLEX16: Datatype
BFLOAT16_T: Datatype
SHORT_INT: Datatype
INT_INT: Datatype
LONG_INT: Datatype
FLOAT_INT: Datatype
DOUBLE_INT: Datatype
LONG_DOUBLE_INT: Datatype
UNSIGNED_INT: Datatype
SIGNED_SHORT: Datatype
SIGNED_INT: Datatype
SIGNED_LONG: Datatype
SIGNED_LONG_LONG: Datatype
BOOL: Datatype
SINT8_T: Datatype
SINT16_T: Datatype
SINT32_T: Datatype
SINT64_T: Datatype
F_BOOL: Datatype
F_INT: Datatype
F_FLOAT: Datatype
F_DOUBLE: Datatype
F_COMPLEX: Datatype
F_FLOAT_COMPLEX: Datatype
F_DOUBLE_COMPLEX: Datatype
TWOINT: Datatype
REAL16: Datatype
COMPLEX4: Datatype
INTEGER16: Datatype
COMPLEX32: Datatype
LOGICAL16: Datatype

globals().update(_CODES)
globals().update(_PREDEFINED)
globals().update(dict.fromkeys(_ABSENT, DATATYPE_NULL))

if not TYPE_CHECKING:  # checkers cannot read the list; without one they take all public names

    def __getattr__(name: str) -> Any:
        if name in ("_sizeof", "_addressof", "_handleof", "__pyx_capi__"):
            raise AttributeError(f"ronde.mpi has no {name}: it has no interface for C; build with mpi4py and an MPI")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    __all__ = sorted(name for name in globals() if not name.startswith("_") and name not in _OTHERS)

_rc.read_environment()
if _rc.initializes:
    Init()
