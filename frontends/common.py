"""Names that every frontend has as its own, such as `ronde.torch.rank`: ranks, operators, process sets."""

from __future__ import annotations

from collectives import (
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    size,
)
from frontends.horovod import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    Product,
    Sum,
    is_homogeneous,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "size",
    "start_timeline",
    "stop_timeline",
]
