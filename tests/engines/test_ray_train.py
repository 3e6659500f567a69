"""Trainers of Ray Train whose workers Ronde connects, in a cluster of two raylets; `make engines` runs these tests."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

import collectives
from examples import ray_digits

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ronde[ray]'")
pytest.importorskip("ray.train", reason="Ray Train is not installed: pip install 'ronde[ray]'")

from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: E402

import ronde.ray as engine  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Ray's own
    pytest.mark.usefixtures("ray_cluster"),
]


def on_both_nodes(size: int) -> Any:
    """2 or 4 workers on both nodes: a node has room for two."""
    return ScalingConfig(num_workers=size, placement_strategy="STRICT_SPREAD" if size == 2 else "PACK")


def data_parallel(loop: Any, folder: Path, size: int, **options: Any) -> Any:
    """A trainer without torch."""
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer(
        loop,
        backend_config=engine.RondeConfig(torch=False, **options),
        scaling_config=on_both_nodes(size),
        run_config=RunConfig(storage_path=str(folder / "runs"), failure_config=FailureConfig(max_failures=1)),
    )


def outcomes(folder: Path) -> list[Any]:
    """The values that the ranks wrote, in rank order."""
    return [pickle.loads(path.read_bytes()) for path in sorted(folder.glob("rank-*"))]


@pytest.mark.parametrize("size", [2, 4])
def test_the_digits_are_those_of_ronde_run(tmp_path: Path, size: int) -> None:
    def loop() -> None:
        result = ray_digits.train(3)
        context = ray.train.get_context()
        assert (collectives.rank(), collectives.size()) == (context.get_world_rank(), context.get_world_size())
        node = ray.get_runtime_context().get_node_id()
        (tmp_path / f"rank-{collectives.rank()}").write_bytes(pickle.dumps((result, node)))

    data_parallel(loop, tmp_path, size).fit()
    found = outcomes(tmp_path)
    first, last = found[0][1], found[-1][1]
    assert first != last
    assert [node for _, node in found] == [first] * (size // 2) + [last] * (size // 2)
    assert [result for result, _ in found] == collectives.run(ray_digits.train, size, [3])


@pytest.mark.parametrize("size", [2, 4])
def test_torch_trains_on_the_backend(tmp_path: Path, size: int) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")
    from ray.train.torch import TorchTrainer

    def loop() -> None:
        import ray.train.torch
        import torch
        import torch.distributed as dist

        torch.manual_seed(dist.get_rank())
        model = ray.train.torch.prepare_model(torch.nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        weights = [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
        collectives.init()
        assert collectives.rank() == dist.get_rank()
        found = dist.get_backend(), type(model).__name__, float(collectives.allreduce(1.0)), weights
        (tmp_path / f"rank-{dist.get_rank()}").write_bytes(pickle.dumps(found))

    config = RunConfig(storage_path=str(tmp_path / "runs"))
    TorchTrainer(loop, torch_config=engine.RondeConfig(), scaling_config=on_both_nodes(size), run_config=config).fit()
    found = outcomes(tmp_path)
    assert len(found) == size
    assert found[0][:3] == ("ronde", "DistributedDataParallel", float(size))
    assert all(other == found[0] for other in found)


def test_after_a_lost_worker_the_next_group_has_a_world_of_its_own(tmp_path: Path) -> None:
    def loop() -> None:
        collectives.init()
        if not (tmp_path / "begun").exists():
            collectives.barrier()
            if collectives.rank() == 1:
                (tmp_path / "begun").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            collectives.barrier()
        row = os.environ["RONDE_JOB"], os.environ["COLOUR"], float(collectives.allreduce(1.0))
        (tmp_path / f"rank-{collectives.rank()}").write_bytes(pickle.dumps(row))

    data_parallel(loop, tmp_path, 2, env_vars={"COLOUR": "green"}).fit()
    first, second = outcomes(tmp_path)
    assert first == second
    assert first[1:] == ("green", 2.0)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="timeout_s=0"):
        engine.RondeConfig(timeout_s=0)
