"""frontends.torch.local_sgd: modules and trees of tensors; the rounds themselves are tested with NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.compression import Int8
from tests.worlds import world_of

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

from frontends.torch.local_sgd import DiLoCo, LocalSGD, Nesterov  # noqa: E402


def test_a_module_learns_what_no_worker_could_learn_alone() -> None:
    """Each worker sees other inputs."""
    whole = torch.nn.functional.normalize(torch.randn(16, 8, generator=torch.Generator().manual_seed(0)))
    x = torch.eye(16)

    def rank(comm: Communicator) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(16, 8, bias=False), torch.nn.BatchNorm1d(8))
        model[1].requires_grad_(False)
        layer = model[0]
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        outer = DiLoCo(model, every=3, fragments=2, delay=1, outer=Nesterov(1.0, 0.0))
        assert outer.start(model) is model
        mine = slice(comm.rank * 8, comm.rank * 8 + 8)
        while outer.steps < 45:
            optimizer.zero_grad()
            (layer(x[mine]) - whole[mine]).square().sum().backward()
            optimizer.step()
            outer.step(model)
        outer.sync(model)
        assert sorted(outer.state_dict()["global"]) == ["0.weight"]
        assert float((layer(x) - whole).detach().abs().max()) < 0.01
        return layer.weight.detach().numpy().tobytes()

    with world_of("local", 2) as world:
        assert len(set(world.run(rank))) == 1


@pytest.mark.parametrize("compression", [None, Int8()])
def test_tensors_of_all_kinds(compression: Any) -> None:
    def rank(comm: Communicator) -> None:
        params = {
            "half": torch.full((40, 50), 1.0, dtype=torch.bfloat16),
            "transposed": torch.zeros(3, 2, dtype=torch.float64).T,
            "scalar": torch.tensor(0.0),
        }
        local = LocalSGD(params, every=1, compression=compression)
        local.start(params)
        for value in params.values():
            value += 2 * comm.rank
        assert local.step(params) is params
        assert float(params["half"].float().sub(2.0).abs().max()) < 0.02
        np.testing.assert_allclose(params["transposed"].numpy(), np.ones((2, 3)), atol=1e-6)
        assert params["scalar"].item() == pytest.approx(1.0, abs=1e-6)

    with world_of("local", 2) as world:
        world.run(rank)


def test_bad_parameters() -> None:
    with pytest.raises(TypeError, match=r"params\['n'\]: .*int64.*floats"):
        DiLoCo({"n": torch.zeros(3, dtype=torch.int64)})
    with pytest.raises(TypeError, match=r"Tensor .*tuple, not ndarray"):
        DiLoCo(np.zeros(3))
