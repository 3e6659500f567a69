"""The native ability: whole collectives on device memory, which the transport brings and runs itself.

Memory is named by its address (an int), work is *enqueued* on a stream (a CUDA stream's handle, an int): a method
returns when it has been enqueued, and the device does it after what was enqueued on that stream before. All ranks of a
group make the same calls in the same order. Numbers of elements and bytes have 64 bits; 0 is allowed everywhere, and
takes part like any other.

    group = natives.join(key, ranks, device, tag, deadline)     collective
    group.enter(check, deadline, "allreduce(...)")              a call begins
    group.all_reduce(source, target, count, "float32", "sum", stream)
    group.leave(stream, (x, y))                                 it has been enqueued: it is watched from now on
    group.close(deadline)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from transports.errors import ConnectError


class NotNative(ConnectError):
    """The ranks of a group cannot have native collectives. Every one of them gets this, with the same reason; the
    transport beneath is intact."""


class NativeGroup(ABC):
    """Some ranks of a transport, each with one device. Peers and roots are positions among them.

    Every method between `enter` and `leave` raises PeerLost, DeadlineExceeded or TransportError if the device's side
    fails, or the transport's first failure. The transport is aborted then, on all ranks, what was enqueued is ended,
    and target memory is undefined. Calls are made by one thread at a time, which uses the group's device.
    """

    rank: int
    size: int
    device: int

    @abstractmethod
    def obstacle(self, collective: str, dtype: str, op: str | None) -> str:
        """Why this cannot be done natively ('NCCL has no int16'); empty if it can. The same answer on every rank.

        dtype   NumPy's name of it; op is None for collectives that do not combine
        """

    @abstractmethod
    def divides(self, dtype: str) -> bool:
        """True if `average` is a whole average for this dtype; else it is a sum, and the caller divides."""

    @abstractmethod
    def premultiplies(self, dtype: str, op: str) -> bool:
        """True if `factor` may be given for this dtype and op."""

    @abstractmethod
    def enter(self, check: int, deadline: float, doing: str) -> None:
        """Begin a call.

        check     32 bits that are equal on all ranks exactly if their calls fit together. They are compared while the
                  call is under way; a difference aborts the transport with a MismatchError.
        deadline  absolute monotonic seconds: until then all that is enqueued must be done, else DeadlineExceeded
        doing     what it is, for messages
        """

    @abstractmethod
    def leave(self, stream: int, keep: object) -> None:
        """End a call. What it enqueued is watched from now on, until `stream` has come past it, and `keep` (the arrays
        whose memory it uses) is referred to so long."""

    @abstractmethod
    def together(self) -> AbstractContextManager[None]:
        """Make all calls within one operation: its sends and receives do not wait for each other."""

    @abstractmethod
    def send(self, peer: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue the sending of bytes. Those between one pair of ranks are received in the order sent; a send may
        wait until its receive is enqueued."""

    @abstractmethod
    def receive(self, peer: int, target: int, nbytes: int, stream: int) -> None:
        """Enqueue the receiving of as many bytes as are sent."""

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
        """all_reduce whose result only `root` gets; `target` is ignored elsewhere."""

    @abstractmethod
    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int, factor: float | None = None
    ) -> None:
        """Combine `size * count` elements; rank i gets the i-th `count` of them."""

    @abstractmethod
    def broadcast(self, source: int, target: int, nbytes: int, root: int, stream: int) -> None:
        """`target` of every rank, the root included, becomes the root's `source`, which is ignored elsewhere."""

    @abstractmethod
    def all_gather(self, source: int, target: int, sizes: Sequence[int], stream: int) -> None:
        """All ranks' `source` one behind the other in `target`; rank i brings `sizes[i]` bytes."""

    @abstractmethod
    def gather(self, source: int, target: int, sizes: Sequence[int], root: int, stream: int) -> None:
        """all_gather whose result only `root` gets; `target` is ignored elsewhere."""

    @abstractmethod
    def scatter(self, source: int, target: int, sizes: Sequence[int], root: int, stream: int) -> None:
        """Rank i gets the i-th part, `sizes[i]` bytes, of the root's `source`, which is ignored elsewhere."""

    @abstractmethod
    def alltoall(self, source: int, target: int, sent: Sequence[int], received: Sequence[int], stream: int) -> None:
        """Part i of `source`, `sent[i]` bytes, goes to rank i; part i of `target`, `received[i]`, comes from it."""

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Let what was enqueued come to its end, then release what the group holds. Collective if all is well.

        Idempotent. Raises DeadlineExceeded if it did not end in time; everything is released all the same. After an
        abort nothing is awaited and nothing is raised.
        """


class NativeCollectives(ABC):
    """A transport whose ranks can have native collectives on the memory of their devices.

    required   True if it is an error when the ranks cannot have them; False if other ways are to be tried then
    """

    required: bool

    @abstractmethod
    def obstacle(self, ranks: tuple[int, ...], deadline: float) -> str:
        """Why `ranks` cannot have a group, as far as is known without making one; empty if nothing is known. The same
        answer on all of them. Not collective.

        Raises RendezvousError, or DeadlineExceeded naming a rank that did not open the transport in time.
        """

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Close all groups. Raises DeadlineExceeded if they do not end in time; they are released all the same."""

    @abstractmethod
    def join(self, key: str, ranks: tuple[int, ...], device: int, tag: int, deadline: float) -> NativeGroup:
        """Make a group of `ranks` (the own rank among them), each with a device of its own. Collective over `ranks`.

        key      names the group within the transport's group, is used once, and is equal on all ranks
        device   this process's number of the device whose memory will be named
        tag      a tag of the transport's whose frames announce the group's calls; it may be one that carries other
                 frames too, in an order that all ranks agree on

        Raises NotNative if these ranks cannot have one; RendezvousError or DeadlineExceeded naming the rank that did
        not come; the transport's first failure.
        """
