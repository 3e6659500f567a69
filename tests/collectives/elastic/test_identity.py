"""A state keeps identity: one object stays one object, and arrays that share memory go on sharing it, through commit,
restore and sync, and on newcomers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Communicator, MismatchError
from collectives.elastic import Arrays, State
from collectives.elastic.snapshot import Snapshot
from tests.worlds import world_of

Way = Callable[[Any], None]


def restored(state: Any) -> None:
    state.commit()
    state.restore()


def restored_twice(state: Any) -> None:
    for _ in range(2):
        restored(state)


WAYS = pytest.mark.parametrize("way", [restored, restored_twice])


@WAYS
def test_e1_state_identity(way: Way) -> None:
    w = np.zeros(3)
    state: Any = State(model={"w": w}, opt={"params": [w]})
    way(state)
    state.opt["params"][0] -= 1
    assert state.model["w"].tolist() == [-1, -1, -1]


@WAYS
def test_an_object_in_several_places_is_one(way: Way) -> None:
    class Layer:
        pass

    w, shared = np.zeros(3), {"steps": 0}
    tree: dict[str, Any] = {"deep": [({"w": w},)], "shared": shared}
    tree["itself"] = tree
    objects = np.array([w, None], dtype=object)
    state: Any = State(w=w, tree=tree, again=(w, w), shared=shared, objects=objects, both=[objects])
    way(state)
    state.w += 1
    state.shared["steps"] = 5
    assert state.tree["deep"][0][0]["w"] is state.w
    assert state.again[0] is state.again[1] is state.w is state.objects[0]
    assert state.tree["shared"] is state.shared
    assert state.tree["itself"] is state.tree
    assert state.both[0] is state.objects


@WAYS
def test_arrays_that_are_equal_stay_two(way: Way) -> None:
    state: Any = State(one=np.zeros(3), other=np.zeros(3), empty=np.zeros(0), void=np.zeros((0, 2)))
    way(state)
    state.one += 1
    assert state.other.tolist() == [0, 0, 0]


@WAYS
def test_views_share_memory(way: Way) -> None:
    flat = np.arange(24.0)
    records = np.zeros(3, [("a", "i4"), ("b", "f8")])
    state: Any = State(
        flat=flat,
        matrix=flat.reshape(4, 6),
        turned=flat.reshape(4, 6).T[::-1, 1:],
        column=flat[3::6],
        bits=flat[2:4].view(np.uint8),
        wide=np.broadcast_to(flat[5:6], (3, 1)),
        records=records,
        field=records["b"],
        apart=np.arange(24.0)[::2],
    )
    before = {name: np.array(getattr(state, name)) for name in ("matrix", "turned", "column", "bits", "wide")}
    way(state)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(state, name), value)
    state.flat += 100
    np.testing.assert_array_equal(state.matrix, state.flat.reshape(4, 6))
    np.testing.assert_array_equal(state.turned, state.flat.reshape(4, 6).T[::-1, 1:])
    np.testing.assert_array_equal(state.column, state.flat[3::6])
    np.testing.assert_array_equal(state.bits.view(np.float64), state.flat[2:4])
    np.testing.assert_array_equal(state.wide, np.broadcast_to(state.flat[5:6], (3, 1)))
    state.field[:] = 7
    assert state.records["b"].tolist() == [7, 7, 7]
    np.testing.assert_array_equal(state.apart, np.arange(24.0)[::2])


def test_views_share_memory_without_the_array_that_they_are_of() -> None:
    base = np.arange(10.0)
    state: Any = State(low=base[:6], high=base[4:], last=base[9:])
    restored(state)
    state.low[:] = -1
    state.last[:] = -2
    assert state.high.tolist() == [-1, -1, 6, 7, 8, -2]


def test_a_snapshot_has_shared_memory_once() -> None:
    flat = np.zeros(1000)
    alone = Snapshot.of([flat], Arrays()).memory().size
    assert Snapshot.of([flat, flat, flat[10:], flat[::3]], Arrays()).memory().size == alone


def test_a_view_alone_does_not_take_the_whole_array_along() -> None:
    assert Snapshot.of([np.zeros(1000)[::100]], Arrays()).memory().size == 80


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.sampled_from([1, 2, 3, -1, -2])), max_size=6))
def test_any_views_share_what_they_shared(parts: list[tuple[int, int, int]]) -> None:
    def views(of: Any) -> list[Any]:
        return [of[low : low + count][::step] for low, count, step in parts]

    base = np.arange(40.0)
    first = Snapshot.of(views(base), Arrays())
    found = first.value(Arrays())
    for value, view in zip(found, views(base), strict=True):
        np.testing.assert_array_equal(value, view)
    assert Snapshot.of(found, Arrays()).digest(outline=False) == first.digest(outline=False), "the copy of a copy"
    for number, view in enumerate(views(base)):
        view += 1000 * number
        found[number] += 1000 * number
    for value, view in zip(found, views(base), strict=True):
        np.testing.assert_array_equal(value, view)


def test_a_rank_that_gets_the_state_gets_the_identity() -> None:
    def rank(comm: Communicator) -> list[float]:
        weights = np.zeros(5)
        state: Any = State(model={"w": weights}, opt=[weights], part=weights[1:3], step=0)
        if comm.rank != 2:
            state.model["w"] = state.opt[0] = weights = np.full(5, 3.0)
            state.part = weights[1:3]
            state.save()
        state.sync()
        state.opt[0] += 1
        state.part += 1
        state.save()
        state.sync()  # raises if the arrays of a rank differ
        found: list[float] = comm.allgather(state.model["w"]).tolist()
        return found

    with world_of("local", 3) as world:
        for found in world.run(rank):
            assert found == [4.0, 5.0, 5.0, 4.0, 4.0] * 3


def test_a_value_that_refers_to_a_fixed_object_refers_to_that_of_the_rank() -> None:
    here, there = object(), object()
    kept = Snapshot.of({"direct": here, "in": [here]}, Arrays(), {"model": here})
    found = kept.value(Arrays(), {"model": there})
    assert found["direct"] is found["in"][0] is there
    with pytest.raises(MismatchError, match="model"):
        kept.value(Arrays(), {})
