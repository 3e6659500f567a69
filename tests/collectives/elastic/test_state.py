"""State: commit, restore, sync; newcomers get it in stripes; who differs is refused; samplers."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

import collectives as ronde
from collectives import AbortedError, Communicator, MismatchError
from collectives.elastic import Sampler, State, run, snapshot, transfer
from collectives.elastic.snapshot import Arrays, Memory, Snapshot
from tests.collectives.membership.changes import SECONDS, job
from tests.worlds import world_of


def values(seed: int) -> dict[str, Any]:
    numbers = np.random.default_rng(seed)
    return {
        "tree": {"w": numbers.normal(size=(7, 5)), "more": [numbers.integers(0, 9, 3), (numbers.normal(size=()),)]},
        "empty": np.zeros((0, 4), np.float32),
        "large": numbers.normal(size=1000).astype(np.float32)[::2],
        "text": f"seed {seed}",
        "step": seed,
    }


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, np.ndarray):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(found, wanted)
    else:
        assert found == wanted


def test_a_snapshot_shares_nothing_with_the_value() -> None:
    value = values(1)
    kept = Snapshot.of(value, Arrays())
    value["tree"]["w"][:] = 0
    value["tree"]["more"].append(1)
    first = kept.value(Arrays())
    assert_same(first, values(1))
    first["tree"]["w"][:] = 0
    assert_same(kept.value(Arrays()), values(1))


def test_the_digest_is_that_of_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", 100)
    one, other = Snapshot.of(values(1), Arrays()), Snapshot.of({**values(1), "text": "else"}, Arrays())
    assert one.digest(outline=False) == other.digest(outline=False)
    assert one.digest(outline=True) != other.digest(outline=True)
    for array in other.arrays:
        if array.size:
            array.reshape(-1)[-1] += 1
            assert one.digest(outline=False) != other.digest(outline=False)
            array.reshape(-1)[-1] -= 1
    reshaped = {**values(1), "empty": np.zeros((4, 0), np.float32)}
    assert Snapshot.of(reshaped, Arrays()).digest(outline=False) != one.digest(outline=False)


def test_memory_reads_and_writes_across_arrays() -> None:
    whole = np.arange(50, dtype=np.uint8)
    memory = Memory([part.copy() for part in np.split(whole, [3, 4, 30])])
    for start in range(50):
        for stop in range(start + 1, 51):
            np.testing.assert_array_equal(memory.read(start, stop), whole[start:stop])
    memory.write(2, np.full(30, 99, np.uint8))
    np.testing.assert_array_equal(memory.read(0, 50), [0, 1, *[99] * 30, *range(32, 50)])


def test_commit_and_restore() -> None:
    state = State(**values(1))
    state.tree["w"] += 1
    state.step = 7
    state.commit()
    state.tree["w"] += 1
    state.step = 8
    state.restore()
    assert state.step == 7
    np.testing.assert_array_equal(state.tree["w"], values(1)["tree"]["w"] + 1)


def test_a_rank_that_began_with_other_attributes_keeps_those_of_the_others() -> None:
    def rank(comm: Communicator) -> None:
        state = State(**({"step": 0, "own": 1} if comm.rank else {"step": 5, "best": np.full(2, 0.5)}))
        state.sync()
        state.best += 1
        state.save()
        state.best += 1
        state.restore()
        np.testing.assert_array_equal(state.best, [1.5, 1.5])
        state.sync()
        assert state.read().keys() == {"step", "best"}

    with world_of("local", 3) as world:
        world.run(rank)


@pytest.mark.parametrize("chunk", [64, 1 << 20])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_before_the_first_commit_all_get_the_values_of_rank_0(
    size: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", chunk)

    def rank(comm: Communicator) -> None:
        state = State(**values(comm.rank))
        state.sync()
        assert_same({name: getattr(state, name) for name in values(0)}, values(0))
        state.step = 9
        state.restore()
        assert state.step == 0

    with world_of("local", size) as world:
        world.run(rank)


@pytest.mark.parametrize("bad", [0, 1])
def test_values_of_one_rank_that_cannot_be_copied_are_an_error_of_all(bad: int) -> None:
    def rank(comm: Communicator) -> None:
        state = State(step=comm.rank)
        if comm.rank == bad:
            state.step = threading.Lock()
            with pytest.raises(TypeError, match=r"step: a .*cannot be pickled"):
                state.sync()
        else:
            with pytest.raises(RuntimeError, match=rf"rank {bad} .*step: a .*cannot be pickled"):
                state.sync()
        state.step = 3 + comm.rank
        state.sync()
        assert state.step == 3

    with world_of("local", 2) as world:
        world.run(rank)


@pytest.mark.parametrize("behind", [{0}, {1, 3}, {0, 1, 2}])
def test_ranks_that_are_behind_get_the_latest_commit_from_all_that_have_it(
    behind: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", 64)

    sent: Counter[int] = Counter()
    lock = threading.Lock()

    def count(comm: Communicator, data: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            sent[comm.rank] += data.size
        return send(comm, data, *args, **kwargs)

    def rank(comm: Communicator) -> None:
        state = State(**values(0))
        state.sync()
        comm.barrier()
        with lock:
            sent.clear()
        comm.barrier()
        if comm.rank not in behind:
            for name, value in values(5).items():
                setattr(state, name, value)
            state.save()
        state.sync()
        assert_same({name: getattr(state, name) for name in values(5)}, values(5))

    send = Communicator.send_async
    monkeypatch.setattr(Communicator, "send_async", count)
    with world_of("local", 4) as world:
        world.run(rank)
    size = Snapshot.of(values(5), Arrays()).memory().size
    holders = 4 - len(behind)
    assert sorted(sent) == sorted({0, 1, 2, 3} - behind)
    assert sum(sent.values()) == size, "each byte leaves the holders once"
    assert all(abs(share - size / holders) <= len(behind) for share in sent.values())


def test_a_transfer_that_was_damaged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(memory: Memory, start: int, work: Any) -> None:
        memory.write(start, work.wait() ^ 1)

    def rank(comm: Communicator) -> None:
        state = State(weights=np.zeros(100) + comm.rank)
        with pytest.raises(MismatchError, match=r"ranks 1, 2 .*state .*ranks 0$"):
            state.sync()
        assert state.weights[0] == comm.rank
        assert comm.allreduce(1) == 3

    monkeypatch.setattr(transfer, "_land", damage)
    with world_of("local", 3) as world:
        world.run(rank)


def test_a_rank_that_is_lost_in_a_transfer_is_replaced_by_the_other_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    class LostError(Exception):
        pass

    def lose(comm: Communicator, data: Any, *args: Any, **kwargs: Any) -> Any:
        if comm.size == 4 and comm.rank == 0:
            raise LostError
        return send(comm, data, *args, **kwargs)

    @run
    def train(state: Any) -> tuple[int, float]:
        return ronde.world().size, float(state.weights.sum())

    def rank(comm: Communicator) -> Any:
        state = State(weights=np.full(1000, float(comm.rank < 3)))
        if comm.rank < 3:
            state.save()
        try:
            return train(state)
        except LostError:
            comm.abort("it dies")
            comm.close()
            return None

    send = Communicator.send_async
    monkeypatch.setattr(Communicator, "send_async", lose)
    with world_of("local", 4) as world:
        assert world.run(rank) == [None, (3, 1000.0), (3, 1000.0), (3, 1000.0)]


def test_run_goes_on_without_a_refused_rank() -> None:
    resets = []

    @run
    def train(state: Any) -> int:
        return ronde.world().size

    def rank(comm: Communicator) -> Any:
        state = State(weights=np.zeros(10) + (comm.rank == 1))
        state.save()
        state.register_reset_callbacks([lambda: resets.append(comm.rank)])
        try:
            return train(state)
        except MismatchError as error:
            return str(error)

    with world_of("local", 3) as world:
        first, second, third = world.run(rank)
    assert (first, third) == (2, 2)
    assert "rank 1 is refused: its state differs from that of ranks 0, 2 after commit 1" in second
    assert sorted(resets) == [0, 2]


@pytest.mark.parametrize("leaver", [0, 1])
def test_run_goes_on_without_a_rank_that_has_closed(leaver: int) -> None:
    """A process ends by sys.exit. Nothing has failed then but the operations that need it."""

    class LeftError(Exception):
        pass

    @run
    def train(state: Any) -> tuple[int, int]:
        comm = ronde.world()
        comm.barrier_async(name="begin").wait(SECONDS)
        while state.step < 5:
            if comm.size == 3 and state.step == 2 and comm.rank == leaver:
                raise LeftError
            comm.allreduce_async(np.ones(3), name="gradient").wait(SECONDS)
            state.step += 1
            state.save()
        return comm.size, state.step

    def rank(comm: Communicator) -> Any:
        try:
            return train(State(step=0))
        except LeftError:
            comm.close()
            return None

    with world_of("local", 3) as world:
        found = world.run(rank)
    assert found == [None if rank == leaver else (2, 5) for rank in range(3)]


def test_errors_of_the_function_are_raised_while_the_world_is_intact() -> None:
    @run
    def train(state: Any) -> None:
        raise ronde.AbortedError("own")

    def rank(comm: Communicator) -> None:
        with pytest.raises(ronde.AbortedError, match="own"):
            train(State(step=0))
        assert comm.allreduce(1) == 2

    with world_of("local", 2) as world:
        world.run(rank)


def test_a_rank_whose_arrays_differ_is_named_and_refused() -> None:
    def rank(comm: Communicator) -> str:
        state = State(weights=np.zeros(1000))
        state.sync()
        if comm.rank == 1:
            state.weights[500] += 1e-9
        state.save()
        if comm.rank == 1:
            with pytest.raises(MismatchError, match=r"rank 1 .*state .*ranks 0, 2 .*commit 2"):
                state.sync()
            return "refused"
        with pytest.raises(AbortedError, match=r"rank 1 aborted: .*state .*ranks 0, 2 .*commit 2"):
            state.sync()
        new = comm.regroup()
        assert new is not None
        state.sync()
        return f"{new.rank} of {new.size}"

    with world_of("local", 3) as world:
        assert world.run(rank) == ["0 of 2", "refused", "1 of 2"]


PADDED = {
    "structure": np.dtype([("flag", "i1"), ("value", "f8")], align=True),
    "in a structure": np.dtype([("flag", "i1"), ("two", [("a", "u1"), ("b", "f4")], (2,))], align=True),
    "gap at the end": np.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 2], "itemsize": 8}),
    "long double": np.dtype(np.longdouble),
    "complex": np.dtype(np.clongdouble),
    "other order": np.dtype(np.longdouble).newbyteorder(),
}


@pytest.mark.parametrize("dtype", PADDED.values(), ids=PADDED.keys())
@pytest.mark.parametrize("view", ["whole", "strided", "sharing", "empty", "one"])
def test_bytes_that_no_number_uses_do_not_count(dtype: np.dtype[Any], view: str) -> None:
    def of(rubbish: int) -> Any:
        """Equal values, with other bytes between them."""
        used = np.full((12, dtype.itemsize), rubbish, np.uint8)
        used[:, snapshot.used_bytes(dtype)] = 7
        array = used.reshape(-1).view(dtype).reshape(3, 4)
        return {
            "whole": array,
            "strided": array[::2, ::-1],
            "sharing": [array, array[1:]],
            "empty": array[:, :0],
            "one": array[0, 0, ...],
        }[view]

    one, other = Snapshot.of(of(3), Arrays()), Snapshot.of(of(200), Arrays())
    assert one.digest(outline=True) == other.digest(outline=True)
    assert_same(one.value(Arrays()), of(200))
    if view == "sharing":
        assert np.shares_memory(*one.value(Arrays()))


def test_ranks_that_computed_in_long_double_are_alike() -> None:
    def rank(comm: Communicator) -> None:
        x = np.linspace(0, 1, 100, dtype=np.longdouble)
        for _ in range(7 * comm.rank):
            x = x * 1
        state = State(x=x)
        state.save()
        state.sync()

    with world_of("local", 3) as world:
        world.run(rank)


def test_values_that_are_no_arrays_are_those_of_the_lowest_rank() -> None:
    def rank(comm: Communicator) -> None:
        state = State(w=np.arange(3.0), epoch=0)
        state.sync()
        kept = state.w
        state.epoch = 5 + comm.rank // 2
        state.save()
        state.sync()
        assert (state.w.tolist(), state.epoch) == ([0, 1, 2], 5)
        assert (state.w is kept) == (comm.rank < 2)
        state.epoch = 9
        state.restore()
        assert state.epoch == 5

    with world_of("local", 3) as world:
        world.run(rank)


def test_a_state_that_is_not_strict_takes_that_of_the_lowest_rank() -> None:
    class Lenient(State):
        strict = False

    def rank(comm: Communicator) -> None:
        state = Lenient(mean=np.full(3, 7.0), name="x")
        state.sync()
        state.mean += comm.rank
        state.name += str(comm.rank)
        state.save()
        state.sync()
        assert (state.mean.tolist(), state.name) == ([7.0] * 3, "x0")

    with world_of("local", 3) as world:
        world.run(rank)


# ---- samplers


@pytest.mark.parametrize("name", ["commit", "sync", "read", "strict", "library", "_saved", "_names", "_commits"])
def test_a_name_that_the_state_uses_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=3: .*name"):
        State(step=0, **{name: 3})


def test_a_value_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(TypeError, match=r"^lock: .*lock .*pickled"):
        State(step=0, lock=threading.Lock())
    state = State(step=0, rate=None)
    state.rate = lambda step: 0.1 / step
    with pytest.raises(TypeError, match=r"^rate: .*function .*pickled"):
        state.save()


def test_a_method_of_a_subclass_is_refused_as_a_name_and_a_default_is_not() -> None:
    class Own(State):
        epoch = 0

        def assign(self) -> None:
            """Used by a frontend's `write`."""

    with pytest.raises(ValueError, match=r"^assign=3: .*name"):
        Own(assign=3)
    state = Own(epoch=5)
    state.epoch = 6
    state.restore()
    assert state.epoch == 5


def test_a_samplers_order_is_that_of_its_attributes() -> None:
    sampler = Sampler(10, seed=1)
    sampler.order()
    for name, value in (("seed", 2), ("count", 7), ("epoch", 4), ("shuffle", False)):
        setattr(sampler, name, value)
        again = Sampler(sampler.count, shuffle=sampler.shuffle, seed=sampler.seed)
        again.epoch = sampler.epoch
        assert sampler.order().tolist() == again.order().tolist(), name


@pytest.mark.parametrize(("wrong", "kind"), [(-1, ValueError), (2.5, TypeError), ("3", TypeError), (True, TypeError)])
def test_numbers_of_a_sampler_are_ints(wrong: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=rf"^count={wrong!r}: "):
        Sampler(wrong)
    with pytest.raises(kind, match=rf"^seed={wrong!r}: "):
        Sampler(3, seed=wrong)


def test_a_sampler_loses_and_repeats_nothing_while_the_ranks_change() -> None:
    count = 103
    taken: list[tuple[int, np.ndarray[Any, Any]]] = []
    lock = threading.Lock()

    def body(comm: Communicator) -> None:
        state = State(sampler=Sampler(count, seed=3), steps=0)
        try:
            train(state)
        except SystemExit:
            return

    @run
    def train(state: Any) -> None:
        while len(samples := state.sampler.take(4)):
            comm = ronde.world()
            all_samples = comm.allgather(samples)
            if comm.rank == 0:
                with lock:
                    taken.append((comm.size, all_samples))
            if comm.rank == 1 and len(taken) == 9:
                comm.leave("it is enough")
            state.steps += 1
            state.commit()
            while state.steps == 2 and comm.size == 2:  # until the newcomer is admitted
                comm.barrier()
                state.commit()

    with job("local") as here:
        ranks = here.start(2, body)
        newcomer = here.come(body)
        for future in [*ranks, newcomer]:
            future.result(SECONDS)
    seen = np.concatenate([samples for _, samples in taken])
    assert {size for size, _ in taken} >= {2, 3}
    padding = seen.size - count
    assert 0 <= padding < 3
    assert sorted(set(seen.tolist())) == list(range(count))


@pytest.mark.parametrize(
    ("batch", "kind", "text"),
    [
        (2.5, TypeError, "batch=2.5: .* int"),
        (True, TypeError, "batch=True"),
        (0, ValueError, "batch=0: .*1 or more"),
    ],
)
def test_a_bad_batch_is_refused_and_takes_nothing(batch: Any, kind: type[Exception], text: str) -> None:
    sampler = Sampler(10)
    with pytest.raises(kind, match=text):
        sampler.take(batch)
    assert sampler.done == 0
    assert len(sampler.take(np.int64(4))) == 4
