"""DiLoCo and LocalSGD against the formulas in one process; compression; lost workers, newcomers, errors."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import collectives as ronde
from collectives import AbortedError, Communicator, MismatchError
from collectives.compression import BF16, Int8
from collectives.local_sgd import DiLoCo, LocalSGD, Nesterov
from collectives.parameter_server import Synchronizer
from tests.collectives.membership.changes import SECONDS, Job, job
from tests.worlds import world_of

SHAPES = {"a": (7, 5), "b": (3,), "c": ()}


def tree(seed: int) -> Any:
    numbers = np.random.default_rng(seed)
    first, second, third = (numbers.normal(size=shape).astype(np.float32) for shape in SHAPES.values())
    return {"layers": [first, (second,)], "scale": np.asarray(third)}


def flat(params: Any) -> Any:
    return np.concatenate([params["layers"][0].reshape(-1), params["layers"][1][0], params["scale"].reshape(-1)])


def train(params: Any, rank: int, step: int) -> None:
    """A step of training that differs between workers."""
    change = np.random.default_rng((rank, step)).normal(size=39).astype(np.float32)
    for array, part in zip(
        (params["layers"][0], params["layers"][1][0], params["scale"]), np.split(change, [35, 38]), strict=True
    ):
        array -= np.float32(0.1) * (array + part.reshape(array.shape))


def oracle(size: int, steps: int, every: int, fragments: int, delay: int, outer: Nesterov, keep: float) -> list[Any]:
    """The local parameters of all workers, by the formulas, in one process."""
    workers = [tree(0) for _ in range(size)]
    total = flat(workers[0]).astype(np.float64)
    velocity, pending = np.zeros_like(total), dict[int, list[tuple[slice, Any]]]()
    count = len(total)

    def write(params: Any, values: Any) -> None:
        params["layers"][0][:] = values[:35].reshape(7, 5)
        params["layers"][1][0][:] = values[35:38]
        params["scale"][...] = values[38]

    for step in range(1, steps + 1):
        for rank, params in enumerate(workers):
            train(params, rank, step)
        for fragment in range(fragments):
            offset = every * (fragment + 1) // fragments
            if step >= offset and (step - offset) % every == 0:
                part = slice(count * fragment // fragments, count * (fragment + 1) // fragments)
                mean = np.mean([total[part] - flat(params)[part] for params in workers], axis=0)
                pending.setdefault(step + delay, []).append((part, mean))
        for part, mean in pending.pop(step, []):
            velocity[part] = outer.momentum * velocity[part] + mean
            total[part] -= outer.lr * (mean + outer.momentum * velocity[part])
            for params in workers:
                values = flat(params).astype(np.float64)
                values[part] = keep * values[part] + (1 - keep) * total[part]
                write(params, values)
    return [flat(params) for params in workers]


@pytest.mark.parametrize(
    ("size", "every", "fragments", "delay", "outer", "keep"),
    [
        (1, 4, 1, 0, Nesterov(), 0.0),
        (2, 5, 2, 0, Nesterov(0.5, 0.0), 0.0),
        (3, 6, 4, 5, Nesterov(), 0.5),
        (2, 3, 3, 1, Nesterov(0.9, 0.5), 0.25),
    ],
)
def test_the_parameters_are_those_of_the_formulas(
    size: int, every: int, fragments: int, delay: int, outer: Nesterov, keep: float
) -> None:
    def rank(comm: Communicator) -> Any:
        params = tree(comm.rank)  # all begin with those of rank 0
        diloco = DiLoCo(params, every=every, fragments=fragments, delay=delay, outer=outer, keep=keep)
        params = diloco.start(params)
        for step in range(1, 21):
            train(params, comm.rank, step)
            params = diloco.step(params)
        assert diloco.steps == 20
        before, rounds = flat(params), diloco.rounds
        assert sum(rounds) > fragments
        final = flat(diloco.sync(params))
        assert np.isfinite(final).all()
        return before, final.tobytes()

    with world_of("local", size) as world:
        results = world.run(rank)
    for found, wanted in zip(results, oracle(size, 20, every, fragments, delay, outer, keep), strict=True):
        np.testing.assert_allclose(found[0], wanted, rtol=2e-5, atol=2e-6)
    assert len({final for _, final in results}) == 1, "after sync all have the same bits"


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_local_sgd_takes_the_average(dtype: Any) -> None:
    def rank(comm: Communicator) -> None:
        params = [np.zeros((2, 3), dtype)]
        local = LocalSGD(params, every=2)
        for step in range(1, 5):
            params[0] += np.array(comm.rank + 1, dtype)
            assert local.step(params) is params
            if step == 1:
                assert params[0].tolist() == [[comm.rank + 1] * 3] * 2
        assert params[0].tolist() == [[8.0] * 3] * 2
        assert local.rounds == [2]

    with world_of("local", 3) as world:
        world.run(rank)


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble, ">f8", ">f4"])
def test_no_precision_is_lost_on_the_way(dtype: Any) -> None:
    exact = 1 + (2.0**-40 if np.dtype(dtype).itemsize > 4 else 2.0**-20)

    def rank(comm: Communicator) -> None:
        params = [np.full(3, exact, dtype)]
        local = LocalSGD(params, every=1)
        local.step(params)
        assert (params[0].dtype, params[0].tolist()) == (dtype, [exact] * 3)

    with world_of("local", 2) as world:
        world.run(rank)


@pytest.mark.parametrize(("compression", "factor"), [(None, 1.0), (BF16(), 2.0), (Int8(), 3.94)])
def test_bytes_are_fewer_by_the_steps_and_the_compression(compression: Any, factor: float) -> None:
    size, every, steps = 1 << 16, 8, 32

    def rank(comm: Communicator) -> float:
        comm.reset_metrics()
        for _ in range(steps):
            comm.allreduce(np.zeros(size, np.float32))
        synchronous = moved(comm)
        params = np.zeros(size, np.float32)
        diloco = DiLoCo(params, every=every, fragments=4, delay=2, compression=compression, outer=Nesterov(1, 0))
        diloco.start(params)
        comm.reset_metrics()
        numbers = np.random.default_rng(comm.rank)
        for _ in range(steps):
            params += numbers.normal(size=size).astype(np.float32)
            diloco.step(params)
        loose = moved(comm)
        # ends what is under way: the last fragment's round
        assert diloco.sync(params) is params
        return synchronous / loose

    with world_of("local", 2) as world:
        for found in world.run(rank):
            assert found == pytest.approx(every * factor, rel=0.1)


def moved(comm: Communicator) -> int:
    counts = comm.metrics()
    return sum(int(row["moved"]) for key in ("collectives", "parts") for row in counts[key].values())


def test_workers_may_begin_rounds_in_different_orders() -> None:
    """Operations have names, so a slow worker and a fast one cannot exchange them."""

    def rank(comm: Communicator) -> list[float]:
        one, other = np.zeros(4, np.float32), np.zeros(4, np.float32)
        first = DiLoCo(one, every=2, delay=1, outer=Nesterov(1, 0), keep=0, name="first")
        second = DiLoCo(other, every=2, delay=1, outer=Nesterov(1, 0), keep=0, name="second")
        first.start(one)
        second.start(other)
        for _ in range(5):
            one += comm.rank
            other += 10 * comm.rank
            order = [(first, one), (second, other)]
            for diloco, params in order if comm.rank else order[::-1]:
                diloco.step(params)
        return [float(one[0]), float(other[0])]

    with world_of("local", 2) as world:
        values = world.run(rank)
    assert values == [[1.5, 15.0], [1.5, 15.0]]


def test_workers_of_several_ranks() -> None:
    def rank(comm: Communicator) -> bytes:
        inner, across = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        assert inner is not None
        params = np.full(10, float(comm.rank), np.float32)
        diloco = DiLoCo(params, comm=across, every=3, outer=Nesterov(1, 0))
        inner.broadcast(params, out=params)
        diloco = DiLoCo(params, comm=across, every=3, outer=Nesterov(1, 0))
        diloco.start(params)
        for _ in range(3):
            gradient = np.full(10, comm.rank, np.float32)
            params -= inner.allreduce(gradient, "average")
            diloco.step(params)
        assert diloco.comm is across
        assert params[0] == pytest.approx(-3 * 1.5)
        return params.tobytes()

    with world_of("local", 4) as world:
        assert len(set(world.run(rank))) == 1


class Dies(Exception):
    pass


def lifetime(steps: int, dies_at: dict[int, int], **options: Any) -> Any:
    """The life of an elastic worker; steps, size of the world and parameters at its end."""

    def body(comm: Communicator) -> Any:
        number = comm.transport.group.numbers[comm.rank]
        params = np.full(64, float(number), np.float32)
        diloco = DiLoCo(params, elastic=True, **options)
        mine = 0
        try:
            params = diloco.start(params)
            while diloco.steps < steps:
                if dies_at.get(number) == diloco.steps:
                    raise Dies
                params += np.random.default_rng((number, diloco.steps)).normal(size=64).astype(np.float32)
                params = diloco.step(params)
                mine += 1
            params = diloco.sync(params)
        except (SystemExit, Dies) as end:
            if isinstance(end, Dies):
                ronde.world().abort("it dies")
            return None
        return diloco.steps, ronde.world().size, params.tobytes(), diloco.rounds, mine

    return body


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize(("fragments", "delay", "dies"), [(1, 0, 25), (4, 5, 26), (4, 5, 33)])
def test_a_lost_worker_costs_one_round_at_most(transport: str, fragments: int, delay: int, dies: int) -> None:
    body = lifetime(60, {1: dies}, every=10, fragments=fragments, delay=delay, compression=Int8())
    with job(transport) as here:
        results = [future.result(SECONDS) for future in here.start(3, body)]
    assert results[1] is None
    left = [result for result in results if result is not None]
    assert [result[:2] for result in left] == [(60, 2), (60, 2)]
    assert left[0][2] == left[1][2]
    for *_, rounds, mine in left:
        assert mine >= 50, "no survivor skips more steps than those of one round"
        assert min(rounds) >= 60 // 10 - 1, "of each fragment one round is lost at most; sync adds one"


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (3, 4)])
def test_newcomers_get_the_state(fragments: int, delay: int) -> None:
    steps, asked = 400, threading.Event()
    came = []

    def incumbent(here: Job) -> Any:
        def body(comm: Communicator) -> Any:
            params = np.full(64, float(comm.rank), np.float32)
            diloco = DiLoCo(params, elastic=True, every=10, fragments=fragments, delay=delay)
            params = diloco.start(params)
            while diloco.steps < steps or ronde.world().size < 3:
                if diloco.steps == 15 and comm.rank == 0 and not asked.is_set():
                    asked.set()
                    came.append(here.come(newcomer, 7))
                    here.wait_for_request(0)
                params += 0.01 * (comm.rank + 1)
                params = diloco.step(params)
                if ronde.world().size == 3:
                    return end(diloco, params)
            return end(diloco, params)

        return body

    def newcomer(comm: Communicator) -> Any:
        params = np.full(64, 1e6, np.float32)
        diloco = DiLoCo(params, elastic=True, every=10, fragments=fragments, delay=delay)
        params = diloco.start(params)
        assert diloco.steps > 15
        assert float(params.max()) < 1e3
        return end(diloco, params)

    def end(diloco: DiLoCo, params: Any) -> Any:
        params += ronde.world().rank
        params = diloco.sync(params)
        return diloco.steps, diloco.rounds, params.tobytes()

    with job("local") as here:
        results = [future.result(SECONDS) for future in here.start(2, incumbent(here))]
        results += [future.result(SECONDS) for future in came]
    assert len(results) == 3
    assert results[0] == results[1] == results[2]


def test_a_loss_in_the_last_round_leaves_all_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker dies in the barrier of sync, another one has completed the round by then."""

    def dies(comm: Communicator, **options: Any) -> None:
        if comm.size == 3 and comm.rank == 2:
            raise Dies
        barrier(comm, **options)

    barrier = Communicator.barrier
    monkeypatch.setattr(Communicator, "barrier", dies)
    body = lifetime(20, {}, every=10, fragments=2)
    with job("local") as here:
        results = [future.result(SECONDS) for future in here.start(3, body)]
    assert results[2] is None
    assert results[0] == results[1]
    assert results[0][3] == [3, 3]


def test_after_a_failure_one_may_regroup_by_hand() -> None:
    def rank(comm: Communicator) -> Any:
        params = np.full(8, float(comm.rank), np.float32)
        diloco = DiLoCo(params, every=2, outer=Nesterov(1, 0))
        diloco.start(params)
        diloco.step(params)
        comm.barrier()
        if comm.rank == 1:
            comm.abort("it dies")
            comm.close()
            return None

        def go_on() -> None:
            while diloco.steps < 100_000:
                diloco.step(params)

        with pytest.raises(AbortedError, match="rank 1 aborted: it dies"):
            go_on()
        with comm.shrink() as smaller:
            diloco.start(params, smaller)
            params += smaller.rank
            return diloco.sync(params).tolist()

    with world_of("local", 3) as world:
        first, _, third = world.run(rank)
    assert first == third == [0.5] * 8


def test_a_worker_that_has_diverged_is_an_error_on_all() -> None:
    def rank(comm: Communicator) -> None:
        params = np.zeros(8, np.float32)
        diloco = DiLoCo(params, every=2, outer=Nesterov(1, 0))
        diloco.start(params)
        params[comm.rank] = np.nan if comm.rank else 1
        diloco.step(params)
        with pytest.raises(FloatingPointError, match=r"fragment 0: .*step 2\b.*finite"):
            diloco.step(params)
        params[:] = 1
        diloco.step(params)
        assert diloco.sync(params).tolist() == [1] * 8

    with world_of("local", 2) as world:
        world.run(rank)


def test_a_checkpoint_continues_as_if_nothing_had_happened() -> None:
    def rank(comm: Communicator) -> None:
        def go(diloco: DiLoCo, params: Any, steps: int) -> Any:
            for _ in range(steps):
                params += np.random.default_rng((comm.rank, diloco.steps)).normal(size=6).astype(np.float32)
                params = diloco.step(params)
            return diloco.sync(params)

        params = np.zeros(6, np.float32)
        diloco = DiLoCo(params, every=4, fragments=2, delay=1)
        go(diloco, diloco.start(params), 8)
        state = diloco.state_dict()
        wanted = go(diloco, params, 8)

        fresh = np.full(6, 9.0, np.float32)
        other = DiLoCo(fresh, every=4, fragments=2, delay=1, name="other")
        if comm.rank == 1:  # the others get it
            other.load_state_dict(state)
        fresh = other.start(fresh)
        assert other.steps == 8
        np.testing.assert_array_equal(go(other, fresh, 8), wanted)
        with pytest.raises(ValueError, match=r"state: .*2 fragments, .* 1"):
            DiLoCo(fresh).load_state_dict(state)
        with pytest.raises(ValueError, match=r"state\['global'\]: has \{'': \(6,\)\}, .*\{'': \(5,\)\}"):
            DiLoCo(np.zeros(5), fragments=2).load_state_dict(state)
        with pytest.raises(ValueError, match=r"state\['velocity'\]: has .*, .*nothing"):
            LocalSGD(fresh).load_state_dict(state)

    with world_of("local", 2) as world:
        world.run(rank)


def test_workers_with_different_arguments_are_told() -> None:
    def rank(comm: Communicator) -> None:
        params = np.zeros(6, np.float32)
        with pytest.raises(MismatchError, match="every: rank 1 has 6, rank 0 has 5"):
            DiLoCo(params, every=5 + comm.rank).start(params)
        params = np.zeros(6 + comm.rank, np.float32)
        with pytest.raises(MismatchError, match=r"params: rank 1 has  float32 \(7,\), rank 0 has  float32 \(6,\)"):
            DiLoCo(params, every=5).start(params)
        assert comm.allreduce(1) == 2

    with world_of("local", 2) as world:
        world.run(rank)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"every": 0}, r"every=0: .*1 or more"),
        ({"every": 2, "fragments": 3}, r"fragments=3: .*from 1 to 2, .*every=2"),
        ({"fragments": True}, r"fragments=True: .* int"),
        ({"every": 5, "delay": 5}, r"delay=5: .*from 0 to 4, .*every=5"),
        ({"delay": 1.5}, r"delay=1.5: .* int"),
        ({"keep": 1}, r"keep=1: .*less than 1"),
        ({"keep": "half"}, r"keep='half': .*Real, or None"),
        ({"outer": 0.7}, r"outer=0.7: .*Nesterov, or None"),
        ({"compression": "int8"}, r"compression='int8': .*Compressor, or None"),
        ({"fragments": 50}, r"fragments=50: .*at most 39"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        DiLoCo(tree(0), **options)


def test_bad_parameters() -> None:
    for rate in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"lr={rate}: .*above 0"):
            Nesterov(lr=rate)
    with pytest.raises(ValueError, match=r"momentum=1: .*less than 1"):
        Nesterov(momentum=1)
    with pytest.raises(TypeError, match=r"params\['n'\]: .*int64.*floats"):
        DiLoCo({"n": np.zeros(3, np.int64)})
    with pytest.raises(TypeError, match=r"tree\['n'\]: .*ndarray .*tuple, not float"):
        DiLoCo({"n": 1.0})
    with pytest.raises(ValueError, match=r"params: .*no elements"):
        DiLoCo([])
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only array"):
        DiLoCo([fixed])

    def rank(comm: Communicator) -> None:
        params = tree(0)
        diloco = DiLoCo(params, every=1)
        diloco.start(params)
        with pytest.raises(ValueError, match=r"params: .*tree .*extra"):
            diloco.step({**params, "extra": np.zeros(3)})

    with world_of("local", 1) as world:
        world.run(rank)


def test_a_worker_that_leaves_ends_its_process() -> None:
    def body(comm: Communicator) -> Any:
        params = np.zeros(8, np.float32)
        diloco = DiLoCo(params, elastic=True, every=4, fragments=2, delay=1)
        diloco.start(params)
        if comm.rank == 1:
            comm.leave("the test")
        try:
            while ronde.world().size == 2:
                params += 1
                diloco.step(params)
        except SystemExit as end:
            return end.code
        return float(diloco.sync(params)[0]) > 0

    with job("local") as here:
        assert [future.result(SECONDS) for future in here.start(2, body)] == [True, 0]


@pytest.mark.parametrize("make", [DiLoCo, LocalSGD, Synchronizer])
def test_parameters_have_paths_of_their_own(make: Any) -> None:
    with pytest.raises(ValueError, match=r"tree\['a/b'\]: .*path"):
        make({"a/b": np.zeros(2), "a": {"b": np.ones(2)}})
