"""Wrong collectives that other libraries have shipped, modelled as schedules: the prover refuses each, and accepts the
mended one. docs/published-bugs.md tells of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from collectives.algorithms import Algorithm, Cost
from collectives.proof.all_ranks import Lowered, lower_ranks
from collectives.proof.verify import ProofError, check, prove
from collectives.schedule import Geometry, Kind, Step, copy, inp, out, recv, reduce, scratch, send


def model(collective: str, generate: Callable[[Geometry], Iterator[Step]], traffic: int, segmented: bool) -> Algorithm:
    """An algorithm for the prover alone; its name is that of the report."""
    return Algorithm(
        generate,
        collective,
        generate.__name__,
        cost=lambda g: Cost(0, 0),
        traffic=lambda g: Fraction(traffic * (g.size - 1)),
        segmented=segmented,
    )


# gloo's ReduceScatterHalvingDoubling, by jax.lax.psum_scatter: https://github.com/jax-ml/jax/issues/40830


def jax_40830(g: Geometry) -> Iterator[Step]:
    """The first halving of two ranks. Each works in one buffer, from which it sends, and at whose beginning it then
    puts its result."""
    other, label = 1 - g.rank, "halving"
    yield copy(inp(0, 2), scratch(0, 0, 2, base=0), "fill the buffer")
    yield recv(other, scratch(2, g.rank), label)
    yield send(other, scratch(0, other, base=0), label)
    yield reduce(scratch(0, g.rank, base=0), scratch(2, g.rank), scratch(0, g.rank), "to the beginning of the buffer")
    yield copy(scratch(0, g.rank), out(g.rank), "result")


def without_waiting_for_sends(lowered: Lowered) -> Lowered:
    """The same programs, but no rank waits for its SENDs before the end."""
    programs = []
    for program in lowered.programs:
        sends = {step.request for step in program.instructions if step.kind is Kind.SEND}
        late = [step for step in program.instructions if step.kind is Kind.AWAIT and step.request in sends]
        kept = [step for step in program.instructions if step not in late]
        programs.append(replace(program, instructions=(*kept, *late)))
    return replace(lowered, programs=tuple(programs))


def test_a_buffer_is_overwritten_while_it_is_sent() -> None:
    """Rank 0 gets wrong values at the end of its result, now and then, as the send of rank 1 is late."""
    algorithm = replace(model("reduce_scatter", jax_40830, 1, False), traffic=lambda g: Fraction(1))
    lowered = lower_ranks(algorithm, 2)
    check(lowered)  # lowering finds the overlap, and waits
    with pytest.raises(ProofError, match=r"rank 1 .* REDUCE 'to the beginning .*pending SEND"):
        check(without_waiting_for_sends(lowered))


# MLX's bidirectional ring of the backend jaccl: https://github.com/ml-explore/mlx/pull/4443


def _both_directions(g: Geometry, upper: int) -> Iterator[Step]:
    """An allgather around a ring in both directions; half of every block goes each way. `upper` is the half that is
    sent to the left."""
    yield copy(inp(2 * g.rank, 2), out(2 * g.rank, 2), "own block")
    right, left = (g.rank + 1) % g.size, (g.rank - 1) % g.size
    for k in range(g.size - 1):
        ahead, behind = (g.rank + k) % g.size, (g.rank - k) % g.size
        yield recv(left, out(2 * ((behind - 1) % g.size)), "to the right")
        yield recv(right, out(2 * ((ahead + 1) % g.size) + 1), "to the left")
        yield send(right, out(2 * behind), "to the right")
        yield send(left, out(2 * ahead + upper), "to the left")


def mlx_4443(g: Geometry) -> Iterator[Step]:
    """Both directions send the lower half."""
    return _both_directions(g, 0)


def mended_4443(g: Geometry) -> Iterator[Step]:
    """Each direction sends its own half."""
    return _both_directions(g, 1)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_both_directions_of_a_ring_send_the_same_half(size: int) -> None:
    prove(model("allgather", mended_4443, 1, True), size, segments=2)
    with pytest.raises(ProofError, match=r"allgather 'mlx_4443': .*(element|written)"):
        prove(model("allgather", mlx_4443, 1, True), size, segments=2)
