"""frontends.torch: whatever happens to parameters, training equals that of one process, or every rank names them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.scenarios import RATE, ROUNDING, SHAPE, Training, rows, trainings
from tests.security.fuzz import fuzz
from tests.worlds import World, Worlds

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import frontends.torch as hvd  # noqa: E402

OPTIONS = st.sampled_from(
    [{}, {"groups": 1}, {"groups": 2}, {"gradient_as_bucket_view": True}, {"sparse_as_dense": True}]
)


@pytest.fixture(scope="module")
def worlds() -> Any:
    opened = Worlds()
    yield opened
    opened.close()


def loss_of(training: Training, parameters: list[Any], step: int, rank: int) -> Any:
    total = torch.zeros(())
    for number, use in enumerate(training.uses[step][rank]):
        one, factor = parameters[number], training.factor(step, rank, number)
        if use == "sparse":
            total = total + factor * torch.nn.functional.embedding(torch.tensor(rows(rank)), one, sparse=True).sum()
        elif use:
            total = total + factor * one.sum()
            if use == "twice":
                total = total + factor * one.sum()
    return total


def train(comm: Any, training: Training, options: dict[str, Any]) -> list[Any] | str:
    """The parameters after the last step, or the error of a step."""
    rank, last = comm.rank, len(training.uses) - 1
    parameters = [torch.nn.Parameter(torch.full(SHAPE, first)) for first in training.first]
    names = {number: training.name(number) for number in range(len(parameters))}
    order = training.orders[rank]
    pairs = [(names[number], parameters[number]) for number in order]
    extra = torch.nn.Parameter(torch.zeros(SHAPE))
    own = [parameters[number] for number in order if number not in training.late]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(own, lr=RATE), [*pairs, ("extra", extra)], **options)
    for step in range(last + 1):
        if step == 1 and training.late:
            optimizer.add_param_group({"params": [parameters[number] for number in order if number in training.late]})
        if step == last and training.alone and rank == 0:
            optimizer.add_param_group({"params": [extra]})
        for number, parameter in enumerate(parameters):
            parameter.requires_grad_(number not in training.frozen[step])
        optimizer.zero_grad()
        loss = loss_of(training, parameters, step, rank)
        if loss.requires_grad:
            loss.backward()
        try:
            optimizer.step()
        except ValueError as error:
            return str(error)
    return [parameter.detach().numpy() for parameter in parameters]


def check(training: Training, world: World, options: dict[str, Any]) -> None:
    found = world.run(train, training, options)
    if training.alone:
        for comm in world.communicators:  # gradients may still be on their way, so another world follows
            comm.abort("the ranks disagreed, as they should")
        assert all(isinstance(one, str) and "'extra'" in one for one in found), found
        return
    for own in found:
        assert not isinstance(own, str), own
        for number, (mine, wanted) in enumerate(zip(own, training.weights(), strict=True)):
            assert mine == pytest.approx(wanted, abs=ROUNDING), number


@pytest.mark.parametrize("size", [2, 3])
def test_any_parameters_equal_one_process(worlds: Worlds, size: int) -> None:
    @fuzz(10)
    @given(trainings(size), OPTIONS)
    def equal(training: Training, options: dict[str, Any]) -> None:
        check(training, worlds.get("local", size), options)

    equal()


class Alike(Training):
    """All ranks compute the same: Adasum of equal steps is the step."""

    def factor(self, step: int, rank: int, number: int) -> float:
        return super().factor(step, 0, number)


@pytest.mark.parametrize("size", [2, 3])
def test_any_parameters_with_adasum(worlds: Worlds, size: int) -> None:
    @fuzz(10)
    @given(trainings(size, ("dense", "twice", "")))
    def equal(given_one: Training) -> None:
        uses = tuple((ranks[0],) * size for ranks in given_one.uses)
        training = Alike(given_one.first, given_one.late, given_one.frozen, uses, given_one.orders, given_one.alone)
        check(training, worlds.get("local", size), {"op": hvd.Adasum})

    equal()


def broadcast_others(comm: Any) -> None:
    """Parameters that ranks do not share, and then some that they list in different orders."""

    def one() -> Any:
        return torch.full((2,), float(comm.rank))

    last = comm.rank == comm.size - 1
    for other in (
        {"a": one(), "b" if last else "c": one()},
        [("a", one()), ("b", one())][: 1 + last],
        [one()] * (1 + last),
    ):
        with pytest.raises(ValueError, match="rank 0 "):
            hvd.broadcast_parameters(other, 0)
    pairs = [("a", one()), ("b", one() + 10)][:: -1 if last else 1]
    hvd.broadcast_parameters(pairs, 0)
    assert {name: tensor.tolist() for name, tensor in pairs} == {"a": [0, 0], "b": [10, 10]}
    mixed = {1: one(), "b": one()}
    hvd.broadcast_parameters(mixed, comm.size - 1)
    assert [tensor.tolist() for tensor in mixed.values()] == [[comm.size - 1] * 2] * 2


def test_modules_are_not_broadcast_as_parameters() -> None:
    layer = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(layer)
    for wrong in (layer, model, torch.nn.ModuleDict({"one": layer}), model.named_modules(), {"one": layer}):
        with pytest.raises(ValueError, match=r"params: .*state_dict\(\)"):
            hvd.broadcast_parameters(wrong, 0)


def test_broadcast_of_parameters_that_are_not_on_all_ranks(worlds: Worlds) -> None:
    worlds.get("local", 2).run(broadcast_others)


def broadcast_unsendable(comm: Any) -> None:
    """Tensors that one rank, or all, cannot send."""
    for bad in (
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.nn.UninitializedParameter(),
    ):
        for rank in range(comm.size):
            with pytest.raises(ValueError, match=rf"'b': .*rank {rank} .*cannot be sent"):
                hvd.broadcast_parameters({"a": torch.ones(2), "b": bad if comm.rank == rank else torch.ones(2)}, 0)
        with pytest.raises(TypeError, match=r"params\['b'\]: "):
            hvd.broadcast_parameters({"a": torch.ones(2), "b": bad}, 0)
    for value in (torch.ones(2, device="meta"), torch.empty(2, dtype=torch.float32).to_mkldnn()):
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        if comm.rank == 0:
            optimizer.state[weight]["of"] = [value]
        with pytest.raises(Exception, match="rank 0"):
            hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer.state[weight]["of"] = [torch.tensor([1j]).conj()]
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.state[weight]["of"][0].tolist() == [-1j]
    parameters = {"a": torch.full((2,), float(comm.rank))}
    hvd.broadcast_parameters(parameters, 1)
    assert parameters["a"].tolist() == [1, 1]


def test_a_tensor_that_one_rank_cannot_send_is_an_error_on_all(worlds: Worlds) -> None:
    worlds.get("local", 2).run(broadcast_unsendable)


def step_in_two_threads(comm: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    works = []

    def begin_another() -> None:
        works.append(comm.allreduce_async(0, "bor", name="agreement.optimizer"))

    if comm.rank == 0:
        begin_another()
        with pytest.raises(ValueError, match="one thread"):
            optimizer.step()
    comm.barrier()
    if comm.rank == 1:
        begin_another()
    works[0].wait(60)
    (weight.sum() * (comm.rank + 1)).backward()
    optimizer.step()
    assert weight.tolist() == [-1.5, -1.5]


def test_an_optimizer_that_steps_beside_another_says_what_to_do(worlds: Worlds) -> None:
    worlds.get("local", 2).run(step_in_two_threads)


@pytest.mark.parametrize(
    "call", [hvd.allgather, hvd.reducescatter, lambda x: hvd.sparse_allreduce_async(x, "x", "sum")]
)
def test_a_call_of_one_tensor_names_that(worlds: Worlds, call: Any) -> None:
    def body(comm: Any) -> None:
        for wrong in ("x", None, [torch.ones(2)], torch.ones(2, device="meta")):
            with pytest.raises(TypeError, match=r"^tensor: "):
                call(wrong)

    worlds.get("local", 2).run(body)


def with_another_default_device(comm: Any) -> None:
    """Scripts call torch.set_default_device("cuda"), and have tensors on the CPU as well."""
    x, one = torch.ones(2, requires_grad=True), torch.ones(2)
    table = torch.nn.Embedding(4, 2, sparse=True)
    weight, rows = table.weight, torch.tensor([comm.rank])
    layer = torch.nn.Linear(2, 1)
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0), module.named_parameters(name), op=op)
        for module, name, op in ((table, "table", hvd.Sum), (layer, "layer", hvd.Adasum))
    ]
    with torch.device("meta"):
        hvd.allgather(x).sum().backward()
        assert x.grad.tolist() == [1, 1]
        found = hvd.sparse_allreduce_async(one.to_sparse(), "sparse", hvd.Sum)()
        assert found.to_dense().tolist() == [2, 2]
        layer(one).sum().backward()
        for alone in (False, True):
            table.zero_grad()
            if not (alone and comm.rank):
                table(rows).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            assert weight.grad.to_dense().sum() == 2 * (2 - alone)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        layer.zero_grad()
        scaler.scale(layer(one).sum()).backward()
        scaler.step(optimizers[1])
        state = hvd.elastic.TorchState(layer, x=one)
        state.commit()
        one.fill_(3)
        state.restore()
        assert state.x.tolist() == [1, 1]


def test_the_default_device_of_the_program_does_not_matter(worlds: Worlds) -> None:
    worlds.get("local", 2).run(with_another_default_device)
