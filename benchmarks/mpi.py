"""Times ronde.mpi beside mpi4py on Open MPI and MPICH: the same program, two ranks on one host, in turns.

    python -m benchmarks.mpi                      7 rounds, some minutes; peers are installed at the first use
    python -m benchmarks.mpi --rounds 3 --peers openmpi

Each turn is a job of its own, which measures all cases. The table has the median times of a call, and the medians over
the rounds of a peer's time divided by that of ronde.mpi: above 1, ronde.mpi is faster. `own` are Ronde's own calls.
A ping-pong is half the time of a message there and back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
SIZES: Final = (8, 1 << 10, 1 << 16, 1 << 20)
CASE_SECONDS: Final = 0.05
LIMIT: Final = 180.0
OURS: Final = "ronde.mpi"


def text_of(size: int) -> str:
    """'64 KiB'."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} B"


# A rank


def cases(MPI: Any, own: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """The name of each case, and its call, which both ranks make."""
    import numpy as np

    comm = MPI.COMM_WORLD
    other = 1 - comm.rank

    def there_and_back(send: Callable[[], object], receive: Callable[[], object]) -> Callable[[], object]:
        first, second = (send, receive) if comm.rank == 0 else (receive, send)

        def call() -> None:
            first()
            second()

        return call

    for size in SIZES:
        data, got = np.ones(size, np.uint8), np.empty(size, np.uint8)
        yield (
            f"Send, Recv {text_of(size)}",
            there_and_back(lambda data=data: comm.Send(data, other), lambda got=got: comm.Recv(got, other)),
        )
        yield (
            f"Sendrecv {text_of(size)}",
            lambda data=data, got=got: comm.Sendrecv(data, other, 0, got, other, 0),
        )
    settings = {"name": "layer", "shape": (3, 4), "rate": 0.1, "tags": ["a", "b"]}
    for name, obj in (("dict", settings), *((f"bytes {text_of(size)}", bytes(size)) for size in SIZES[1:])):
        yield (
            f"send, recv {name}",
            there_and_back(lambda obj=obj: comm.send(obj, other), lambda: comm.recv(source=other)),
        )
    yield "bcast dict", lambda: comm.bcast(settings if comm.rank == 0 else None)
    yield "allgather dict", lambda: comm.allgather(settings)
    for size in SIZES:
        x, out = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
        both = np.empty(size // 2, np.float32)
        yield f"Allreduce {text_of(size)}", lambda x=x, out=out: comm.Allreduce(x, out)
        yield f"Bcast {text_of(size)}", lambda x=x: comm.Bcast(x)
        yield f"Allgather {text_of(size)}", lambda x=x, both=both: comm.Allgather(x, both)
        if own is not None:
            yield f"own Allreduce {text_of(size)}", lambda x=x, out=out: own.allreduce(x, out=out)
            yield f"own Bcast {text_of(size)}", lambda x=x: own.broadcast(x, out=x)
            yield f"own Allgather {text_of(size)}", lambda x=x, both=both: own.allgather(x, out=both)


def measure() -> None:
    """Measure all cases on this rank; rank 0 prints the seconds of a call, of the slower rank, as JSON."""
    own: Any = None
    if sys.argv[-1] == OURS:
        import collectives
        from frontends.mpi import install

        install()
        own = collectives.init()
    from mpi4py import MPI

    comm, found = MPI.COMM_WORLD, {}
    for name, call in cases(MPI, own):
        for _ in range(30):
            call()
        began = time.perf_counter()
        for _ in range(10):
            call()
        calls = comm.bcast(max(5, int(CASE_SECONDS / max(1e-7, time.perf_counter() - began) * 10)))
        times = []
        for _ in range(3):
            comm.Barrier()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            times.append((time.perf_counter() - began) / calls)
        found[name] = comm.allreduce(statistics.median(times), MPI.MAX) / (
            2 if "Recv" in name or "recv " in name else 1
        )
    if comm.rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")


# The comparison


def turn(command: Sequence[str]) -> dict[str, float]:
    """The seconds of each case of one job. Raises RuntimeError with its output if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    seconds: dict[str, float] = json.loads(lines[-1])
    return seconds


def table(rounds: Sequence[dict[str, dict[str, float]]], peers: Sequence[str]) -> str:
    """The table in Markdown. `rounds`: for each the seconds by contender and case."""
    heads = ["case", f"{OURS}, us", *(f"{peer} / {OURS}" for peer in peers), f"own / {OURS}"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for case in rounds[0][OURS]:
        if case.startswith("own "):
            continue
        ours = [one[OURS][case] for one in rounds]
        ratios = [statistics.median(one[peer][case] / one[OURS][case] for one in rounds) for peer in peers]
        cells = [f"{statistics.median(ours) * 1e6:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]
        own = f"own {case}"
        if own in rounds[0][OURS]:
            cells.append(f"{statistics.median(one[OURS][own] / one[OURS][case] for one in rounds):.2f}")
        lines.append(f"| {case} | {' | '.join(cells)}{' |' * (len(heads) - len(cells) - 1)} |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Run the comparison, and print the table."""
    from benchmarks.compare import installed

    parser = argparse.ArgumentParser(prog="python -m benchmarks.mpi", description="ronde.mpi beside mpi4py")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", nargs="*", choices=("openmpi", "mpich"), default=["openmpi", "mpich"])
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--venvs", type=Path, default=ROOT / "build/venvs", help="where the peers are installed")
    options = parser.parse_args(words)
    worker = [__file__, "rank"]
    own = [sys.executable, "-m", "ronde", "run", "-np", "2", "--no-prefix", "--transport", options.transport]
    commands = {OURS: [*own, sys.executable, *worker, OURS]}
    for name in options.peers:
        peer = installed(name, options.venvs)
        (start,) = peer.command(2, options.transport)
        commands[name] = [*start[: start.index(str(peer.python))], str(peer.python), *worker, name]
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(options.rounds):
        order = sorted(commands) if number % 2 else sorted(commands, reverse=True)
        rounds.append({name: turn(commands[name]) for name in order})
        sys.stderr.write(f"round {number + 1} of {options.rounds}\n")
    sys.stdout.write(table(rounds, options.peers) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(measure() if sys.argv[1:2] == ["rank"] else main(sys.argv[1:]))
