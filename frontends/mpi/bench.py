"""Small programs for a first look at a cluster: `python -m ronde.mpi.bench helloworld`.

Commands, options and output are those of `python -m mpi4py.bench`. A command is a function of the communicator and its
words on the command line.
"""

from __future__ import annotations

import concurrent.futures
import os
import statistics
import sys
import time
from argparse import REMAINDER, ArgumentParser, Namespace
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import numpy as np

from frontends.mpi.rc import rc

Words = Sequence[str] | None
Row = tuple[int, float, float]
"""Bytes, mean time and standard deviation in seconds."""

_PROGRAM: Final = "python -m mpi4py.bench"
_SIZES: Final = tuple(1 << power for power in range(33))


def _parser(command: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"{_PROGRAM} {command}")
    parser.add_argument("-q", "--quiet", action="store_false", dest="verbose", help="print nothing")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def helloworld(comm: Any, words: Words = None) -> str:
    """Print a line for each rank, in their order; the line of this rank."""
    options = _parser("helloworld").parse_args(words)
    from frontends.mpi import MPI

    size, rank = comm.size, comm.rank
    line = f"Hello, World! I am process {rank:{len(str(size - 1))}d} of {size} on {MPI.Get_processor_name()}."
    comm.Barrier()
    if rank:
        comm.recv(source=rank - 1)
    if options.verbose:
        _say(line)
    if rank < size - 1:
        comm.send(None, rank + 1)
    comm.Barrier()
    return f"{line}\n"


def ringtest(comm: Any, words: Words = None) -> float:
    """Time a message that goes through all ranks and back to the first; the seconds."""
    parser = _parser("ringtest")
    parser.add_argument("-n", "--size", type=int, default=1, help="bytes of the message")
    parser.add_argument("-s", "--skip", type=int, default=0, help="rounds that are not timed, before the others")
    parser.add_argument("-l", "--loop", type=int, default=1, help="rounds")
    options = parser.parse_args(words)
    size, rank = comm.size, comm.rank
    before, after = (rank - 1) % size, (rank + 1) % size
    message, received = np.full(options.size, 42, np.uint8), np.zeros(options.size, np.uint8)

    def turn() -> None:
        if size == 1:
            comm.Sendrecv(message, after, 0, received, before, 0)
        elif rank == 0:
            comm.Send(message, after)
            comm.Recv(received, before)
        else:
            comm.Recv(received, before)
            comm.Send(received, after)

    comm.Barrier()
    for _ in range(options.skip):
        turn()
    begin = time.perf_counter()
    for _ in range(options.loop):
        turn()
    elapsed = time.perf_counter() - begin
    if options.skip + options.loop > 0 and not np.array_equal(message, received):
        raise RuntimeError("ringtest: the message that came back differs from the one that was sent")
    if options.verbose and rank == 0:
        _say(f"time for {options.loop} loops = {elapsed:g} seconds ({size} processes, {options.size} bytes)")
    return elapsed


def pingpong(comm: Any, words: Words = None) -> list[Row]:
    """Time messages from rank 0 to rank 1 and back, by their size."""
    parser = _parser("pingpong")
    _add_sizes(parser, (1, 1 << 30), (100, 10000), (10, 1000, 1 << 14), (1, 10, 1 << 20))
    parser.add_argument("-a", "--array", default="numpy", choices=["numpy", "none"], help="what the messages are")
    parser.add_argument("-p", "--pickle", action="store_true", help="send and receive by pickles")
    parser.add_argument("--protocol", type=int, help="protocol of the pickles")
    parser.add_argument("-o", "--outband", action="store_true", help="pickles, the buffers apart from them")
    parser.add_argument("--threshold", type=int, help="bytes from which on buffers are apart from pickles")
    options = parser.parse_args(words)
    from frontends.mpi import MPI
    from frontends.mpi.util import pkl5

    if options.outband:
        comm = pkl5.Intracomm(comm)
        if options.threshold is not None:
            pkl5.pickle.THRESHOLD = options.threshold
    by_pickle = options.pickle or options.outband
    if by_pickle and options.protocol is not None:
        MPI.pickle.PROTOCOL = options.protocol
    rank, size = comm.rank, comm.size
    allocate: Callable[[int], Any] = bytearray if options.array == "none" else lambda nbytes: np.empty(nbytes, np.uint8)
    send, recv, both = (comm.send, comm.recv, comm.sendrecv) if by_pickle else (comm.Send, comm.Recv, comm.Sendrecv)

    def prepare(nbytes: int) -> Callable[[], object]:
        message = allocate(nbytes)
        received = None if by_pickle else allocate(nbytes)

        def alone() -> None:
            for _ in range(2):
                both(message, 0, 0, received, 0, 0)

        def first() -> None:
            send(message, 1)
            recv(received, 1)

        def second() -> None:
            recv(received, 0)
            send(message, 0)

        comm.Barrier()
        return alone if size == 1 else [first, second][rank] if rank < 2 else lambda: None

    title, column = "# MPI PingPong Test", "Bandwidth [MB/s]"
    shown = options.verbose and rank == 0
    return list(_table(options, shown, title, column, prepare, 2, lambda nbytes, t: f"{nbytes / t / 1e6:18.2f}"))


def identity(value: Any) -> Any:
    """The value: the task that `futures` times."""
    return value


def futures(comm: Any, words: Words = None) -> list[Row]:
    """Time tasks of an executor, by the bytes of their argument."""
    kinds = {
        "process": concurrent.futures.ProcessPoolExecutor,
        "thread": concurrent.futures.ThreadPoolExecutor,
        "interpreter": getattr(concurrent.futures, "InterpreterPoolExecutor", None),  # from Python 3.14 on
    }
    makers: dict[str, Callable[[int], Any]] = {
        "numpy": lambda nbytes: np.zeros(nbytes, np.uint8),
        "array": lambda nbytes: array("B", bytes(nbytes)),
        "bytes": bytes,
    }
    parser = _parser("futures")
    _add_sizes(parser, (0, 1 << 20), (1, 10), (1, 5, 1 << 16), (1, 3, 1 << 18))
    parser.add_argument("-e", "--executor", default="mpi", choices=["mpi", *filter(kinds.get, kinds)], help="its kind")
    parser.add_argument("-w", "--num-workers", type=int, help="number of workers")
    parser.add_argument("-t", "--num-tasks", type=int, default=50, help="tasks for each worker")
    parser.add_argument("-a", "--allocator", default="numpy", choices=makers, help="what a task gets")
    parser.add_argument("-c", "--chunksize", type=int, default=1, help="tasks that travel together")
    parser.add_argument("-b", "--backoff", type=float, default=0.0, help="has no effect: workers do not poll")
    parser.add_argument("-o", "--outband", action="store_true", help="has no effect")
    options = parser.parse_args(words)
    from frontends.mpi.futures import MPIPoolExecutor

    kind, workers = kinds.get(options.executor), options.num_workers
    executor: Executor
    if kind is None:
        executor = MPIPoolExecutor(workers)
        workers = executor.num_workers
    else:
        workers = workers or os.cpu_count() or 1
        executor = kind(workers)
    tasks = workers * options.num_tasks

    def prepare(nbytes: int) -> Callable[[], object]:
        data = [makers[options.allocator](nbytes) for _ in range(tasks)]
        return lambda: list(executor.map(identity, data, chunksize=options.chunksize))

    title = f"# {type(executor).__name__} - {workers} workers, {options.num_tasks} tasks/worker"
    shown = options.verbose and comm.rank == 0
    with executor:
        list(executor.map(time.sleep, [0.001] * workers))  # the workers begin
        return list(_table(options, shown, title, "Tasks/s", prepare, 1, lambda _, seconds: f"{tasks / seconds:9.0f}"))


def _add_sizes(
    parser: ArgumentParser,
    sizes: tuple[int, int],
    rounds: tuple[int, int],
    large: tuple[int, int, int],
    huge: tuple[int, int, int],
) -> None:
    """Options for the sizes, the rounds before and in the measurement, and what holds above a large and a huge size."""
    parser.add_argument("-m", "--min-size", type=int, default=sizes[0], help="fewest bytes")
    parser.add_argument("-n", "--max-size", type=int, default=sizes[1], help="most bytes")
    parser.add_argument(
        "-s", "--skip", type=int, default=rounds[0], help="rounds that are not timed, before the others"
    )
    parser.add_argument("-l", "--loop", type=int, default=rounds[1], help="rounds")
    for name, values in ("large", large), ("huge", huge):
        parser.add_argument(f"--skip-{name}", type=int, default=values[0], help=f"the same above the {name} size")
        parser.add_argument(f"--loop-{name}", type=int, default=values[1], help=f"the same above the {name} size")
        parser.add_argument(f"--{name}-size", type=int, default=values[2], help=f"the {name} size")
    parser.add_argument("--no-header", action="store_false", dest="header", help="print no header")
    parser.add_argument("--no-stats", action="store_false", dest="stats", help="print no times")


def _table(
    options: Namespace,
    shown: bool,
    title: str,
    column: str,
    prepare: Callable[[int], Callable[[], object]],
    share: int,
    rate: Callable[[int, float], str],
) -> Iterator[Row]:
    """Time a call for each size, `share` of which are in one round, and print a line for each."""
    skip, loop = options.skip, options.loop
    for nbytes in (size for size in _SIZES if options.min_size <= size <= options.max_size):
        for name in "large", "huge":
            if nbytes > getattr(options, f"{name}_size"):
                skip = min(skip, getattr(options, f"skip_{name}"))
                loop = min(loop, getattr(options, f"loop_{name}"))
        call, times = prepare(nbytes), list[float]()
        for at in range(skip + loop):
            begin = time.perf_counter()
            call()
            if at >= skip:
                times.append((time.perf_counter() - begin) / share)
        mean = statistics.mean(times) if times else float("nan")
        deviation = statistics.stdev(times) if len(times) > 1 else 0.0
        if shown:
            if options.header:
                options.header = False
                _say(f"{title}\n# Size [B]  {column}" + " | Time Mean [s] ± StdDev [s]  Samples" * options.stats)
            figures = f" | {mean:.7e} ± {deviation:.4e} {loop:8d}" if options.stats else ""
            _say(f"{nbytes:10d}{rate(nbytes, mean)}{figures}")
        yield nbytes, mean, deviation


COMMANDS: Final = {command.__name__: command for command in (helloworld, ringtest, pingpong, futures)}


def main(words: Words = None) -> None:
    """Run the command of a command line."""
    parser = ArgumentParser(prog=_PROGRAM, usage="%(prog)s [options] <command> [args]")
    parser.add_argument("--threads", action="store_true", default=None, help="have MPI with threads")
    parser.add_argument("--no-threads", action="store_false", dest="threads", help="the same: there are always threads")
    levels = "single", "funneled", "serialized", "multiple"
    parser.add_argument("--thread-level", choices=levels, metavar="LEVEL", help="level of threads")
    parser.add_argument("command", metavar="<command>", help=f"one of {', '.join(COMMANDS)}")
    parser.add_argument("args", nargs=REMAINDER, metavar="[args]", help="options of the command; -h shows them")
    options = parser.parse_args(words)
    for name in "threads", "thread_level":
        if getattr(options, name) is not None:
            rc(**{name: getattr(options, name)})
    from frontends.mpi import MPI

    command = COMMANDS.get(options.command)
    if command is None:
        if MPI.COMM_WORLD.rank == 0:
            parser.error(f"unknown command {options.command!r}: must be one of {', '.join(COMMANDS)}")
        parser.exit(2)
    command(MPI.COMM_WORLD, options.args)


if __name__ == "__main__":
    main()
