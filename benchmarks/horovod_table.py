"""Horovod's published scaling on 128 and 512 GPUs, predicted from its row of 16 GPUs: predicted, published, error.

    python -m benchmarks.horovod_table

Source of the figures: Horovod's README at commits d54e3a88, 6bb6a2db and 8318a898 (tf_cnn_benchmarks, 64 images a GPU,
25 Gbit/s with RDMA, NCCL). A host has 4 GPUs and, as is assumed, one NIC. Two values are fitted on 16 GPUs: the share
of the NIC's rate that is left for data, and the slowdown of computation in a job: waiting for the slowest GPU, and
communication beside it. The latency of a step of the ring is fitted on VGG-16 with 128 GPUs. The other five cells of
128 and 512 GPUs are predictions.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from collectives.proof import Topology
from collectives.simulation import predict_call

BATCH: Final = 64
FUSION: Final = 64 << 20
"""Bytes of a fused allreduce at most; a larger tensor is reduced alone."""
BACKWARD: Final = 2 / 3
"""Share of the backward pass in the time of a step."""
GPUS: Final = (16, 128, 512)


@dataclass(frozen=True)
class Layer:
    """Parameters that are ready together: how many, and their share of the backward pass."""

    parameters: float
    share: float


@dataclass(frozen=True)
class Model:
    """A published model: images a second of one GPU, its layers in the order of the backward pass, and the published
    efficiency by number of GPUs."""

    name: str
    rate: float
    layers: tuple[Layer, ...]
    published: dict[int, float]

    @property
    def alone(self) -> float:
        """Seconds of a step on one GPU."""
        return BATCH / self.rate


@dataclass(frozen=True)
class Fit:
    """The share of the NIC's rate left for data, the seconds of a step of the ring, and the time of computation in a
    job by that on one GPU."""

    efficiency: float = 0.9
    latency: float = 10e-6
    slowdown: float = 1.0


def evenly(millions: float, count: int) -> tuple[Layer, ...]:
    """Layers with equal sizes and times."""
    return (Layer(millions * 1e6 / count, 1 / count),) * count


INCEPTION: Final = Model("Inception V3", 134.4, evenly(23.8, 94), {16: 2022.6 / 16 / 134.4, 128: 0.90, 512: 0.90})
RESNET: Final = Model("ResNet-101", 119.4, evenly(44.5, 104), {16: 1746.2 / 16 / 119.4, 128: 0.90, 512: 0.90})
VGG: Final = Model(
    "VGG-16",
    130.9,
    (Layer(4.1e6, 0.005), Layer(16.8e6, 0.01), Layer(102.8e6, 0.03), *(Layer(14.7e6 / 13, 0.955 / 13),) * 13),
    {16: 1787.4 / 16 / 130.9, 128: 0.79, 512: 0.68},
)
MODELS: Final = (INCEPTION, RESNET, VGG)


def buckets(model: Model) -> list[tuple[float, int]]:
    """Return when each fused allreduce may begin, in seconds of computation, and its bytes."""
    found: list[tuple[float, int]] = []
    done, held = (1 - BACKWARD) * model.alone, 0
    for layer in model.layers:
        nbytes = round(4 * layer.parameters)
        if held and held + nbytes > FUSION:
            found.append((done, held))
            held = 0
        done += BACKWARD * model.alone * layer.share
        held += nbytes
    return [*found, (done, held)]


@functools.lru_cache(maxsize=4096)
def allreduce(gpus: int, nbytes: int, efficiency: float, latency: float) -> float:
    """Seconds of a ring allreduce, simulated."""
    step = f"{latency * 1e6:.6f}us"
    topology = Topology().change(
        (
            "ranks=4",
            "nic=25Gbit",
            f"far.latency={step}",
            f"far.overhead={step}",
            f"far.efficiency={efficiency}",
            f"near.latency={step}",
            "near.rate=10GB",
            "local.combine=0.0",
            "local.copy=0.0",
        )
    )
    return predict_call(topology.network(gpus), "allreduce", nbytes, algorithm="ring").seconds


def step_seconds(model: Model, gpus: int, fit: Fit) -> float:
    """Seconds of a training step: allreduces follow one another, and computation goes on beside them."""
    now = 0.0
    for ready, nbytes in buckets(model):
        now = max(now, ready * fit.slowdown) + allreduce(gpus, nbytes, fit.efficiency, fit.latency)
    return max(now, model.alone * fit.slowdown)


def efficiency(model: Model, gpus: int, fit: Fit) -> float:
    """Images a second of all GPUs, by those of as many single ones."""
    return model.alone / step_seconds(model, gpus, fit)


def _adjusted(fit: Fit, name: str, low: float, high: float, cells: Sequence[tuple[Model, int]]) -> Fit:
    """Return the fit with another value of one field, so that the cells have the published mean. Bisection: efficiency
    rises with `efficiency` and falls with the others."""
    wanted = sum(model.published[gpus] for model, gpus in cells)
    rises = name == "efficiency"
    for _ in range(18):
        middle = (low + high) / 2
        tried = dataclasses.replace(fit, **{name: middle})
        is_below = sum(efficiency(model, gpus, tried) for model, gpus in cells) < wanted
        low, high = (middle, high) if is_below == rises else (low, middle)
    return dataclasses.replace(fit, **{name: (low + high) / 2})


def fitted() -> Fit:
    """Fit the three values, each to the cells that depend on it most, until they agree."""
    fit = Fit()
    for _ in range(4):
        fit = _adjusted(fit, "efficiency", 0.3, 1.0, [(VGG, 16)])
        fit = _adjusted(fit, "slowdown", 1.0, 4.0, [(INCEPTION, 16), (RESNET, 16)])
        fit = _adjusted(fit, "latency", 0.0, 1e-3, [(VGG, 128)])
    return fit


def is_fitted(model: Model, gpus: int) -> bool:
    """True for the cells that `fitted` uses."""
    return gpus == 16 or (model is VGG and gpus == 128)


def main() -> int:
    """Print the table; 1 if a prediction is more than 10 % off."""
    fit = fitted()
    print(
        f"fitted: {fit.efficiency:.0%} of the NIC's rate, {fit.latency * 1e6:.1f} us for a step of the ring, "
        f"computation {fit.slowdown:.2f} times as long"
    )
    print(f"{'model':<14}{'GPUs':>5}{'predicted':>11}{'published':>11}{'error':>8}")
    worst = 0.0
    for gpus in GPUS:
        for model in MODELS:
            found, published, known = efficiency(model, gpus, fit), model.published[gpus], is_fitted(model, gpus)
            error = found / published - 1
            worst = worst if known else max(worst, abs(error))
            print(f"{model.name:<14}{gpus:>5}{found:>11.1%}{published:>11.1%}{error:>+8.1%}{'  fitted' * known}")
    print(f"worst prediction: {worst:.1%}")
    return int(worst > 0.1)


if __name__ == "__main__":
    sys.exit(main())
