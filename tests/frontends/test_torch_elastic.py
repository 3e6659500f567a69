"""frontends.torch.elastic: commit, restore, and going on without a rank that was lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends.launch import output, ronde_run
from tests.frontends.pool import Framework, Pool

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import frontends.torch as hvd  # noqa: E402
from frontends.torch import elastic  # noqa: E402
from tests.frontends.test_torch_ops import in_world  # noqa: E402

Pools = Callable[[int], Pool]


def test_a_sampler_divides_the_remaining_samples() -> None:
    sampler = elastic.ElasticSampler(range(10), shuffle=True, seed=4)
    assert sorted(sampler) == list(range(10))
    order = list(sampler)
    sampler.record_batch(0, 4)
    assert (sampler.processed_num, sampler.remaining_indices) == (4, order)
    state = sampler.state_dict()
    sampler.reset()
    assert set(sampler) == set(order[4:])
    assert len(sampler) == 6
    sampler.set_epoch(1)
    assert list(sampler) != order
    sampler.load_state_dict(state)
    assert list(sampler) == order[4:]
    sampler.set_epoch(0)
    assert list(sampler) == [8, 2, 0, 7, 6, 9, 5, 1, 4, 3], "the order of Horovod's ElasticSampler"


def parts(rank: int, size: int) -> list[int]:
    sampler = elastic.ElasticSampler(range(11), shuffle=True)
    assert len(sampler) == -(-11 // size)
    return list(sampler)


def test_the_ranks_parts_are_the_whole(pool: Pools) -> None:
    found = pool(3).run(in_world, parts)
    assert {index for part in found for index in part} == set(range(11))


def divided_again(size: int) -> list[int]:
    """The state and its commit are older than the world."""
    sampler = elastic.ElasticSampler(range(8), shuffle=False)
    state = elastic.TorchState(sampler=sampler)
    state.save()
    assert list(sampler) == list(range(8))
    hvd.init()
    try:
        state.sync()
        return list(sampler)
    finally:
        hvd.shutdown()


def test_s4_sync_divides_the_samples_on_ranks_that_hold_the_commit(pool: Pools) -> None:
    assert pool(2).run(divided_again, 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def stepping_in_two_worlds(size: int) -> list[float]:
    """Rank 1 of the second world is new to the optimizer: it has no groups of gradients, which rank 0 has."""
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer = None
    for steps in (3, 2):
        hvd.init()
        try:
            rank = hvd.rank()
            if optimizer is None or rank == 1:
                named = [(f"p{number}", one) for number, one in enumerate(parameters)]
                optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.5), named)
            for _ in range(steps):
                optimizer.zero_grad()
                sum(one.sum() * (hvd.rank() + 1) for one in parameters).backward()
                optimizer.step()
        finally:
            hvd.shutdown()
        parameters = parameters if rank == 0 else [torch.nn.Parameter(one.detach().clone()) for one in parameters]
    return [one[0].item() for one in parameters]


def test_ranks_that_go_on_use_no_groups_of_gradients_of_the_world_before(pool: Pools) -> None:
    """Each of 5 steps takes 0.5 times the average of 1 and 2."""
    assert pool(2).run(stepping_in_two_worlds, 2, timeout="20") == [[1 - 5 * 0.75] * 4] * 2


def committing(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    sampler = elastic.ElasticSampler(range(8), shuffle=False)
    state = elastic.TorchState(net, optimizer, sampler=sampler, epoch=rank, history=[])
    state.sync()
    assert state.epoch == 0
    assert (
        len({tuple(net.weight.flatten().tolist()), *map(tuple, hvd.allgather_object(net.weight.flatten().tolist()))})
        == 1
    )
    sampler.record_batch(0, 2)
    state.epoch += 1
    state.history.append("one")
    state.commit()
    kept = net.weight.detach().clone()
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state.epoch += 1
    state.history.append("two")
    state.restore()
    assert (state.epoch, state.history) == (1, ["one"])
    assert torch.equal(net.weight, kept)
    assert not optimizer.state_dict()["state"]
    state.model = torch.nn.Linear(2, 2)
    state.restore()
    assert state.model is net, "that was not committed"
    state.model = torch.nn.Linear(2, 2)
    state.sync()
    state.restore()
    assert state.model is not net
    assert len(set(map(str, hvd.allgather_object(state.model.weight.tolist())))) == 1
    assert sampler.processed_num == 2 * size
    sampler.processed_num += 3 * rank
    state.sync()
    assert (sampler.processed_num, sampler.remaining_indices) == (2 * size, list(range(2 * size, 8)))


def test_commit_restore_and_sync(pool: Pools) -> None:
    pool(2).run(in_world, committing)


def with_other_objects(rank: int, size: int) -> None:
    net = torch.nn.Linear(2, 2)
    more = {"optimizer": torch.optim.SGD(net.parameters(), lr=1.0)}
    for owner in range(size):
        state = elastic.TorchState(net, **(more if rank == owner else {}))
        if rank == 0:
            state.sync()
        else:
            with pytest.raises(ValueError, match=r"state: .*'optimizer'"):
                state.sync()


def test_ranks_with_other_objects_in_their_states_are_told(pool: Pools) -> None:
    pool(2).run(in_world, with_other_objects)


def test_a_state_without_a_model_has_none() -> None:
    state = elastic.TorchState(epoch=3)
    assert (state.model, state.optimizer) == (None, None)
    pair = elastic.TorchState([torch.ones(1), torch.ones(1)])
    pair.model[1].fill_(5.0)
    pair.restore()
    assert [one.item() for one in pair.model] == [1.0, 1.0]


def test_a_missing_value_of_a_state_is_named_beside_those_that_there_are() -> None:
    state = elastic.TorchState(torch.nn.Linear(2, 2), epoch=3)
    with pytest.raises(AttributeError, match=r"'batch'.*model, .*epoch") as caught:
        state.batch  # noqa: B018
    assert caught.value.name == "batch"
    assert not hasattr(state, "batch")
    state.model = None
    with pytest.raises(TypeError, match=r"model: .*NoneType"):
        state.save()


def test_the_interrupt_of_changed_hosts_is_as_horovods() -> None:
    assert isinstance(elastic.HostsUpdatedInterrupt(), RuntimeError)
    assert elastic.HostsUpdatedInterrupt().skip_sync is False
    assert elastic.HostsUpdatedInterrupt(skip_sync=True).skip_sync is True


def keeping_identity(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Embedding(4, 4), torch.nn.Linear(4, 4, bias=False), torch.nn.BatchNorm1d(4))
    net[1].weight = net[0].weight  # tied
    loose = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([*net.parameters(), loose], lr=1.0, momentum=0.9)
    (net(torch.tensor([0, 1])).sum() + loose.sum()).backward()
    optimizer.step()
    table = torch.arange(12.0).reshape(3, 4) * (rank + 1)
    state = elastic.TorchState(
        net,
        optimizer,
        momentum=optimizer.state[loose]["momentum_buffer"],
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        refers=[net, net[1], net[0].weight, net[2].running_mean, optimizer],
        loose={"alpha": loose},
        table=table,
        part=table[1:, ::2],
        bits=table.view(torch.int32)[0],
        numbers=table.numpy(),
        apart=[torch.zeros(2), torch.zeros(2)],
        teacher=[torch.nn.Linear(2, 2)],
        turned=torch.ones(2, dtype=torch.complex64).mul(1j).conj(),
        none=torch.empty(0, 3),
        half=torch.full((2,), 1.5, dtype=torch.bfloat16),
    )
    state.sync()
    state.commit()
    kept = {"weight": net[0].weight.detach().clone(), "loose": loose.detach().clone()}
    for _ in range(2):
        optimizer.step()
        state.scheduler.step()
        state.restore()
        assert state.refers[0] is state.model is net
        assert state.refers[1] is net[1]
        assert state.refers[2] is net[0].weight is net[1].weight
        assert state.refers[3] is net[2].running_mean
        assert state.refers[4] is state.scheduler.optimizer is state.optimizer is optimizer
        assert state.loose["alpha"] is loose
        assert state.momentum is optimizer.state[loose]["momentum_buffer"]
        assert torch.equal(net[0].weight, kept["weight"])
        assert torch.equal(loose, kept["loose"])
    state.scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    state.table += 100
    assert torch.equal(state.part, state.table[1:, ::2])
    assert torch.equal(state.bits, state.table.view(torch.int32)[0])
    assert state.numbers.tolist() == state.table.tolist() == (torch.arange(12.0).reshape(3, 4) + 100).tolist()
    assert state.part.untyped_storage().data_ptr() == state.table.untyped_storage().data_ptr()
    state.apart[0] += 1
    assert state.apart[1].tolist() == [0, 0]
    assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in state.teacher[0].parameters())
    assert state.turned.tolist() == [-1j, -1j]
    assert (state.none.shape, state.half.tolist()) == ((0, 3), [1.5, 1.5])
    state.apart[1].resize_(5)  # a restored tensor has a storage of its own


def test_e1_state_identity(pool: Pools) -> None:
    pool(2).run(in_world, keeping_identity)


def keeping_views(rank: int, size: int) -> None:
    weights = torch.zeros(4)
    state = elastic.ObjectState(weights=weights, halves=weights.split(2), again=[weights])
    state.commit()
    state.restore()
    state.weights += 1
    assert [half.tolist() for half in state.halves] == [[1, 1], [1, 1]]
    assert state.again[0] is state.weights


def test_e1_state_identity_of_object_states(pool: Pools) -> None:
    pool(2).run(in_world, keeping_views)


SCRIPT = """
import os, sys
import torch
import frontends.torch as hvd
hvd.init()
born = hvd.rank()
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), op=getattr(hvd, sys.argv[1]))
state = hvd.elastic.TorchState(net, optimizer, step=0)
sizes = []
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])

@hvd.elastic.run
def train(state):
    while state.step < 6:
        if born == 1 and state.step == 3:
            os._exit(7)
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()

train(state)
same = len(set(map(str, hvd.allgather_object(net.weight.tolist())))) == 1
sys.stdout.write(f"rank {born} done at {state.step} of {hvd.size()}, resets {sizes}, same {same}" + chr(10))
hvd.shutdown()
"""


def check(said: str, size: int) -> None:
    for born in range(0, size, 2):
        assert f"rank {born} done at 6 of {size - 1}, resets [{size - 1}], same True" in said, said


@pytest.mark.parametrize(("size", "op"), [(2, "Average"), (2, "Adasum")])
def test_the_others_go_on_without_a_lost_rank(pool: Framework, tmp_path: Path, size: int, op: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    check(pool.fresh(size).run_script(script, op, lost={1: 7}), size)


def test_the_launcher_keeps_the_others_going(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    check(output(*ronde_run(3, "--keep-going"), script, "Average"), 3)
