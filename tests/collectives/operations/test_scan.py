"""scan and exscan equal NumPy's accumulate, whatever the transport, ranks, algorithm, dtype and layout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Communicator, MismatchError
from collectives.algorithms import algorithms
from tests.collectives.operations.test_against_oracle import UFUNCS, cases, give_out, laid_out, values
from tests.worlds import World, Worlds, world_of

OPS = sorted(UFUNCS.keys() - {"average"})


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    opened = Worlds()
    yield opened
    opened.close()


@pytest.fixture
def three(worlds: Worlds) -> World:
    return worlds.get("local", 3)


@pytest.mark.long
@pytest.mark.parametrize("collective", ["scan", "exscan"])
@given(case=cases(), data=st.data())
def test_prefixes(worlds: Worlds, collective: str, case: dict[str, Any], data: st.DataObject) -> None:
    dtype, size = case["dtype"], case["size"]
    allowed = [op for op in OPS if dtype.kind in "bui" or op in ("sum", "prod", "min", "max")]
    if dtype.kind == "c":
        allowed = ["sum", "prod"]
    if dtype.kind == "b":
        allowed = [op for op in allowed if op not in ("sum", "prod")]
    op = data.draw(st.sampled_from(allowed), label="op")
    algorithm = data.draw(st.sampled_from([None, *algorithms(collective)]), label="algorithm")
    parts = [values(case["shape"], dtype, case["seed"] + rank, top=3) for rank in range(size)]

    def body(comm: Communicator) -> Any:
        x = laid_out(parts[comm.rank].copy(), case["layout"])
        out = give_out(case["out"], x, x.shape)
        result = getattr(comm, collective)(x, op, out=out, algorithm=algorithm)
        if out is not x:
            np.testing.assert_array_equal(x, parts[comm.rank])
        if collective == "exscan" and comm.rank == 0:
            assert result is None
            return None
        assert out is None or result is out
        return np.array(result)

    results = worlds.get(case["transport"], size).run(body)
    wanted: list[Any] = list(accumulate(parts, UFUNCS[op]))
    if op in ("land", "lor", "lxor"):
        wanted[0] = parts[0] != 0
    if collective == "exscan":
        wanted = [None, *wanted[:-1]]
    for result, prefix in zip(results, wanted, strict=True):
        if prefix is not None:
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, prefix.astype(dtype))


def test_reproducible_prefixes_are_combined_from_left_to_right(worlds: Worlds) -> None:
    parts = np.random.default_rng(3).standard_normal((5, 30_001)).astype(np.float32)
    left = list(accumulate(parts))

    def program(comm: Communicator) -> None:
        x = parts[comm.rank]
        assert comm.scan(x, reproducible=True).tobytes() == left[comm.rank].tobytes()
        before = comm.exscan(x, reproducible=True)
        assert before is None or before.tobytes() == left[comm.rank - 1].tobytes()
        halves = x.astype(ml_dtypes.bfloat16)
        wide = np.add.accumulate(parts.astype(ml_dtypes.bfloat16).astype(np.float32))[comm.rank]
        assert comm.scan(halves, reproducible=True).tobytes() == wide.astype(ml_dtypes.bfloat16).tobytes()

    for transport in ("local", "shm", "tcp"):
        worlds.get(transport, 5).run(program)


def test_forms_of_scan(three: World) -> None:
    def program(comm: Communicator) -> None:
        x = np.arange(4) + comm.rank
        expected = sum(np.arange(4) + rank for rank in range(comm.rank + 1))
        np.testing.assert_array_equal(comm.scan_async(x).wait(), expected)
        np.testing.assert_array_equal(comm.scan_async(x, "sum", name="prefix").wait(), expected)
        work = comm.exscan_async(x, "max", name="largest")
        assert (work.wait() is None) is (comm.rank == 0)
        plan = comm.plan("scan", x, "sum", out=x)
        plan.run()
        np.testing.assert_array_equal(x, expected)
        assert comm.scan(1) == comm.rank + 1
        assert isinstance(comm.scan(1.5), np.float64)
        offset = comm.exscan(comm.rank + 1)
        assert offset == (None, 1, 3)[comm.rank]
        counts = comm.metrics()["collectives"]
        assert counts["scan"]["calls"] == 5
        assert counts["exscan"]["calls"] == 2

    with world_of("local", 3) as world:
        world.run(program)


def test_what_scan_refuses(three: World) -> None:
    def program(comm: Communicator) -> None:
        x = np.ones(3)
        for call in (comm.scan, comm.exscan):
            with pytest.raises(ValueError, match=r"op='average': .*(scan|exscan), "):
                call(x, "average")
            with pytest.raises(ValueError, match=r"op='adasum': .*allreduce"):
                call(x, "adasum")
            with pytest.raises(ValueError, match=r"algorithm='ring': for e?x?scan .*chain, doubl"):
                call(x, algorithm="ring")
            with pytest.raises(ValueError, match=r"algorithm='doubling': .*fixed order"):
                call(x, algorithm="doubling", reproducible=True)
            with pytest.raises(TypeError, match=r"op='sum': .*bool"):
                call(np.ones(2, bool))
        with pytest.raises(ValueError, match=r"out: .*\(2,\).* \(3,\)"):
            comm.scan(x, out=np.ones(2))

    three.run(program)
    assert three.sound


def test_scans_that_differ_are_a_mismatch() -> None:
    with world_of("local", 3) as world:

        def program(comm: Communicator) -> None:
            if comm.rank == 0:  # it receives nothing in a scan
                comm.scan(np.ones(3))
            with pytest.raises(MismatchError):
                comm.scan(np.ones(4))

        world.run(program)


def test_large_arrays_go_along_the_chain_in_segments(worlds: Worlds) -> None:
    def program(comm: Communicator) -> None:
        x = np.full(3_000_001, comm.rank + 1, np.int32)
        assert (comm.scan(x, algorithm="chain") == (comm.rank + 1) * (comm.rank + 2) // 2).all()
        before = comm.exscan(x, algorithm="chain")
        assert before is None or (before == comm.rank * (comm.rank + 1) // 2).all()

    for transport in ("local", "tcp"):
        worlds.get(transport, 4).run(program)
