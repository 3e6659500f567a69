"""The calls of NCCL and of CUDA's runtime that Ronde uses, made by nccl4py (real.py) or a fake.

Memory, streams and events are addresses and handles (ints), dtypes and ops are NCCL's numbers (types.py). A
communicator is the object that `init` returned. All communicators are non-blocking: a call that began something returns
at once, and `async_error` says IN_PROGRESS until that has been done; before then the communicator must not be used
otherwise, but for `abort`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

SUCCESS: Final = 0
UNHANDLED_CUDA: Final = 1
SYSTEM: Final = 2
INVALID_ARGUMENT: Final = 4
REMOTE: Final = 6
IN_PROGRESS: Final = 7
"""The results of NCCL that are used here (nccl.h, ncclResult_t)."""

OLDEST: Final = 21800
"""The oldest supported NCCL, in NCCL's numbering: 2.18 is the first with usable non-blocking communicators."""
FLOAT8: Final = 22400
"""The first NCCL that reduces 8-bit floats, on devices of compute capability 9.0."""
SHARED_DEVICES: Final = 23000
"""The first NCCL with NCCL_MULTI_RANK_GPU_ENABLE=1, which allows several ranks on one GPU."""


class NcclError(Exception):
    """A call failed; `code` is NCCL's result, UNHANDLED_CUDA for a failure of CUDA itself."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Device(NamedTuple):
    """A GPU: its unique id, its name, and its compute capability."""

    uuid: str
    name: str
    capability: tuple[int, int]


class NcclApi(Protocol):
    """Every method raises NcclError."""

    def version(self) -> int:
        """The version of NCCL itself, 22803 for 2.28.3."""

    def unique_id(self) -> bytes:
        """128 bytes by which the ranks of a communicator find each other. The process that makes them must live until
        all ranks are connected."""

    def init(self, size: int, rank: int, unique_id: bytes) -> Any:
        """Begin to make a communicator, for the device that the calling thread uses."""

    def async_error(self, comm: Any) -> int:
        """SUCCESS, IN_PROGRESS, or the first error since the communicator was made."""

    def error_text(self, code: int) -> str:
        """The text of a result."""

    def last_error(self, comm: Any) -> str:
        """NCCL's text about the newest failure of a communicator (None: of calls without one); empty if it has none."""

    def finalize(self, comm: Any) -> None:
        """Begin to complete the enqueued calls. Call `destroy` once `async_error` returns SUCCESS."""

    def destroy(self, comm: Any) -> None:
        """Release the communicator."""

    def abort(self, comm: Any) -> None:
        """End the enqueued calls and release the communicator. No other thread may be in a call on it."""

    def group_start(self) -> None:
        """Begin a group: the calling thread's next calls are one operation."""

    def group_end(self) -> None:
        """End the group of calls."""

    def send(self, comm: Any, source: int, count: int, kind: int, peer: int, stream: int) -> None: ...

    def recv(self, comm: Any, target: int, count: int, kind: int, peer: int, stream: int) -> None: ...

    def broadcast(self, comm: Any, source: int, target: int, count: int, kind: int, root: int, stream: int) -> None: ...

    def all_gather(self, comm: Any, source: int, target: int, count: int, kind: int, stream: int) -> None:
        """`count` elements of each rank."""

    def all_reduce(self, comm: Any, source: int, target: int, count: int, kind: int, op: int, stream: int) -> None: ...

    def reduce(
        self, comm: Any, source: int, target: int, count: int, kind: int, op: int, root: int, stream: int
    ) -> None: ...

    def reduce_scatter(self, comm: Any, source: int, target: int, count: int, kind: int, op: int, stream: int) -> None:
        """`count` elements for each rank."""

    def premultiplied_sum(self, comm: Any, factor: float, kind: int) -> int:
        """Make an op: the sum of the ranks' values times their factors (FLOAT32 and FLOAT64 only). It is released with
        the communicator."""

    def device(self, number: int) -> Device:
        """The properties of a device."""

    def use(self, number: int) -> None:
        """Make this the device of the calling thread."""

    def record(self, stream: int) -> int:
        """Record an event that happens when the stream has completed all calls enqueued so far."""

    def happened(self, event: int) -> bool:
        """True if an event has happened. Raises NcclError if the device failed."""

    def forget(self, event: int) -> None:
        """Release an event."""


def dotted(version: int) -> str:
    """22803 -> '2.28.3'."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
