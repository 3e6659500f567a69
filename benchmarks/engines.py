"""The start of ranks inside an engine: from the call to the end of `init` on the last rank, beside gloo started by the
engine's own library.

    python -m benchmarks.engines                        2 ranks, then 4, in Ray, Dask and Spark
    python -m benchmarks.engines --np 8 --engines dask --rounds 9 --json results.json

The engine is a local one of two nodes or workers, which runs before the call. The contenders of an engine run in turns,
and the first round is not counted. The figures are medians, with the fastest round in brackets:

    ray    RayExecutor (`start` and `run`); Ray Train's TorchTrainer with RondeConfig, and with its own gloo
    dask   ronde.dask.run; a task for each worker that calls init_process_group with gloo, as dask-pytorch-ddp does
    spark  ronde.spark.run; TorchDistributor with gloo, which starts torchrun in each task

All ranks are on this machine, so that their clocks are one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from collectives.launch import free_address
from frontends.command_line.bench import machine

Start = Callable[[int], float]
"""Starts that many ranks and ends them; the time (monotonic seconds) at which the last one was connected."""
ROOT = str(Path(__file__).resolve().parents[1])


def connected() -> float:
    """The time, on a rank that Ronde has connected. Raises RuntimeError if it has not."""
    import ronde

    ronde.world()
    return time.monotonic()


def connected_by_torch() -> float:
    """The time, on a rank whose process group is there."""
    import torch.distributed as dist

    assert dist.is_initialized()
    return time.monotonic()


def join_gloo() -> float:
    """Make the process group from the environment of torchrun; the time after that."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = time.monotonic()
    dist.barrier()  # gloo fails on a rank that is left before it has connected to all
    dist.destroy_process_group()
    return found


@contextlib.contextmanager
def in_ray(size: int) -> Iterator[Mapping[str, Start]]:
    """Two raylets."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_TRAIN_V2_ENABLED": "1"}
    import ray
    from ray.cluster_utils import Cluster
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from ronde.ray import RayExecutor, RondeConfig

    def executor(count: int) -> float:
        with RayExecutor(num_workers=count) as ranks:
            return float(max(ranks.run(connected)))

    def trainer(config: Callable[[], Any], count: int) -> float:
        with tempfile.TemporaryDirectory() as folder:

            def loop() -> None:
                number = ray.train.get_context().get_world_rank()
                Path(folder, f"rank-{number}").write_text(str(connected_by_torch()))

            TorchTrainer(
                loop,
                torch_config=config(),
                scaling_config=ScalingConfig(num_workers=count),
                run_config=RunConfig(storage_path=str(Path(folder, "runs"))),
            ).fit()
            return max(float(path.read_text()) for path in Path(folder).glob("rank-*"))

    nodes = {"num_cpus": (size + 1) // 2 + 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**nodes, "include_dashboard": False})
    cluster.add_node(**nodes)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield {
        "RayExecutor": executor,
        "TorchTrainer, RondeConfig": lambda count: trainer(RondeConfig, count),
        "TorchTrainer, gloo": lambda count: trainer(lambda: TorchConfig(backend="gloo"), count),
    }
    ray.shutdown()
    cluster.shutdown()


@contextlib.contextmanager
def in_dask(size: int) -> Iterator[Mapping[str, Start]]:
    """A worker process for each rank."""
    from distributed import Client, LocalCluster

    from ronde.dask import run

    def by_hand(client: Client, count: int) -> float:
        workers = sorted(client.scheduler_info(n_workers=-1)["workers"])[:count]
        address, port = client.run(free_address, "127.0.0.1", workers=workers[:1])[workers[0]]

        def join(rank: int) -> float:
            os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
            return join_gloo()

        tasks = [
            client.submit(join, rank, workers=[worker], pure=False, allow_other_workers=False)
            for rank, worker in enumerate(workers)
        ]
        return float(max(client.gather(tasks)))

    with (
        LocalCluster(n_workers=size, threads_per_worker=1, dashboard_address=None, protocol="tcp") as cluster,
        Client(cluster) as client,
    ):
        yield {
            "ronde.dask.run": lambda count: max(run(client, connected, np=count)),
            "tasks with gloo": lambda count: by_hand(client, count),
        }


@contextlib.contextmanager
def in_spark(size: int) -> Iterator[Mapping[str, Start]]:
    """Two workers."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    from ronde.spark import run

    def gathered() -> float:
        """The latest time of all ranks: TorchDistributor returns that of rank 0 alone."""
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        found = torch.tensor(time.monotonic(), dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        dist.destroy_process_group()
        return found.item()

    builder = SparkSession.builder.master(f"local-cluster[2,{(size + 1) // 2},1024]").config("spark.ui.enabled", False)
    builder = builder.config("spark.executorEnv.PYTHONPATH", ROOT).config("spark.log.level", "OFF")
    with builder.getOrCreate():
        yield {
            "ronde.spark.run": lambda count: max(run(connected, num_proc=count)),
            "TorchDistributor, gloo": lambda count: float(
                TorchDistributor(num_processes=count, local_mode=False, use_gpu=False).run(gathered)
            ),
        }


ENGINES = {"ray": in_ray, "dask": in_dask, "spark": in_spark}
PACKAGES = {"ray": "ray", "dask": "distributed", "spark": "pyspark"}


def measure(engine: str, size: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of each round of each contender."""
    with ENGINES[engine](size) as contenders:
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(rounds + 1):
            for name, start in contenders.items():
                begun = time.monotonic()
                taken = start(size) - begun
                if number:
                    seconds[name].append(taken)
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the starts; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, nargs="+", default=[2, 4], metavar="N", help="ranks (default: 2 4)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args(arguments)
    found = {"machine": machine(), "torch": version("torch")}
    for engine in options.engines:
        release = version(PACKAGES[engine])
        by_ranks: dict[int, dict[str, list[float]]] = {}
        for size in options.np:
            by_ranks[size] = measure(engine, size, options.rounds)
            print(f"\n{PACKAGES[engine]} {release}, {size} ranks, load {os.getloadavg()[0]:.1f}; seconds")
            for name, taken in by_ranks[size].items():
                print(f"  {name:<26} {statistics.median(taken):6.2f}  ({min(taken):.2f})", flush=True)
        found[engine] = {"version": release, "seconds": by_ranks}
    if options.json is not None:
        options.json.write_text(f"{json.dumps(found, indent=1)}\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
