"""The torch.distributed backend where the sizes that a receiver states are not those that come to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.frontends.pool import Pool

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import torch.distributed as dist  # noqa: E402

from tests.frontends.test_torch_distributed import all_gather_single, free_port, group  # noqa: E402
from transports.errors import MismatchError  # noqa: E402

Pools = Callable[[int], Pool]


def refused(call: Callable[[], Any]) -> None:
    """Every rank hears of the receiver and the sizes, and the group can be used afterwards."""
    with pytest.raises(dist.DistBackendError) as raised:
        call()
    error = raised.value.__cause__
    assert isinstance(error, MismatchError)
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == dist.get_world_size()


def awaited(call: Callable[..., Any], *args: Any, **options: Any) -> Callable[[], Any]:
    def run() -> Any:
        work = call(*args, **options, async_op=True)
        assert work.get_future() is not None
        return work.wait()

    return run


def t2_receiver_sizes(path: str) -> None:
    """Two ranks: the receiver's sizes do not fit what is sent to it, but their sums do."""
    with group(path) as (rank, _):
        x = torch.arange(4.0) + 10 * rank
        splits = [[3, 1], [1, 3]][rank], [[1, 3], [3, 1]][rank]  # of the output, of the input: for rank 0 1 come, not 3
        refused(lambda: dist.all_to_all_single(torch.zeros(4), x, *splits))
        refused(awaited(dist.all_to_all_single, torch.zeros(4), x, *splits))
        parts = [[torch.zeros(n) for n in sizes] for sizes in splits]
        refused(lambda: dist.all_to_all(*parts))
        refused(awaited(dist.all_to_all, *parts))
        refused(lambda: dist.all_to_all([torch.zeros(2 + rank), torch.zeros(2)], [torch.zeros(2), torch.zeros(2)]))

        own, outputs = torch.full((2 + rank,), float(rank)), [torch.zeros(3), torch.zeros(2)]
        for wrong in (outputs if rank else [torch.zeros(2), torch.zeros(3)], outputs):
            for _ in range(2):  # a gathering begins as if all parts were equal, and does not after one that has failed
                refused(lambda wrong=wrong: dist.all_gather(wrong, own))
                refused(awaited(dist.all_gather, wrong, own))
        even = [torch.zeros(2), torch.zeros(2)]
        for wrong in (outputs, even if rank else outputs):
            for _ in range(18):  # more than the gatherings that are not speculative after one that has failed
                refused(lambda wrong=wrong: dist.all_gather(wrong, torch.zeros(2)))
        for _ in range(18):
            dist.all_gather(even, torch.full((2,), float(rank)))
            assert [output.tolist() for output in even] == [[0, 0], [1, 1]]
        refused(lambda: dist.gather(own, outputs if rank == 1 else None, 1))
        refused(lambda: dist.scatter(torch.zeros(2), [torch.zeros(3), torch.zeros(1)] if rank == 0 else None, 0))
        refused(lambda: dist.scatter(torch.zeros(2 + rank), [torch.zeros(2)] * 2 if rank == 0 else None, 0))

        inputs = [torch.zeros(2), own]
        refused(lambda: dist.all_gather_coalesced([[torch.zeros(2), torch.zeros(1 + r)] for r in range(2)], inputs))
        uneven = torch.zeros(4 + 2 * rank)
        refused(lambda: all_gather_single(uneven, own))
        refused(lambda: dist.group.WORLD.allgather_into_tensor_coalesced([torch.zeros(4), uneven], inputs).wait())
        refused(lambda: dist.all_reduce(torch.zeros(3 + rank, 2).to_sparse()))
        total = torch.sparse_coo_tensor([[0]], [1.0], (3 + rank,), check_invariants=True)
        refused(lambda: dist.all_reduce(total))
        refused(awaited(dist.all_reduce, total))

        with pytest.raises(ValueError, match="output"):
            dist.reduce_scatter(torch.zeros(3), [torch.zeros(2), torch.zeros(2)])
        refused(lambda: dist.all_to_all_single(torch.zeros(3, 4), torch.zeros(3, 2), [1, 2], [1, 2]))
        outputs = [torch.zeros(2), torch.zeros(3)]
        dist.all_gather(outputs, own)
        assert [output.tolist() for output in outputs] == [[0, 0], [1, 1, 1]]


def functional(path: str) -> None:
    """The functional collectives, which abort: torch's C++ code has no other way to hear of an error."""
    import torch.distributed._functional_collectives as functions

    with group(path) as (rank, _):
        splits = [[3, 1], [1, 3]][rank], [[1, 3], [3, 1]][rank]
        with pytest.raises(RuntimeError):
            functions.wait_tensor(functions.all_to_all_single(torch.arange(4.0), *splits, dist.group.WORLD))
        with pytest.raises(RuntimeError):
            functions.wait_tensor(functions.all_gather_tensor(torch.zeros(2 + rank), 0, dist.group.WORLD))


def three(path: str) -> None:
    """Three ranks, of which two fit each other."""
    with group(path) as (rank, _):
        own, sizes = torch.full((rank + 1,), float(rank)), [1, 2, 3]
        refused(lambda: dist.all_gather([torch.zeros(n) for n in ([2, 1, 3] if rank == 2 else sizes)], own))
        refused(lambda: all_gather_single(torch.zeros(3 * (rank + 1)), own))  # 6 elements in all, as rank 1 expects
        refused(lambda: dist.gather(own, [torch.zeros(2)] * 3 if rank == 0 else None, 0))
        coming = [[1, 1, 1], [1, 1, 1], [0, 2, 1]][rank]
        refused(lambda: dist.all_to_all_single(torch.zeros(3), torch.zeros(3), coming, [1, 1, 1]))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_t2_receiver_sizes(pool: Pools, transport: str) -> None:
    pool(2).run(t2_receiver_sizes, free_port(), transport=transport)


def test_t2_receiver_sizes_of_functional_collectives(pool: Pools) -> None:
    pool(2).run(functional, free_port())


def test_t2_receiver_sizes_of_three_ranks(pool: Pools) -> None:
    pool(3).run(three, free_port())
