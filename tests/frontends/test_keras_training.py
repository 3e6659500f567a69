"""frontends.keras on all backends: what `fit` makes of weights, on several ranks and as one process would."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends import keras_ranks
from tests.frontends.launch import output
from tests.frontends.pool import Framework, Pool

for needed in ("keras", *keras_ranks.BACKENDS):
    if importlib.util.find_spec(needed) is None:  # this process must not import what the ranks are to choose from
        pytest.skip(f"{needed} is not installed: pip install 'ronde[{needed}]'", allow_module_level=True)


@pytest.fixture(scope="module", params=keras_ranks.BACKENDS)
def pool(request: pytest.FixtureRequest, frameworks: Callable[[str], Framework]) -> Pool:
    """Three ranks with Keras on one backend, and without the frameworks of the others."""
    name = request.param if request.param == "tensorflow" else f"keras-{request.param}"
    return frameworks(name)(3)


def test_training_is_that_of_one_process(pool: Pool) -> None:
    pool.run(keras_ranks.two_optimizers, ranks=2)


@pytest.mark.parametrize(("size", "transport"), [(2, "tcp"), (3, "shm")])
def test_on_tcp_and_on_three_ranks(pool: Pool, size: int, transport: str) -> None:
    pool.run(keras_ranks.one_optimizer, ranks=size, transport=transport)


@pytest.mark.parametrize("job", [keras_ranks.callbacks, keras_ranks.momentum_correction])
def test_callbacks(pool: Pool, job: Callable[[], None]) -> None:
    pool.run(job, ranks=2)


def test_a_saved_model_goes_on(pool: Pool, tmp_path: Path) -> None:
    pool.run(keras_ranks.save_and_go_on, str(tmp_path), ranks=2)


@pytest.mark.parametrize("pool", ["torch"], indirect=True)
def test_optimizers_of_ones_own_are_saved(pool: Pool, tmp_path: Path) -> None:
    pool.run(keras_ranks.own_optimizers, str(tmp_path), ranks=2)


def test_learning_rates_and_configurations(pool: Pool) -> None:
    pool.run(keras_ranks.rates_and_configurations, ranks=2)


def test_values_and_bad_arguments(pool: Pool) -> None:
    pool.run(keras_ranks.values, ranks=2, transport="tcp")


def test_compressions_with_a_memory(pool: Pool) -> None:
    pool.run(keras_ranks.with_loss, ranks=2)


def test_a_warmup_that_ends_within_an_epoch(pool: Pool) -> None:
    pool.run(keras_ranks.broken_warmup, ranks=2)


def test_special_gradients(pool: Pool) -> None:
    pool.run(keras_ranks.special_gradients, ranks=2)


@pytest.mark.parametrize("pool", ["tensorflow", "torch"], indirect=True)  # JAX raises its first error in every step
def test_passes_of_other_ranks(pool: Pool) -> None:
    pool.run(keras_ranks.other_passes, ranks=2)


def test_a_gradient_that_some_passes_lack(pool: Pool) -> None:
    pool.run(keras_ranks.missing_in_a_pass, ranks=2)


@pytest.mark.parametrize("pool", ["tensorflow"], indirect=True)
def test_xla_is_left_out_of_tensorflow(pool: Pool) -> None:
    pool.run(keras_ranks.with_xla, ranks=2)


@pytest.mark.parametrize("pool", ["tensorflow"], indirect=True)
def test_a_function_of_tensorflow(pool: Pool) -> None:
    pool.run(keras_ranks.in_a_function, ranks=2)


def test_no_other_framework_is_imported() -> None:
    """With JAX. Keras itself imports JAX whatever its backend is, where it is installed."""
    code = "import sys, frontends.keras; print([m in sys.modules for m in ('tensorflow', 'torch')])"
    told = output("-c", code, KERAS_BACKEND="jax")
    assert told == "[False, False]\n"


@pytest.mark.parametrize("absent", ["keras", "torch"])
def test_missing_packages_are_named(absent: str) -> None:
    code = f"""
import sys
sys.modules[{absent!r}] = None
try:
    import frontends.keras
except ModuleNotFoundError as error:
    print(error)
"""
    assert f"pip install 'ronde[{absent}]'" in output("-c", code, KERAS_BACKEND="torch")


def test_local_sgd(pool: Pool) -> None:
    pool.run(keras_ranks.local_sgd, ranks=2)
