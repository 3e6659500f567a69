"""Plans and arrays to results: the executor, which binds a plan to memory once and runs it many times.

One executor runs one collective at a time. It owns the staging window and the scratch memory, and publishes its
position in a call. `rows` has the instructions of a plan as functions of Python, `table` as words of the compiled
interpreter.
"""

from __future__ import annotations

from collectives.execution.binder import NO_DATA
from collectives.execution.compiled import WAIT_SECONDS, machine_code
from collectives.execution.executor import Executor
from collectives.execution.link import measure_link
from collectives.execution.peers import Peers, brief
from collectives.execution.positions import CallPosition, CallPositions
from collectives.execution.rows import Row, RowHook
from collectives.execution.table import UNSCALED, Scales, Table
from collectives.execution.windows import Windows

__all__ = [
    "NO_DATA",
    "UNSCALED",
    "WAIT_SECONDS",
    "CallPosition",
    "CallPositions",
    "Executor",
    "Peers",
    "Row",
    "RowHook",
    "Scales",
    "Table",
    "Windows",
    "brief",
    "machine_code",
    "measure_link",
]
