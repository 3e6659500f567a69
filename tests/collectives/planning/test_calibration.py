"""The calibration of single copy: what it decides, that all ranks decide alike, and that its time is bounded."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, Config, ConfigError, connect
from collectives.execution import calibration as measuring
from collectives.execution.calibration import COLLECTIVES
from collectives.planning import NEVER, SIZES, Calibration, Model, Rules, Selector, find_thresholds
from collectives.planning.calibration import CLEAR, USUAL
from collectives.planning.rules import SingleCopy
from collectives.planning.select import SINGLE_COPY_BYTES, Demand
from collectives.schedule import Geometry
from tests.worlds import BOUND, SECRET, executor_of, kept_plans, world_of
from transports.copying import MEASURED_BYTES
from transports.rendezvous import MemoryStore, join

STAGE = 2 << 20


def chosen(selector: Selector, collective: str, nbytes: int, size: int = 2, **more: Any) -> bool:
    """True if a call uses single copy."""
    more = {"single_copy": True, **more}
    demand = Demand(collective, Geometry(0, size), nbytes, nbytes // size, STAGE, **more)
    return selector.choose(demand).algorithm.single_copy


def selector(calibration: Calibration | None = None, *rows: SingleCopy) -> Selector:
    made = Selector(Model(), Rules(single_copy=rows), "shm")
    made.calibration = calibration
    return made


@pytest.mark.parametrize(
    ("collective", "single", "expected", "compared"),
    [
        ("alltoall", (4.1, 0.1, 0.1, 0.1), NEVER, 1),
        ("alltoall", (3.9, 0.1, 0.1, 0.1), USUAL["alltoall"], 1),  # not clearly slower; smaller ones are not measured
        ("alltoall", (0.3, 0.1, 0.1, 0.1), USUAL["alltoall"], 1),
        ("alltoall", (0.2, 0.3, 0.1, 0.1), USUAL["alltoall"], 2),  # which is less than SIZES[0]
        ("broadcast", (0.2, 0.2, 9.0, 0.1), SIZES[1], 3),  # not clearly faster at a smaller size: used at this one
        ("alltoall", (0.2, 0.2, 0.2, 2.0), SIZES[2], 4),
        ("alltoall", (0.2, 0.2, 0.2, 0.2), SIZES[3], 4),
        ("allreduce", (0.3, 0.1, 0.1, 0.1), NEVER, 1),
        ("allreduce", (0.2, 0.3, 0.1, 0.1), SIZES[0], 2),
        ("allreduce", (0.2, 0.2, 9.0, 0.1), SIZES[1], 3),
    ],
)
def test_a_clear_measurement_changes_the_size_from_which_single_copy_is_used(
    collective: str, single: tuple[float, ...], expected: int, compared: int
) -> None:
    asked: list[int] = []

    def compare(collective: str, nbytes: int) -> tuple[list[float], list[float]]:
        asked.append(nbytes)
        return [1.0, 1.0], [single[SIZES.index(nbytes)], single[SIZES.index(nbytes)]]

    thresholds, measured = find_thresholds([collective], compare)
    assert thresholds == {collective: expected}
    assert asked == list(SIZES[:compared])
    assert measured == {(collective, nbytes): (1.0, single[SIZES.index(nbytes)]) for nbytes in asked}


def test_a_measurement_of_either_state_of_the_cores_gives_the_usual_sizes() -> None:
    """Staged by single copy at 8 MiB on a virtual machine, cores sharing a cache and sharing none."""
    near = {"allreduce": 0.76, "reduce_scatter": 0.56, "broadcast": 0.54, "allgather": 1.2, "alltoall": 0.92}
    far = {"allreduce": 1.6, "reduce_scatter": 1.6, "broadcast": 3.1, "allgather": 1.9, "alltoall": 2.5}
    for ratios in (near, far):
        assert find_thresholds(COLLECTIVES, lambda name, _, ratios=ratios: ([ratios[name]], [1.0]))[0] == USUAL
    assert set(USUAL) == set(COLLECTIVES)


@pytest.mark.parametrize("faster", range(2))
def test_a_measurement_counts_only_if_even_the_slowest_run_is_clearly_faster(faster: int) -> None:
    times = [[1.1 * CLEAR, 2.0 * CLEAR], [1.1 * CLEAR, 2.0 * CLEAR]]
    times[faster] = [1.0, 1.0]
    clear, _ = find_thresholds(["allreduce"], lambda name, nbytes: (times[0], times[1]))
    assert clear == {"allreduce": SIZES[-1] if faster else NEVER}
    times[faster] = [1.0, 1.2]
    disturbed, _ = find_thresholds(["allreduce"], lambda name, nbytes: (times[0], times[1]))
    assert disturbed == {"allreduce": USUAL["allreduce"]}


def test_unmeasured_collectives_keep_their_usual_size() -> None:
    times = iter([([1.0], [1.1 * CLEAR]), ([1.1 * CLEAR], [1.0]), None, None])
    thresholds, _ = find_thresholds(["alltoall", "allreduce", "allgather"], lambda collective, nbytes: next(times))
    assert thresholds == {"alltoall": NEVER, "allreduce": SIZES[0], "allgather": USUAL["allgather"]}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_selector_follows_the_calibration(collective: str) -> None:
    never, later = selector(Calibration({collective: NEVER})), selector(Calibration({collective: 1 << 20}))
    for nbytes in (1 << 12, 1 << 16, (1 << 20) - 64, 1 << 20, 1 << 24, 1 << 30):
        assert not chosen(never, collective, nbytes)
        assert chosen(later, collective, nbytes) == (nbytes >= 1 << 20)
        assert not chosen(later, collective, nbytes, single_copy=False)
    assert not chosen(selector(Calibration({collective: 1})), collective, SINGLE_COPY_BYTES - 64)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_without_calibration_the_usual_size_decides(collective: str) -> None:
    for unmeasured in (selector(), selector(Calibration())):
        assert chosen(unmeasured, collective, 1 << 30) == (USUAL[collective] != NEVER)
        if USUAL[collective] != NEVER:
            assert chosen(unmeasured, collective, USUAL[collective])
            assert not chosen(unmeasured, collective, USUAL[collective] - 64)


def test_rules_come_before_the_calibration() -> None:
    found = Calibration(dict.fromkeys(COLLECTIVES, NEVER))
    ruled = selector(
        found,
        SingleCopy("allgather", 1 << 20, 2, 2, "shm"),
        SingleCopy("broadcast", 1 << 20, 1, 9, "tcp"),
        SingleCopy("alltoall", 0),
    )
    assert chosen(ruled, "allgather", 1 << 20)
    assert not chosen(ruled, "allgather", 1 << 20, size=3)
    assert not chosen(ruled, "broadcast", 1 << 24)
    assert not chosen(ruled, "alltoall", 1 << 24)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[single_copy]]\ncollective = 'barrier'", "collective='barrier': must be one of allreduce"),
        ("[[single_copy]]\nfrom_bytes = 3", "collective='': must be one of"),
        ("[[single_copy]]\ncollective = 'alltoall'\nfrom_bytes = -1", r"from_bytes=-1: must be 0 \(never\)"),
        ("[[single_copy]]\ncollective = 'alltoall'\nfrom = 1", "no setting 'from'"),
        ("[[copy_kernel]]\nkernel = 'fast'", "kernel='fast': must be vector or memcpy"),
        ("[[copy_kernel]]\nkernel = 'vector'\nbytes = 5", r"bytes=5: must be 0 \(all\) or one of .*65536"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "rules.toml"
    table.write_text(text)
    with pytest.raises(ConfigError, match=f"(?s){message}.*from .*rules.toml|rules.toml.*{message}"):
        Rules.read(str(table))


def test_kernels_of_copies_from_rules(tmp_path: Path) -> None:
    table = tmp_path / "rules.toml"
    table.write_text("[[copy_kernel]]\nkernel = 'vector'\nfetched = true\n[[copy_kernel]]\nkernel = 'memcpy'\n")
    assert Rules.read("").kernel_table() is None
    kernels = Rules.read(str(table)).kernel_table()
    assert kernels is not None
    assert {(kind.fetched, kind.large) for kind in kernels.vector} == {(True, False)}
    assert {kind.nbytes for kind in kernels.vector} == set(MEASURED_BYTES)


def plans(comm: Communicator) -> list[tuple[str, int]]:
    """The algorithm and the number of segments of the plan of each of many calls."""
    counts = [1000, *(SINGLE_COPY_BYTES // 4 * factor for factor in (1, 3, 8, 20, 60))]
    for name, count in itertools.product(COLLECTIVES, counts):
        count -= count % comm.size
        getattr(comm, name)(np.ones(count, np.float32))
    return [(plan.algorithm.name, plan.geometry.segments) for plan in kept_plans(comm)]


def noisy(monkeypatch: pytest.MonkeyPatch, seed: int, tick: Callable[[random.Random], float]) -> None:
    """Give the calibration a clock that runs as it likes, on each rank otherwise."""
    order = random.Random(seed)
    now = itertools.count()

    def calibrate(trial: Any, deadline: float, **_: Any) -> Calibration:
        return original(trial, deadline, clock=lambda: next(now) * tick(order), budget=1e9)

    original = measuring.calibrate
    monkeypatch.setattr("collectives.operations.host.calibrate", calibrate)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("transport", ["local", "shm"])
def test_the_same_call_runs_the_same_plan_on_all_ranks_and_at_all_times(
    monkeypatch: pytest.MonkeyPatch, transport: str, seed: int
) -> None:
    noisy(monkeypatch, seed, lambda order: order.choice((1e-6, 1e-3, 1.0)))

    def body(comm: Communicator) -> tuple[Calibration | None, list[list[tuple[str, int]]]]:
        return comm._selector.calibration, [plans(comm) for _ in range(3)]

    with world_of(transport, 3, calibrate=True) as world:
        (calibration, found), *others = world.run(body)
    assert calibration is not None
    assert set(calibration.single_copy_from) == set(COLLECTIVES)
    assert found[0] == found[1] == found[2]
    for other, same in others:
        assert other is not None
        assert other.single_copy_from == calibration.single_copy_from
        assert same == found


def test_its_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow a rank is: at most one comparison begins before the time is up."""
    original = measuring.calibrate
    asked: list[int] = []

    def calibrate(trial: Any, deadline: float) -> Calibration:
        now = itertools.count()
        slow = 1.0 if trial.rank == 1 else 0.0
        result = original(trial, deadline, clock=lambda: next(now) * slow, budget=3.0)
        asked.append(len(result.measured))
        return result

    monkeypatch.setattr("collectives.operations.host.calibrate", calibrate)
    with world_of("local", 2, calibrate=True) as world:
        world.run(lambda comm: comm.barrier())
    assert asked in ([0, 0], [1, 1])


def test_calls_of_a_calibration_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with world_of("local", 2, calibrate=True) as world:
        comm = world.communicators[0]
        assert comm._selector.calibration is not None
        assert executor_of(comm).calls == 0
        assert not kept_plans(comm)
        assert not comm.metrics()["collectives"]


def test_communicators_that_are_split_inherit_it_and_nothing_is_measured_if_it_is_off() -> None:
    def body(comm: Communicator) -> tuple[Any, Any]:
        child = comm.split(comm.rank % 2)
        assert child is not None
        return comm._selector.calibration, child._selector.calibration

    with world_of("local", 4, calibrate=True) as world:
        for mine, inherited in world.run(body):
            assert mine is not None
            assert mine is inherited
    with world_of("local", 4) as world:
        assert world.run(body) == [(None, None)] * 4


def test_rules_are_not_measured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"[[single_copy]]\ncollective = '{name}'\n" for name in COLLECTIVES[1:]]
    (tmp_path / "rules.toml").write_text("".join(rows))
    with (
        caplog.at_level(logging.INFO, "ronde"),
        world_of("local", 2, calibrate=True, rules=str(tmp_path / "rules.toml")) as world,
    ):
        calibration = world.communicators[0]._selector.calibration
    assert calibration is not None
    assert {collective for collective, _ in calibration.measured} <= {COLLECTIVES[0]}
    assert "calibrated 2 ranks: single copy" in caplog.text


def test_ranks_that_measure_differently_are_named() -> None:
    store = MemoryStore()

    def error(rank: int) -> str:
        deadline = time.monotonic() + BOUND
        group = join(rank, 3, store, secret=SECRET, deadline=deadline)
        with pytest.raises(ConfigError) as raised:
            connect(group, Config.load({"transport": "local", "calibrate": rank != 1}, environment={}), deadline)
        return str(raised.value)

    with ThreadPoolExecutor(3) as pool:
        texts = list(pool.map(error, range(3)))
    for text in texts:  # that of a rank that hears of another's error before it compares is the other's
        assert "calibrate and the table of rules: must be the same on all ranks" in text
        assert "rank 1" in text
