"""The steps of distributed optimizers that are not backward, step, zero_grad: closures, hooks, loads and changes that
come between backward and step. Ranks are threads."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.worlds import World, Worlds

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import frontends.torch as hvd  # noqa: E402

SIZE = 2
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "group": {"groups": 1},
    "fp16": {"compression": hvd.Compression.fp16},
    "fp16 in a group": {"compression": hvd.Compression.fp16, "groups": 1},
    "view": {"gradient_as_bucket_view": True},
}


@pytest.fixture(scope="module")
def worlds() -> Any:
    opened = Worlds()
    yield opened
    opened.close()


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.get("local", SIZE)


def made(kind: Callable[..., Any] = torch.optim.SGD, **options: Any) -> tuple[Any, Any]:
    """A parameter of value 8, and its distributed optimizer with learning rate 1."""
    one = torch.nn.Parameter(torch.full((2,), 8.0))
    return one, hvd.DistributedOptimizer(kind([one], lr=1.0), [("one", one)], **options)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("by_hand", [False, True])
def test_gradients_that_a_closure_computes_are_combined(world: World, options: str, by_hand: bool) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(op=hvd.Sum, **OPTIONS[options])

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (comm.rank + 1) * one.sum()
            loss.backward()
            if by_hand:
                optimizer.synchronize()
            return loss.detach()

        found = []
        for _ in range(3):
            assert optimizer.step(closure) == (comm.rank + 1) * 2 * (found[-1] if found else 8)
            found.append(one[1].item())
        optimizer.zero_grad()
        return found

    assert world.run(steps) == [[5.0, 2.0, -1.0]] * SIZE


def test_a_closure_may_combine_without_the_step(world: World) -> None:
    def step(comm: Any) -> float:
        one, optimizer = made()

        def closure() -> None:
            (2 * comm.rank * one.sum()).backward()
            optimizer.synchronize()
            one.grad *= 3

        with optimizer.skip_synchronize():
            optimizer.step(closure)
        return one[0].item()

    assert world.run(step) == [5.0] * SIZE


def test_lbfgs_with_the_mean_of_the_losses(world: World) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(lambda one, **_: torch.optim.LBFGS(one, line_search_fn="strong_wolfe"))

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (one - torch.tensor([1.0, 2.0]) - comm.rank).pow(4).sum()
            loss.backward()
            return hvd.allreduce(loss.detach())

        optimizer.step(closure)
        return list(one.tolist())

    first, second = world.run(steps)
    assert first == second
    assert first == pytest.approx([1.5, 2.5], abs=0.05)


def test_hooks_of_a_step_are_called_once_after_a_state_is_loaded(world: World) -> None:
    def calls(comm: Any) -> list[str]:
        one, optimizer = made()
        optimizer.load_state_dict(optimizer.state_dict())
        found = []
        optimizer.register_step_pre_hook(lambda *_: found.append(f"before, {one.grad[0]:.0f}"))
        optimizer.register_step_post_hook(lambda *_: found.append("after"))
        (2 * comm.rank * one.sum()).backward()
        optimizer.step()
        return found

    assert world.run(calls) == [["before, 1", "after"]] * SIZE


@pytest.mark.parametrize("options", OPTIONS)
def test_a_state_can_be_loaded_between_backward_and_step(world: World, options: str) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(**OPTIONS[options])
        found = []
        for _ in range(3):
            (100 * one.sum()).backward()
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad()
            (2 * comm.rank * one.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(one[0].item())
        return found

    assert world.run(steps) == [[7.0, 6.0, 5.0]] * SIZE


@pytest.mark.parametrize(
    "options", [{"groups": 1}, {"backward_passes_per_step": 2}, {"op": hvd.Adasum, "backward_passes_per_step": 2}]
)
def test_gradients_that_are_not_on_their_way_can_be_forgotten(world: World, options: dict[str, Any]) -> None:
    """One that waits for its group, for more passes, or, of a step of Adasum, for the step."""

    def steps(comm: Any) -> list[float]:
        pair = [torch.nn.Parameter(torch.full((2,), 8.0)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(pair, lr=1.0), zip("ab", pair, strict=True), **options)
        passes = options.get("backward_passes_per_step", 1)
        for step in range(2):  # the groups are made at the end of the first one
            if step == 1:
                (100 * pair[0].sum()).backward()  # such as a pass that has failed
            optimizer.zero_grad()
            for _ in range(passes):
                ((pair[0].sum() + pair[1].sum()) / passes).backward()
            optimizer.step()
        return [one[0].item() for one in pair]

    assert world.run(steps) == [[6.0, 6.0]] * SIZE


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("replaced", [None, torch.full((2,), 100.0)])
def test_a_rank_that_replaces_its_gradient_after_backward_gets_that_of_all(
    world: World, options: str, replaced: Any
) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(**OPTIONS[options])
        found = []
        for _ in range(3):
            (2 * comm.rank * one.sum()).backward()
            if comm.rank == 0:
                one.grad = replaced  # model.zero_grad() makes it None
            optimizer.step()
            optimizer.zero_grad()
            found.append(one[0].item())
        return found

    assert world.run(steps) == [[7.0, 6.0, 5.0]] * SIZE


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("change", ["dtype", "shape", "both"])
def test_parameters_may_change_their_dtype_and_shape(world: World, options: str, change: str) -> None:
    def steps(comm: Any) -> list[Any]:
        one, other = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
        named = [("one", one), ("other", other)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([one, other], lr=1.0), named, **OPTIONS[options])
        for step in range(5):
            if step == 2 and change != "shape":
                one.data = one.data.double()
            if step == 2 and change != "dtype":
                other.data = torch.zeros(4, 5)
            optimizer.zero_grad()
            ((2 * comm.rank * one / 3).sum() + (2 * comm.rank * other).sum()).backward()
            optimizer.step()
        assert (one.grad.dtype, other.grad.shape) == (one.dtype, other.shape)
        return [one.grad.tolist(), other.grad.flatten().tolist(), one.dtype]

    first, second = world.run(steps)
    assert first == second
    precise = first[2] is torch.float64 and "fp16" not in options
    assert first[0] == pytest.approx([1 / 3] * 2, rel=1e-15 if precise else 1e-3)
    assert set(first[1]) == {1.0}


@pytest.mark.parametrize("options", OPTIONS)
def test_the_dtype_may_change_between_two_passes_of_a_step(world: World, options: str) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(op=hvd.Sum, backward_passes_per_step=2, **OPTIONS[options])
        found = []
        for step in range(5):
            ((comm.rank + 1) * one.sum()).backward()
            if step == 2:
                early, one.grad, one.data = one.grad, None, one.data.bfloat16()
                one.grad = early.bfloat16()
            ((comm.rank + 1) * one.sum()).backward()
            optimizer.synchronize()
            found.append(one.grad[0].item())
            assert one.grad.dtype == one.dtype
            one.grad = None
        return found

    assert world.run(steps) == [[6.0] * 5] * SIZE


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no grad_dtype")
@pytest.mark.parametrize("kind", [torch.float32, None])
@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_of_another_dtype_than_the_parameter(world: World, options: str, kind: Any) -> None:
    def steps(comm: Any) -> list[float]:
        one, other = (torch.nn.Parameter(torch.full((2,), 8.0, dtype=torch.bfloat16)) for _ in range(2))
        one.grad_dtype = other.grad_dtype = kind
        named = [("one", one), ("other", other)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([one, other], lr=1.0), named, **OPTIONS[options])
        found = []
        for step in range(4):
            if kind is not None and comm.rank == step % 2:
                optimizer.zero_grad()  # a gradient that the rank does not have
            else:
                one.grad = torch.full((2,), 2 + 2**-9)  # too fine for bfloat16
            optimizer.synchronize()
            found.append(one.grad[0].item() * (1 if kind is None else 2))
            assert one.grad.dtype is torch.float32
        return found

    assert world.run(steps) == [[2 + 2**-9] * 4] * SIZE


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_may_be_combined_in_inference_mode(world: World, options: str) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(op=hvd.Sum, **OPTIONS[options])
        found = []
        for step in range(6):
            one.grad = torch.full((2,), comm.rank + 1.0)
            with torch.inference_mode(step % 2 == 1):
                optimizer.synchronize()
            found.append(one.grad[0].item())
        return found

    assert world.run(steps) == [[3.0] * 6] * SIZE


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_passes_that_change_between_backward_and_step_hold_from_the_next_step_on(world: World, op: Any) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(op=op)
        one.sum().backward()
        optimizer.set_backward_passes_per_step(2)
        optimizer.step()
        optimizer.zero_grad()
        one.sum().backward()
        one.sum().backward()
        if op == hvd.Average:
            with pytest.raises(AssertionError, match="backward_passes_per_step"):
                one.sum().backward()
        optimizer.set_backward_passes_per_step(1)
        optimizer.step()
        return list(one.tolist())

    first, second = world.run(steps)
    assert first == second


def test_it_is_wrapped_once_and_not_copied(world: World) -> None:
    def refused(comm: Any) -> None:
        one, optimizer = made()
        with pytest.raises(ValueError, match="optimizer"):
            hvd.DistributedOptimizer(optimizer, [("one", one)])
        for call in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="state_dict"):
                call(optimizer)
        copy.deepcopy(optimizer.state_dict())

    world.run(refused)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("options", [*OPTIONS, "adasum"])
def test_an_optimizer_may_take_the_place_of_one_that_is_gone(world: World, options: str, kind: Any) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(kind, **({"op": hvd.Adasum} if options == "adasum" else OPTIONS[options]))
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        found = []
        for step in range(4):
            if step == 2:
                plain = kind([one], lr=1.0)
                optimizer = hvd.DistributedOptimizer(plain, [("one", one)])  # the first one is gone from here on
            (2 * comm.rank * one.sum() if step > 1 else one.sum()).backward()
            optimizer.step(lambda one=one: one.sum())
            optimizer.zero_grad()
            found.append(one[0].item())
        optimizer = None
        if comm.rank:
            one.sum().backward()  # nobody combines it
        return found

    first, second = world.run(steps)
    assert first == second
    assert first[3] < first[2] < first[1]


def test_an_older_optimizer_of_the_same_parameters_is_named(world: World) -> None:
    named = threading.Event()

    def refused(comm: Any) -> None:
        one, older = made()
        if comm.rank == 0:
            newer = hvd.DistributedOptimizer(torch.optim.SGD([one], lr=1.0), [("newer", one)])
            with pytest.raises(ValueError, match="an older DistributedOptimizer"):
                one.sum().backward()
            del newer
            named.set()
        else:
            assert named.wait(60)  # so that the older optimizer cannot end before the newer one begins
            one.sum().backward()
        with pytest.raises(AssertionError, match="delete an older DistributedOptimizer"):
            one.sum().backward()
        older.synchronize()

    world.run(refused)


def test_arguments_of_states_are_named(world: World) -> None:
    def refused(comm: Any) -> None:
        for value in (5, "model", torch.nn.Linear):
            with pytest.raises(TypeError, match=r"model=.*: must be"):
                hvd.elastic.TorchState(value)
        with pytest.raises(TypeError, match="dataset=5: must have"):
            hvd.elastic.ElasticSampler(5)
        for function in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
            with pytest.raises(TypeError, match="tensors=None: must be"):
                function(None)
        for function in (hvd.allgather, hvd.alltoall):
            with pytest.raises(TypeError, match=r"must be a torch.Tensor"):
                function(None)
        assert hvd.elastic.TorchState([torch.nn.Linear(1, 1)]).model

    world.run(refused)


def test_a_state_that_the_root_cannot_give_is_an_error_of_all_ranks(world: World) -> None:
    def refused(comm: Any) -> None:
        one = torch.nn.Parameter(torch.ones(2))
        odd, broken, good = (torch.optim.SGD([one], lr=1.0 + comm.rank) for _ in range(3))
        odd.state[one]["odd"] = lambda: None
        broken.register_state_dict_pre_hook(lambda _: {}["gone"])
        with pytest.raises(TypeError, match=r"cannot be pickled.*rank 1"):
            hvd.broadcast_optimizer_state(odd, 1)
        with pytest.raises(RuntimeError, match=r"KeyError.*rank 1"):
            hvd.broadcast_optimizer_state(broken, 1)
        hvd.broadcast_optimizer_state(good, 1)
        assert good.param_groups[0]["lr"] == 2.0

    world.run(refused)


def test_optimizers_of_different_forms_are_named_on_all_ranks(world: World) -> None:
    """`load_state_dict` refuses another number of parameters on one rank alone, and takes the options of any class."""

    def refused(comm: Any) -> None:
        pair = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        kind = (torch.optim.SGD, torch.optim.Adam)[comm.rank]
        shapes = [pair[0], torch.nn.Parameter(torch.ones(3 + comm.rank))]
        for text, other in (
            (r"param_groups.0.1.*rank [01]", torch.optim.SGD(pair[: comm.rank + 1], lr=1.0)),
            (r"(?s)SGD.*Adam", kind(pair, lr=1.0)),
            (r"(?s)\(3,\).*\(4,\)", torch.optim.SGD(shapes, lr=1.0)),
        ):
            with pytest.raises(ValueError, match=text):
                hvd.broadcast_optimizer_state(other, 0)
        hvd.broadcast_optimizer_state(torch.optim.SGD(pair, lr=1.0), 0)

    world.run(refused)


def test_wrong_arguments_are_named_before_anything_is_reduced(world: World) -> None:
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (TypeError, "optimizer: .*Linear", {"optimizer": torch.nn.Linear(1, 1)}),
        (ValueError, "op='foo'", {"op": "foo"}),
        (TypeError, "compression=None", {"compression": None}),
        (TypeError, "compression='fp16'", {"compression": "fp16"}),
        (ValueError, "backward_passes_per_step=0", {"backward_passes_per_step": 0}),
        (ValueError, "backward_passes_per_step=1.5", {"backward_passes_per_step": 1.5}),
        (ValueError, "backward_passes_per_step='2'", {"backward_passes_per_step": "2", "op": hvd.Adasum}),
        (ValueError, "gradient_predivide_factor=0", {"gradient_predivide_factor": 0}),
        (TypeError, "process_set=", {"process_set": [0, 1]}),
    ]

    def refused(comm: Any) -> None:
        one, optimizer = made()
        for kind, text, options in wrong:
            with pytest.raises(kind, match=text):
                hvd.DistributedOptimizer(**{"optimizer": torch.optim.SGD([one], lr=1.0), **options})
        with pytest.raises(ValueError, match="backward_passes_per_step=0"):
            optimizer.set_backward_passes_per_step(0)
        for compression in (None, "fp16"):
            with pytest.raises(TypeError, match="compression="):
                hvd.allreduce(one, compression=compression)
        for call in (
            hvd.broadcast_object,
            hvd.allgather_object,
            lambda one, **options: hvd.broadcast(one, 0, **options),
        ):
            with pytest.raises(TypeError, match="process_set="):
                call(one, process_set=[0, 1])
        with pytest.raises(ValueError, match="splits="):
            hvd.alltoall(one, 2)
        (2 * comm.rank * one.sum()).backward()
        optimizer.step()
        assert one[0].item() == 7

    world.run(refused)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_gradient_that_the_program_changes_on_its_way_is_an_error(world: World, options: str) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(**OPTIONS[options])
        found = []
        for step in range(4):
            (2 * comm.rank * one.sum()).backward()
            if step % 2:
                torch.nn.utils.clip_grad_norm_([one], 1e-3)
                with pytest.raises(ValueError, match=r"gradient of 'one', of 1: .*changed"):
                    optimizer.step()
            else:
                optimizer.step()
            optimizer.zero_grad()
            found.append(one[0].item())
        return found

    assert world.run(steps) == [[7.0, 7.0, 6.0, 6.0]] * SIZE


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["sgd", "fused sgd"])
def test_a_grad_scaler_finds_combined_gradients(world: World, options: str, kind: str) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(lambda *a, **o: torch.optim.SGD(*a, fused=kind == "fused sgd", **o), **OPTIONS[options])
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        found = []
        for step in range(5):
            infinite = step in (1, 2) and comm.rank == 0
            scaler.scale((float("inf") if infinite else 2.0 * comm.rank) * one.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            found.append(one[0].item())
        assert scaler.get_scale() == 2.0
        return found

    assert world.run(steps) == [[7.0, 7.0, 7.0, 6.0, 5.0]] * SIZE


@pytest.mark.parametrize("sparse", [False, True])
def test_a_grad_scaler_of_adasum_skips_the_same_steps_on_all_ranks(world: World, sparse: bool) -> None:
    def steps(comm: Any) -> list[float]:
        table = torch.nn.Embedding(2, 1, sparse=sparse)
        table.weight.data.fill_(8.0)
        plain = torch.optim.SGD(table.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, table.named_parameters(), op=hvd.Adasum)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        found = []
        for step in range(5):
            infinite = step in (1, 2) and comm.rank == 0
            loss = table(torch.tensor([0, 1])).sum()
            scaler.scale((float("inf") if infinite else 1.0) * loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            found.append(table.weight[1].item())
        assert scaler.get_scale() == 2.0
        return found

    assert world.run(steps) == [[7.0, 7.0, 7.0, 6.0, 5.0]] * SIZE


@pytest.mark.parametrize("options", OPTIONS)
def test_a_step_after_one_that_a_grad_scaler_skipped_combines(world: World, options: str) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(**OPTIONS[options])
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        (float("inf") * one.sum()).backward()
        scaler.scale(one.detach().sum())
        scaler.step(optimizer)
        optimizer.zero_grad()
        (2.0 * comm.rank * one.sum()).backward()
        optimizer.step()
        return [value.item() for value in one]

    assert world.run(steps) == [[7.0, 7.0]] * SIZE


def test_a_grad_scaler_after_synchronize(world: World) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(op=hvd.Sum)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for _ in range(2):
            scaler.scale(comm.rank * one.sum()).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_value_([one], 0.5)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [value.item() for value in one]

    assert world.run(steps) == [[7.0, 7.0]] * SIZE


def test_a_grad_scaler_finds_sparse_gradients_combined_after_a_step_that_it_skipped(world: World) -> None:
    def steps(comm: Any) -> list[float]:
        table = torch.nn.Embedding(3, 1, sparse=True)
        table.weight.data.fill_(8.0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(3):
            scaler.scale(
                (float("inf") if step == 0 and comm.rank else 2.0) * table(torch.tensor([comm.rank])).sum()
            ).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [value.item() for value in table.weight]

    assert world.run(steps) == [[6.0, 6.0, 8.0]] * SIZE
