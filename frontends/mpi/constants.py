"""The integers of MPI. Names and meanings are those of MPI 4.1; the values are this implementation's own."""

from __future__ import annotations

from typing import Final

from collectives.operations import FOREVER

UNDEFINED: Final = -32766
ANY_SOURCE: Final = -1
ANY_TAG: Final = -1
PROC_NULL: Final = -2
ROOT: Final = -3
TAG_LIMIT: Final = (1 << 28) - 1
"""The highest tag: the value of the attribute TAG_UB."""

KEYVAL_INVALID: Final = 0
TAG_UB: Final = 1
IO: Final = 2
WTIME_IS_GLOBAL: Final = 3
UNIVERSE_SIZE: Final = 4
APPNUM: Final = 5
LASTUSEDCODE: Final = 6
WIN_BASE: Final = 7
WIN_SIZE: Final = 8
WIN_DISP_UNIT: Final = 9
WIN_CREATE_FLAVOR: Final = 10
WIN_FLAVOR: Final = 10
WIN_MODEL: Final = 11
FIRST_KEYVAL: Final = 100
"""The number of the first key that a program makes."""

ORDER_C: Final = 0
ORDER_FORTRAN: Final = 1
ORDER_F: Final = 1

TYPECLASS_LOGICAL: Final = 0
TYPECLASS_INTEGER: Final = 1
TYPECLASS_REAL: Final = 2
TYPECLASS_COMPLEX: Final = 3

DISTRIBUTE_NONE: Final = 0
DISTRIBUTE_BLOCK: Final = 1
DISTRIBUTE_CYCLIC: Final = 2
DISTRIBUTE_DFLT_DARG: Final = -1

COMBINER_NAMED: Final = 1
COMBINER_DUP: Final = 2
COMBINER_CONTIGUOUS: Final = 3
COMBINER_VECTOR: Final = 4
COMBINER_HVECTOR: Final = 5
COMBINER_INDEXED: Final = 6
COMBINER_HINDEXED: Final = 7
COMBINER_INDEXED_BLOCK: Final = 8
COMBINER_HINDEXED_BLOCK: Final = 9
COMBINER_STRUCT: Final = 10
COMBINER_SUBARRAY: Final = 11
COMBINER_DARRAY: Final = 12
COMBINER_RESIZED: Final = 13
COMBINER_VALUE_INDEX: Final = 14
COMBINER_F90_INTEGER: Final = 15
COMBINER_F90_REAL: Final = 16
COMBINER_F90_COMPLEX: Final = 17

F_SOURCE: Final = 0
F_TAG: Final = 1
F_ERROR: Final = 2
F_STATUS_SIZE: Final = 5

IDENT: Final = 0
CONGRUENT: Final = 1
SIMILAR: Final = 2
UNEQUAL: Final = 3

CART: Final = 1
GRAPH: Final = 2
DIST_GRAPH: Final = 3

COMM_TYPE_SHARED: Final = 1
COMM_TYPE_HW_GUIDED: Final = 2
COMM_TYPE_HW_UNGUIDED: Final = 3
COMM_TYPE_RESOURCE_GUIDED: Final = 4

BSEND_OVERHEAD: Final = 64

WIN_FLAVOR_CREATE: Final = 1
WIN_FLAVOR_ALLOCATE: Final = 2
WIN_FLAVOR_DYNAMIC: Final = 3
WIN_FLAVOR_SHARED: Final = 4
WIN_SEPARATE: Final = 1
WIN_UNIFIED: Final = 2
MODE_NOCHECK: Final = 1024
MODE_NOSTORE: Final = 2048
MODE_NOPUT: Final = 4096
MODE_NOPRECEDE: Final = 8192
MODE_NOSUCCEED: Final = 16384
LOCK_EXCLUSIVE: Final = 1
LOCK_SHARED: Final = 2

MODE_CREATE: Final = 1
MODE_RDONLY: Final = 2
MODE_WRONLY: Final = 4
MODE_RDWR: Final = 8
MODE_DELETE_ON_CLOSE: Final = 16
MODE_UNIQUE_OPEN: Final = 32
MODE_EXCL: Final = 64
MODE_APPEND: Final = 128
MODE_SEQUENTIAL: Final = 256
SEEK_SET: Final = 600
SEEK_CUR: Final = 602
SEEK_END: Final = 604
DISPLACEMENT_CURRENT: Final = -54278278
DISP_CUR: Final = DISPLACEMENT_CURRENT

THREAD_SINGLE: Final = 0
THREAD_FUNNELED: Final = 1
THREAD_SERIALIZED: Final = 2
THREAD_MULTIPLE: Final = 3

VERSION: Final = 4
SUBVERSION: Final = 1
MAX_PROCESSOR_NAME: Final = 256
MAX_ERROR_STRING: Final = 512
MAX_PORT_NAME: Final = 256
MAX_INFO_KEY: Final = 255
MAX_INFO_VAL: Final = 1024
MAX_OBJECT_NAME: Final = 128
MAX_DATAREP_STRING: Final = 128
MAX_LIBRARY_VERSION_STRING: Final = 8192
MAX_PSET_NAME_LEN: Final = 256
MAX_STRINGTAG_LEN: Final = 256

PATIENCE: Final = FOREVER
"""Seconds: the deadline of calls that MPI lets wait for ever. Lost ranks are found by other means, within seconds."""
