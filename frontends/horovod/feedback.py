"""Compression beyond casts: Ronde's compressors as values of the argument `compression`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any, Final, TypeAlias, TypeGuard

from collectives import Communicator, OpName, Work
from collectives.compression import Compressor as Lossy
from collectives.compression import Int8, PowerSGD, State, TopK
from frontends.horovod.compression import Compressor, NoneCompressor
from frontends.horovod.ops import Average, Sum

__all__ = [
    "AnyCompression",
    "Compressions",
    "ErrorFeedback",
    "check_compressor",
    "is_lossy",
    "names_of",
    "number_of",
    "numbered",
    "title_of",
]


class ErrorFeedback:
    """One of Ronde's compressors, with the memory of what it has not sent yet, for one optimizer.

    compressor   one of ronde.compression
    memory       different on each rank; it begins anew when the communicator changes. A script that continues from a
                 checkpoint can pickle it and assign it again

    Average and Sum only, without scale factors. Tensors must be in the host's memory.
    """

    def __init__(self, compressor: Lossy) -> None:
        """Raises TypeError for another object."""
        check_compressor(compressor, "compressor")
        self.compressor = compressor
        self.memory = State()
        self._communicator: Communicator | None = None
        self._owners: dict[str, weakref.ref[Any]] = {}

    def __repr__(self) -> str:
        return f"ErrorFeedback({self.compressor})"

    def check(self, op: OpName, prescale: float, postscale: float) -> None:
        """Raise ValueError for a reduction that cannot be compressed."""
        if op not in (Average, Sum):
            raise ValueError(f"op={op!r}: {self.compressor} takes Average and Sum only")
        if (prescale, postscale) != (1.0, 1.0):
            raise ValueError(f"compression: {self.compressor} takes no scale factors, and no gradient_predivide_factor")

    def belong_to(self, names: Sequence[str], owners: Sequence[Any]) -> None:
        """Give each name in the memory one owner: the parameter, or the optimizer where parameters are values.

        Raises ValueError, with nothing changed, if a name is that of another owner, which would send what the first one
        has not sent. The memory of an owner that is gone begins anew.
        """
        taken = self._taken(names, owners)
        if taken:
            gc.collect()  # models and optimizers often refer to themselves, and are gone only then
            taken = self._taken(names, owners)
        if taken:
            raise ValueError(
                f"compression={self}: remembers what another optimizer has not sent of {taken[0]!r}; make one for each"
            )
        for name in names:
            if name in self._owners and self._owners[name]() is None:
                self.memory.memories.pop(name, None)
        self._owners.update(zip(names, map(weakref.ref, owners), strict=True))

    def _taken(self, names: Sequence[str], owners: Sequence[Any]) -> list[str]:
        """The names that are those of other owners."""
        known = [self._owners[name]() if name in self._owners else None for name in names]
        return [
            name
            for name, own, other in zip(names, owners, known, strict=True)
            if other is not None and other is not own
        ]

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """Raises TypeError, where an operation takes casts only."""
        raise TypeError(f"compression={self}: is for allreduce, this operation takes casts only")

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Raises TypeError as `compress`."""
        return self.compress(tensor)

    def begin(
        self,
        communicator: Communicator,
        sources: Sequence[Any],
        targets: Sequence[Any],
        op: OpName,
        label: str,
        names: Sequence[str],
    ) -> Work[Any]:
        """Begin an allreduce of arrays as one operation.

        label   by which ranks match the operation
        names   of the arrays in the memory, the same in every step
        """
        if self._communicator is not communicator:
            if self._communicator is not None:
                self.memory.forget()
            self._communicator = communicator
        work: Work[Any] = self.compressor.grouped_allreduce_async(
            communicator, sources, op, out=targets, state=self.memory, names=names, name=label
        )
        return work


def check_compressor(compressor: Any, name: str) -> None:
    """Raise TypeError, naming the argument, for what is no compressor, also for its class."""
    if not isinstance(compressor, Lossy):
        raise TypeError(f"{name}={compressor!r}: must be one of ronde.compression, such as TopK(0.01)")


AnyCompression: TypeAlias = type[Compressor] | ErrorFeedback
"""The values of the argument `compression`."""


def is_lossy(compression: AnyCompression) -> TypeGuard[ErrorFeedback]:
    """True for an ErrorFeedback. Raises TypeError for a bare compressor, which has no memory, and for what is none."""
    if isinstance(compression, Lossy):
        raise TypeError(
            f"compression={compression}: give Compression.of({compression}), which keeps the error feedback"
        )
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise TypeError(f"compression={compression!r}: must be Compression.none, another one, or an object of its kind")
    return isinstance(compression, ErrorFeedback)


def title_of(compression: AnyCompression) -> str:
    """Return a text that is the same on all ranks that compress alike."""
    if isinstance(compression, ErrorFeedback):
        return str(compression.compressor)
    return str(getattr(compression, "__qualname__", type(compression).__qualname__))


_IN_PROGRAMS: Final[list[ErrorFeedback]] = []


def number_of(feedback: ErrorFeedback) -> int:
    """Return a number for a lossy compression, for the text of a graph or of a compiled program. It is kept from then
    on, as graphs and programs are."""
    if feedback not in _IN_PROGRAMS:
        _IN_PROGRAMS.append(feedback)
    return _IN_PROGRAMS.index(feedback)


def numbered(number: int) -> ErrorFeedback:
    """Return the lossy compression with a number of this process. Raises ValueError for a program from elsewhere."""
    if number >= len(_IN_PROGRAMS):
        raise ValueError(
            "compression: the graph was made in another process; make it in this one, which keeps the error feedback"
        )
    return _IN_PROGRAMS[number]


def names_of(name: str | None, count: int) -> list[str]:
    """Return the names in the memory of `count` tensors that are reduced as one operation with this name."""
    return [f"{name or 'tensors'}.{index}" for index in range(count)]


class Compressions:
    """Values for the argument `compression`. A frontend's `Compression` adds the casts of its tensors:

    fp16   floats travel as float16; values beyond 65504 become infinite
    bf16   floats travel as bfloat16: the range of float32 with 8 bits of precision

    Horovod has `none` and `fp16` alone. Of those that are functions, make one for each optimizer, and keep it: it
    remembers what was not sent, and adds it to the next gradients. docs/compression.md describes the compressors.
    """

    none = NoneCompressor

    @staticmethod
    def int8(**options: Any) -> ErrorFeedback:
        """8 bits for a number; the options of ronde.compression.Int8."""
        return ErrorFeedback(Int8(**options))

    @staticmethod
    def topk(*arguments: Any, **options: Any) -> ErrorFeedback:
        """The largest numbers of each tensor; the arguments of ronde.compression.TopK, such as 0.01."""
        return ErrorFeedback(TopK(*arguments, **options))

    @staticmethod
    def powersgd(*arguments: Any, **options: Any) -> ErrorFeedback:
        """Matrices as products of narrow ones; the arguments of ronde.compression.PowerSGD, such as the rank, 2."""
        return ErrorFeedback(PowerSGD(*arguments, **options))

    of = ErrorFeedback
