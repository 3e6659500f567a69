"""The part of Horovod's API that is the same for every framework; it imports no framework.

The frontends import it from here, and export its public names as their own: `rank`, `Average`, `barrier`,
`broadcast_object` and so on. Code that two frontends need belongs here if it does not depend on a tensor's type;
names, defaults and errors must stay those of Horovod 0.28.
"""

from frontends.horovod.agreement import (
    DENSE,
    MISSING,
    SPARSE,
    Fact,
    Members,
    Union,
    agree,
    begin_agreement,
    begin_digests,
    explain,
    in_order,
    numberless,
)
from frontends.horovod.basics import (
    barrier,
    init,
    is_homogeneous,
    join,
    start,
    start_timeline,
    stop_timeline,
)
from frontends.horovod.calls import Call, set_ranks
from frontends.horovod.compression import Compressor, casts
from frontends.horovod.elastic import HostsUpdatedInterrupt, ObjectState, VariablesState, recovering
from frontends.horovod.errors import HorovodInternalError, UnsupportedOpError, as_horovod
from frontends.horovod.feedback import (
    AnyCompression,
    Compressions,
    ErrorFeedback,
    is_lossy,
    names_of,
    number_of,
    numbered,
)
from frontends.horovod.handles import Handle, Handles, poll, synchronize
from frontends.horovod.library import ARRAYS, Library
from frontends.horovod.names import alone_in, communicator_of, full_name, reset_numbers, root_in
from frontends.horovod.objects import allgather_object, broadcast_object
from frontends.horovod.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    check_linear,
    choose_op,
    predivided,
    scale_options,
)
from frontends.horovod.run import run
from frontends.horovod.splits import BUCKET, buckets, divided, rows_for

__all__ = [
    "ARRAYS",
    "BUCKET",
    "DENSE",
    "MISSING",
    "SPARSE",
    "Adasum",
    "AnyCompression",
    "Average",
    "Call",
    "Compressions",
    "Compressor",
    "ErrorFeedback",
    "Fact",
    "Handle",
    "Handles",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Library",
    "Max",
    "Members",
    "Min",
    "ObjectState",
    "Product",
    "Sum",
    "Union",
    "UnsupportedOpError",
    "VariablesState",
    "agree",
    "allgather_object",
    "alone_in",
    "as_horovod",
    "barrier",
    "begin_agreement",
    "begin_digests",
    "broadcast_object",
    "buckets",
    "casts",
    "check_linear",
    "choose_op",
    "communicator_of",
    "divided",
    "explain",
    "full_name",
    "in_order",
    "init",
    "is_homogeneous",
    "is_lossy",
    "join",
    "names_of",
    "number_of",
    "numbered",
    "numberless",
    "poll",
    "predivided",
    "recovering",
    "reset_numbers",
    "root_in",
    "rows_for",
    "run",
    "scale_options",
    "set_ranks",
    "start",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
