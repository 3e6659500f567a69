"""frontends.horovod: what the frontends share, on NumPy's arrays and without a framework."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ronde
from collectives.world_communicator import world_scope
from frontends.horovod import (
    ARRAYS,
    Average,
    Call,
    Fact,
    Library,
    Max,
    ObjectState,
    Reduction,
    Sum,
    UnsupportedOpError,
    VariablesState,
    allgather_object,
    broadcast_made,
    broadcast_object,
    check_groups,
    check_passes,
    check_process_set,
    check_variables,
    predivided,
    recovering,
    start,
)
from frontends.needs import needs
from tests.worlds import world_of

WORLD = ronde.global_process_set


def how(op: Any, name: str | None = None) -> Reduction:
    return Reduction(op, name, 1.0, 1.0, WORLD)


def operations() -> dict[str, Any]:
    """The results of a rank; its numbers are its rank plus 1."""
    rank, size = ronde.rank(), ronde.size()
    own = np.full((2, 3), rank + 1.0)
    into = np.zeros_like(own)
    kept = own.copy()
    found = {
        "new": ARRAYS.allreduce(own, None, how(Average)).synchronize(),
        "into": ARRAYS.allreduce(own, into, how(Sum)).synchronize() is into,
        "in place": ARRAYS.grouped_allreduce([kept], [kept], how(Max)).synchronize()[0] is kept,
        "allgather": ARRAYS.allgather(own[:rank], None, WORLD).synchronize().shape,
        "grouped": [one.shape for one in ARRAYS.grouped_allgather([own, own[:1]], None, WORLD).synchronize()],
        "broadcast": ARRAYS.broadcast(own, None, 1, "b", WORLD).synchronize(),
        "alltoall": ARRAYS.alltoall(
            own, None, None, WORLD, lambda came, rows: (came.tolist(), rows.tolist())
        ).synchronize(),
        "reducescatter": [one.tolist() for one in ARRAYS.grouped_reducescatter([own], how(Sum)).synchronize()],
    }
    assert (own == rank + 1.0).all()
    found["sums"] = (float(into[0, 0]), float(kept[0, 0]))
    with pytest.raises(UnsupportedOpError):
        ARRAYS.reducescatter(own, how(Max))
    with pytest.raises(ValueError, match="splits"):
        ARRAYS.alltoall(own, [1] * (size + 1), None, WORLD, lambda came, rows: came)
    return found


def test_operations_on_a_librarys_tensors() -> None:
    for rank, found in enumerate(ronde.run(operations, np=2, transport="local")):
        assert (found["new"] == 1.5).all()
        assert (found["into"], found["in place"], found["sums"]) == (True, True, (3.0, 2.0))
        assert (found["allgather"], found["grouped"]) == ((1, 3), [(4, 3), (2, 3)])
        assert (found["broadcast"] == 2.0).all()
        assert found["alltoall"] == ([[1.0] * 3, [2.0] * 3], [1, 1])
        assert found["reducescatter"] == [[[3.0] * 3]], rank


def arguments() -> None:
    """The errors of a library name the argument that is no tensor."""

    def array(tensor: Any, name: str) -> Any:
        if isinstance(tensor, str):
            raise TypeError(f"{name}: must be a tensor")
        return tensor

    library = Library(array, array, array, array)
    with pytest.raises(TypeError, match=r"^tensor:"):
        library.allreduce("text", None, how(Sum))
    with pytest.raises(TypeError, match=r"^tensors\[1\]:"):
        library.grouped_allreduce([np.zeros(1), "text"], None, how(Sum))
    for factor in ("half", None, 10**400):
        with pytest.raises(TypeError, match=f"postscale_factor={factor!r}: must be a number"):
            Call("allreduce", postscale=factor)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind='gossip'"):
        list(Call("gossip").begin("name", [np.zeros(1)], [np.zeros(1)]))


def test_errors_name_the_argument() -> None:
    ronde.run(arguments, np=1, transport="local")


ONE, LOCKED = np.ones(2), threading.Lock()
REFUSED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "allreduce": (
        lambda: ARRAYS.allreduce(np.ones(2, complex), None, how(Max)),
        lambda: ARRAYS.allreduce(ONE, None, how(Max)),
    ),
    "grouped_allreduce": (
        lambda: ARRAYS.grouped_allreduce([ONE, np.ones(2, bool)], None, how(Sum)),
        lambda: ARRAYS.grouped_allreduce([ONE], None, how(Sum)),
    ),
    "allgather": (
        lambda: ARRAYS.allgather(np.array([LOCKED]), None, WORLD),
        lambda: ARRAYS.allgather(ONE, None, WORLD),
    ),
    "grouped_allgather": (
        lambda: ARRAYS.grouped_allgather([ONE, np.array([LOCKED])], None, WORLD),
        lambda: ARRAYS.grouped_allgather([ONE], None, WORLD),
    ),
    "broadcast": (
        lambda: ARRAYS.broadcast(np.array([LOCKED]), None, 0, None, WORLD),
        lambda: ARRAYS.broadcast(ONE, None, 0, None, WORLD),
    ),
    "alltoall": (
        lambda: ARRAYS.alltoall(np.array([LOCKED] * 2), None, None, WORLD, lambda came, rows: came),
        lambda: ARRAYS.alltoall(ONE, None, None, WORLD, lambda came, rows: came),
    ),
    "reducescatter": (
        lambda: ARRAYS.reducescatter(np.ones(2, bool), how(Sum)),
        lambda: ARRAYS.reducescatter(ONE, how(Sum)),
    ),
    "grouped_reducescatter": (
        lambda: ARRAYS.grouped_reducescatter([ONE, np.float64(1)], how(Sum)),
        lambda: ARRAYS.grouped_reducescatter([ONE, ONE], how(Sum)),
    ),
}
"""Calls without a name that are refused, and others of their kind."""


@pytest.mark.parametrize("kind", REFUSED)
def test_a_call_that_is_refused_on_one_rank_is_not_counted(kind: str) -> None:
    refused, good = REFUSED[kind]

    def calls(comm: Any) -> None:
        if comm.rank == 0:
            with pytest.raises((TypeError, ValueError)):
                refused()
        for _ in range(2):
            begun = good()
            if hasattr(begun, "synchronize"):
                begun.synchronize()

    with world_of("local", 2, timeout=10.0) as world:
        world.run(calls)


class Odd:
    """Its pickling raises an error that is not pickle's."""

    def __reduce__(self) -> Any:
        raise RuntimeError("odd")


@pytest.mark.parametrize("name", [None, "state"])
@pytest.mark.parametrize("bad", [LOCKED, Odd(), [lambda: None]])
def test_an_object_that_cannot_be_pickled_is_an_error_of_all_ranks(bad: Any, name: str | None) -> None:
    def calls(comm: Any) -> None:
        own = bad if comm.rank == 1 else comm.rank
        for function in (lambda obj: broadcast_object(obj, 1, name), lambda obj: allgather_object(obj, name)):
            with pytest.raises(TypeError, match=r"obj: .*cannot be pickled.*rank 1"):
                function(own)
            assert function(comm.rank) in (1, [0, 1])

    with world_of("local", 2, timeout=10.0) as world:
        world.run(calls)


def test_the_error_of_the_root_is_one_of_all_ranks() -> None:
    def make() -> Any:
        raise KeyError("momentum")

    def calls(comm: Any) -> Any:
        with pytest.raises(RuntimeError, match=r"KeyError: 'momentum' \(on rank 0\)") as caught:
            broadcast_made(make, 0, None, WORLD)
        return caught.value.__cause__

    with world_of("local", 2, timeout=10.0) as world:
        first, second = world.run(calls)
    assert (type(first), second) == (KeyError, None)


def calls(texts: list[str]) -> list[Any]:
    """The results of calls that are read from texts."""
    results = []
    for text in texts:
        call = Call.read(text)
        sources = [np.full(4, ronde.rank() + 1.0), np.full(2, 10.0 * ronde.rank())]
        targets = [
            np.zeros(2 if call.kind == "reducescatter" else 4),
            np.zeros(1 if call.kind == "reducescatter" else 2),
        ]
        for work in list(call.begin(text, sources, targets)):
            work.wait()
        results.append([target.tolist() for target in targets])
    return results


def test_calls_are_texts() -> None:
    given = [
        Call("allreduce", op="sum", prescale=2.0),
        Call("broadcast", root=1),
        Call("reducescatter", "name", op="max"),
    ]
    texts = [call.text() for call in given]
    assert [Call.read(text) for text in texts] == given
    facts = Call("agree", None, (0, 1), facts=(Fact("weight", "weight", "(3,) float32", 1),))
    assert Call.read(facts.text()) == facts
    for found in ronde.run(calls, np=2, args=[texts], transport="local"):
        assert found == [[[6.0] * 4, [20.0] * 2], [[2.0] * 4, [10.0] * 2], [[2.0] * 2, [10.0]]]


@pytest.mark.parametrize(
    ("module", "named"), [("no_such_package", True), ("no_such_package.part", True), ("numpy.no", False)]
)
def test_the_command_is_named_for_a_package_that_is_absent_and_not_for_a_part(module: str, named: bool) -> None:
    texts = {"no_such_package": "pip install it", "numpy": "pip install it"}
    with pytest.raises(ModuleNotFoundError) as caught, needs(**texts):
        __import__(module)
    assert (str(caught.value) == "pip install it") is named


ARGUMENTS: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "root": (ValueError, "root_rank='a'", lambda: broadcast_object(1, "a")),  # type: ignore[arg-type]
    "half a root": (ValueError, "root_rank=0.5", lambda: broadcast_object(1, 0.5)),  # type: ignore[arg-type]
    "tensors": (TypeError, "tensors=None: .*list", lambda: ARRAYS.grouped_allreduce(None, None, how(Sum))),  # type: ignore[arg-type]
    "tensors of allgather": (TypeError, "tensors=5: .*list", lambda: ARRAYS.grouped_allgather(5, None, WORLD)),  # type: ignore[arg-type]
    "text": (TypeError, "tensors='ab': .*list", lambda: ARRAYS.grouped_reducescatter("ab", how(Sum))),
    "prescale": (
        TypeError,
        "prescale_factor='2'",
        lambda: ARRAYS.allreduce(ONE, None, Reduction(Sum, None, "2", 1.0, WORLD)),  # type: ignore[arg-type]
    ),
    "predivide": (TypeError, "gradient_predivide_factor='a'", lambda: predivided(Average, "a")),  # type: ignore[arg-type]
    "name": (TypeError, "name=5: .*str", lambda: Call("allreduce", 5)),  # type: ignore[arg-type]
    "groups": (TypeError, "groups='ab': .*lists", lambda: check_groups("ab")),
    "group": (TypeError, r"groups=\[5\]: .*lists", lambda: check_groups([5])),
    "number of groups": (ValueError, "groups=-1: .*0 or more", lambda: check_groups(-1)),
    "variables": (TypeError, "variables=5: .*list", lambda: check_variables(5)),
    "variable": (TypeError, r"variables\[0\]=5: .*variable", lambda: check_variables([5])),
    "process set": (TypeError, "process_set=5", lambda: check_process_set(5)),
    "process sets": (ValueError, "process_sets='all': .*'dynamic'", lambda: start(None, "all", lambda _: {})),
    "elastic function": (TypeError, "func=5", lambda: recovering()(5)),  # type: ignore[arg-type]
    "elastic state": (TypeError, "state=5: .*State", lambda: recovering()(lambda state: state)(5)),
    "reset callbacks": (
        TypeError,
        "callbacks=5: .*functions",
        lambda: ObjectState().register_reset_callbacks(5),  # type: ignore[arg-type]
    ),
    "done callback": (
        TypeError,
        "callback=5: .*function",
        lambda: ronde.allreduce_async(ONE).add_done_callback(5),  # type: ignore[arg-type]
    ),
    "world": (TypeError, "communicator=5: .*Communicator", lambda: world_scope(5).__enter__()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_bad_arguments_are_named(case: str) -> None:
    kind, text, call = ARGUMENTS[case]

    def refused(comm: Any) -> None:
        with pytest.raises(kind, match=text):
            call()

    with world_of("local", 1) as world:
        world.run(refused)


@pytest.mark.parametrize("passes", [0, -1, 2.5, 2.0, True, "2", None])
def test_passes_are_an_int(passes: Any) -> None:
    with pytest.raises(ValueError, match=r"backward_passes_per_step=.*: .* int, 1 or more"):
        check_passes(passes)
    check_passes(np.int64(2))


@pytest.mark.parametrize("factor", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_a_predivide_factor_is_a_number_above_0(factor: float) -> None:
    with pytest.raises(ValueError, match=r"gradient_predivide_factor=.*: .*above 0"):
        predivided(Average, factor)


def test_scale_factors_of_numpy_are_numbers_in_the_text_of_a_call() -> None:
    call = Call("allreduce", prescale=np.float32(0.5), postscale=np.float64(2.0))  # type: ignore[arg-type]
    assert Call.read(call.text()) == Call("allreduce", prescale=0.5, postscale=2.0)


class Held(VariablesState):
    """A state with arrays as variables."""

    def __init__(self, *held: Any, **values: Any) -> None:
        self.held = list(held)
        super().__init__(**values)

    def variables(self) -> list[Any]:
        return self.held

    def assign(self, variable: Any, value: Any) -> None:
        variable[...] = value


def test_a_rank_without_the_variables_of_the_others_is_told() -> None:
    """Such as one whose model is not built yet, and which would go on with weights of its own."""

    def rank(comm: ronde.Communicator) -> None:
        own = [np.full(2, float(comm.rank)) for _ in range(1 if comm.rank == 1 else 2)]
        state = Held(*own, step=comm.rank)
        if comm.rank == 1:
            with pytest.raises(ValueError, match=r"state: .*2 variables .*1 here"):
                state.sync()
            assert (own[0].tolist(), state.step) == ([1.0, 1.0], 1)
        else:
            state.sync()
            state.held.append(np.ones(2))
            state.restore()
            assert [one.tolist() for one in state.held] == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]

    with world_of("local", 3) as world:
        world.run(rank)
