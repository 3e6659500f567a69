"""The way of an elastic program's state to a newcomer, from ranks on hosts of their own with slow links.

    python -m benchmarks.state_transfer --json benchmarks/results/state-transfer.json
    python -m benchmarks.state_transfer --size 50M --incumbents 1 4 --rate 1gbit

The hosts are network namespaces of this machine (tests/netns/network.py), so it needs root. Incumbents have committed a
state of one array of random bytes; the newcomer has none. All call `State.sync` at the same time, and the newcomer
checks the array. `time` is that until the last of them has returned. It has copies and digests in memory, for which all
ranks share the processors and the memory of this machine. `passing` is the part of it in which the bytes pass the
cables, and `least` the time in which the newcomer's own link can pass them, at the payload's share of a frame. The
bytes that each host has sent are counted at its cable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import ronde
from benchmarks.compare_hosts import BURST, PAYLOAD, bits_per_second
from frontends.command_line.arguments import byte_count
from frontends.command_line.bench import machine
from ronde.elastic import State
from tests.netns.network import Network, obstacle

SIZE: Final = 1_000_000_000
INCUMBENTS: Final = (1, 2, 4)
RATE: Final = "200mbit"
CONGESTION: Final = "reno"
"""TCP's congestion control on the hosts: it sends at the link's rate (benchmarks/validate_model.py tells more)."""
START_SECONDS: Final = 120.0
SLACK: Final = 10.0
"""The longest time of a transfer, by the least."""
CHUNK: Final = 1 << 24
LOOK_SECONDS: Final = 0.2
QUIET_BYTES: Final = 100_000
"""Signs of life, digests and answers between two looks are fewer."""
ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Transfer:
    """A state that a newcomer has received.

    size      bytes of the state
    seconds   from the call until all ranks have returned from it
    passing   seconds from the first of the bytes on a cable to the last; the rest are copies and digests in memory
    least     seconds in which the newcomer's link can pass the bytes
    sent      bytes that have left each incumbent's host
    received  bytes that have left the newcomer's host
    """

    incumbents: int
    rate: str
    size: int
    seconds: float
    passing: float
    least: float
    sent: list[int]
    received: int


def least_seconds(size: int, rate: str) -> float:
    """The time in which a link can pass the bytes."""
    return size * 8 / (bits_per_second(rate) * PAYLOAD)


@contextlib.contextmanager
def shared_content(size: int) -> Iterator[int]:
    """The descriptor of memory that holds the bytes of the state: ranks on this machine need them only once."""
    generator = np.random.default_rng(7)
    with open(os.memfd_create("state"), "wb") as file:
        for start in range(0, size, CHUNK):
            file.write(generator.bytes(min(CHUNK, size - start)))
        file.flush()
        yield file.fileno()


def take_part(content: int) -> None:
    """Be a rank; the last one is the newcomer. Each step begins with a line on stdin and ends with one on stdout.

    content  descriptor of the bytes of the state
    """
    right = np.frombuffer(mmap.mmap(content, 0, access=mmap.ACCESS_READ), np.uint8)
    world = ronde.init()
    newcomer = world.rank == world.size - 1
    state: Any = State(array=np.zeros(0, np.uint8) if newcomer else right)
    if not newcomer:
        state.save()
    world.barrier()
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    state.sync()
    seconds = time.monotonic() - begun
    for start in range(0, right.size, CHUNK):
        if not np.array_equal(state.array[start : start + CHUNK], right[start : start + CHUNK]):
            raise RuntimeError(f"the state is not what it was, from byte {start} on")
    print(seconds, flush=True)
    sys.stdin.readline()
    ronde.shutdown()


class Ranks:
    """The processes of the ranks, which end by themselves, or are killed after some time. A context."""

    def __init__(self, network: Network, content: int, store: str, limit: float) -> None:
        self._network = network
        self._content = content
        self._store = store
        self._limit = limit
        self._processes: list[subprocess.Popen[str]] = []
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Ranks:
        with contextlib.ExitStack() as stack:
            hosts, secret = list(self._network.hosts.values()), secrets.token_hex(16)
            for rank, host in enumerate(hosts):
                settings = {
                    "RONDE_RANK": str(rank),
                    "RONDE_SIZE": str(len(hosts)),
                    "RONDE_STORE": f"file://{self._store}",
                    "RONDE_SECRET": secret,
                    "RONDE_TIMEOUT": str(self._limit),
                }
                process = subprocess.Popen(
                    host.command(*(sys.executable, "-m", "benchmarks.state_transfer", "--content", str(self._content))),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                    env=os.environ | settings,
                    pass_fds=[self._content],
                )
                stack.enter_context(process)
                stack.callback(process.kill)
                self._processes.append(process)
            timer = threading.Timer(self._limit, self._kill)
            timer.start()
            stack.callback(timer.join)
            stack.callback(timer.cancel)
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def answers(self) -> list[str]:
        """A line of each rank. Raises RuntimeError if one has ended, by itself or since its time was over."""
        lines = []
        for rank, process in enumerate(self._processes):
            assert process.stdout is not None
            lines.append(process.stdout.readline())
            if not lines[-1]:
                raise RuntimeError(f"rank {rank} has ended, or took longer than {self._limit:.0f} s")
        return lines

    def go_on(self) -> None:
        """Let all ranks go on."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def finish(self) -> None:
        """Wait for their end."""
        for process in self._processes:
            process.wait(self._limit)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


class Passing:
    """Looks several times a second whether bytes leave hosts. A context; `seconds` tells for how long after it."""

    def __init__(self, network: Network, names: Sequence[str]) -> None:
        self._network = network
        self._names = names
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="passing")
        self._times: list[float] = []

    def __enter__(self) -> Passing:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """From the first look at which bytes had left, to the last."""
        return self._times[-1] - self._times[0] if self._times else 0.0

    def _run(self) -> None:
        last = self._count()
        while not self._ended.wait(LOOK_SECONDS):
            count = self._count()
            if count - last > QUIET_BYTES:
                self._times.append(time.monotonic())
            last = count

    def _count(self) -> int:
        return sum(map(self._network.bytes_from, self._names))


def transfer(incumbents: int, rate: str, content: int) -> Transfer:
    """Measure one. Raises RuntimeError if a rank fails or takes too long."""
    names = [f"host{number}" for number in range(incumbents + 1)]
    size = os.fstat(content).st_size
    least = least_seconds(size, rate)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(names))
        for host in network.hosts.values():
            network.slow(host.name, rate, "400ms", BURST)
            host.run("sysctl -q -w", f"net.ipv4.tcp_congestion_control={CONGESTION}")
        store = stack.enter_context(tempfile.TemporaryDirectory(prefix="ronde-state-"))
        ranks = stack.enter_context(Ranks(network, content, store, START_SECONDS + SLACK * least))
        ranks.answers()
        before = [network.bytes_from(name) for name in names]
        with Passing(network, names) as passing:
            ranks.go_on()
            seconds = max(map(float, ranks.answers()))
        sent = [network.bytes_from(name) - count for name, count in zip(names, before, strict=True)]
        ranks.go_on()
        ranks.finish()
    return Transfer(incumbents, rate, size, seconds, passing.seconds, least, sent[:-1], sent[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 2 if there can be no network namespaces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", type=byte_count, default=SIZE, metavar="SIZE", help="of the state (default: 1e9 bytes)"
    )
    parser.add_argument("--incumbents", type=int, nargs="*", default=INCUMBENTS, metavar="N", help="default: 1 2 4")
    parser.add_argument("--rate", default=RATE, help=f"of each host's link (default: {RATE})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--content", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.content is not None:
        take_part(options.content)
        return 0
    try:
        bits_per_second(options.rate)
    except ValueError as error:
        parser.error(str(error))
    reason = obstacle()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    lines = []
    print(f"{'size':>9}{'rate':>10}{'incumbents':>12}{'time':>11}{'passing':>11}{'least':>11}  sent by each")
    with shared_content(options.size) as content:
        for incumbents in options.incumbents:
            found = transfer(incumbents, options.rate, content)
            row = f"{found.size / 1e6:>6.0f} MB{found.rate:>10}{found.incumbents:>12}"
            row += f"{found.seconds:>9.1f} s{found.passing:>9.1f} s{found.least:>9.1f} s"
            print(f"{row}  {', '.join(f'{count / 1e6:.0f} MB' for count in found.sent)}", flush=True)
            lines.append(asdict(found))
    if options.json is not None:
        kept = {"machine": machine(), "congestion": CONGESTION, "lines": lines}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
