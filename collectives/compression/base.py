"""The contract of compressors, the code around their exchanges, and the state that callers keep for them."""

from __future__ import annotations

import functools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from collectives.arrays import FLOAT32, FLOAT64, Array, Mean, Target, as_numpy, check_op, flat, is_small_float
from collectives.communicator import Communicator
from collectives.execution import Peers, brief
from collectives.operations import Work

SMALL_BYTES: Final = 4096
"""Minimum bytes for compression: the cost of smaller messages does not depend on their bytes."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A compressor's memory of one tensor.

    key       compressor, shape and dtype of the tensor
    seed      from the tensor's name, equal on all ranks
    step      the calls so far
    residual  values that this rank has not sent yet, flat; None if there are none
    matrix    PowerSGD's Q, to begin the next power iteration with
    """

    key: tuple[Compressor, tuple[int, ...], str]
    seed: int
    step: int = 0
    residual: Array | None = None
    matrix: Array | None = None


@dataclass
class State:
    """Data that compressors keep between calls, by tensor name. Owned by the caller; for one communicator only.

    It changes only when a call succeeds and its result is finite: an error, or a NaN that makes the training skip a
    step, leaves it as if the call had not been. It can be pickled, to be kept in a checkpoint, and is each rank's own.
    """

    memories: dict[str, Memory] = field(default_factory=dict)

    def forget(self) -> None:
        """Begin anew."""
        self.memories.clear()

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps, roughly."""
        held = [array for memory in self.memories.values() for array in (memory.residual, memory.matrix)]
        return sum(array.nbytes for array in held if array is not None)

    def memory(self, name: str, compressor: Compressor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        """The memory of a tensor, a new one at first. Raises ValueError if it is of another compressor or shape."""
        key = (compressor, shape, dtype.name)
        memory = self.memories.get(name)
        if memory is None:
            return Memory(key, zlib.crc32(name.encode()))
        if memory.key != key:
            raise ValueError(
                f"state: holds {name!r} as {memory.key[2]} of shape {memory.key[1]} with {memory.key[0]}; "
                f"this call has {dtype} of shape {shape} with {compressor}; call state.forget() to begin anew"
            )
        return memory


class Compressor(ABC):
    """A way to do an allreduce with fewer bytes. A description only: equal ones do the same and may be fused.

    All methods are collective; every rank gets the same bits. Only float arrays are compressed, and only if they have
    at least 4 KiB and it makes them smaller: others travel as they are, and so do long doubles, which only casts take.
    float16, bfloat16 and 8-bit floats are worked on in float32 (casts leave them alone). In a world of one the result
    is `x`.
    """

    def allreduce(
        self,
        comm: Communicator,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        state: State | None = None,
        name: str = "",
        timeout: float | None = None,
    ) -> Any:
        """The compressed sum or average of all ranks' `x`; arguments as those of Communicator.allreduce, and

        state   data that this compressor keeps between calls; without it rounding errors are not corrected later
        name    the tensor's in `state`: the same on all ranks and in all calls

        Raises as Communicator.allreduce; ValueError for another op, and for a `state` without a name.
        """
        return self._begin([x], op, [out], state, [name], comm.compose, timeout, alone=True)

    def allreduce_async(
        self,
        comm: Communicator,
        x: Any,
        op: str = "sum",
        *,
        out: Any = None,
        state: State | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Work[Any]:
        """Begin an allreduce; the arrays must not be touched until the Work is done.

        name   also that of the operation, as in every `*_async` method: ranks may then begin several in any order
        """
        begin = functools.partial(comm.compose_async, name=name)
        work: Work[Any] = self._begin([x], op, [out], state, [name or ""], begin, timeout, alone=True)
        return work

    def grouped_allreduce(
        self,
        comm: Communicator,
        xs: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        state: State | None = None,
        names: Sequence[str] = (),
        timeout: float | None = None,
    ) -> list[Any]:
        """allreduce of several arrays as one operation, with few exchanges. Returns the results in order."""
        results: list[Any] = self._begin(xs, op, out, state, names, comm.compose, timeout)
        return results

    def grouped_allreduce_async(
        self,
        comm: Communicator,
        xs: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        state: State | None = None,
        names: Sequence[str] = (),
        name: str | None = None,
        timeout: float | None = None,
    ) -> Work[list[Any]]:
        """Begin a grouped_allreduce; the arrays must not be touched until the Work is done.

        name   that of the operation, as in every `*_async` method
        """
        begin = functools.partial(comm.compose_async, name=name)
        work: Work[list[Any]] = self._begin(xs, op, out, state, names, begin, timeout)
        return work

    def _begin(
        self,
        xs: Sequence[Any],
        op: str,
        out: Sequence[Any] | None,
        state: State | None,
        names: Sequence[str],
        compose: Callable[..., Any],
        timeout: float | None,
        alone: bool = False,
    ) -> Any:
        """Check the arguments and hand the operation to `compose`. Its result is a list, unless the array is alone."""
        arrays = [as_numpy(x, "x" if alone else f"xs[{index}]") for index, x in enumerate(xs)]
        if op not in ("sum", "average"):
            raise ValueError(f"op={op!r}: {self} takes sum and average only")
        for array in arrays:
            check_op(op, array.dtype)
        outs = [None] * len(arrays) if out is None else list(out)
        if len(outs) != len(arrays):
            raise ValueError(f"out: has {len(outs)} arrays, must have {len(arrays)}, as many as xs")
        if state is not None and (len(set(names)) != len(arrays) or "" in names):
            raise ValueError(f"names={list(names)!r}: with a state, every array needs a name of its own")
        targets = [Target(o, array.shape, array.dtype, like=x) for o, array, x in zip(outs, arrays, xs, strict=True)]
        sources = [target.apart(flat(array)) for array, target in zip(arrays, targets, strict=True)]
        for name, array in zip(names, arrays, strict=True) if state is not None else ():
            state.memory(name, self, array.shape, array.dtype)  # type: ignore[union-attr]  # to hear of errors now
        kinds: dict[np.dtype[Any], list[int]] = {}
        for index, array in enumerate(arrays):
            kinds.setdefault(array.dtype, []).append(index)

        def body(peers: Peers) -> Any:
            for dtype, members in kinds.items():
                given = [sources[index].reshape(arrays[index].shape) for index in members]
                results = [targets[index].flat.reshape(arrays[index].shape) for index in members]
                if state is None:
                    self._reduce(peers, dtype, given, results, op, None)
                    continue
                chosen = [names[index] for index in members]
                memories = [state.memory(name, self, x.shape, dtype) for name, x in zip(chosen, given, strict=True)]
                changed = self._reduce(peers, dtype, given, results, op, memories)
                if all(np.isfinite(result).all() for result in results):
                    state.memories.update(zip(chosen, changed, strict=True))
            finished = [target.finish() for target in targets]
            return finished[0] if alone else finished

        shapes = brief([f"{array.dtype} {array.shape}" for array in arrays])
        return compose(body, f"allreduce({shapes}, op={op}, {self})", timeout=timeout)

    def _reduce(
        self,
        peers: Peers,
        dtype: np.dtype[Any],
        xs: list[Array],
        outs: list[Array],
        op: str,
        memories: list[Memory] | None,
    ) -> Sequence[Memory]:
        """Combine arrays of one dtype; the memories after it."""
        divisor = peers.size if op == "average" else 1
        if peers.size == 1:
            for x, out in zip(xs, outs, strict=True):
                np.copyto(out, x)
        elif not self.suits(dtype):
            add_up(peers, xs, outs, divisor)
        elif is_small_float(dtype):
            wide = [np.empty(out.shape, FLOAT32) for out in outs]
            changed = self.combine(peers, [x.astype(FLOAT32) for x in xs], wide, memories, divisor)
            for out, result in zip(outs, wide, strict=True):
                np.copyto(out, result, casting="unsafe")
            return changed or ()
        else:
            return self.combine(peers, xs, outs, memories, divisor) or ()
        return memories or ()

    def suits(self, dtype: np.dtype[Any]) -> bool:
        """True for the dtypes that it makes smaller."""
        return dtype in (FLOAT32, FLOAT64) or is_small_float(dtype)

    @abstractmethod
    def combine(
        self, peers: Peers, xs: list[Array], outs: list[Array], memories: list[Memory] | None, divisor: int
    ) -> list[Memory] | None:
        """The exchange proper: the sum of all ranks' xs[i], divided by `divisor`, 1 or the number of ranks, into outs.

        All arrays are contiguous and of one dtype, float32 or float64; xs[i] may be outs[i]. Returns the memories as
        they are after the call, with those given unchanged; None for None.
        """


@dataclass(frozen=True, slots=True)
class Uncompressed(Compressor):
    """Does not compress: for comparison, and where a compressor must be given."""

    def suits(self, dtype: np.dtype[Any]) -> bool:
        return False

    def combine(
        self, peers: Peers, xs: list[Array], outs: list[Array], memories: list[Memory] | None, divisor: int
    ) -> list[Memory] | None:
        add_up(peers, xs, outs, divisor)
        return memories


def add_up(peers: Peers, xs: Sequence[Array], outs: Sequence[Array], divisor: int = 1) -> None:
    """The uncompressed sum of arrays of one dtype, or with `divisor`, the number of ranks, their mean, as one
    exchange."""
    if not xs:
        return
    dtype, width, mean = xs[0].dtype, 1, None
    if divisor > 1:
        mean = Mean(dtype, divisor)
        dtype, width = mean.dtype, mean.width
    alone = len(outs) == 1 and dtype == xs[0].dtype and width == 1
    whole = outs[0].reshape(-1) if alone else np.empty(width * sum(x.size for x in xs), dtype)
    ends = np.cumsum([width * x.size for x in xs]).tolist()
    parts = [whole[end - width * x.size : end] for end, x in zip(ends, xs, strict=True)]
    for x, part in zip(xs, parts, strict=True):
        if mean is None:
            np.copyto(part, x.reshape(-1))
        else:
            mean.load(x.reshape(-1), part)
    peers.allreduce(whole)
    for out, part in zip(outs, parts, strict=True):
        if mean is not None:
            mean.store(part, part if alone else out.reshape(-1))
        elif not alone:
            np.copyto(out.reshape(-1), part)
