"""Array arguments that are refused, and the hints that their errors give."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.arrays.views import Target, as_numpy
from tests.worlds import World, Worlds

X = np.zeros(4, np.float32)
MASKED = np.ma.masked_array(X, mask=[False, True, False, False])
COLLECTIVES = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "alltoall")
WITH_OUT = [*COLLECTIVES, "allreduce_async", "sendrecv"]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.close()


@pytest.fixture
def two(worlds: Worlds) -> World:
    return worlds.get("local", 2)


def call(comm: Communicator, method: str, x: Any, **options: Any) -> None:
    """Call a method to the end. Messages go to the other rank."""
    peer = (1 - comm.rank,) if method in ("send", "recv", "sendrecv") else ()
    result = getattr(comm, method)(x, *peer, **options)
    if method.endswith("_async"):
        result.wait()


@pytest.mark.parametrize("method", [*WITH_OUT, *(f"{name}_async" for name in COLLECTIVES[1:]), "send", "recv"])
def test_masked_array_is_refused(two: World, method: str) -> None:
    def body(comm: Communicator) -> None:
        if method.startswith("scatter") and comm.rank:
            return  # only the root passes an array
        with pytest.raises(TypeError, match=r"x: .*masked.* x\.filled\(value\)"):
            call(comm, method, MASKED)

    two.run(body)
    assert two.run(lambda comm: float(comm.allreduce(X + 1)[0])) == [2.0, 2.0]


@pytest.mark.parametrize("method", WITH_OUT)
def test_masked_out_is_refused(two: World, method: str) -> None:
    shapes = {"allgather": 8, "gather": 8, "scatter": 2, "reduce_scatter": 2}

    def body(comm: Communicator) -> None:
        if method in ("reduce", "gather") and comm.rank:
            return  # only the root has a result
        out = np.ma.zeros(shapes.get(method, 4), np.float32)
        with pytest.raises(TypeError, match=r"out: .*masked.* plain array"):
            call(comm, method, X, out=out)

    two.run(body)
    assert two.run(lambda comm: float(comm.allreduce(X + 1)[0])) == [2.0, 2.0]


def test_masked_array_in_a_group_or_a_plan_is_refused(two: World) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(TypeError, match=r"xs\[1\]: .*masked"):
            comm.grouped_allreduce([X, MASKED])
        with pytest.raises(TypeError, match=r"x: .*masked"):
            comm.plan("allreduce", MASKED)

    two.run(body)


def test_other_subclasses_of_ndarray_are_taken() -> None:
    matrix = X.reshape(2, 2).view(np.recarray)
    assert np.shares_memory(as_numpy(matrix), X)
    assert Target(matrix, (2, 2), X.dtype).finish() is matrix


@pytest.mark.parametrize("value", [[1, 2], (1.0, 2.0), [[1], [2]]])
def test_sequences_get_a_hint(value: Any) -> None:
    with pytest.raises(TypeError, match=r"array.* not (list|tuple); .*numpy.asarray.*_object"):
        as_numpy(value)


def test_other_objects_get_no_hint() -> None:
    with pytest.raises(TypeError, match=r"x='text': .*array.* not str$"):
        as_numpy("text")


def test_a_tensor_whose_memory_has_other_values_is_refused() -> None:
    """DLPack exports the memory of a negated view without a word on the signs, and none for a tensor that was freed."""
    torch = pytest.importorskip("torch")
    negated = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    with pytest.raises(TypeError, match=r"x: .*x\.resolve_neg\(\)"):
        as_numpy(negated)
    assert as_numpy(negated.resolve_neg()).tolist() == [-2.0, 4.0]
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"out: has 4 elements, .*no memory"):
        as_numpy(freed, "out")
    assert as_numpy(torch.ones(0)).size == 0


def test_results_are_arrays_of_the_library_of_x(two: World) -> None:
    class Foreign:
        """An array of a library that follows the array API standard, such as JAX."""

        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()  # type: ignore[no-any-return]

        def __array_namespace__(self) -> Any:
            return types.SimpleNamespace(from_dlpack=Foreign)

    torch = pytest.importorskip("torch")

    class Marked(torch.Tensor):  # type: ignore[misc, name-defined]
        """A tensor of a class of another package."""

    given = ((Foreign(X), Foreign), (torch.ones(3), torch.Tensor), (torch.ones(3).as_subclass(Marked), torch.Tensor))

    def body(comm: Communicator) -> None:
        for x, kind in (*given, (np.float32(1), np.float32), (X, np.ndarray)):
            assert isinstance(comm.allreduce(x), kind)
            assert isinstance(comm.broadcast(x), kind)

    two.run(body)
