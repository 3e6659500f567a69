"""frontends.mxnet: operations, training as one process would, the KVStore, and MXNet under NumPy 2."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends import mxnet_ranks
from tests.frontends.mxnet_ranks import in_world
from tests.frontends.pool import ROOT, Pool
from tests.test_snippets import snippets

for needed in ("mxnet", "requests"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(
            f"{needed} is not installed: pip install 'ronde[mxnet]' and pip install --no-deps mxnet==1.9.1",
            allow_module_level=True,
        )

Pools = Callable[[int], Pool]
BOTH = pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp")])
EVERYWHERE = pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "shm"), (2, "tcp"), (3, "tcp")])


@BOTH
def test_reductions(pool: Pools, size: int, transport: str) -> None:
    pool(3).run(in_world, mxnet_ranks.reductions, ranks=size, transport=transport)


@BOTH
def test_movements(pool: Pools, size: int, transport: str) -> None:
    pool(3).run(in_world, mxnet_ranks.movements, ranks=size, transport=transport)


@EVERYWHERE
def test_training_is_that_of_one_process(pool: Pools, size: int, transport: str) -> None:
    pool(3).run(in_world, mxnet_ranks.trainers, ranks=size, transport=transport)


@EVERYWHERE
def test_training_with_the_store(pool: Pools, size: int, transport: str) -> None:
    pool(3).run(in_world, mxnet_ranks.stores, ranks=size, transport=transport)


def test_optimizers_are_saved_and_go_on(pool: Pools, tmp_path: Path) -> None:
    pool(3).run(in_world, mxnet_ranks.optimizers, str(tmp_path))


def test_e1_state_identity(pool: Pools) -> None:
    pool(3).run(in_world, mxnet_ranks.states, ranks=2)


def test_modules(pool: Pools) -> None:
    pool(3).run(in_world, mxnet_ranks.modules)


def test_process_sets(pool: Pools) -> None:
    pool(3).run(in_world, mxnet_ranks.process_sets)


def test_uneven_data(pool: Pools) -> None:
    pool(3).run(in_world, mxnet_ranks.uneven)


def test_a_gradient_that_is_stale_on_some_ranks_is_refused_on_all(pool: Pools) -> None:
    pool(3).run(in_world, mxnet_ranks.stale_gradients, ranks=2)


def test_beginnings(pool: Pools) -> None:
    pool(3).run(in_world, mxnet_ranks.beginnings, ranks=2)


def test_errors(pool: Pools) -> None:
    pool(3).run(in_world, mxnet_ranks.errors, ranks=2)


def test_names_that_numpy_has_removed(pool: Pools) -> None:
    pool(3).run(in_world, mxnet_ranks.removed_names, ranks=1)


def test_the_page(pool: Pools, tmp_path: Path) -> None:
    """docs/mxnet.md."""
    for number, text in enumerate(snippets("docs/mxnet.md")):
        script = tmp_path / f"script{number}.py"
        script.write_text(text)
        pool(3).run_script(script, ranks=2)
    assert number == 1


@pytest.mark.parametrize(("size", "options"), [(2, []), (3, ["--kvstore", "--compression", "bf16"])])
def test_the_example(pool: Pools, size: int, options: list[str]) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    text = pool(3).run_script(ROOT / "examples/mxnet_digits.py", "--epochs", 3, *options, ranks=size)
    found = re.search(r"accuracy ([\d.]+)% on (\d) ranks, parameters identical", text)
    assert found is not None, text
    assert "epoch 3: loss" in text
    assert (float(found[1]) > 85, int(found[2])) == (True, size), text
