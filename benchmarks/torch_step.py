"""A training step by `frontends.torch.DistributedOptimizer`, beside DistributedDataParallel on gloo and on `ronde`.

    python benchmarks/torch_step.py                                  2 ranks, shm, 100 MB of gradients
    python benchmarks/torch_step.py --batch 128 --json benchmarks/results/torch-step-2-ranks-shm.json
    python benchmarks/torch_step.py --norm --layers 120 --width 64 --batch 16          many small tensors
    python benchmarks/torch_step.py compute hvd horovod              beside Horovod, where it is installed

All are run by the same processes, one after the other and in changing order, `--rounds` times; a time is that of the
slowest rank. Contenders:

    compute      forward, backward, SGD, without communication
    hvd          the same with hvd.DistributedOptimizer
    hvd views    the same with gradient_as_bucket_view=True
    ddp gloo     the same with DistributedDataParallel over torch's gloo
    ddp ronde    the same with DistributedDataParallel over the backend `ronde`
    flat         an allreduce in place of one array as large as all gradients
    grouped      an allreduce in place of arrays like the gradients
    horovod      Horovod's DistributedOptimizer, by gloo over TCP; only if it is named, since its thread, which wakes
                 each millisecond, takes time from the others (benchmarks/README.md tells how to build it)

The ratios are medians over the rounds of ratios within a round. "ddp gloo / hvd" above 1: Ronde's step is faster.
"hvd / longer" compares with the longer of compute and flat, the time of a step in which one hides the other completely.
This needs cores for both. If each rank has only one core, they share it, and the step takes at least as long as compute
and flat one after the other, with which "hvd / sum" compares. A larger `--batch` makes compute longer; with the default
it is about as short as possible, since reading the weights takes time too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import collectives
import frontends.torch as hvd
import frontends.torch.distributed  # noqa: F401 - the backend "ronde"
from collectives.launch.store_keeper import free_port
from frontends.command_line.bench import machine

HERE = Path(__file__).resolve().parent
TIMEOUT = 1800.0
KEEP = {"MALLOC_TRIM_THRESHOLD_": "16000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
"""Environment in which glibc keeps freed memory. Gradients are freed in every step. By default glibc returns their
pages to the system or not, depending on later allocations, which made one contender or another slower by half."""
CONTENDERS = ("compute", "hvd", "hvd views", "ddp gloo", "ddp ronde", "flat", "grouped")
HOROVOD = "horovod"


def network(options: argparse.Namespace) -> torch.nn.Sequential:
    """layers * (width + 1) * width parameters in 2 * layers tensors, the same on all ranks; with --norm as many tensors
    more, of 2 * layers * width parameters."""
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for _ in range(options.layers):
        parts.append(torch.nn.Linear(options.width, options.width))
        if options.norm:
            parts.append(torch.nn.LayerNorm(options.width))
        parts.append(torch.nn.ReLU())
    return torch.nn.Sequential(*parts[:-1])


def steps(options: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """The step of each contender."""
    rank, comm = hvd.rank(), collectives.world()
    x = torch.randn(options.batch, options.width, generator=torch.Generator().manual_seed(rank))

    def training(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step

    def plain() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = network(options)
        return model, torch.optim.SGD(model.parameters(), lr=1e-3)

    def parallel(group: Any) -> Callable[[], object]:
        model, optimizer = plain()
        return training(torch.nn.parallel.DistributedDataParallel(model, process_group=group), optimizer)

    def optimized(**how: Any) -> Callable[[], object]:
        model, optimizer = plain()
        hvd.broadcast_parameters(model.state_dict(), 0)
        return training(model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), **how))

    def by_horovod() -> Callable[[], object]:
        import horovod.torch as horovod

        model, optimizer = plain()
        horovod.broadcast_parameters(model.state_dict(), 0)
        return training(model, horovod.DistributedOptimizer(optimizer, model.named_parameters()))

    arrays = [np.ones(tuple(parameter.shape), np.float32) for parameter in network(options).parameters()]
    flat = np.ones(sum(array.size for array in arrays), np.float32)
    return {
        "compute": training(*plain()),
        "hvd": optimized(),
        "hvd views": optimized(gradient_as_bucket_view=True),
        "ddp gloo": parallel(None),
        "ddp ronde": parallel(dist.new_group(backend="ronde")),
        "flat": lambda: comm.allreduce(flat, "average", out=flat),
        "grouped": lambda: comm.grouped_allreduce(arrays, "average", out=arrays),
    } | ({HOROVOD: by_horovod()} if HOROVOD in options.contenders else {})


@contextlib.contextmanager
def horovod_meeting(size: int) -> Iterator[int]:
    """Serves the store where Horovod's ranks, all on this host, meet; gives its port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(f"localhost:{size}"), size))
    try:
        yield port
    finally:
        server.stop()


def start_horovod(rank: int, size: int, port: int) -> None:
    """Start Horovod in this process, by the variables that its launcher sets."""
    import horovod.torch as horovod

    given = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "CROSS_RANK": 0, "CROSS_SIZE": 1}
    given |= {"HOSTNAME": "localhost", "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "GLOO_IFACE": "lo"}
    given |= {"GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "GLOO_RENDEZVOUS_PORT": port}
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in given.items()})
    horovod.init()


def rank_body(options: argparse.Namespace, meeting: str, horovod_port: int) -> dict[str, list[float]]:
    """One rank: its seconds per step for each contender and round."""
    torch.set_num_threads(options.threads)
    comm = collectives.world()
    if horovod_port:
        start_horovod(comm.rank, comm.size, horovod_port)
    dist.init_process_group("gloo", init_method=meeting, rank=comm.rank, world_size=comm.size)
    contenders = {name: step for name, step in steps(options).items() if name in options.contenders}
    for step in contenders.values():  # DistributedDataParallel makes its buckets in the first
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for index in range(options.rounds):
        shift = index % len(names)
        for name in [*names[shift:], *names[:shift]]:
            comm.barrier()
            began = time.perf_counter()
            for _ in range(options.steps):
                contenders[name]()
            times[name].append((time.perf_counter() - began) / options.steps)
    contenders.clear()  # gloo's models must be gone before its group is
    dist.destroy_process_group()
    return times


def median(values: Any) -> float:
    """The median as a float."""
    return float(np.median(values))


def ratios(times: dict[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    """Medians of the ratios within rounds, for the measured contenders."""
    found = {}
    if "hvd" in times:
        hvd_times = times["hvd"]
        for name in ("hvd views", "ddp gloo", "ddp ronde", HOROVOD):
            if name in times:
                found[f"{name} / hvd"] = median(times[name] / hvd_times)
        if {"compute", "flat"} <= set(times):
            found["hvd / longer"] = median(hvd_times / np.maximum(times["compute"], times["flat"]))
            found["hvd / sum"] = median(hvd_times / (times["compute"] + times["flat"]))
    if {"ddp gloo", "ddp ronde"} <= set(times):
        found["ddp gloo / ddp ronde"] = median(times["ddp gloo"] / times["ddp ronde"])
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", metavar="contender", help=f"default: {', '.join(CONTENDERS)}")
    parser.add_argument("-np", type=int, default=2, help="number of ranks (default: 2)")
    parser.add_argument("--transport", default="shm", help="Ronde's (default: shm)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads in a rank (default: 1)")
    parser.add_argument("--layers", type=int, default=24, help="of the network, two tensors each (default: 24)")
    parser.add_argument("--width", type=int, default=1020, help="of a layer (default: 1020: 25 million parameters)")
    parser.add_argument("--norm", action="store_true", help="a LayerNorm behind each layer: two tensors more")
    parser.add_argument("--batch", type=int, default=2, help="samples of a rank in a step (default: 2)")
    parser.add_argument("--rounds", type=int, default=21, help="turns of each contender (default: 21)")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args(arguments)
    unknown = set(options.contenders) - {*CONTENDERS, HOROVOD}
    if unknown:
        parser.error(f"contender: {', '.join(sorted(unknown))}: must be among {', '.join((*CONTENDERS, HOROVOD))}")
    options.contenders = options.contenders or list(CONTENDERS)
    numbers = ("threads", "layers", "width", "batch", "rounds", "steps")
    if options.np < 2 or min(getattr(options, name) for name in numbers) < 1:
        parser.error(f"-np must be 2 or more; {', '.join('--' + name for name in numbers)} 1 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    sys.path.insert(0, str(HERE))
    from compare import time_text

    options = parse(arguments)
    facts = machine() | {"torch": torch.__version__}
    os.environ.update(KEEP, OMP_NUM_THREADS=str(options.threads))
    meeting = f"tcp://127.0.0.1:{free_port('127.0.0.1')}"
    with horovod_meeting(options.np) if HOROVOD in options.contenders else contextlib.nullcontext(0) as port:
        given = options, meeting, port
        every = collectives.run(rank_body, options.np, given, transport=options.transport, timeout=TIMEOUT)
    times = {name: np.max([one[name] for one in every], axis=0) for name in every[0]}
    sizes = [parameter.numel() for parameter in network(options).parameters()]
    print(f"{options.np} ranks, {options.transport}, {facts['cores']} x {facts['cpu']}, load {facts['load']}")
    print(f"{sum(sizes) / 1e6:.1f} million parameters in {len(sizes)} tensors, batch {options.batch}")
    print(f"ronde on Python {facts['python']}, NumPy {facts['numpy']}; torch {facts['torch']}\n")
    for name, found in times.items():
        print(f"{name:>22}  {time_text(median(found)):>8}")
    print()
    comparisons = ratios(times)
    for name, ratio in comparisons.items():
        print(f"{name:>22}  {ratio:8.2f}")
    if options.json is not None:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        rows = {name: found.tolist() for name, found in times.items()}
        report = {"machine": facts, "settings": settings, "seconds": rows, "ratios": comparisons}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
