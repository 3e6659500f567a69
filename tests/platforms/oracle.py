"""The oracle for a platform: every collective on nine dtypes, windows, asynchronous and repeated calls and messages,
each compared with NumPy on every rank. The numbers are small and whole, so that results are exact.

    python -m tests.platforms.oracle --transport shm,tcp --ranks 2,4 --compiled auto,off
    python -m tests.platforms.oracle --transport local,shm --ranks 4 --kind threads --callers 4

A line for each world: the transport, ranks, and the number of right results of each rank. It ends with an error at the
first wrong one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

from collectives import Communicator
from collectives.jit import MachineCode, load
from tests.collectives.ranks import meeting_place, member
from tests.processes import run_processes
from tests.worlds import world_of

Array = np.ndarray[Any, Any]
DTYPES: Final = tuple(
    np.dtype(kind)
    for kind in ("float16", "float32", "float64", "complex64", "int8", "int32", "int64", "bool", ml_dtypes.bfloat16)
)
ROWS: Final = (12, 1236)
"""Rows of an array: one that is planned as a small call, and one that is not; multiples of 2, 3 and 4."""
REPEATS: Final = 3
"""The first call of a kind is planned, later ones may run as machine code."""
_SECONDS: Final = 300.0


def numbers(rank: int, seed: int, rows: int, dtype: np.dtype[Any]) -> Array:
    """The array of a rank: 0 and 1, so that sums and products of a few are exact in every dtype."""
    return np.random.default_rng((rank, seed)).integers(0, 2, (rows, 2)).astype(dtype)


def total(parts: list[Array], op: str) -> Array:
    """The parts combined by NumPy."""
    function: Any = {"sum": np.add, "max": np.maximum, "prod": np.multiply}[op]
    combined: Array = reduce(function, parts)
    return combined.astype(parts[0].dtype)


class Case:
    """The arrays of all ranks for one call, and the results that this rank is to get."""

    def __init__(self, rank: int, size: int, seed: int, rows: int, dtype: np.dtype[Any]) -> None:
        self.parts = [numbers(one, seed, rows, dtype) for one in range(size)]
        self.x = self.parts[rank].copy()
        kind = seed // 10  # repeats differ in their numbers alone: the first is planned for all
        self.root = kind % size
        self.op = {"b": "max", "c": "sum"}.get(dtype.kind, ("sum", "max", "prod")[kind % 3])
        self._rank, self._size = rank, size

    def calls(self) -> Iterator[tuple[str, tuple[Any, ...], Array | None]]:
        """Name, arguments after the array, and result of every collective."""
        rank, size, root, op, parts = self._rank, self._size, self.root, self.op, self.parts
        whole, everything = total(parts, op), np.concatenate(parts)
        yield "allreduce", (op,), whole
        yield "reduce", (op, root), whole if rank == root else None
        yield "reduce_scatter", (op,), np.array_split(whole, size)[rank]
        yield "broadcast", (root,), parts[root]
        yield "allgather", (), everything
        yield "gather", (root,), everything if rank == root else None
        yield "scatter", (root,), np.array_split(parts[root], size)[rank]
        yield "alltoall", (), np.concatenate([np.split(part, size)[rank] for part in parts])
        yield "scan", (op,), total(parts[: rank + 1], op)
        yield "exscan", (op,), total(parts[:rank], op) if rank else None


class Oracle:
    """Compares the calls of a rank with NumPy. `right` counts the results that were equal."""

    def __init__(self, comm: Communicator, rows: tuple[int, ...]) -> None:
        self.right = 0
        self._comm = comm
        self._rows = rows

    def run(self) -> int:
        """All of it; returns `right`. Raises AssertionError at the first result that differs."""
        for number, dtype in enumerate(DTYPES):
            for index, rows in enumerate(self._rows):
                seed = 10 * (len(self._rows) * number + index)
                self._collectives(seed, rows, dtype)
                self._windows(seed, rows, dtype)
        self._groups()
        self._objects()
        self._messages()
        return self.right

    def _case(self, seed: int, rows: int, dtype: np.dtype[Any]) -> Case:
        return Case(self._comm.rank, self._comm.size, seed, rows, dtype)

    def _equal(self, found: Any, expected: Array | None, *what: object) -> None:
        if expected is None:
            assert found is None, (*what, found)
        else:
            text = " ".join(map(str, what))
            assert found.dtype == expected.dtype, (text, found.dtype)
            np.testing.assert_array_equal(found, expected, text)
        self.right += 1

    def _collectives(self, seed: int, rows: int, dtype: np.dtype[Any]) -> None:
        """Every collective as a plain call, begun, and repeated on the same arrays."""
        for name, _, _ in self._case(seed, rows, dtype).calls():
            method, begin = getattr(self._comm, name), getattr(self._comm, f"{name}_async")
            for repeat in range(REPEATS):
                case = self._case(seed + repeat, rows, dtype)
                arguments, expected = {made: rest for made, *rest in case.calls()}[name]
                self._equal(method(case.x, *arguments), expected, name, dtype, rows, "plain")
            self._equal(begin(case.x, *arguments).wait(), expected, name, dtype, rows, "async")
            step = self._comm.plan(name, case.x, *arguments)
            self._equal(step.run(), expected, name, dtype, rows, "planned")
            self._equal(step.start().wait(), expected, name, dtype, rows, "planned, async")

    def _windows(self, seed: int, rows: int, dtype: np.dtype[Any]) -> None:
        """Collectives on arrays that all ranks map, where they can."""
        size = self._comm.size
        x, y = self._comm.empty((rows, 2), dtype), self._comm.empty((size * rows, 2), dtype)
        for repeat in range(REPEATS):
            case = self._case(seed + repeat, rows, dtype)
            results = {name: (arguments, expected) for name, arguments, expected in case.calls()}
            for name in ("allreduce", "allgather", "reduce_scatter", "alltoall"):
                arguments, expected = results[name]
                x[:] = case.x
                out = {"allreduce": x, "allgather": y}.get(name)
                self._equal(
                    getattr(self._comm, name)(x, *arguments, out=out), expected, name, dtype, rows, "in a window"
                )
                self._comm.barrier()  # peers may still read

    def _groups(self) -> None:
        cases = [self._case(seed, 7 + seed, DTYPES[seed % 3]) for seed in range(5)]
        found = self._comm.grouped_allreduce([case.x for case in cases], "sum")
        for case, result in zip(cases, found, strict=True):
            self._equal(result, total(case.parts, "sum"), "grouped_allreduce")
        begun = [self._comm.allreduce_async(case.x, "max", name=f"m{at}") for at, case in enumerate(cases)]
        for case, work in zip(cases, begun, strict=True):
            self._equal(work.wait(), total(case.parts, "max"), "named")
        half = self._comm.split(self._comm.rank % 2)
        assert half is not None
        ones = half.allreduce(np.ones(3, np.int32))
        self._equal(ones, np.full(3, half.size, np.int32), "split")

    def _objects(self) -> None:
        rank, size = self._comm.rank, self._comm.size
        assert self._comm.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
        assert self._comm.allgather_object("r" * rank) == ["r" * one for one in range(size)]
        self.right += 2

    def _messages(self) -> None:
        """Messages around the ring: short ones, and ones that no ring holds at once."""
        rank, size = self._comm.rank, self._comm.size
        left, right = (rank - 1) % size, (rank + 1) % size
        for seed, rows in enumerate((1, 100, 20_000)):
            case = self._case(seed, rows, np.dtype(np.int64))
            found = self._comm.sendrecv(case.x, right, left, tag=seed)
            self._equal(found, case.parts[left], "sendrecv", rows)


def with_callers(comm: Communicator, callers: int, rows: tuple[int, ...]) -> int:
    """The oracle in several threads of a rank at a time: each on a communicator of its own, with named operations of
    the world in between. Returns the number of right results."""
    if callers == 1:
        return Oracle(comm, rows).run()
    own = [comm.split(0) for _ in range(callers)]

    def call(caller: int) -> int:
        part = own[caller]
        assert part is not None
        oracle = Oracle(part, rows)
        right = oracle.run()
        for turn in range(50):
            parts = [numbers(rank, 1000 * caller + turn, 5, np.dtype(np.int32)) for rank in range(comm.size)]
            found = comm.allreduce_async(parts[comm.rank], "sum", name=f"caller {caller}, turn {turn}").wait()
            np.testing.assert_array_equal(found, total(parts, "sum"))
            right += 1
        return right

    with ThreadPoolExecutor(callers, thread_name_prefix="caller") as pool:
        return sum(pool.map(call, range(callers)))


class Load(NamedTuple):
    """The setting `compiled`, the threads of each rank that call at a time, and the rows of the arrays."""

    compiled: str
    callers: int
    rows: tuple[int, ...]


def has_machine_code(compiled: str) -> bool:
    """True if ranks with this setting run machine code; waits until it is compiled."""
    return compiled != "off" and isinstance(load(time.monotonic() + _SECONDS), MachineCode)


def _process(rank: int, size: int, url: str, transport: str, given: Load) -> tuple[int, bool]:
    """A rank that is a process: right results, and whether there is machine code."""
    code = has_machine_code(given.compiled)
    with member(rank, size, url, transport=transport, compiled=given.compiled, timeout=_SECONDS) as comm:
        return with_callers(comm, given.callers, given.rows), code


def processes(transport: str, size: int, given: Load) -> tuple[int, bool]:
    """The oracle on ranks that are processes; right results of each rank, and whether there was machine code."""
    with meeting_place() as url:
        found = run_processes(_process, size, size, url, transport, given, timeout=2 * _SECONDS)
    return min(right for right, _ in found), all(code for _, code in found)


def threads(transport: str, size: int, given: Load) -> tuple[int, bool]:
    """The same on ranks that are threads of this process."""
    code = has_machine_code(given.compiled)
    with world_of(transport, size, compiled=(given.compiled,), timeout=_SECONDS) as world:
        return min(world.run(with_callers, given.callers, given.rows)), code


def main(arguments: list[str]) -> int:
    kinds = {"processes": processes, "threads": threads}
    parser = argparse.ArgumentParser(prog="python -m tests.platforms.oracle")
    parser.add_argument("--transport", default="shm,tcp", help="local (threads only), shm, tcp, auto")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks")
    parser.add_argument("--compiled", default="off", help="values of the setting `compiled`")
    parser.add_argument("--kind", choices=sorted(kinds), default="processes", help="of the ranks")
    parser.add_argument("--callers", type=int, default=1, help="threads of each rank that call at a time")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="of the arrays: multiples of all --ranks")
    given = parser.parse_args(arguments)
    for transport in given.transport.split(","):
        for compiled in given.compiled.split(","):
            for size in map(int, given.ranks.split(",")):
                began = time.monotonic()
                rows = tuple(map(int, given.rows.split(",")))
                right, code = kinds[given.kind](transport, size, Load(compiled, given.callers, rows))
                how = "machine code" if code else "Python"
                seconds = time.monotonic() - began
                print(f"{transport}, {size} {given.kind}, {how}: {right} right ({seconds:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
