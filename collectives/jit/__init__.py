"""The compiled interpreter: one function in machine code that runs the steps of a table.

Numba compiles it once for a machine, in a process of its own (`compiler`); ranks load the machine code from a folder of
this user (`cache`) and do not import Numba. `interpreter` is the function, in Python; `serving` is the thread that runs
tables without Python's lock; `layout` names the words that both work on; `atomics` are the few operations that Python
cannot say; `kernels` combine 16-bit floats; `allocator` gives memory to arrays that are born shared, by the
words of `blocks`, which `keeper` writes; `machine_code` compiles and loads all of it; `tables` writes the rows that
it reads. Nothing here knows plans or windows.
"""

from __future__ import annotations

from collectives.jit.cache import keeping_folder
from collectives.jit.keeper import Allocation, ArrayKeeper
from collectives.jit.layout import (
    ABSOLUTE,
    LOAD,
    REFERRED,
    SOURCE,
    SOURCE_IS_READ,
    STAGED,
    STAGED_SLOT,
    TALLY_CALLS,
    TALLY_NEXT,
    TARGET,
    TARGET_IS_READ,
    UNFIT,
    UNTRIED,
    Answer,
)
from collectives.jit.machine_code import MachineCode, NotYet, RunTable, load, obstacle
from collectives.jit.tables import (
    ANYWHERE,
    OUTSIDE,
    ArrayKind,
    CFunction,
    Extents,
    JobRing,
    Location,
    Operand,
    Scale,
    State,
    TableWriter,
    bind,
    combining,
    fitting,
    note_time,
    scaled,
    take_times,
)

__all__ = [
    "ABSOLUTE",
    "ANYWHERE",
    "LOAD",
    "OUTSIDE",
    "REFERRED",
    "SOURCE",
    "SOURCE_IS_READ",
    "STAGED",
    "STAGED_SLOT",
    "TALLY_CALLS",
    "TALLY_NEXT",
    "TARGET",
    "TARGET_IS_READ",
    "UNFIT",
    "UNTRIED",
    "Allocation",
    "Answer",
    "ArrayKeeper",
    "ArrayKind",
    "CFunction",
    "Extents",
    "JobRing",
    "Location",
    "MachineCode",
    "NotYet",
    "Operand",
    "RunTable",
    "Scale",
    "State",
    "TableWriter",
    "bind",
    "combining",
    "fitting",
    "keeping_folder",
    "load",
    "note_time",
    "obstacle",
    "scaled",
    "take_times",
]
