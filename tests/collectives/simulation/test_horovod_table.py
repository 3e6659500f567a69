"""Horovod's published table, predicted from its row of 16 GPUs (`benchmarks/horovod_table.py`)."""

from __future__ import annotations

import pytest

from benchmarks.horovod_table import MODELS, VGG, Fit, Model, buckets, efficiency, is_fitted, step_seconds

FIT = Fit(efficiency=0.88, latency=29e-6, slowdown=1.03)
"""The result of `fitted`, rounded: it takes ten seconds."""


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_predictions_are_within_a_tenth_and_fitted_cells_within_a_fiftieth(model: Model) -> None:
    for gpus, published in model.published.items():
        allowed = 0.02 if is_fitted(model, gpus) else 0.1
        assert efficiency(model, gpus, FIT) == pytest.approx(published, rel=allowed), gpus


def test_buckets_follow_the_backward_pass() -> None:
    found = buckets(VGG)
    assert sum(nbytes for _, nbytes in found) == pytest.approx(4 * 138.4e6, rel=1e-6)
    assert [moment for moment, _ in found] == sorted(moment for moment, _ in found)
    assert found[-1][0] == pytest.approx(VGG.alone), "the last bucket is ready at the end of the backward pass"
    assert max(nbytes for _, nbytes in found) == round(4 * 102.8e6), "a tensor above the fusion size stays alone"


def test_a_step_takes_longer_on_a_slower_network() -> None:
    fast = Fit(efficiency=1.0, latency=0.0)
    assert VGG.alone < step_seconds(VGG, 16, fast) < step_seconds(VGG, 16, Fit(efficiency=0.5, latency=0.0))
