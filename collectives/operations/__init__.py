"""The collectives as users call them: arguments are checked, planned once, and become jobs for the call queue.

Everything around an exchange is here: scale factors, agreement on sizes, fusion, objects, Adasum, persistent calls.
The exchange itself is the executor's. A new collective is a method of `Reductions` or `Movement`; the memory of its
arrays is a `Space`.
"""

from __future__ import annotations

from collectives.operations.arguments import FOREVER, Arguments, check_list, check_timeout, dtype_name, shape_of
from collectives.operations.call_queue import CallQueue
from collectives.operations.call_turn import run_whole
from collectives.operations.channel import MESSAGES, OWN_CHANNEL, Channel
from collectives.operations.clock_sync import compare_clocks
from collectives.operations.envelope import ReceiveOptions, Status
from collectives.operations.fusion import Buffer, array_sizes, bundles, reduce_together
from collectives.operations.host import HostOperations
from collectives.operations.job import Job, Packable, Part
from collectives.operations.objects import Pickler, decode, encode
from collectives.operations.persistent import Persistent
from collectives.operations.planned_call import ArrayJob, PlannedCalls
from collectives.operations.point_to_point import HostAccess, PointToPoint
from collectives.operations.signature import Signature
from collectives.operations.space import HostSpace, Space
from collectives.operations.start import (
    MAKE_JOB,
    ArrayOperations,
    Make,
    Repeated,
    RepeatingStarter,
    Start,
    Starter,
    begin_by,
    run_by,
)
from collectives.operations.work import DeferredResult, Promise, Work

__all__ = [
    "FOREVER",
    "MAKE_JOB",
    "MESSAGES",
    "OWN_CHANNEL",
    "Arguments",
    "ArrayJob",
    "ArrayOperations",
    "Buffer",
    "CallQueue",
    "Channel",
    "DeferredResult",
    "HostAccess",
    "HostOperations",
    "HostSpace",
    "Job",
    "Make",
    "Packable",
    "Part",
    "Persistent",
    "Pickler",
    "PlannedCalls",
    "PointToPoint",
    "Promise",
    "ReceiveOptions",
    "Repeated",
    "RepeatingStarter",
    "Signature",
    "Space",
    "Start",
    "Starter",
    "Status",
    "Work",
    "array_sizes",
    "begin_by",
    "bundles",
    "check_list",
    "check_timeout",
    "compare_clocks",
    "decode",
    "dtype_name",
    "encode",
    "reduce_together",
    "run_by",
    "run_whole",
    "shape_of",
]
