"""Whatever gradients the ranks have, training equals that of one process, or every rank names the parameters."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.frontends.parameter_ranks import run
from tests.frontends.pool import Framework
from tests.frontends.scenarios import ROUNDING, Training, trainings
from tests.security.fuzz import fuzz

USES = {
    "tensorflow": ("dense", "sparse", "twice", ""),
    "keras-jax": ("dense", "twice", ""),
    "keras-torch": ("dense", "twice", ""),
    "mxnet": ("dense", "twice", "", "frozen"),
}
AT_ONCE = 20
"""Trainings in one run of the ranks."""


def check(training: Training, found: list[Any]) -> None:
    """All ranks have what one process comes to, or all of them have an error that names a parameter."""
    if any(isinstance(own, str) for own in found):
        names = [training.name(number) for number in range(len(training.first))] + ["extra"]
        for own in found:
            assert isinstance(own, str), found
            assert any(name in own or name.replace(".", "_") in own for name in names), own
        alike = all(len(set(ranks)) == 1 for ranks in training.uses) and len(set(training.orders)) == 1
        assert training.alone or not alike, "without a cause"
        return
    assert not training.alone
    for own in found:
        for mine, wanted in zip(own, training.weights(), strict=True):
            assert mine == pytest.approx(wanted, abs=ROUNDING)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("framework", USES)
def test_any_gradients_equal_one_process(frameworks: Callable[[str], Framework], framework: str, size: int) -> None:
    library = framework.removeprefix("keras-")
    if importlib.util.find_spec(library) is None or importlib.util.find_spec("keras") is None:
        pytest.skip(f"{library} or keras is not installed")

    nothing = frozenset[int]()
    idle = Training((1.0,), nothing, (nothing,), ((("",),) * size,), ((0,),) * size, alone=True)

    @fuzz(3)
    @example([idle])
    @given(st.lists(trainings(size, USES[framework]), min_size=AT_ONCE, max_size=AT_ONCE))
    def equal(drawn: list[Training]) -> None:
        drawn = [replace(one, late=frozenset()) for one in drawn]
        ranks = frameworks(framework)(3).run(run, framework, drawn, ranks=size)
        for training, found in zip(drawn, zip(*ranks, strict=True), strict=True):
            check(training, list(found))

    equal()
