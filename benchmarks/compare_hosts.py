"""Ronde and gloo side by side over several hosts with slow links: the same allreduces in turns, every result checked.

    python benchmarks/compare_hosts.py                                  the table of docs/performance.md
    python benchmarks/compare_hosts.py --worlds 4x2 --rates 200mbit --max 1M
    python benchmarks/compare_hosts.py --algorithms ring hierarchical   Ronde's algorithms beside its own choice
    python benchmarks/compare_hosts.py --rates full --before OTHER/.venv/bin/python --worlds 2x2    another checkout
    python benchmarks/compare_hosts.py --delay 0.02 --loss 0.001        over a long way, which loses packets

The hosts are network namespaces of this machine with links of the given rate (tests/netns/network.py), so it needs
root. A world HxR has H hosts of R ranks. `wire` is the time in which the links can pass the bytes that must cross them,
2 (h - 1) / h N, at the payload's share of a frame. The rate `full` is that of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare import BEFORE
from frontends.command_line.arguments import byte_count
from frontends.command_line.bench import machine
from frontends.command_line.beside import OURS, WORKER, Contender, Job, Line, measure, size_text, time_text
from tests.netns.network import CABLE, Host, Network, obstacle

SIZES = (4, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
TURN = 0.3
"""Seconds of a turn. With more ranks than cores the ranks begin a turn milliseconds apart, which must not count."""
FULL = "full"
WORLDS = ("4x1", "4x2", "2x4", "3x2")
RATES = ("200mbit", "1gbit")
PAYLOAD = 1448 / 1514
"""Bytes of data in a full frame of TCP over Ethernet with timestamps, by bytes that the shaper counts."""
BURST = "128kb"
"""More than the largest packet that the system hands to the shaper (64 KiB). With less, the shaper cuts packets up
and needs so much processor time for it that 1 Gbit/s are not reached."""
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class AcrossHosts(Contender):
    """A contender whose ranks are started one by one, each on its host."""

    hosts: tuple[Host, ...] = ()
    settings: tuple[str, ...] = ()
    """NAME=VALUE for its ranks."""

    def command(self, np: int, link: str) -> list[list[str]]:
        """The process of each rank; ranks of one host are neighbours."""
        worker = [str(self.python), str(WORKER), self.library]
        each = np // len(self.hosts)
        return [
            self.hosts[rank // each].command(
                "env", *self.settings, f"RONDE_RANK={rank}", f"RONDE_SIZE={np}", f"GLOO_SOCKET_IFNAME={CABLE}", *worker
            )
            for rank in range(np)
        ]


def bits_per_second(rate: str) -> float:
    """The number of a rate as tc(8) writes it: '200mbit'; infinity for 'full'. Raises ValueError."""
    if rate == FULL:
        return math.inf
    found = re.fullmatch(r"([0-9.]+)([kmg]bit)", rate)
    if found is None:
        raise ValueError(f"rate {rate!r}: must be a number and kbit, mbit or gbit")
    return float(found[1]) * _UNITS[found[2]]


def wire_seconds(hosts: int, nbytes: int, rate: str) -> float:
    """The time in which the links of `hosts` hosts can pass what an allreduce must send over them."""
    return 2 * (hosts - 1) / hosts * nbytes * 8 / (bits_per_second(rate) * PAYLOAD)


@contextlib.contextmanager
def world(
    shape: str,
    rates: Sequence[str],
    contenders: Sequence[tuple[str, str, tuple[str, ...]]],
    delay: float = 0.0,
    loss: float = 0.0,
    burst: str = BURST,
    congestion: str | None = None,
    before: Path | None = None,
) -> Iterator[list[Job]]:
    """The jobs of all contenders (name, library, settings) in one world, whose hosts have links of `rates`, and TCP's
    congestion control: without a name that of the machine. `before`: the interpreter of the contender of this name."""
    hosts, each = (int(number) for number in shape.split("x"))
    names = [f"host{index}" for index in range(hosts)]
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(names, delay=delay))
        for name, rate in zip(names, rates, strict=True):
            if rate != FULL:
                network.slow(name, rate, "400ms", burst)
            if congestion is not None:
                network.hosts[name].run("sysctl -q -w", f"net.ipv4.tcp_congestion_control={congestion}")
            if loss:
                network.drop_some(name, loss / 2)  # a packet passes two ports
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ronde-compare-")))
        jobs = []
        for name, library, settings in contenders:
            places = tuple(network.hosts[host] for host in names)
            store = f"RONDE_STORE=file://{directory}/{name}"
            (directory / name).mkdir()
            python = before if name == BEFORE and before is not None else Path(sys.executable)
            contender = AcrossHosts(name, library, python, None, places, (*settings, store, "RONDE_SECRET="))
            jobs.append(Job(contender, hosts * each, "tcp", directory))
            stack.callback(jobs[-1].close)
        yield jobs


def print_line(shape: str, rate: str, line: Line, names: Sequence[str]) -> None:
    """One row of the table."""
    wire = wire_seconds(int(shape.split("x")[0]), line.size, rate)
    row = f"{shape:>6}{rate:>9}{size_text(line.size):>9}{time_text(wire):>11}"
    row += "".join(f"{time_text(line.median(name)):>11}" for name in names)
    row += "".join(f"{line.ratio(name):>16.2f}" for name in names if name != OURS)
    print(f"{row}{wire / line.median(OURS):>8.0%}{line.wrong:>7}  {', '.join(line.algorithms[OURS])}", flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="*", default=WORLDS, metavar="HxR", help=f"default: {' '.join(WORLDS)}")
    parser.add_argument("--rates", nargs="*", default=RATES, metavar="RATE", help=f"default: {' '.join(RATES)}")
    parser.add_argument("--min", type=byte_count, default=1 << 16, metavar="SIZE", help="smallest size (default: 64K)")
    parser.add_argument("--max", type=byte_count, default=SIZES[-1], metavar="SIZE", help="largest size")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS", help="added to each way between hosts")
    parser.add_argument("--loss", type=float, default=0.0, metavar="PART", help="of the packets, as 0.001")
    parser.add_argument("--algorithms", nargs="*", default=[], metavar="NAME", help="also by these, one job each")
    parser.add_argument("--before", type=Path, metavar="PYTHON", help="interpreter of another checkout of Ronde")
    parser.add_argument("--no-gloo", action="store_true", help="without gloo")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender per line (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args(arguments)
    for rate in options.rates:
        try:
            bits_per_second(rate)
        except ValueError as error:
            parser.error(str(error))
    if not all(re.fullmatch("([2-9]|1[0-9])x[1-9]", shape) for shape in options.worlds):
        parser.error("--worlds: each must be hosts x ranks, as 4x2")
    if not 0 <= options.delay <= 1:
        parser.error(f"--delay {options.delay}: must be 0 to 1 second")
    if not 0 <= options.loss <= 0.1:
        parser.error(f"--loss {options.loss}: must be 0 to 0.1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; 1 if any result was wrong, 2 if there can be no network namespaces."""
    options = parse(arguments)
    reason = obstacle()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    contenders = [(OURS, OURS, ("RONDE_TRANSPORT=auto",))]
    contenders += [(name, OURS, ()) for name in options.algorithms]
    contenders += [(BEFORE, OURS, ("RONDE_TRANSPORT=auto",))] if options.before is not None else []
    contenders += [] if options.no_gloo else [("gloo", "gloo", ())]
    names = [name for name, _, _ in contenders]
    before = None if options.before is None else options.before.absolute()
    rows = []
    print(f"{'world':>6}{'rate':>9}{'size':>9}{'wire':>11}" + "".join(f"{name:>11}" for name in names), end="")
    print("".join(f"{name + ' / ' + OURS:>16}" for name in names[1:]) + f"{'of wire':>8}{'wrong':>7}  algorithm")
    for shape in options.worlds:
        ranks = math.prod(int(number) for number in shape.split("x"))
        for rate in options.rates:
            with world(
                shape, [rate] * int(shape.split("x")[0]), contenders, options.delay, options.loss, before=before
            ) as jobs:
                for job in jobs:
                    job.algorithm = job.name if job.name in options.algorithms else None
                for size in SIZES:
                    if options.min <= size <= options.max:
                        line = measure(jobs, "allreduce", size, ranks, options.rounds, turn=TURN)
                        print_line(shape, rate, line, names)
                        way = {"rate": rate, "delay": options.delay, "loss": options.loss}
                        rows.append({"world": shape, **way, **dataclasses.asdict(line)})
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "lines": rows}, indent=1) + "\n")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
