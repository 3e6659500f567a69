"""Every algorithm is proved for many sizes, and for small sizes in all variants.

RONDE_PROOF=long proves every size up to 257, which takes half an hour of two cores; by default SIZES.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from collectives.algorithms import Algorithm, algorithm, algorithms
from collectives.algorithms.registry import Cost
from collectives.proof.all_ranks import count_blocks
from collectives.proof.verify import Proof, prove
from collectives.schedule.contracts import SPECS
from collectives.schedule.steps import Geometry, Opcode, Step
from collectives.schedule.topology import Fold, rounds

ALL = [found for collective in SPECS for found in algorithms(collective).values()]
IN_PLACE = ("allreduce", "reduce", "broadcast", "allgather", "gather", "scan")
LONG = os.environ.get("RONDE_PROOF") == "long"
SIZES: list[Sequence[int]] = [[*range(1, 17), 24, 31, 32], [*range(17, 24), *range(25, 31), 47, 63, 64]]
"""The sizes of each test case. `make test` proves the first ones, `make nightly` the others, too."""
if LONG:
    SIZES = [range(1, 65), *(range(first, first + 8) for first in range(65, 257, 8)), [257]]

every_algorithm = pytest.mark.parametrize("tested", ALL, ids=lambda tested: f"{tested.collective}-{tested.name}")


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """Programs are large, free of cycles, and would be searched for them again and again."""
    gc.disable()
    yield
    gc.enable()


def host_patterns(size: int) -> list[tuple[int, ...]]:
    """One host, hosts of three, two hosts in turn, one rank alone, three hosts at random."""
    return [
        (0,) * size,
        tuple(rank // 3 for rank in range(size)),
        tuple(rank % 2 for rank in range(size)),
        tuple(int(rank > 0) for rank in range(size)),
        tuple(rank * rank % 3 for rank in range(size)),
    ]


def uneven(tested: Algorithm, size: int, shift: int = 0) -> list[int]:
    """Sizes of blocks, empty ones among them."""
    count = count_blocks(tested, size)
    return [5] * count if tested.uniform else [(0, 1, 3, 7)[(block * block + shift) % 4] for block in range(count)]


@pytest.mark.long
@pytest.mark.timeout(3600 if LONG else 240)
@every_algorithm
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{sizes[0]}-{sizes[-1]}")
def test_every_size_is_proved(tested: Algorithm, sizes: Sequence[int]) -> None:
    for size in sizes:
        prove(
            tested,
            size,
            root=(0, size - 1, size // 2)[size % 3] if SPECS[tested.collective].rooted else 0,
            segments=3 if tested.segmented and size % 4 == 1 and size < 20 else 1,
            hosts=host_patterns(size)[size % 5] if tested.multihost else (),
            in_place=size % 2 == 0 and tested.collective in IN_PLACE,
            calls=3 if size < 12 else 1,
        )


@every_algorithm
@pytest.mark.parametrize("sizes", [range(1, 5), range(5, 7)], ids=lambda sizes: f"{sizes[0]}-{sizes[-1]}")
def test_every_variant_is_proved(tested: Algorithm, sizes: Sequence[int]) -> None:
    """All combinations."""
    for size in sizes:
        roots = sorted({0, size // 2, size - 1}) if SPECS[tested.collective].rooted else [0]
        segmentings = (1, 2, 3) if tested.segmented else (1,)
        hostings = [(), *host_patterns(size)] if tested.multihost else [()]
        placings = (False, True) if tested.collective in IN_PLACE else (False,)
        for root, segments, hosts, in_place in product(roots, segmentings, hostings, placings):
            for blocks in (None, uneven(tested, size), uneven(tested, size, 2)):
                prove(tested, size, root=root, segments=segments, hosts=hosts, in_place=in_place, sizes=blocks)


@every_algorithm
def test_uneven_and_empty_blocks_and_many_segments_are_proved(tested: Algorithm) -> None:
    """So many segments that who ran ahead would leave the epochs behind that a window keeps."""
    for size in (9, 16, 23):
        hosts = host_patterns(size)[4] if tested.multihost else ()
        root = size - 2 if SPECS[tested.collective].rooted else 0
        segments = 3 if tested.segmented else 1
        prove(tested, size, root=root, segments=segments, hosts=hosts, sizes=uneven(tested, size), calls=1)
        prove(tested, size, root=root, hosts=hosts, sizes=[0] * count_blocks(tested, size), calls=1)
    for size in (2, 3, 5) if tested.segmented else ():
        prove(tested, size, root=size - 1 if SPECS[tested.collective].rooted else 0, segments=20)


def test_algorithms_have_their_public_names() -> None:
    """Names are part of the interface: callers and rule files use them."""
    assert {collective: set(algorithms(collective)) for collective in SPECS} == {
        "allreduce": {
            "ring",
            "circulant",
            "recursive_doubling",
            "halving_doubling",
            "tree",
            "double_tree",
            "hierarchical",
            "host_pipeline",
            "direct",
            "direct_segmented",
            "windowed",
            "single_copy",
        },
        "reduce": {"binomial", "chain", "halving_gather", "hierarchical", "direct", "direct_segmented"},
        "broadcast": {
            "binomial",
            "chain",
            "binary_tree",
            "double_tree",
            "circulant",
            "scatter_allgather",
            "hierarchical",
            "direct",
            "single_copy",
        },
        "allgather": {
            "ring",
            "circulant",
            "bruck",
            "recursive_doubling",
            "hierarchical",
            "direct",
            "windowed",
            "single_copy",
        },
        "reduce_scatter": {
            "ring",
            "circulant",
            "halving",
            "pairwise",
            "hierarchical",
            "direct",
            "windowed",
            "single_copy",
        },
        "gather": {"binomial", "linear", "hierarchical", "direct"},
        "scatter": {"binomial", "linear", "hierarchical", "direct"},
        "alltoall": {"pairwise", "bruck", "linear", "hierarchical", "direct", "windowed", "single_copy"},
        "scan": {"chain", "doubling"},
        "exscan": {"chain", "doubling"},
        "barrier": {"dissemination", "hierarchical", "direct"},
    }


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_tree_order_is_to_be_had_for_small_and_large_arrays_with_and_without_windows(collective: str) -> None:
    able = [found for found in algorithms(collective).values() if found.tree_order]
    assert any(found.onesided for found in able)
    geometry = Geometry(0, 16)
    costs = [found.cost(geometry) for found in able if not found.onesided]
    assert min(cost.rounds for cost in costs) <= 5
    assert min(cost.sent for cost in costs) <= 2


def shape(collective: str, name: str, size: int, **more: int) -> Proof:
    return prove(algorithms(collective)[name], size, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 5, 8])
def test_messages_are_as_few_as_the_textbook_says(size: int) -> None:
    fold, logarithm = Fold(size), rounds(size)
    assert shape("allreduce", "tree", size).messages == 2 * (size - 1)
    assert shape("allreduce", "ring", size).messages == 2 * size * (size - 1)
    assert shape("allreduce", "recursive_doubling", size).messages == fold.power * fold.bits + 2 * fold.pairs
    assert shape("allreduce", "halving_doubling", size).messages == 2 * fold.power * fold.bits + 2 * fold.pairs
    assert shape("barrier", "dissemination", size).messages == size * logarithm
    assert shape("alltoall", "bruck", size).messages == size * logarithm
    assert shape("alltoall", "pairwise", size).messages == size * (size - 1)


@pytest.mark.parametrize("size", [size for size in range(3, 65) if size & (size - 1)])
def test_circulant_sends_fewer_bytes_than_folding(size: int) -> None:
    """Through the busiest rank, for an allreduce of any size that is no power of two. In sum both send 2 (p - 1) N: the
    ranks that are folded away send less."""
    elements = 64 * size

    def sent(name: str) -> list[int]:
        found = algorithms("allreduce")[name]
        steps = [list(found.generate(Geometry(rank, size))) for rank in range(size)]
        each = elements // count_blocks(found, size)
        return [each * sum(step.sent for step in of) for of in steps]

    circulant, folding = sent("circulant"), sent("halving_doubling")
    assert set(circulant) == {2 * (size - 1) * 64}
    assert sum(circulant) == sum(folding)
    assert max(circulant) < max(folding)


@pytest.mark.parametrize("collective", ["allreduce", "broadcast"])
@pytest.mark.parametrize("size", [4, 7, 16, 33])
def test_ranks_of_double_trees_send_alike(collective: str, size: int) -> None:
    """No rank sends more than the data in one direction: an inner rank of one tree is a leaf of the other. With one
    binary tree inner ranks send twice as much. Two ranks beside the root may have children in both trees."""
    found = algorithms(collective)["double_tree"]
    ways = 2 if collective == "allreduce" else 1
    sent = [sum(step.sent for step in found.generate(Geometry(rank, size))) for rank in range(size)]
    assert sum(sent) == ways * 2 * (size - 1)
    assert max(sent) <= ways * 2 + 1
    assert sum(number > ways * 2 for number in sent) <= 2


def test_hierarchical_algorithms_use_the_links_between_hosts_no_more_than_they_must() -> None:
    """Four hosts of three ranks: messages and blocks that pass between hosts, in both directions."""
    hosts = tuple(rank // 3 for rank in range(12))
    away = {}
    for collective in ("reduce_scatter", "gather", "scatter", "alltoall", "barrier"):
        found = algorithms(collective)["hierarchical"]
        steps = [
            step
            for rank in range(12)
            for step in found.generate(Geometry(rank, 12, hosts=hosts))
            if step.opcode is Opcode.SEND and hosts[step.peer] != hosts[rank]
        ]
        away[collective] = len(steps), sum(step.sent for step in steps)
    assert away == {
        "reduce_scatter": (12 * 3, 12 * 3),
        "gather": (3, 9 + 3),
        "scatter": (3, 9 + 3),
        "alltoall": (12 * 3, 12 * 9),
        "barrier": (4 * 2, 0),
    }


@pytest.mark.parametrize("segments", [1, 3])
def test_the_pipeline_works_inside_hosts_while_messages_cross_between_them(segments: int) -> None:
    """Four hosts of three ranks. Two messages inside the host combine a piece, two spread it. The pieces of the last
    part come in after the last SEND across hosts."""
    hosts = tuple(rank // 3 for rank in range(12))
    for rank in range(12):
        across, before, after = {}, {}, {}
        for name in ("hierarchical", "host_pipeline"):
            found = algorithms("allreduce")[name].generate(Geometry(rank, 12, 0, segments, hosts))
            sends = [step for step in found if step.opcode is Opcode.SEND]
            far = [number for number, step in enumerate(sends) if hosts[step.peer] != hosts[rank]]
            across[name] = [(sends[number].peer, sends[number].a) for number in far]
            before[name] = sum(step.sent for step in sends[: far[0]])
            after[name] = sum(step.sent for step in sends[far[-1] + 1 :])
        assert across["host_pipeline"] == across["hierarchical"]
        assert before == {"hierarchical": 8 * segments, "host_pipeline": 2}
        assert after == {"hierarchical": 8 * segments, "host_pipeline": 2 * (segments + 1)}


@pytest.mark.parametrize("segments", [1, 8])
def test_memory_is_bounded(segments: int) -> None:
    """In elements, a block having one for each segment: two chunks in flight, not more with more segments."""
    assert shape("allreduce", "ring", 8, segments=segments).scratch == 2
    assert shape("reduce", "chain", 8, segments=segments).scratch <= 4
    assert shape("broadcast", "chain", 8, segments=segments).scratch == 0
    large = shape("allreduce", "direct_segmented", 8, segments=segments)
    assert large.stage <= 2 * 8
    assert large.scratch <= 4


@pytest.mark.parametrize("size", [2, 8])
def test_the_large_direct_allreduce_moves_no_more_than_it_must(size: int) -> None:
    """Per rank: a copy of what others combine, the own share combined, and one copy of every share of the result."""
    proof = shape("allreduce", "direct_segmented", size, segments=4)
    elements = 4 * size
    assert proof.reduced == (size - 1) * elements
    assert proof.copied == (size - 1) * elements + size * elements
    assert proof.messages == 0


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match=r"'ring' for allreduce .*registered"):

        @algorithm("allreduce", "ring", traffic=lambda g: ALL[0].traffic(g), cost=lambda g: Cost(0, 0))
        def again(g: Geometry) -> Iterator[Step]:
            yield from ()
