"""What Ronde needs of NCCL and of CUDA's runtime: a narrow door, behind which nccl4py stands (real.py) or a fake.

Memory, streams and events are addresses and handles (ints), dtypes and ops are NCCL's numbers (types.py). A
communicator is whatever `init` returned. All communicators are non-blocking: a call that began something returns at
once, and `async_error` says IN_PROGRESS until that has been done; before then the communicator must not be used
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
"""NCCL's results, those that mean something here (nccl.h, ncclResult_t)."""

OLDEST: Final = 21800
"""The oldest NCCL that will do, numbered as NCCL does: non-blocking communicators are usable from 2.18 on."""
FLOAT8: Final = 22400
"""From here on NCCL combines 8-bit floats, where the device can (compute capability 9.0)."""
SHARED_DEVICES: Final = 23000
"""From here on NCCL_MULTI_RANK_GPU_ENABLE=1 allows several ranks on one GPU."""


class NcclError(Exception):
    """A call failed; `code` is NCCL's result, UNHANDLED_CUDA for a failure of CUDA itself."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Device(NamedTuple):
    """A GPU: what tells it from all others, its name, and its compute capability."""

    uuid: str
    name: str
    capability: tuple[int, int]


class NcclApi(Protocol):
    """Every method raises NcclError."""

    def version(self) -> int:
        """The version of NCCL itself, 22803 for 2.28.3."""

    def unique_id(self) -> bytes:
        """128 bytes by which the ranks of a communicator find each other. The process that makes them must live until
        all have."""

    def init(self, size: int, rank: int, unique_id: bytes) -> Any:
        """Begin to make a communicator, for the device that the calling thread uses."""

    def async_error(self, comm: Any) -> int:
        """SUCCESS, IN_PROGRESS, or what went wrong since the communicator was made."""

    def error_text(self, code: int) -> str:
        """What a result means."""

    def last_error(self, comm: Any) -> str:
        """What NCCL has to say about the newest failure; empty if nothing. None for failures without a communicator."""

    def finalize(self, comm: Any) -> None:
        """Begin to let what was enqueued come to its end; `destroy` may follow when that is done."""

    def destroy(self, comm: Any) -> None:
        """Release the communicator."""

    def abort(self, comm: Any) -> None:
        """End what is enqueued, and release the communicator. No other thread may be in a call on it."""

    def group_start(self) -> None:
        """From here on, the calling thread's calls are one operation."""

    def group_end(self) -> None:
        """... up to here."""

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
        """An op: the sum of what the ranks have times their factors (FLOAT32 and FLOAT64 only). It is released with
        the communicator."""

    def device(self, number: int) -> Device:
        """What a device is."""

    def use(self, number: int) -> None:
        """Make this the device of the calling thread."""

    def record(self, stream: int) -> int:
        """An event that has happened when the stream has come past this point."""

    def happened(self, event: int) -> bool:
        """True if it has. Raises NcclError if the device failed."""

    def forget(self, event: int) -> None:
        """Release an event."""


def dotted(version: int) -> str:
    """22803 -> '2.28.3'."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
