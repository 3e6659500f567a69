"""One training step on one network: its gradients become ready, are negotiated, fused by the rules of the runtime, and
reduced one bundle after another beside the computation.

The rule of the coordinator is followed too: while a batch runs, operations gather; those that all ranks have submitted
at its end are the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collectives.operations import Buffer, Signature, array_sizes, bundles
from collectives.proof import Network
from collectives.simulation.prediction import predict_call


@dataclass(frozen=True, slots=True)
class Gradient:
    """A named allreduce of a step. `ready`: the seconds after the beginning of the step until it is submitted."""

    name: str
    ready: float
    signature: Signature


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A step: its gradients in the order of `ready`, and the seconds of computation of all of it."""

    gradients: tuple[Gradient, ...]
    computation: float

    @property
    def nbytes(self) -> int:
        """The bytes of all gradients."""
        return sum(sum(array_sizes(gradient.signature)) for gradient in self.gradients)


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """The prediction of a step, in seconds.

    seconds        until computation and communication have ended
    computation    of the slowest rank
    communication  of the collectives and of packing, hidden behind the computation or not
    calls          number of collectives, after fusion
    """

    ranks: int
    seconds: float
    computation: float
    communication: float
    calls: int

    @property
    def exposed(self) -> float:
        """Seconds that are not hidden behind the computation."""
        return self.seconds - self.computation

    def efficiency(self, alone: float) -> float:
        """The scaling efficiency, where the step takes `alone` seconds on one rank."""
        return alone / self.seconds if self.seconds else 1.0


def predict_step(network: Network, step: TrainingStep, *, fusion: int, algorithm: str | None = None) -> StepPrediction:
    """Predict one step of synchronous training, all ranks of which compute as much as recorded.

    fusion     the most bytes of a bundle, as the setting `fusion_bytes`
    algorithm  of all allreduces; by default those that the signatures ask for, or Ronde would choose

    Computation takes as long as on the slowest host. Raises ValueError for an algorithm that cannot run there.
    """
    slow = max(network.slow, default=1.0)
    there, back = _negotiation(network)
    limit = Buffer().limit(fusion)
    waiting = sorted(step.gradients, key=lambda gradient: gradient.ready)
    known: dict[tuple[int, str | None], float] = {}
    free = communication = 0.0
    calls = first = 0
    while first < len(waiting):
        decided = max(free, waiting[first].ready * slow + there)
        last = first
        while last < len(waiting) and waiting[last].ready * slow + there <= decided:
            last += 1
        free = decided + back
        for nbytes, packed, asked in _calls([gradient.signature for gradient in waiting[first:last]], limit):
            key = nbytes, algorithm or asked
            if key not in known:
                known[key] = predict_call(network, "allreduce", nbytes, algorithm=key[1]).seconds if nbytes else 0.0
            seconds = known[key] + packed * 2 * nbytes * network.costs.copy * slow  # into the buffer, and back
            free += seconds
            communication += seconds
            calls += 1
        first = last
    computation = step.computation * slow
    return StepPrediction(network.size, max(free, computation), computation, communication, calls)


def _calls(operations: Sequence[Signature], limit: int) -> Iterator[tuple[int, bool, str | None]]:
    """Yield the allreduces of one batch: bytes, whether arrays are packed, and the algorithm that callers ask for."""
    for bundle in bundles(operations, limit):
        nbytes = 0
        for operation, array in bundle:
            sizes = array_sizes(operations[operation])
            nbytes += sum(sizes) if array < 0 else sizes[array]
        yield nbytes, len(bundle) > 1, operations[bundle[0].operation].algorithm


def _negotiation(network: Network) -> tuple[float, float]:
    """The seconds from the last submission to the decision of rank 0, and from there to the last rank.

    Rank 0 exchanges messages with all ranks. Those of other hosts occupy it, one after another.
    """
    far = sum(host != network.hosts[0] for host in network.hosts)
    if not far:
        seconds = network.costs.alpha * (network.size > 1)
    else:
        farthest = max(network.latency(network.hosts[0], host) for host in set(network.hosts) - {network.hosts[0]})
        seconds = farthest + (far - 1) * network.overhead
    return seconds, seconds
