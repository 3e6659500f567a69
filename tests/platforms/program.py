"""A program that tries what a platform must do: prints "right" on every rank.

ronde run -np 2 tests/platforms/program.py
python tests/platforms/program.py solo|threads|processes [TRANSPORT]
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

import ronde

DTYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128")
COUNTS = (1, 7, 5003, 1 << 20)


def numbers(rank: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """Small whole numbers, so that sums are exact."""
    return np.random.default_rng(rank).integers(0, 3, count).astype(dtype)


def check() -> str:
    """Compare calls of the world with NumPy; "right", or AssertionError."""
    world, rank, size = ronde.world(), ronde.rank(), ronde.size()
    for dtype in DTYPES:
        for count in COUNTS[: 2 if dtype in ("bool", "int8", "complex128") else 4]:
            parts = [numbers(peer, count, dtype) for peer in range(size)]
            op = "lor" if dtype == "bool" else "sum"
            total = np.logical_or.reduce(parts) if dtype == "bool" else np.add.reduce(parts, dtype=dtype)
            same(world.allreduce(parts[rank], op), total)
            same(world.allreduce_async(parts[rank], op).wait(), total)
            same(world.allgather(parts[rank]), np.concatenate(parts))
            same(world.broadcast(parts[rank].copy(), size - 1), parts[size - 1])
            blocks = [np.full(5, 10 * rank + peer, dtype) for peer in range(size)]
            expected = np.concatenate([np.full(5, 10 * peer + rank, dtype) for peer in range(size)])
            same(world.alltoall(np.concatenate(blocks)), expected)
    check_more(world, rank, size)
    return "right"


def check_more(world: Any, rank: int, size: int) -> None:
    """Objects, messages, windows, threads, splits, errors."""
    assert world.allgather_object({"rank": rank}) == [{"rank": peer} for peer in range(size)]
    window = world.empty(1000, np.float32)
    window[:] = rank + 1
    same(world.allreduce(window), np.full(1000, size * (size + 1) / 2, np.float32))
    if size > 1:
        after, before = (rank + 1) % size, (rank - 1) % size
        same(world.sendrecv(np.arange(9) * rank, after, before), np.arange(9) * before)
    parts: list[Any] = []
    names = ("a", "b", "c")
    threads = [
        threading.Thread(target=lambda name=name: parts.append(world.allreduce_async(np.ones(5), name=name).wait()))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [part.tolist() for part in parts] == [[size] * 5] * len(names)
    half = world.split(rank % 2)
    same(half.allreduce(np.ones(3)), np.full(3, float(half.size)))
    half.close()
    world.barrier()


def same(found: Any, expected: Any) -> None:
    assert found.dtype == np.asarray(expected).dtype, (found.dtype, np.asarray(expected).dtype)
    np.testing.assert_array_equal(found, expected)


def main(words: list[str]) -> None:
    """Run the program as a rank, or by `ronde.run`."""
    if not words or words[0] == "solo":
        ronde.init()
        print(check())
        return
    transport = words[1] if len(words) > 1 else "local"
    print(*ronde.run(check, np=3 if transport == "local" else 2, transport=transport, timeout=120))


if __name__ == "__main__":
    main(sys.argv[1:])
