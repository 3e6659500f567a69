"""Named operations on real transports: order, errors of single names, join, stalls, closing."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import collectives as ronde
from collectives import AbortedError, ClosedError, DeadlineExceeded, MismatchError, world
from tests.worlds import World, Worlds, world_of

PATIENCE = 30.0


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


@pytest.fixture
def three(worlds: Worlds) -> World:
    return worlds.get("local", 3)


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_calls_that_some_ranks_plan_before_the_first_batch_and_others_after_it(transport: str) -> None:
    """The staging window of named calls is made in the first batch."""
    large = np.arange(1 << 20, dtype=np.float64)

    def submit(comm: Any) -> list[Any]:
        return [
            comm.allgather_async(np.full(3, comm.rank), name="small parts"),
            comm.allgather_async(large + comm.rank, name="large parts"),
            comm.allreduce_async(large, name="large"),
            comm.broadcast_async(large * (comm.rank == 0), name="from rank 0"),
        ]

    def body(comm: Any) -> list[Any]:
        works = submit(comm) if comm.rank else []
        comm.allreduce_async(np.ones(3), name="first").wait(PATIENCE)
        return [work.wait(PATIENCE) for work in works or submit(comm)]

    with world_of(transport, 2) as world:
        for small, parts, total, received in world.run(body):
            assert small.tolist() == [0, 0, 0, 1, 1, 1]
            assert np.array_equal(parts, np.concatenate([large, large + 1]))
            assert np.array_equal(total, 2 * large)
            assert np.array_equal(received, large)


def still_usable(world: World) -> None:
    def body(comm: Any) -> tuple[float, float]:
        named = comm.allreduce_async(np.float64(comm.rank), name="still usable").wait(PATIENCE)
        return float(named), float(comm.allreduce(np.float64(comm.rank)))

    total = world.size * (world.size - 1) / 2
    assert world.run(body) == [(total, total)] * world.size
    assert world.sound


def submit_shuffled(comm: Any, count: int, threads: int, seed: int) -> dict[int, Any]:
    """Submit `count` names from several threads, each in an order of its own; the results by number."""

    def part(thread: int) -> list[tuple[int, Any]]:
        numbers = list(range(thread, count, threads))
        random.Random(f"{seed}/{comm.rank}/{thread}").shuffle(numbers)
        works = [
            (k, comm.allreduce_async(np.full(1 + k % 50, comm.rank + k, np.float32), name=f"tensor {k}"))
            for k in numbers
        ]
        return [(k, work.wait(PATIENCE)) for k, work in works]

    with ThreadPoolExecutor(threads) as pool:
        return {k: result for pairs in pool.map(part, range(threads)) for k, result in pairs}


def check_shuffled(results: dict[int, Any], count: int, size: int) -> None:
    assert len(results) == count
    for k, result in results.items():
        np.testing.assert_array_equal(result, np.full(1 + k % 50, size * k + size * (size - 1) / 2, np.float32))


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_500_names_in_different_orders_from_three_threads(worlds: Worlds, transport: str, size: int) -> None:
    opened = worlds.get(transport, size)
    for seed in range(2):  # the second time they are announced as bits
        for results in opened.run(submit_shuffled, 500, 3, seed):
            check_shuffled(results, 500, size)


def in_processes(count: int) -> int:
    comm = world()
    for seed in range(3):
        check_shuffled(submit_shuffled(comm, count, 3, seed), count, comm.size)
    return int(comm.join(timeout=PATIENCE))


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_processes(transport: str) -> None:
    lasts = ronde.run(in_processes, 2, args=(500,), transport=transport, timeout=60)
    assert lasts in ([0, 0], [1, 1])


def test_many_ranks() -> None:
    with world_of("local", 24) as opened:
        for results in opened.run(submit_shuffled, 30, 2, 0):
            check_shuffled(results, 30, 24)


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    "allreduce": (
        lambda c: c.allreduce_async(np.arange(4.0) + c.rank, "average", postscale=2.0, name="a"),
        lambda _: np.arange(4.0) * 2 + 2,
    ),
    "grouped_allreduce": (
        lambda c: c.grouped_allreduce_async([np.ones(3), np.ones((2, 2), np.int32) * c.rank], name="b"),
        lambda _: [np.full(3, 3.0), np.full((2, 2), 3)],
    ),
    "allgather": (
        lambda c: c.allgather_async(np.full((c.rank + 1, 2), c.rank), name="c"),
        lambda _: np.repeat([0, 1, 2], [1, 2, 3])[:, None] * [1, 1],
    ),
    "grouped_allgather": (
        lambda c: c.grouped_allgather_async([np.array([c.rank]), np.array([[0.5]])], name="d"),
        lambda _: [np.arange(3), np.full((3, 1), 0.5)],
    ),
    "broadcast": (lambda c: c.broadcast_async(np.full(2, c.rank), 2, name="e"), lambda _: np.full(2, 2)),
    "alltoall": (
        lambda c: c.alltoall_async(np.full(6, c.rank), [1, 2, 3], name="f"),
        lambda rank: np.repeat([0, 1, 2], rank + 1),
    ),
    "reduce_scatter": (lambda c: c.reduce_scatter_async(np.arange(3), name="g"), lambda rank: np.array([3 * rank])),
    "reduce": (lambda c: c.reduce_async(np.ones(2), root=1, name="h"), lambda r: np.full(2, 3.0) if r == 1 else None),
    "gather": (lambda c: c.gather_async(np.array([c.rank]), 1, name="i"), lambda r: np.arange(3) if r == 1 else None),
    "scatter": (
        lambda c: c.scatter_async(np.arange(3.0) if c.rank == 0 else None, name="j"),
        lambda rank: np.array([float(rank)]),
    ),
    "barrier": (lambda c: c.barrier_async(name="k"), lambda _: None),
    "broadcast_object": (lambda c: c.broadcast_object_async({"from": c.rank}, 1, name="l"), lambda _: {"from": 1}),
    "allgather_object": (lambda c: c.allgather_object_async(c.rank, name="m"), lambda _: [0, 1, 2]),
    "compose": (
        lambda c: c.compose_async(lambda peers: peers.allgather(np.array([peers.rank])), "a test", name="n"),
        lambda _: np.arange(3)[:, None],
    ),
}


def equal(result: Any, expected: Any) -> None:
    if isinstance(expected, list) and expected and isinstance(expected[0], np.ndarray):
        for one, other in zip(result, expected, strict=True):
            equal(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(result, expected)
        assert result.shape == expected.shape
    else:
        assert result == expected


def test_every_collective_takes_a_name(three: World) -> None:
    def body(comm: Any, order: list[str]) -> None:
        order = list(order)
        random.Random(comm.rank).shuffle(order)
        works = {kind: KINDS[kind][0](comm) for kind in order}
        for kind, work in works.items():
            equal(work.wait(PATIENCE), KINDS[kind][1](comm.rank))

    for _ in range(2):
        three.run(body, list(KINDS))


def test_named_and_unnamed_calls_do_not_wait_for_each_other(three: World) -> None:
    def body(comm: Any) -> list[float]:
        one = np.float64(1)
        if comm.rank == 0:
            plain, named = comm.allreduce_async(one), comm.allreduce_async(one * 2, name="x")
        else:
            named, plain = comm.allreduce_async(one * 2, name="x"), comm.allreduce_async(one)
        return [float(comm.allreduce(one * 3)), float(plain.wait(PATIENCE)), float(named.wait(PATIENCE))]

    assert three.run(body) == [[9.0, 3.0, 6.0]] * 3


def test_work_ends_when_all_ranks_have_submitted(three: World) -> None:
    gate = threading.Event()

    def body(comm: Any) -> None:
        x = np.full(4, comm.rank, np.float32)
        if comm.rank == 1:
            assert gate.wait(PATIENCE)
        work = comm.allreduce_async(x, name="x", out=x)
        if comm.rank == 0:
            with pytest.raises(DeadlineExceeded, match="still in flight"):
                work.wait(0.02)
            assert not work.test()
            gate.set()
        assert work.wait(PATIENCE) is x
        assert work.test()
        assert x.tolist() == [3.0] * 4

    three.run(body)


def test_callbacks_run_when_a_work_ends(three: World) -> None:
    def body(comm: Any) -> list[Any]:
        called: list[Any] = []
        done = threading.Event()
        work = comm.allreduce_async(np.float64(1), name="x")
        work.add_done_callback(lambda it: called.append(float(it.wait())))
        work.add_done_callback(lambda _: comm.allreduce_async(np.float64(2), name="y").add_done_callback(note))

        def note(it: Any) -> None:
            called.append(float(it.wait()))
            done.set()

        assert done.wait(PATIENCE)
        work.add_done_callback(lambda _: called.append("late"))
        return called

    assert three.run(body) == [[3.0, 6.0, "late"]] * 3


def test_callback_error_is_logged_and_affects_nothing_else(three: World, caplog: pytest.LogCaptureFixture) -> None:
    def body(comm: Any) -> float:
        work = comm.allreduce_async(np.float64(1), name="x")
        if comm.rank == 1:
            work.add_done_callback(lambda _: 1 / 0)
        return float(work.wait(PATIENCE))

    assert three.run(body) == [3.0] * 3
    still_usable(three)
    assert "a callback of an operation raised" in caplog.text


# ---- errors that stay with one name


@pytest.mark.parametrize(("name", "kind"), [("", ValueError), (3, TypeError), ("\ud800", ValueError)])
def test_bad_name_is_refused(three: World, name: Any, kind: type[Exception]) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(kind):
            comm.allreduce_async(np.ones(2), name=name)

    three.run(body)
    still_usable(three)


def test_bad_argument_is_refused_and_its_name_stays_free(three: World) -> None:
    def body(comm: Any) -> float:
        with pytest.raises(ValueError, match="op='median'"):
            comm.allreduce_async(np.ones(2), "median", name="x")
        return float(comm.allreduce_async(np.float64(1), name="x").wait(PATIENCE))

    assert three.run(body) == [3.0] * 3


def test_name_in_flight_is_refused(three: World) -> None:
    gate = threading.Event()

    def body(comm: Any) -> float:
        if comm.rank == 0:
            work = comm.allreduce_async(np.float64(1), name="x")
            with pytest.raises(ValueError, match=r"name='x': .*in flight"):
                comm.barrier_async(name="x")
            gate.set()
        else:
            assert gate.wait(PATIENCE)
            work = comm.allreduce_async(np.float64(1), name="x")
        work.wait(PATIENCE)
        return float(comm.allreduce_async(np.float64(2), name="x").wait(PATIENCE))

    assert three.run(body) == [6.0] * 3


MISMATCHES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str, str]] = {
    "shape": (
        lambda c: c.allreduce_async(np.ones(3), name="x"),
        lambda c: c.allreduce_async(np.ones(4), name="x"),
        "allreduce(float64 (3,), op=sum)",
        "allreduce(float64 (4,), op=sum)",
    ),
    "dtype": (
        lambda c: c.allreduce_async(np.ones(3), name="x"),
        lambda c: c.allreduce_async(np.ones(3, np.int8), name="x"),
        "float64 (3,)",
        "int8 (3,)",
    ),
    "op": (
        lambda c: c.allreduce_async(np.ones(3), "average", name="x"),
        lambda c: c.allreduce_async(np.ones(3), "max", name="x"),
        "op=average",
        "op=max",
    ),
    "factor": (
        lambda c: c.allreduce_async(np.ones(3), prescale=2, name="x"),
        lambda c: c.allreduce_async(np.ones(3), name="x"),
        "prescale=2.0",
        "allreduce(float64 (3,), op=sum)",
    ),
    "root": (
        lambda c: c.broadcast_async(np.ones(3), 0, name="x"),
        lambda c: c.broadcast_async(np.ones(3), 1, name="x"),
        "root=0",
        "root=1",
    ),
    "kind": (
        lambda c: c.barrier_async(name="x"),
        lambda c: c.allgather_async(np.ones((3, 2)), name="x"),
        "barrier()",
        "allgather(float64 (2,))",
    ),
    "row": (
        lambda c: c.allgather_async(np.ones((3, 2)), name="x"),
        lambda c: c.allgather_async(np.ones((3, 4)), name="x"),
        "float64 (2,)",
        "float64 (4,)",
    ),
    "splits": (
        lambda c: c.alltoall_async(np.ones(6), name="x"),
        lambda c: c.alltoall_async(np.ones(6), [1, 2, 3], name="x"),
        "6 rows",
        "splits",
    ),
    "group": (
        lambda c: c.grouped_allreduce_async([np.ones(3)] * 5, name="x"),
        lambda c: c.grouped_allreduce_async([np.ones(3)] * 6, name="x"),
        "5 arrays",
        "6 arrays",
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
def test_mismatch_is_raised_on_all_ranks_and_affects_nothing_else(three: World, what: str) -> None:
    mine, theirs, here, there = MISMATCHES[what]

    def body(comm: Any) -> float:
        good = comm.allreduce_async(np.float64(1), name="good")
        bad = (theirs if comm.rank == 1 else mine)(comm)
        more = comm.allreduce_async(np.float64(1), name="more")
        with pytest.raises(MismatchError) as caught:
            bad.wait(PATIENCE)
        text = str(caught.value)
        assert "'x' do not fit together" in text
        mine_row, theirs_row = text.splitlines()[1:]
        assert "ranks 0 and 2" in mine_row
        assert here in mine_row
        assert "rank 1" in theirs_row
        assert there in theirs_row
        return float(good.wait(PATIENCE) + more.wait(PATIENCE))

    assert three.run(body) == [6.0] * 3
    still_usable(three)


def test_out_of_wrong_shape_is_an_error_on_all_ranks(three: World) -> None:
    def body(comm: Any) -> None:
        out = np.empty(2 if comm.rank == 1 else 3)
        work = comm.allgather_async(np.ones(1), out=out, name="x")
        with pytest.raises(MismatchError) as error:
            work.wait(PATIENCE)
        assert error.value.peer == 1

    three.run(body)
    still_usable(three)


def test_operation_missing_on_a_rank_times_out_on_the_others(worlds: Worlds) -> None:
    three = worlds.get("local", 3, stall=0.2)

    def body(comm: Any) -> None:
        comm.barrier_async(name="all are here").wait(PATIENCE)
        if comm.rank != 1:
            work = comm.allreduce_async(np.ones(2), timeout=0.1, name="lonely")
            with pytest.raises(DeadlineExceeded, match=r"'lonely'.*waited .*for rank 1 ") as caught:
                work.wait(PATIENCE)
            assert caught.value.peer == 1
        comm.barrier()
        assert comm.allreduce_async(np.float64(1), name="lonely").wait(PATIENCE) == 3

    three.run(body)
    still_usable(three)


def test_timeout_when_the_coordinator_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 coordinates, but submits no named operation, so its engine never starts."""
    monkeypatch.setattr("collectives.negotiation.engine._ANSWER_SECONDS", 0.1)

    def body(comm: Any) -> None:
        if comm.rank == 0:
            with pytest.raises(DeadlineExceeded, match="'lonely'"):
                comm.recv(np.ones(1), 1, timeout=PATIENCE)
            return
        work = comm.allreduce_async(np.ones(2), timeout=0.1, name="lonely")
        with pytest.raises(DeadlineExceeded, match=r"'lonely'.*rank 0.*answer"):
            work.wait(PATIENCE)

    with world_of("local", 2, stall=0.1) as two:
        two.run(body)


# ---- stalls


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "named operations" in record.getMessage()]


@pytest.mark.parametrize("missing", [0, 2])
def test_name_missing_on_one_rank_is_reported_once(
    worlds: Worlds, caplog: pytest.LogCaptureFixture, missing: int
) -> None:
    three = worlds.get("local", 3, stall=0.2)
    reported = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "'lost'" in record.getMessage():
                reported.set()

    def body(comm: Any) -> float:
        others = [comm.allreduce_async(np.ones(3), name=f"tensor {k}") for k in range(10)]
        if comm.rank == missing:
            assert reported.wait(PATIENCE)
        lost = comm.allreduce_async(np.float64(1), name="lost")
        for other in others:
            other.wait(PATIENCE)
        return float(lost.wait(PATIENCE))

    watch = Watch()
    logging.getLogger("ronde").addHandler(watch)
    try:
        assert three.run(body) == [3.0] * 3
    finally:
        logging.getLogger("ronde").removeHandler(watch)
    [report] = reports(caplog)
    assert f"'lost', allreduce(float64 (), op=sum): missing on rank {missing} for 0." in report
    assert "tensor" not in report


def test_ranks_close_cleanly_after_a_stall(caplog: pytest.LogCaptureFixture) -> None:
    reported = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reported.set()

    def body(comm: Any) -> Any:
        comm.allreduce_async(np.ones(1), name="everybody's").wait(PATIENCE)
        work = comm.allreduce_async(np.ones(1), name="lost") if comm.rank != 2 else None
        assert reported.wait(PATIENCE)
        return work

    watch = Watch()
    logging.getLogger("ronde").addHandler(watch)
    try:
        with world_of("local", 3, stall=0.2) as three:
            works = three.run(body)
        assert three.sound
    finally:
        logging.getLogger("ronde").removeHandler(watch)
    for work in works[:2]:
        with pytest.raises(ClosedError, match=r"'lost'.*rank 2 closed"):
            work.wait(0)


# ---- closing


def test_close_completes_common_operations_and_fails_the_others() -> None:
    def body(comm: Any) -> list[Any]:
        names = [f"tensor {k}" for k in range(50)] + [f"only {comm.rank}"]
        random.Random(comm.rank).shuffle(names)
        works = {name: comm.allreduce_async(np.float64(1), name=name) for name in names}
        return [works[name] for name in sorted(works, key=lambda name: (name.startswith("only"), name))]

    with world_of("local", 3) as three:
        everywhere = three.run(body)
    assert three.sound
    for rank, works in enumerate(everywhere):
        assert [float(work.wait(0)) for work in works[:-1]] == [3.0] * 50
        with pytest.raises(ClosedError, match=rf"'only {rank}'.*closed"):
            works[-1].wait(0)


@pytest.mark.parametrize("leaver", [0, 1])
def test_operation_fails_when_a_missing_rank_closes(leaver: int) -> None:
    def body(comm: Any) -> str | None:
        comm.barrier_async(name="all are here").wait(PATIENCE)
        if comm.rank == leaver:
            comm.close()
            return None
        with pytest.raises(ClosedError) as caught:
            comm.allreduce_async(np.ones(1), name="x").wait(PATIENCE)
        comm.close()
        with pytest.raises(ClosedError):
            comm.allreduce_async(np.ones(1), name="y")
        return str(caught.value)

    with world_of("local", 2) as two:
        text = two.run(body)[1 - leaver]
        assert text is not None
        assert "'x'" in text
        assert f"rank {leaver}" in text


def test_rank_without_named_operations_closes_cleanly() -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 0:
            comm.recv(np.ones(1), 1)
            return None
        work = comm.allreduce_async(np.ones(1), name="x")
        comm.send(np.ones(1), 0)
        return work

    with world_of("local", 2) as two:
        work = two.run(body)[1]
    assert two.sound
    with pytest.raises(ClosedError, match=r"'x'.*rank 0 closed"):
        work.wait(0)


def test_abort_fails_everything_in_flight_with_the_first_cause() -> None:
    submitted = threading.Barrier(3)

    def body(comm: Any) -> list[str]:
        comm.barrier_async(name="all are here").wait(PATIENCE)
        works = [comm.allreduce_async(np.ones(1), name=f"{k} of rank {comm.rank}") for k in range(3)]
        submitted.wait(PATIENCE)
        if comm.rank == 1:
            comm.abort("enough")
        texts = []
        for work in works:
            with pytest.raises(AbortedError, match="rank 1 aborted: enough") as caught:
                work.wait(PATIENCE)
            texts.append(str(caught.value))
        with pytest.raises(AbortedError, match="enough"):
            comm.allreduce_async(np.ones(1), name="later")
        return texts

    with world_of("local", 3) as three:
        for rank, texts in enumerate(three.run(body)):
            assert [f"{k} of rank {rank}" in text for k, text in enumerate(texts)] == [True] * 3


def test_lost_rank_fails_the_operations_that_wait_for_it() -> None:
    def body(comm: Any) -> None:
        comm.barrier_async(name="all are here").wait(PATIENCE)
        if comm.rank == 2:
            comm.transport.close(0.0)  # without goodbye, like a process that dies
            return
        with pytest.raises(ronde.PeerLost, match=r"rank 2.*'x'"):
            comm.allreduce_async(np.ones(1), name="x").wait(PATIENCE)

    with world_of("local", 3) as three:
        three.run(body)


# ---- join


def test_join_with_unequal_numbers_of_steps(three: World) -> None:
    def body(comm: Any) -> tuple[list[float], int]:
        means = []
        for step in range(2 * comm.rank + 1):
            x = np.full(5, step + 1.0)
            means.append(float(comm.allreduce_async(x, "average", name=f"step {step}").wait(PATIENCE)[0]))
        return means, comm.join(timeout=PATIENCE)

    for _ in range(2):
        shorter, longer, longest = three.run(body)
        assert [last for _, last in (shorter, longer, longest)] == [2, 2, 2]
        expected = [1.0, 4 / 3, 2.0, 4 / 3, 5 / 3]
        for means in (shorter[0], longer[0], longest[0]):
            np.testing.assert_allclose(means, expected[: len(means)])
    still_usable(three)


def test_joined_ranks_take_part_in_groups_and_small_and_large_arrays(three: World) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            works = [
                comm.grouped_allreduce_async([np.ones(2), np.ones(200_000), np.ones(3, np.float16)], name="group"),
                *(comm.allreduce_async(np.full(7, k, np.float32), name=f"{k}") for k in range(20)),
            ]
            for result in works[0].wait(PATIENCE):
                assert (result == 1).all()
            for k, work in enumerate(works[1:]):
                assert work.wait(PATIENCE).tolist() == [k] * 7
        comm.join(timeout=PATIENCE)

    three.run(body)
    three.run(body)
    still_usable(three)


def test_joined_ranks_take_part_with_zeros_in_every_allreduce_and_in_barriers(three: World) -> None:
    ones, small = np.ones(3), np.float32(0.5) * np.ones((2, 2), np.float32)

    def body(comm: Any) -> None:
        if comm.rank == 0:
            expected = {"max": 1.0, "min": 0.0, "prod": 0.0, "adasum": 1.0}
            works = {op: comm.allreduce_async(ones, op, name=op) for op in expected}
            group = comm.grouped_allreduce_async([ones, small], "adasum", name="group")
            barrier = comm.barrier_async(name="barrier")
            for op, work in works.items():
                assert work.wait(PATIENCE).tolist() == [expected[op]] * 3, op
            for found, given in zip(group.wait(PATIENCE), (ones, small), strict=True):
                np.testing.assert_array_equal(found, given)
            barrier.wait(PATIENCE)
        comm.join(timeout=PATIENCE)

    three.run(body)
    three.run(body)
    still_usable(three)


def test_other_operations_fail_while_a_rank_has_joined(three: World) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 1:
            join = comm.join_async(timeout=PATIENCE)
            with pytest.raises(ValueError, match="has joined"):
                comm.allreduce_async(np.ones(1), name="x")
            with pytest.raises(ValueError, match="has joined"):
                comm.join_async()
        else:
            for work in (
                comm.broadcast_async(np.ones(1), name="x"),
                comm.reduce_scatter_async(np.ones(3), name="y"),
                comm.allgather_async(np.ones(1), name="z"),
            ):
                with pytest.raises(MismatchError, match="rank 1 joined"):
                    work.wait(PATIENCE)
            join = comm.join_async(timeout=PATIENCE)
        assert join.wait(PATIENCE) in (0, 2)

    three.run(body)
    still_usable(three)


def test_join_times_out_and_can_be_repeated() -> None:
    gate = threading.Barrier(2)

    def body(comm: Any) -> int:
        comm.barrier_async(name="all are here").wait(PATIENCE)
        if comm.rank == 1:
            with pytest.raises(DeadlineExceeded, match=r"join: rank 1 .*for rank"):
                comm.join(timeout=0.1)
        if comm.rank < 2:
            gate.wait(PATIENCE)
        return int(comm.join(timeout=PATIENCE))

    with world_of("local", 3, stall=0.1) as three:
        assert len(set(three.run(body))) == 1


def test_join_fails_if_a_rank_closes_without_joining() -> None:
    def body(comm: Any) -> Any:
        comm.barrier_async(name="all are here").wait(PATIENCE)
        return comm.join_async(timeout=PATIENCE) if comm.rank else None

    with world_of("local", 2) as two:
        work = two.run(body)[1]
    with pytest.raises(ClosedError, match="join: rank 0 closed"):
        work.wait(0)


# ---- fusion


def combined(comm: Any) -> int:
    """Number of the allreduces that have run."""
    return int(comm.metrics()["collectives"].get("allreduce", {"calls": 0})["calls"])


def calls_for(opened: World, count: int, nbytes: int) -> int:
    """Number of collectives for `count` allreduces that all ranks submit while their engines are busy."""

    def body(comm: Any) -> int:
        hold = threading.Event()

        def busy(peers: Any) -> None:
            peers.allreduce(np.ones(1))
            hold.wait(PATIENCE)

        before = combined(comm)
        blocker = comm.compose_async(busy, "keeping the engine busy", name="busy")
        works = [comm.allreduce_async(np.full(nbytes // 4, k, np.float32), name=f"{k}") for k in range(count)]
        comm.barrier()  # all have submitted all
        hold.set()
        blocker.wait(PATIENCE)
        for k, work in enumerate(works):
            assert (work.wait(PATIENCE) == k * comm.size).all()
        return combined(comm) - before

    first, *others = opened.run(body)
    assert others == [first] * len(others)
    return int(first)


def test_operations_ready_together_are_fused(worlds: Worlds) -> None:
    three = worlds.get("local", 3)
    assert calls_for(three, 100, 400) <= 6
    assert calls_for(three, 100, 400) <= 6


def test_fusion_can_be_limited_and_switched_off() -> None:
    with world_of("local", 2, fusion_bytes=4000) as two:
        assert 10 <= calls_for(two, 100, 400) <= 16
    with world_of("local", 2, fusion_bytes=0) as two:
        assert calls_for(two, 100, 400) == 100


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_rank_whose_close_times_out_contributes_no_zeros(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` gives its operations up at the moment at which the engine looks a decision up."""
    with world_of(transport, 2) as world, ThreadPoolExecutor(1) as other:
        engine = world.communicators[1]._engine
        following = engine._next

        def interrupted() -> Any:
            task = following()
            if getattr(task, "run", None):
                with pytest.raises(DeadlineExceeded):
                    other.submit(engine.close, 0.0).result(PATIENCE)
            return task

        monkeypatch.setattr(engine, "_next", interrupted)

        def body(comm: Any) -> Any:
            work = comm.allreduce_async(np.ones(3), name="x")
            with pytest.raises((ClosedError, AbortedError)):
                work.wait(PATIENCE)

        world.run(body)
