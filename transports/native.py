"""The native ability: whole collectives on device memory, which the transport itself runs.

Memory is given by its address (an int), work is *enqueued* on a stream (a CUDA stream's handle, an int): a method
returns when its work has been enqueued, and the device does it after all earlier work on that stream. All ranks of a
group make the same calls in the same order. Numbers of elements and bytes have 64 bits; 0 is allowed everywhere, and
is handled like any other number.

    group = natives.join(key, ranks, device, tag, deadline)     collective
    group.enter(check, deadline, "allreduce(...)")              a call begins
    group.all_reduce(source, target, count, "float32", "sum", stream)
    group.leave(stream, (x, y))                                 the call has been enqueued: it is watched from now on
    group.close(deadline)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from transports.errors import ConnectError


class NotNative(ConnectError):
    """The ranks of a group cannot have native collectives. Every rank gets this error, with the same reason; the
    transport stays intact."""


class NativeGroup(ABC):
    """Some ranks of a transport, each with one device. Peers and roots are positions among them.

    Every method between `enter` and `leave` raises PeerLost, DeadlineExceeded or TransportError if the device fails, or
    the transport's first failure. Then the transport is aborted on all ranks, enqueued work is ended, and target memory
    is undefined. Calls are made by one thread at a time, which uses the group's device.
    """

    rank: int
    size: int
    device: int

    @abstractmethod
    def obstacle(self, collective: str, dtype: str, op: str | None) -> str:
        """The reason why the group lacks a collective ('NCCL has no int16'); empty if it has it. The same on all ranks.

        dtype   NumPy's name of the dtype
        op      None for collectives that do not combine
        """

    @abstractmethod
    def divides(self, dtype: str) -> bool:
        """True if `average` divides for this dtype; else it is a sum, and the caller divides."""

    @abstractmethod
    def premultiplies(self, dtype: str, op: str) -> bool:
        """True if `factor` may be given for this dtype and op."""

    @abstractmethod
    def enter(self, check: int, deadline: float, doing: str) -> None:
        """Begin a call.

        check     32 bits that are equal on all ranks exactly if their calls fit together. They are compared during the
                  call; a difference aborts the transport with a MismatchError.
        deadline  absolute monotonic seconds by which the enqueued work must be done, else DeadlineExceeded
        doing     description of the call, for messages
        """

    @abstractmethod
    def leave(self, stream: int, keep: object) -> None:
        """End a call. Its enqueued work is watched until `stream` has completed it; until then a reference to `keep`
        (the arrays whose memory it uses) is held."""

    @abstractmethod
    def together(self) -> AbstractContextManager[None]:
        """Combine all calls in the context to one operation: its sends and receives do not wait for each other."""

    @abstractmethod
    def send(self, peer: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a send. Messages between one pair of ranks are received in the order sent; a send may wait until its
        receive is enqueued."""

    @abstractmethod
    def receive(self, peer: int, target: int, nbytes: int, stream: int) -> None:
        """Enqueue a receive. `nbytes` must be the number of bytes sent."""

    @abstractmethod
    def all_reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int, factor: float | None = None
    ) -> None:
        """Combine `count` elements of all ranks; `target` may be `source`.

        factor   multiplies this rank's elements first; see `premultiplies`
        """

    @abstractmethod
    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int, factor: float | None
    ) -> None:
        """`all_reduce` with the result on `root` only; other ranks ignore `target`."""

    @abstractmethod
    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int, factor: float | None = None
    ) -> None:
        """Combine `size * count` elements; rank i gets the i-th `count` of them."""

    @abstractmethod
    def broadcast(self, source: int, target: int, nbytes: int, root: int, stream: int) -> None:
        """Copy the root's `source` into `target` of every rank, the root included; other ranks ignore `source`."""

    @abstractmethod
    def all_gather(self, source: int, target: int, sizes: Sequence[int], stream: int) -> None:
        """Concatenate all ranks' `source` in `target`; rank i contributes `sizes[i]` bytes."""

    @abstractmethod
    def gather(self, source: int, target: int, sizes: Sequence[int], root: int, stream: int) -> None:
        """`all_gather` with the result on `root` only; other ranks ignore `target`."""

    @abstractmethod
    def scatter(self, source: int, target: int, sizes: Sequence[int], root: int, stream: int) -> None:
        """Rank i gets the i-th part, `sizes[i]` bytes, of the root's `source`; other ranks ignore `source`."""

    @abstractmethod
    def alltoall(self, source: int, target: int, sent: Sequence[int], received: Sequence[int], stream: int) -> None:
        """Part i of `source`, `sent[i]` bytes, goes to rank i; part i of `target`, `received[i]`, comes from it."""

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Wait until enqueued work is complete, then release all resources. Collective unless the group has failed.

        Idempotent. Raises DeadlineExceeded if it did not end in time; everything is released all the same. After an
        abort nothing is awaited and nothing is raised.
        """


class NativeCollectives(ABC):
    """A transport whose ranks can have native collectives on the memory of their devices.

    required   True: it is an error if the ranks cannot have them; False: other methods are used then
    """

    required: bool

    @abstractmethod
    def obstacle(self, ranks: tuple[int, ...], deadline: float) -> str:
        """The reason why `ranks` cannot have a group, if one is known without making it; else empty. The same result on
        all of them. Not collective.

        Raises RendezvousError, or DeadlineExceeded naming a rank that did not open the transport in time.
        """

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Close all groups. Raises DeadlineExceeded if they do not end in time; they are released all the same."""

    @abstractmethod
    def join(self, key: str, ranks: tuple[int, ...], device: int, tag: int, deadline: float) -> NativeGroup:
        """Make a group of `ranks`, which include this rank, each with a device of its own. Collective over `ranks`.

        key      names the group within the transport's group, is used once, and is equal on all ranks
        device   this process's number of the device whose memory is used
        tag      the tag of the frames that announce the group's calls. Other frames may use it too, if all ranks agree
                 on the order

        Raises NotNative if these ranks cannot have one; RendezvousError or DeadlineExceeded naming the rank that did
        not come; the transport's first failure.
        """
