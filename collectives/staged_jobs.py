"""The jobs of collectives on arrays of GPUs that go through the host's memory: jobs on mirrors of the arrays.

Where a collective's steps work on the mirror itself, copying overlaps with communicating (staging.py). Where something
else is done with it first (factors, compression, packing), it is here before.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, overload

from collectives.devices import DeviceTarget, Place, cuda, is_device_array
from collectives.execute import WOVEN_BYTES, Executor
from collectives.fusion import Packable, Part
from collectives.progress import Job
from collectives.staging import Lender, Mirror, Weaver

_IN_PLACE: Final = ("allreduce", "broadcast", "reduce")
"""Collectives whose mirror takes the result too."""
_AS_IS: Final = ("sum", "prod", "min", "max", "band", "bor", "bxor")
"""Operations before and after which nothing is done."""


class StagedJobs:
    """Makes the jobs, by way of those that work in the host's memory."""

    def __init__(self, executor: Executor, reproducible: bool) -> None:
        """`reproducible` is the default of that argument."""
        self._executor = executor
        self._reproducible = reproducible
        self._lender = Lender()
        self._asides: dict[int, Place] = {}

    def job(self, make: Callable[..., Job[Any]], maker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[Any]:
        """The job that `make(maker, *args, **kwargs)` would be if the arrays were in the host's memory; the result is
        on the GPU. To be made and run within a place.
        """
        given = _signature(make).bind(maker, *args, **kwargs).arguments
        given.pop("self", None)
        if "xs" in given:
            return _Grouped(self, make, maker, given).job()
        return _Single(self, make, maker, given).job()

    def release(self) -> None:
        """Forget the memory that was lent."""
        self._lender.release()

    def attend(self) -> None:
        """Raises the transport's failure."""
        failure = self._executor.alarm.failure
        if failure is not None:
            raise failure

    def weaver(self, mirror: Mirror, target: Any, deadline: float) -> Weaver:
        """What copies to and from one mirror, in the current place and beside it."""
        place = cuda().here()
        aside = self._asides.get(place.device)
        if aside is None:
            aside = self._asides[place.device] = place.beside()
        aside.after(place.mark())
        return Weaver(mirror, place, aside, target, deadline, self.attend)

    def run(self, job: Job[Any], weaver: Weaver, mirror: Mirror, lazily: bool, deadline: float) -> Any:
        """Run a job on a mirror."""
        if lazily:
            self._executor.weave = weaver.weave
        else:
            weaver.gather()
        try:
            result = job.run(deadline)
            weaver.finish()
        finally:
            self._executor.weave = None
            self._lender.lend(mirror, self._asides[cuda().here().device])  # if this failed half-way
        self.lend(mirror, deadline)
        return result

    def lend(self, mirror: Mirror, deadline: float) -> None:
        """The GPU may still be copying from a mirror, in the current place."""
        self._lender.lend(mirror, cuda().here())
        self._lender.collect(deadline, self.attend)

    def lazily(self, given: dict[str, Any]) -> bool:
        """True if nothing but the steps of a plan reads or writes the mirror."""
        fixed = given.get("reproducible")
        if self._reproducible if fixed is None else fixed:
            return False
        scaled = given.get("prescale") is not None or given.get("postscale") is not None
        return not scaled and given.get("op", "sum") in _AS_IS

    @property
    def rank(self) -> int:
        return self._executor.rank


class _Single:
    """One array."""

    def __init__(self, staged: StagedJobs, make: Callable[..., Job[Any]], maker: Any, given: dict[str, Any]) -> None:
        self._staged = staged
        self._name = make.__name__
        self._x, self._out = given.get("x"), given.get("out")
        self._mirror: Mirror | None = None
        self._target: DeviceTarget | None = None
        self._place = place = cuda().here()
        root = given.get("root", 0)
        given = {**given, "out": None}
        if is_device_array(self._x):
            array = place.cuda.array(self._x)
            self._mirror = Mirror(place.cuda.flat(array))
            given["x"] = self._mirror.host.reshape(array.shape)
            if self._name in _IN_PLACE and (self._name != "reduce" or staged.rank == root):
                given["out"] = given["x"]
        # an allgather may be tried once and then run, and is not woven twice
        self._lazily = staged.lazily(given) and self._name != "allgather"
        self._host = make(maker, **given)
        if given["out"] is not None:
            self._target = DeviceTarget(place, self._out, array.shape, array.dtype)

    def job(self) -> Job[Any]:
        host = self._host
        return Job(self._run, host.timeout, host.terms, _arriving(host.packable, self._arrive, self._finish))

    def _run(self, deadline: float) -> Any:
        if self._mirror is None:
            return self._back(self._host.run(deadline))
        weaver = self._staged.weaver(self._mirror, None if self._target is None else self._target.flat, deadline)
        lazily = self._lazily and self._mirror.array.nbytes > WOVEN_BYTES
        result = self._staged.run(self._host, weaver, self._mirror, lazily, deadline)
        return self._back(result) if self._target is None else self._target.finish()

    def _back(self, result: Any) -> Any:
        """A result on the host, on the GPU."""
        if isinstance(result, tuple):
            return (self._back(result[0]), *result[1:])
        if result is None:
            return None
        target = DeviceTarget(cuda().here(), self._out, result.shape, result.dtype)
        cuda().fill(target.flat, result.reshape(-1))
        return target.finish()

    def _arrive(self) -> None:
        """Have the mirror here, for somebody who packs it with others."""
        assert self._mirror is not None
        with self._place:
            self._staged.weaver(self._mirror, None, time.monotonic() + self._host.timeout).gather()

    def _finish(self) -> Any:
        """Somebody has put the result into the mirror."""
        assert self._mirror is not None
        assert self._target is not None
        with self._place:
            self._mirror.push(range(len(self._mirror.segments)), self._target.flat, self._place)
            self._staged.lend(self._mirror, time.monotonic() + self._host.timeout)
            return self._target.finish()


class _Grouped:
    """Several arrays, all of which are here before anything is done."""

    def __init__(self, staged: StagedJobs, make: Callable[..., Job[Any]], maker: Any, given: dict[str, Any]) -> None:
        self._staged = staged
        xs = list(given["xs"])
        self._place = place = cuda().here()
        outs = given.get("out")
        self._outs = [None] * len(xs) if outs is None else list(outs)
        arrays = [place.cuda.array(x, f"xs[{index}]") for index, x in enumerate(xs)]
        self._mirrors = [Mirror(place.cuda.flat(array)) for array in arrays]
        hosts = [mirror.host.reshape(array.shape) for mirror, array in zip(self._mirrors, arrays, strict=True)]
        given = {**given, "xs": hosts}
        self._targets: list[DeviceTarget] = []
        if make.__name__ == "grouped_allreduce":
            if len(self._outs) != len(xs):
                raise ValueError(f"out: has {len(self._outs)} arrays, must have {len(xs)}, as many as xs")
            given["out"] = hosts
        self._host = make(maker, **given)
        if make.__name__ == "grouped_allreduce":
            parts = zip(self._outs, arrays, strict=True)
            self._targets = [DeviceTarget(place, out, array.shape, array.dtype) for out, array in parts]

    def job(self) -> Job[Any]:
        host = self._host
        return Job(self._run, host.timeout, host.terms, _arriving(host.packable, self._arrive, self._finish))

    def _run(self, deadline: float) -> list[Any]:
        self._gather(deadline)
        results = self._host.run(deadline)
        if self._targets:
            return self._push()
        return [self._back(result) for result in results]

    def _back(self, result: Any) -> Any:
        target = DeviceTarget(cuda().here(), None, result.shape, result.dtype)
        cuda().fill(target.flat, result.reshape(-1))
        return target.finish()

    def _arrive(self) -> None:
        with self._place:
            self._gather(time.monotonic() + self._host.timeout)

    def _finish(self) -> list[Any]:
        with self._place:
            return self._push()

    def _gather(self, deadline: float) -> None:
        for mirror in self._mirrors:
            self._staged.weaver(mirror, None, deadline).gather()

    def _push(self) -> list[Any]:
        place = cuda().here()
        for mirror, target in zip(self._mirrors, self._targets, strict=True):
            mirror.push(range(len(mirror.segments)), target.flat, place)
            self._staged.lend(mirror, time.monotonic() + self._host.timeout)
        return [target.finish() for target in self._targets]


def _arriving(pack: Packable | None, arrive: Callable[[], None], finish: Callable[[], Any]) -> Packable | None:
    """A Packable of mirrors."""
    return None if pack is None else Packable(_Arriving(pack.parts, arrive), finish)


class _Arriving(Sequence[Part]):
    """Parts whose memory is filled when the first of them is asked for."""

    def __init__(self, parts: Sequence[Part], arrive: Callable[[], None]) -> None:
        self._parts = parts
        self._arrive: Callable[[], None] | None = arrive

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | Sequence[Part]:
        arrive, self._arrive = self._arrive, None
        if arrive is not None:
            arrive()
        return self._parts[index]

    def __iter__(self) -> Iterator[Part]:
        return (self[index] for index in range(len(self)))


@cache
def _signature(make: Callable[..., Job[Any]]) -> inspect.Signature:
    return inspect.signature(make)
