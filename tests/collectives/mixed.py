"""10,000 mixed collectives of random sizes, every result checked; memory, descriptors and segments must not grow.

ronde run -np 2 python tests/collectives/mixed.py [CALLS]
"""

from __future__ import annotations

import resource
import sys

import numpy as np

import collectives as ronde
from transports.testing import Leaks


def one(world: ronde.Communicator, rng: np.random.Generator) -> None:
    """One random collective, the same on every rank, and its check."""
    rank, size = world.rank, world.size
    count = int(2 ** rng.uniform(0, 16)) if rng.random() < 0.95 else int(2 ** rng.uniform(16, 20))
    root = int(rng.integers(size))
    dtype = rng.choice(["float32", "int64", "uint8"])
    base = (np.arange(count) % 50).astype(dtype)
    mine = base + np.asarray(rank, dtype)
    total = base * np.asarray(size, dtype) + np.asarray(size * (size - 1) // 2, dtype)
    match rng.integers(9):
        case 0:
            np.testing.assert_array_equal(world.allreduce(mine), total)
        case 1:
            world.allreduce(mine, out=mine)
            np.testing.assert_array_equal(mine, total)
        case 2:
            result = world.reduce(mine, root=root)
            assert (result is None) == (rank != root)
            if result is not None:
                np.testing.assert_array_equal(result, total)
        case 3:
            np.testing.assert_array_equal(world.reduce_scatter(mine), np.array_split(total, size)[rank])
        case 4:
            np.testing.assert_array_equal(world.broadcast(mine, root), base + np.asarray(root, dtype))
        case 5:
            parts = [base[: count // (r + 1)] + np.asarray(r, dtype) for r in range(size)]
            np.testing.assert_array_equal(world.allgather(parts[rank]), np.concatenate(parts))
        case 6:
            whole = np.array_split(base + np.asarray(root, dtype), size)
            np.testing.assert_array_equal(world.scatter(mine if rank == root else None, root), whole[rank])
        case 7:
            splits = [count // size] * size
            splits[0] += count % size
            got = world.alltoall(mine, splits)
            start = sum(splits[:rank])
            piece = base[start : start + splits[rank]]
            np.testing.assert_array_equal(got, np.concatenate([piece + np.asarray(r, dtype) for r in range(size)]))
        case _:
            assert world.allgather_object((rank, count)) == [(r, count) for r in range(size)]


def main(calls: int) -> None:
    world = ronde.init()
    rng = np.random.default_rng(7)
    warm = calls // 4
    for _ in range(warm):
        one(world, rng)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Leaks():
        for _ in range(calls - warm):
            one(world, rng)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    world.barrier()  # so that nobody counts while another closes
    assert grown < 32 << 10, f"memory grew by {grown} KiB"
    print(f"{calls} calls, {memory >> 10} MiB, {grown} KiB more")
    ronde.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
