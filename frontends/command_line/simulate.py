"""`ronde simulate`: times of collectives on a network that you need not have, in the columns of nccl-tests."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from collectives.algorithms import algorithms
from collectives.config import Config
from collectives.planning import Costs, Rule, Rules
from collectives.proof import Network, Topology, simulate_on
from collectives.schedule import SPECS
from collectives.simulation import Prediction, choices, predict_call, predict_step
from frontends.command_line.arguments import byte_count, output_file, writing
from frontends.command_line.bench import bus_factor
from frontends.command_line.measuring import progress
from frontends.command_line.plots import Curves, add_plot, plot_scaling, plot_sizes
from frontends.command_line.training import read_layers, read_trace
from frontends.command_line.tune import Found, rules

DESCRIPTION: Final = "Simulate collectives on a network of hosts, from the steps that run."
EXAMPLES: Final = """\
examples:
  ronde simulate allreduce --ranks 16..1024 --size 1M          hosts of one rank with 25 Gbit/s, without a file
  ronde simulate allreduce --topology cluster.toml --ranks 16..10000 --size 1K..1G
  ronde simulate allreduce --ranks 64 --size 64M --what-if nic=100Gbit,algorithm=ring
  ronde simulate --topology cluster.toml --ranks 64 --rules cluster-rules.toml
  ronde simulate --ranks 8 --size 1M --algorithm ring --timeline ring.json
  ronde simulate --trace runs --topology cluster.toml --ranks 2..512 --plot scaling.png
  ronde simulate --layers vgg16.csv --ranks 16..512 --what-if nic=100Gbit

The file of --topology has tables [[hosts]], [far], [near], [switch], [local] and [noise]; the documentation has an
example. The columns are those of nccl-tests. algorithm: the one that Ronde would choose there. bottleneck: what takes
most of the time: latency, link (bytes between hosts), host (bytes inside one), combine or copy. engine: exact (events,
shared links), vector (all ranks at once) or model (the formula of the cost model, where others would take too long).

With --trace or --layers a step of training is predicted: its gradients are fused by the rules that run, and reduced
beside the computation. exposed: communication that computation does not hide. efficiency: computation of the step, by
the whole of it.
"""
SIZES: Final = (1 << 10, 1 << 16, 1 << 20, 1 << 26)
MOST_IN_TIMELINE: Final = 64
"""Ranks of a timeline at most."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    parser.add_argument(
        "collective", nargs="?", default="allreduce", choices=[name for name in SPECS if name != "barrier"]
    )
    parser.add_argument("--topology", type=Path, metavar="FILE", help="the network, in TOML")
    parser.add_argument(
        "--ranks",
        type=_range(_ranks, 2),
        default=(16,),
        metavar="N",
        help="numbers of ranks: 16, 16,100 or 16..1024 (doubling)",
    )
    parser.add_argument(
        "--size",
        type=_range(byte_count, 4),
        default=SIZES,
        metavar="SIZE",
        help="sizes: 64K, 1K,1M or 1K..1G (in factors of four)",
    )
    parser.add_argument("--algorithm", metavar="NAME", help="algorithm to simulate (default: Ronde's choice)")
    parser.add_argument(
        "--what-if",
        metavar="KEY=VALUE,...",
        help="compare with another network or algorithm: nic=100Gbit, far.latency=5us, algorithm=ring",
    )
    parser.add_argument("--rules", type=output_file, metavar="OUT", help="write the fastest algorithms as a rule table")
    parser.add_argument(
        "--timeline",
        type=output_file,
        metavar="OUT",
        help="write one call for Perfetto: the last size on the first ranks",
    )
    training = parser.add_mutually_exclusive_group()
    training.add_argument(
        "--trace", type=Path, metavar="DIR", help="predict the training whose timelines (setting timeline) are in DIR"
    )
    training.add_argument(
        "--layers",
        type=Path,
        metavar="FILE",
        help="predict training of a model: .csv or .toml with name, bytes, backward, forward (seconds) of each layer",
    )
    parser.add_argument(
        "--fusion",
        type=_fusion,
        metavar="SIZE",
        help="with --trace and --layers: largest group of fused gradients, like the setting fusion_bytes; 0: no fusion",
    )
    add_plot(parser)


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of ranks, 1 to {1 << 20}")
    return int(text)


def _fusion(text: str) -> int:
    return 0 if text == "0" else byte_count(text)


def _range(read: Callable[[str], int], factor: int) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of '1K', '1K,1M' and '1K..1G'; the last is always included."""

    def parse(text: str) -> tuple[int, ...]:
        low, dots, high = text.partition("..")
        if not dots:
            return tuple(read(part) for part in text.split(","))
        values, last = [read(low)], read(high)
        if values[0] > last:
            raise argparse.ArgumentTypeError(f"{text!r}: must rise")
        while values[-1] * factor < last:
            values.append(values[-1] * factor)
        return tuple(dict.fromkeys([*values, last]))

    return parse


def main(args: argparse.Namespace) -> int:
    """Simulate; returns the exit code. Raises ConfigError for a bad topology and for files that cannot be written."""
    topology = Topology() if args.topology is None else Topology.read(args.topology)
    changes = [text for text in (args.what_if or "").split(",") if text]
    other = next((text.partition("=")[2] for text in changes if text.startswith("algorithm=")), args.algorithm)
    changed = topology.change(text for text in changes if not text.startswith("algorithm="))
    for name in (args.algorithm, other):
        if name is not None and name not in algorithms(args.collective):
            known = ", ".join(algorithms(args.collective))
            args.parser.error(f"algorithm {name}: for {args.collective} it must be one of {known}")
    networks = [(topology.network(ranks), changed.network(ranks)) for ranks in args.ranks]
    if args.fusion is not None and args.trace is None and args.layers is None:
        args.parser.error(f"--fusion {args.fusion}: is for training; give --trace or --layers as well")
    if args.trace is not None or args.layers is not None:
        return _training(args, networks, other if changes else None)
    sys.stdout.write(_head(args.collective, bool(changes)))
    curves: Curves = {}
    try:
        with progress("simulate", len(networks) * len(args.size)) as done:
            for (network, second), size in itertools.product(networks, args.size):
                found = predict_call(network, args.collective, size, algorithm=args.algorithm)
                if_so = predict_call(second, args.collective, size, algorithm=other) if changes else None
                sys.stdout.write(_line(args.collective, found, if_so))
                sys.stdout.flush()
                done(f"{found.ranks} ranks, {size} bytes")
                curves.setdefault(f"{found.ranks} ranks", []).append((size, found.seconds))
                if if_so is not None:
                    curves.setdefault(f"{found.ranks} ranks, {args.what_if}", []).append((size, if_so.seconds))
    except ValueError as error:  # an algorithm that cannot run there
        args.parser.error(str(error))
    if args.rules is not None:
        _write_rules(args, [network for network, _ in networks])
    if args.timeline is not None:
        _write_timeline(args, networks[0][0])
    if args.plot is not None:
        plot_sizes(args.plot, "ronde simulate", {args.collective: curves})
    return 0


def _training(args: argparse.Namespace, networks: Sequence[tuple[Network, Network]], other: str | None) -> int:
    """Predict steps of training; `other` is the algorithm of the second networks."""
    option = "--trace" if args.trace is not None else "--layers"
    fusion = Config().fusion_bytes if args.fusion is None else args.fusion
    for given, name in (
        (args.collective != "allreduce", args.collective),
        (args.size is not SIZES, "--size"),
        (args.rules is not None, "--rules"),
        (args.timeline is not None, "--timeline"),
    ):
        if given:
            args.parser.error(f"{name}: cannot be combined with {option}, whose allreduces it would not concern")
    compares = bool(args.what_if)
    step, about = read_layers(args.layers) if args.trace is None else read_trace(args.trace)
    tail = f"{'what if: step (ms)':>22}{'exposed':>12}{'efficiency':>12}{'ratio':>8}" if compares else ""
    sys.stdout.write(
        f"# training, simulated, from {about}\n"
        f"# {len(step.gradients)} gradients, {step.nbytes} bytes, computation {step.computation * 1e3:.3f} ms\n"
        f"#  ranks   calls   step (ms)  communication     exposed  efficiency{tail}\n"
    )
    curves: dict[str, list[tuple[int, float, float]]] = {}
    try:
        with progress("simulate", len(networks)) as done:
            for network, second in networks:
                found = predict_step(network, step, fusion=fusion, algorithm=args.algorithm)
                share = found.efficiency(step.computation)
                line = f"{found.ranks:>8}{found.calls:>8}{found.seconds * 1e3:>12.3f}{found.communication * 1e3:>15.3f}"
                line += f"{found.exposed * 1e3:>12.3f}{share:>12.1%}"
                curves.setdefault("as it is", []).append((found.ranks, share, found.exposed))
                if compares:
                    if_so = predict_step(second, step, fusion=fusion, algorithm=other)
                    share = if_so.efficiency(step.computation)
                    line += f"{if_so.seconds * 1e3:>22.3f}{if_so.exposed * 1e3:>12.3f}{share:>12.1%}"
                    line += f"{if_so.seconds / found.seconds if found.seconds else 1.0:>8.2f}"
                    curves.setdefault(args.what_if, []).append((if_so.ranks, share, if_so.exposed))
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
                done(f"{found.ranks} ranks")
    except ValueError as error:  # an algorithm that cannot run there
        args.parser.error(str(error))
    if args.plot is not None:
        plot_scaling(args.plot, "ronde simulate: a step of training", curves)
    return 0


def _head(collective: str, compares: bool) -> str:
    names = ("ranks", "size", "time", "algbw", "busbw"), ("", "(B)", "(us)", "(GB/s)", "(GB/s)")
    widths = (8, 12, 12, 9, 9)
    first, second = ("".join(f"{name:>{width}}" for name, width in zip(row, widths, strict=True)) for row in names)
    tail = "  algorithm             bottleneck  engine" + ("      what if: time   ratio  algorithm" * compares)
    return f"# {collective}, simulated\n#{first[1:]}{tail}\n#{second[1:]}\n"


def _line(collective: str, found: Prediction, other: Prediction | None) -> str:
    algbw = found.nbytes / found.seconds / 1e9 if found.seconds else 0.0
    busbw = algbw * bus_factor(collective, found.ranks)
    text = f"{found.ranks:>8} {found.nbytes:>11} {found.seconds * 1e6:>11.1f} {algbw:>8.2f} {busbw:>8.2f}"
    text += f"  {_name(found):<22}{found.bottleneck:<12}{found.engine:<8}"
    if other is not None:
        ratio = other.seconds / found.seconds if found.seconds else 1.0
        text += f"{other.seconds * 1e6:>18.1f}{ratio:>8.2f}  {_name(other)}"
    return text.rstrip() + "\n"


def _name(found: Prediction) -> str:
    return found.algorithm + (f" / {found.segments}" if found.segments > 1 else "")


def _write_rules(args: argparse.Namespace, networks: list[Network]) -> None:
    """Write the rules for algorithms that are faster than the one chosen by default."""
    table: list[Rule] = []
    for network in networks:
        found = []
        for size in args.size:
            default = predict_call(network, args.collective, size)
            times = {
                one.algorithm: one.seconds
                for choice in choices(network, args.collective, size)
                if (one := predict_call(network, args.collective, size, choice=choice)).engine != "model"
            }
            best = min(times, key=times.__getitem__, default=default.algorithm)
            found.append(Found(args.collective, size, default.seconds, best, times.get(best, default.seconds)))
        table += rules(found, network.size, "")
    costs = _costs(networks[0])
    made = Rules(rules=tuple(table), costs=(costs,))
    with writing(args.rules, "--rules"):
        made.write(args.rules, f"Written by: ronde {' '.join(args.words)}\nsimulated, not measured")
    sys.stdout.write(f"{len(table)} rules in {args.rules}\n")


def _costs(network: Network) -> Costs:
    model = network.model
    return Costs(
        alpha=model.alpha,
        beta=model.beta,
        gamma=model.gamma,
        copy=model.copy,
        inter_alpha=model.inter_alpha,
        inter_beta=model.inter_beta,
    )


def _write_timeline(args: argparse.Namespace, network: Network) -> None:
    """Write the last size as a timeline for Perfetto, by the exact engine."""
    if network.size > MOST_IN_TIMELINE:
        args.parser.error(f"--timeline: the first of --ranks is {network.size}, it must be {MOST_IN_TIMELINE} at most")
    found = predict_call(network, args.collective, args.size[-1], algorithm=args.algorithm)
    algorithm = algorithms(args.collective)[found.algorithm]
    lines = ",\n".join(json.dumps(event) for event in _events(network, found, algorithm))
    with writing(args.timeline, "--timeline"):
        args.timeline.write_text(f"[\n{lines}\n]\n", "utf-8")


def _events(network: Network, found: Prediction, algorithm: Any) -> Iterator[dict[str, Any]]:
    """The events of the Trace Event Format, in microseconds: a "process" for each rank."""
    for rank, host in enumerate(network.hosts):
        name = {"name": f"rank {rank} (host {host})"}
        yield {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": name}
        for track, text in enumerate(("local work", "messages")):
            yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": track, "args": {"name": text}}
    for entry in simulate_on(network, algorithm, found.nbytes, segments=found.segments).activity:
        event = {"name": entry.label, "pid": entry.rank, "tid": int(entry.peer >= 0), "ts": entry.begin * 1e6}
        if entry.peer < 0:
            yield event | {"ph": "X", "dur": (entry.end - entry.begin) * 1e6}
            continue
        both = {"cat": "messages", "id": f"{entry.rank}.{entry.begin}.{entry.peer}"}
        yield event | both | {"ph": "b", "args": {"to": entry.peer}}
        yield event | both | {"ph": "e", "ts": entry.end * 1e6}
