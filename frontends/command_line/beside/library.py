"""One rank of one contender: carries out the driver's requests with one library.

    library.py LIBRARY SOCKET      as a rank under the library's own launcher

It imports only NumPy and the library, connects to the driver's Unix socket, and blocks on it during the turns of other
contenders. A request and an answer are one line of JSON each.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
HUGE_PAGE = 2 << 20
GROWTH = 100
"""Each sum in place multiplies the values by the number of ranks; 2**GROWTH times a small integer is exact in
float32."""


class Library(ABC):
    """The collectives of one library on float32 arrays, each as a call that can be repeated."""

    rank: int
    size: int
    version: str
    algorithm: str | None = None
    """The algorithm of Ronde's allreduces; None for its own choice."""

    def array(self, count: int) -> Array:
        """An array in the kind of memory that is measured. A large one is mapped, and begins on a huge page. In memory
        that the C library uses again it would have huge pages or not by chance, and calls would take up to twice as
        long in one process as in another."""
        nbytes = 4 * count
        if nbytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return np.empty(count, np.float32)
        mapped = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapped.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(mapped, np.uint8)
        start = -memory.ctypes.data % HUGE_PAGE
        return memory[start : start + nbytes].view(np.float32)

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    @abstractmethod
    def allreduce(self, x: Array) -> Callable[[], object]:
        """A sum in place."""

    @abstractmethod
    def broadcast(self, x: Array) -> Callable[[], object]:
        """A broadcast from rank 0, in place."""

    @abstractmethod
    def allgather(self, x: Array, out: Array) -> Callable[[], object]:
        """Concatenates all ranks' `x` in `out`."""

    @abstractmethod
    def reduce_scatter(self, x: Array, out: Array) -> Callable[[], object]:
        """Puts this rank's part of the sum into `out`."""

    @abstractmethod
    def alltoall(self, x: Array, out: Array) -> Callable[[], object]:
        """Puts the parts for this rank into `out`."""

    def algorithms(self, collective: str) -> dict[str, int]:
        """Number of calls of a collective so far, by algorithm; empty if the library does not report it."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Leave."""


class Ronde(Library):
    """This library."""

    def __init__(self) -> None:
        from importlib.metadata import version

        import collectives

        self.world = collectives.init()
        self.rank, self.size = self.world.rank, self.world.size
        self.version = f"Ronde {version('ronde')}, {self.world.transport.name}"

    def barrier(self) -> None:
        self.world.barrier()

    def allreduce(self, x: Array) -> Callable[[], object]:
        if self.algorithm is not None:
            algorithm = self.algorithm
            return lambda: self.world.allreduce(x, out=x, algorithm=algorithm)
        return lambda: self.world.allreduce(x, out=x)

    def broadcast(self, x: Array) -> Callable[[], object]:
        return lambda: self.world.broadcast(x, out=x)

    def allgather(self, x: Array, out: Array) -> Callable[[], object]:
        return lambda: self.world.allgather(x, out=out)

    def reduce_scatter(self, x: Array, out: Array) -> Callable[[], object]:
        return lambda: self.world.reduce_scatter(x, out=out)

    def alltoall(self, x: Array, out: Array) -> Callable[[], object]:
        return lambda: self.world.alltoall(x, out=out)

    def algorithms(self, collective: str) -> dict[str, int]:
        counts = self.world.metrics()["collectives"].get(collective, {})
        return dict(counts.get("algorithms", {}))

    def close(self) -> None:
        import collectives

        collectives.shutdown()


class RondeWindows(Ronde):
    """This library, on arrays in windows, which its ranks share."""

    def __init__(self) -> None:
        super().__init__()
        self.version += ", arrays in windows"

    def array(self, count: int) -> Array:
        return self.world.empty(count, np.float32)


class RondePlans(Ronde):
    """This library, by calls that were checked and planned once."""

    def __init__(self) -> None:
        super().__init__()
        self.version += ", plans"

    def allreduce(self, x: Array) -> Callable[[], object]:
        return self.world.plan("allreduce", x, out=x, algorithm=self.algorithm).run

    def broadcast(self, x: Array) -> Callable[[], object]:
        return self.world.plan("broadcast", x, out=x).run

    def allgather(self, x: Array, out: Array) -> Callable[[], object]:
        return self.world.plan("allgather", x, out=out).run

    def reduce_scatter(self, x: Array, out: Array) -> Callable[[], object]:
        return self.world.plan("reduce_scatter", x, out=out).run

    def alltoall(self, x: Array, out: Array) -> Callable[[], object]:
        return self.world.plan("alltoall", x, out=out).run


class RondeAsynchronous(Ronde):
    """This library, by calls that return a handle, each waited for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.version += ", asynchronous"

    def allreduce(self, x: Array) -> Callable[[], object]:
        algorithm = self.algorithm
        return lambda: self.world.allreduce_async(x, out=x, algorithm=algorithm).wait()

    def broadcast(self, x: Array) -> Callable[[], object]:
        return lambda: self.world.broadcast_async(x, out=x).wait()

    def allgather(self, x: Array, out: Array) -> Callable[[], object]:
        return lambda: self.world.allgather_async(x, out=out).wait()

    def reduce_scatter(self, x: Array, out: Array) -> Callable[[], object]:
        return lambda: self.world.reduce_scatter_async(x, out=out).wait()

    def alltoall(self, x: Array, out: Array) -> Callable[[], object]:
        return lambda: self.world.alltoall_async(x, out=out).wait()


class Mpi(Library):
    """Open MPI or MPICH, through mpi4py's calls on buffers."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.version = MPI.Get_library_version().split(",")[0].split("\n")[0].replace("\t", " ").strip("\0 ")

    def barrier(self) -> None:
        self.comm.Barrier()

    def allreduce(self, x: Array) -> Callable[[], object]:
        return lambda: self.comm.Allreduce(self.mpi.IN_PLACE, x)

    def broadcast(self, x: Array) -> Callable[[], object]:
        return lambda: self.comm.Bcast(x)

    def allgather(self, x: Array, out: Array) -> Callable[[], object]:
        return lambda: self.comm.Allgather(x, out)

    def reduce_scatter(self, x: Array, out: Array) -> Callable[[], object]:
        return lambda: self.comm.Reduce_scatter_block(x, out)

    def alltoall(self, x: Array, out: Array) -> Callable[[], object]:
        return lambda: self.comm.Alltoall(x, out)


class Gloo(Library):
    """torch.distributed on gloo."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        rank, size = int(os.environ["RONDE_RANK"]), int(os.environ["RONDE_SIZE"])
        dist.init_process_group("gloo", init_method=os.environ["COMPARE_MEETING"], rank=rank, world_size=size)
        self.rank, self.size = rank, size
        self.version = f"torch {torch.__version__} gloo"

    def barrier(self) -> None:
        self.dist.barrier()

    def allreduce(self, x: Array) -> Callable[[], object]:
        tensor = self.torch.from_numpy(x)
        return lambda: self.dist.all_reduce(tensor)

    def broadcast(self, x: Array) -> Callable[[], object]:
        tensor = self.torch.from_numpy(x)
        return lambda: self.dist.broadcast(tensor, 0)

    def allgather(self, x: Array, out: Array) -> Callable[[], object]:
        source, target = self.torch.from_numpy(x), self.torch.from_numpy(out)
        return lambda: self.dist.all_gather_into_tensor(target, source)

    def reduce_scatter(self, x: Array, out: Array) -> Callable[[], object]:
        source, target = self.torch.from_numpy(x), self.torch.from_numpy(out)
        return lambda: self.dist.reduce_scatter_tensor(target, source)

    def alltoall(self, x: Array, out: Array) -> Callable[[], object]:
        source, target = self.torch.from_numpy(x), self.torch.from_numpy(out)
        return lambda: self.dist.all_to_all_single(target, source)

    def close(self) -> None:
        self.dist.destroy_process_group()


LIBRARIES: dict[str, type[Library]] = {
    "ronde": Ronde,
    "ronde-windows": RondeWindows,
    "ronde-plans": RondePlans,
    "ronde-asynchronous": RondeAsynchronous,
    "mpi": Mpi,
    "gloo": Gloo,
}


def pattern(count: int, start: int, rank: int) -> Array:
    """Small integers that depend on rank and position: element i is ((start + i) % 7 + 1) * (rank + 1)."""
    period: Array = np.tile(np.arange(7, dtype=np.float32) + 1, count // 7 + 2)
    offset = start % 7
    return period[offset : offset + count] * np.float32(rank + 1)


class Trial:
    """One collective at one size: its arrays, its call and its right result."""

    def __init__(self, library: Library, collective: str, nbytes: int, *, fresh: bool = False) -> None:
        """`fresh`: each call begins with its input being written, as in a program that has just computed it. A sum in
        place always has a new input."""
        self.collective = collective
        rank, size = library.rank, library.size
        ranks = size * (size + 1) / 2
        whole = max(1, nbytes // 4)
        part = max(1, whole // size)
        self.in_place = collective in ("allreduce", "broadcast")
        self.grows = collective == "allreduce"
        self.out = library.array(whole if self.in_place else part if collective == "reduce_scatter" else part * size)
        if self.in_place:
            self.given = pattern(whole, 0, rank)
            self.call = getattr(library, collective)(self.out)
            self.right = pattern(whole, 0, 0) * np.float32(ranks if collective == "allreduce" else 1)
            if fresh and not self.grows and not rank:
                self._write_before(self.out, self.given)
            return
        source = library.array(part if collective == "allgather" else part * size)
        source[:] = pattern(len(source), 0, rank)
        self.given = np.full_like(self.out, -1)
        self.call = getattr(library, collective)(source, self.out)
        if collective == "reduce_scatter":
            self.right = pattern(part, part * rank, 0) * np.float32(ranks)
        else:
            start = 0 if collective == "allgather" else part * rank
            self.right = np.concatenate([pattern(part, start, peer) for peer in range(size)])
        if fresh:
            self._write_before(source, source.copy())

    def _write_before(self, source: Array, values: Array) -> None:
        call = self.call

        def written() -> None:
            np.copyto(source, values)
            call()

        self.call = written

    def longest(self, size: int) -> int:
        """Maximum number of calls in a row with an exact result."""
        if not self.grows or size == 1:
            return 1000
        return max(1, int((GROWTH if size & (size - 1) == 0 else 20) / math.log2(size)))

    def wrong(self, calls: int, size: int) -> int:
        """Number of wrong elements after `calls` calls."""
        right = self.right * np.float32(float(size) ** (calls - 1)) if self.grows else self.right
        return int(np.count_nonzero(self.out != right))


def turn(library: Library, trial: Trial, calls: int, batches: int) -> dict[str, Any]:
    """Run batches of `calls` calls back to back. Returns the median over batches of the seconds per call, and the
    number of wrong elements."""
    times, wrong = [], 0
    before = library.algorithms(trial.collective)
    for _ in range(batches):
        trial.out[:] = trial.given
        library.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            trial.call()
        times.append((time.perf_counter() - began) / calls)
        wrong += trial.wrong(calls, library.size)
    after = library.algorithms(trial.collective)
    used = [name for name, calls in after.items() if calls > before.get(name, 0)]
    return {"seconds": float(np.median(times)), "wrong": wrong, "algorithms": used}


def singles(library: Library, trial: Trial, calls: int, batches: int) -> list[float]:
    """Seconds of each call but the first, in batches of `calls` calls back to back. The first one includes the time
    that a rank leaves the barrier before another."""
    seconds = []
    for _ in range(batches):
        trial.out[:] = trial.given
        library.barrier()
        trial.call()
        marks = [time.perf_counter()]
        for _ in range(calls - 1):
            trial.call()
            marks.append(time.perf_counter())
        seconds += np.diff(marks).tolist()
    return seconds


def serve(library: Library, link: socket.socket) -> None:
    """Answer the driver until it closes the connection."""
    stream = link.makefile("rw")

    def say(answer: dict[str, Any]) -> None:
        stream.write(json.dumps(answer) + "\n")
        stream.flush()

    say({"rank": library.rank, "version": library.version})
    trial: Trial | None = None
    for line in stream:
        request = json.loads(line)
        match request["do"]:
            case "prepare":
                trial = None
                library.algorithm = request["algorithm"]
                trial = Trial(library, request["collective"], request["bytes"], fresh=request["fresh"])
                say({"longest": trial.longest(library.size)})
            case "turn":
                assert trial is not None
                say(turn(library, trial, request["calls"], request["batches"]))
            case "singles":
                assert trial is not None
                say({"seconds": singles(library, trial, request["calls"], request["batches"])})


def main() -> None:
    name, path = sys.argv[1:]
    library = LIBRARIES[name]()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        serve(library, link)
    library.close()


if __name__ == "__main__":
    main()
