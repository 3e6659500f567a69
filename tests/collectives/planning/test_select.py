"""The choice of algorithms: by cost, by rule, by name."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectives import ConfigError
from collectives.algorithms import algorithms
from collectives.config import Config
from collectives.planning.cost_model import Model
from collectives.planning.rules import Rule, Rules
from collectives.planning.select import Demand, Selector, obstacle
from collectives.schedule.contracts import SPECS
from collectives.schedule.steps import Geometry
from tests.worlds import world_of
from transports import tcp
from transports.base import Group, Member
from transports.rendezvous.memory import MemoryStore

MODEL = Model(alpha=25e-6, beta=0.8e-9)


def demand(collective: str = "allreduce", size: int = 8, nbytes: int = 4, stage: int = 0, **more: bool) -> Demand:
    return Demand(collective, Geometry(0, size), nbytes, nbytes, stage, **more)


def test_small_calls_take_few_rounds_and_large_ones_few_bytes() -> None:
    selector = Selector(MODEL, Rules(), "tcp")
    small = selector.choose(demand()).algorithm.name
    large = selector.choose(demand(nbytes=1 << 26)).algorithm.name
    assert small == "recursive_doubling"
    assert large in ("ring", "halving_doubling")


@pytest.mark.parametrize("collective", SPECS)
def test_there_is_always_a_choice_that_can_run(collective: str) -> None:
    selector = Selector(MODEL, Rules(), "x")
    for size, nbytes, stage, uniform in itertools.product(
        (1, 2, 3, 8, 13, 64), (0, 1, 1 << 12, 1 << 20, 1 << 33), (0, 1 << 20), (True, False)
    ):
        wanted = demand(collective, size, nbytes, stage, uniform=uniform)
        choice = selector.choose(wanted)
        assert not obstacle(choice.algorithm, wanted)
        assert choice.segments >= 1


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_in_windows_only_small_calls_are_staged(collective: str, size: int) -> None:
    selector = Selector(MODEL, Rules(), "x")
    for nbytes, name in ((4, "direct"), (1 << 10, "direct"), (1 << 20, "windowed"), (1 << 26, "windowed")):
        shared = demand(collective, size, nbytes, 1 << 20, windows=True)
        assert selector.choose(shared).algorithm.name == name
        assert selector.choose(replace(shared, windows=False)).algorithm.name != "windowed"


@pytest.mark.parametrize(
    ("collective", "name", "size", "segments"),
    [
        ("allreduce", "direct", 2, {512: 1, 513: 2, 1024: 2, 1 << 20: 2048}),
        ("broadcast", "direct", 4, {512: 1, 1024: 2, 4096: 8}),
        ("allgather", "direct", 2, {1024: 1, 4096: 4}),  # of which a rank stages half
        ("reduce_scatter", "direct", 4, {512: 1, 4096: 6}),  # three quarters
        ("allreduce", "direct_segmented", 4, {512: 1, 4096: 8}),  # three quarters, and the result of the last one
    ],
)
def test_a_rank_stages_so_much_for_a_segment_as_stays_in_its_cache(
    collective: str, name: str, size: int, segments: dict[int, int]
) -> None:
    selector = Selector(MODEL, Rules(), "x")
    for kilobytes, expected in segments.items():
        block = (kilobytes << 10) // (1 if collective == "broadcast" else size)
        wanted = replace(demand(collective, size, kilobytes << 10, 2 << 20), block=block)
        assert selector.choose(wanted, name).segments == expected


def test_pieces_fill_the_stage_where_all_are_of_one_size() -> None:
    selector = Selector(MODEL, Rules(), "x")
    assert selector.choose(demand(size=2, nbytes=1 << 22, stage=1 << 20), "direct").segments == 8
    assert selector.choose(demand(size=2, nbytes=(1 << 22) + 8, stage=1 << 20), "direct").segments == 9


def test_reproducible_calls_have_a_choice_wherever_they_combine() -> None:
    for collective in ("allreduce", "reduce", "reduce_scatter"):
        for size in (1, 2, 3, 6, 16):
            choice = Selector(MODEL, Rules(), "x").choose(demand(collective, size, 1 << 20, reproducible=True))
            assert choice.algorithm.tree_order


@pytest.mark.parametrize("collective", ["reduce_scatter", "allgather", "gather", "scatter", "alltoall", "barrier"])
def test_hierarchical_algorithms_are_for_hosts_of_several_ranks(collective: str) -> None:
    def chosen(each: int) -> str:
        selector = Selector(Model(inter_alpha=1e-4, inter_beta=8e-9), Rules(), "tcp")
        hosts = tuple(rank // each for rank in range(4 * each))
        return selector.choose(Demand(collective, Geometry(0, 4 * each, hosts=hosts), 1 << 18, 1 << 18)).algorithm.name

    assert chosen(8) == "hierarchical"
    assert chosen(1) != "hierarchical"


@pytest.mark.parametrize("shape", [(4, 2), (2, 4)])
@pytest.mark.parametrize("rate", [25e6, 125e6])
def test_phases_inside_and_across_hosts_overlap_in_large_calls(shape: tuple[int, int], rate: float) -> None:
    """The choice of 8 ranks with shared memory: small pieces would wake the ranks too often."""
    selector = Selector(Model(7e-6, 0.3e-9, inter_alpha=1e-4, inter_beta=1 / rate), Rules(), "auto")
    geometry = Geometry(0, 8, hosts=tuple(rank // shape[1] for rank in range(8)))
    names = {
        nbytes: selector.choose(Demand("allreduce", geometry, nbytes, nbytes // 8)).algorithm.name
        for nbytes in (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
    }
    phases, pipeline = "hierarchical", "host_pipeline"
    assert list(names.values()) == [phases, phases, pipeline, pipeline, pipeline]


def test_a_name_is_obeyed_or_refused() -> None:
    selector = Selector(MODEL, Rules(), "tcp")
    assert selector.choose(demand(nbytes=1 << 26), "recursive_doubling").algorithm.name == "recursive_doubling"
    with pytest.raises(ValueError, match=r"algorithm='magic': for allreduce .*ring"):
        selector.choose(demand(), "magic")
    with pytest.raises(ValueError, match=r"algorithm='direct': .*windows"):
        selector.choose(demand(), "direct")
    with pytest.raises(ValueError, match=r"algorithm='ring': .*fixed order"):
        selector.choose(demand(reproducible=True), "ring")
    with pytest.raises(ValueError, match=r"algorithm='hierarchical': .*several hosts"):
        selector.choose(demand(), "hierarchical")


def test_the_first_rule_that_fits_decides(tmp_path: Path) -> None:
    table = tmp_path / "rules.toml"
    table.write_text(
        """
        [[rule]]
        collective = "allreduce"
        algorithm = "direct"
        [[rule]]
        collective = "allreduce"
        algorithm = "ring"
        max_bytes = 100
        min_ranks = 3
        segments = 2
        [[rule]]
        collective = "allreduce"
        algorithm = "tree"
        transport = "other"
        """
    )
    selector = Selector(MODEL, Rules.read(str(table)), "tcp")
    chosen = selector.choose(demand())  # no windows: the first rule does not fit
    assert (chosen.algorithm.name, chosen.segments) == ("ring", 2)
    assert selector.choose(demand(nbytes=101)).algorithm.name == "recursive_doubling"
    assert selector.choose(demand(size=2)).algorithm.name != "ring"
    assert selector.choose(demand(stage=1 << 20)).algorithm.name == "direct"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[rule]]\ncollective = 'allreduce'\nalgorithm = 'magic'",
            "algorithm='magic': .*ring.* for allreduce.*rule 1 of .*rules.toml",
        ),
        ("[[rule]]\ncollective = 'all'\nalgorithm = 'ring'", "collective='all': .*allreduce"),
        ("[[rule]]\ncollective = 'allreduce'\nalgorithm = 'ring'\nmin = 3", "no setting 'min'"),
        (
            "[[rule]]\ncollective = 'allreduce'\nalgorithm = 'ring'\nmin_bytes = 9\nmax_bytes = 8",
            "min_bytes=9: .*0 to max_bytes.* 8",
        ),
        (
            "[[single_copy]]\ncollective = 'broadcast'\nfrom_bytes = 1\nmin_ranks = 3\nmax_ranks = 2",
            "min_ranks=3: .*0 to max_ranks.* 2",
        ),
        ("rules = 3", r"tables \[\[rule\]\], \[\[costs\]\]"),
        ("[[rule", "rules.toml.*TOML"),
    ],
)
def test_a_bad_rule_is_named(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "rules.toml"
    table.write_text(text)
    with pytest.raises(ConfigError, match=rf"(?s){message}"):
        Rules.read(str(table))


def test_rules_reach_the_communicator(tmp_path: Path) -> None:
    table = tmp_path / "rules.toml"
    table.write_text("[[rule]]\ncollective = 'allreduce'\nalgorithm = 'ring'\n")
    with world_of("local", 3, rules=str(table)) as world:
        world.run(lambda comm: np.testing.assert_array_equal(comm.allreduce(np.ones(5)), np.full(5, 3.0)))
    assert Rule("allreduce", "ring").max_bytes > 0
    assert "ring" in algorithms("allreduce")


def test_ranks_that_share_cores_send_no_segments_that_only_pay_beside_others() -> None:
    def chosen(collective: str, nbytes: int, cores: int) -> str:
        selector = Selector(Model(cores=cores), Rules(), "tcp")
        return selector.choose(Demand(collective, Geometry(0, 4, hosts=(0,) * 4), nbytes, nbytes // 4)).algorithm.name

    for nbytes in (1 << 18, 1 << 20, 1 << 22):
        assert chosen("broadcast", nbytes, 0) == chosen("broadcast", nbytes, 4) == "circulant"
        assert chosen("broadcast", nbytes, 2) == "binomial"
    assert [chosen("allreduce", nbytes, 2) for nbytes in (4, 1 << 16, 1 << 18)] == [
        "recursive_doubling",
        "recursive_doubling",
        "halving_doubling",
    ]


def test_ranks_that_share_cores_send_small_data_one_way() -> None:
    """A rank of a window waits for its readers in each call, which is a change of ranks on its core."""

    def staged(collective: str, nbytes: int, cores: int, **more: bool) -> bool:
        geometry = Geometry(0, 4, hosts=(0,) * 4)
        wanted = Demand(collective, geometry, nbytes, nbytes // 4, 1 << 22, **more)
        return Selector(Model(cores=cores), Rules(), "shm").choose(wanted).algorithm.onesided

    for collective in ("broadcast", "reduce", "gather", "scatter"):
        assert [staged(collective, nbytes, 2) for nbytes in (0, 4, 1 << 8, 1 << 10)] == [False, False, False, True]
        assert all(staged(collective, 4, cores) for cores in (0, 4))
        assert staged(collective, 4, 2, windows=True)
    assert staged("allreduce", 4, 2)


@pytest.mark.parametrize(("masks", "crowded"), [((3, 3, 3, 3), True), ((1, 2, 4, 8), False), ((3, 3, 3, 0), False)])
def test_a_communicator_counts_the_cores_of_its_ranks(masks: tuple[int, ...], crowded: bool) -> None:
    members = tuple(Member("a", "a", pid, cores=mask) for pid, mask in enumerate(masks))
    selector = Selector.from_config(Config(), tcp.create(Group(0, members, MemoryStore()), tcp.Options()))
    wanted = Demand("broadcast", Geometry(0, 4, hosts=(0,) * 4), 1 << 20, 1 << 18)
    assert (selector.choose(wanted).algorithm.name == "binomial") == crowded
