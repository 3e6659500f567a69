"""Schedules of MSCCL: the compiler's usual forms are proved and run, and what is wrong is refused with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, import_msccl
from collectives.algorithms import algorithms, registry
from collectives.proof import ProofError
from tests.worlds import world_of

Row = tuple[str, str, int, str, int, int, int]
"""type, srcbuf, srcoff, dstbuf, dstoff, and the step of another thread block that comes before: depid, deps."""


def step(number: int, row: Row) -> str:
    kind, source, srcoff, target, dstoff, depid, deps = row
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{source}" srcoff="{srcoff}" dstbuf="{target}" dstoff="{dstoff}" '
        f'cnt="1" depid="{depid}" deps="{deps}" hasdep="0"/>'
    )


def block(number: int, to: int, source: int, rows: list[Row], channel: int = 0) -> str:
    steps = "".join(step(place, row) for place, row in enumerate(rows))
    return f'<tb id="{number}" send="{to}" recv="{source}" chan="{channel}">{steps}</tb>'


def algo(coll: str, name: str, chunks: int, gpus: list[str], scratch: int = 0) -> str:
    bodies = "".join(
        f'<gpu id="{rank}" i_chunks="{chunks}" o_chunks="0" s_chunks="{scratch}">{body}</gpu>'
        for rank, body in enumerate(gpus)
    )
    head = f'name="{name}" proto="Simple" nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}"'
    return f'<algo {head} coll="{coll}" inplace="1" outofplace="0" minBytes="0" maxBytes="0">{bodies}</algo>'


def ring(size: int) -> str:
    """One thread block: `s`, then `rrs`, `rrcs`, `rcs`, and `r` at last, as the compiler fuses them."""
    gpus = []
    for rank in range(size):
        rows: list[Row] = [("s", "i", rank, "i", rank, -1, -1)]
        for k in range(1, 2 * size - 1):
            chunk = (rank - k) % size
            kind = "rrs" if k < size - 1 else "rrcs" if k == size - 1 else "rcs" if k < 2 * size - 2 else "r"
            rows.append((kind, "i", chunk, "i", chunk, -1, -1))
        gpus.append(block(0, (rank + 1) % size, (rank - 1) % size, rows))
    return algo("allreduce", "msccl_ring", size, gpus)


def allpairs(size: int) -> str:
    """A block for each peer: its part to scratch, then the sum back; one more block adds, `nop` waits for all."""
    gpus = []
    for rank in range(size):
        peers = [peer for peer in range(size) if peer != rank]
        blocks, adds = [], len(peers)
        for number, peer in enumerate(peers):
            slot = peer if peer < rank else peer - 1
            rows: list[Row] = [
                ("s", "i", peer, "s", 0, -1, -1),
                ("r", "i", rank, "s", slot, -1, -1),
                ("s", "i", rank, "i", rank, adds, 2 * len(peers) - 1),
                ("r", "i", peer, "i", peer, -1, -1),
            ]
            blocks.append(block(number, peer, peer, rows))
        rows = []
        for number, peer in enumerate(peers):
            slot = peer if peer < rank else peer - 1
            rows += [("nop", "i", 0, "i", 0, number, 1), ("re", "s", slot, "i", rank, -1, -1)]
        gpus.append("".join([*blocks, block(adds, -1, -1, rows)]))
    return algo("allreduce", "msccl_allpairs", size, gpus, scratch=size - 1)


def half_ring(coll: str, size: int) -> str:
    """The allgather, or the reduce_scatter, of a ring."""
    gpus = []
    for rank in range(size):
        first = rank if coll == "allgather" else (rank - 1) % size
        buffer, on, end = ("o", "rcs", "r") if coll == "allgather" else ("i", "rrs", "rrc")
        rows: list[Row] = [("s", buffer, first, buffer, first, -1, -1)]
        for k in range(1, size):
            chunk = (first - k) % size
            rows.append((on if k < size - 1 else end, buffer, chunk, buffer, chunk, -1, -1))
        gpus.append(block(0, (rank + 1) % size, (rank - 1) % size, rows))
    return algo(coll, f"msccl_{coll}", size, gpus)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the algorithms that a test imports."""
    monkeypatch.setattr(registry, "REGISTERED", {name: dict(of) for name, of in registry.REGISTERED.items()})


@pytest.mark.parametrize("transport", ["local", "shm"])
@pytest.mark.parametrize("form", [ring, allpairs])
def test_imported_algorithms_run(tmp_path: Path, form: Callable[[int], str], transport: str) -> None:
    size = 4
    file = tmp_path / "algo.xml"
    file.write_text(form(size))
    name = import_msccl(file)
    assert algorithms("allreduce")[name].only_size == size

    def body(comm: Communicator) -> Any:
        for count in (1, 1003):
            x = np.arange(count, dtype=np.float64) * (comm.rank + 1)
            np.testing.assert_array_equal(comm.allreduce(x, algorithm=name), np.arange(count) * 10.0)
            np.testing.assert_array_equal(comm.allreduce(x, out=x, algorithm=name), np.arange(count) * 10.0)

    with world_of(transport, size) as world:
        world.run(body)

    def too_few(comm: Communicator) -> None:
        with pytest.raises(ValueError, match=r"4 ranks.* 2\b"):
            comm.allreduce(np.ones(3), algorithm=name)
        assert comm.allreduce(np.ones(3))[0] == 2

    with world_of("local", 2) as world:
        world.run(too_few)
    with pytest.raises(ValueError, match="registered"):
        import_msccl(file)


def test_allgather_and_reduce_scatter(tmp_path: Path) -> None:
    names = []
    for coll in ("allgather", "reduce_scatter"):
        file = tmp_path / f"{coll}.xml"
        file.write_text(half_ring(coll, 3))
        names.append(import_msccl(file))

    def body(comm: Communicator) -> Any:
        gathered = comm.allgather(np.full(comm.rank + 2, comm.rank), algorithm=names[0])
        np.testing.assert_array_equal(gathered, np.repeat([0, 1, 2], [2, 3, 4]))
        part = comm.reduce_scatter(np.arange(9.0), algorithm=names[1])
        np.testing.assert_array_equal(part, 3 * np.arange(9.0).reshape(3, 3)[comm.rank])

    with world_of("local", 3) as world:
        world.run(body)


def test_steps_of_several_chunks(tmp_path: Path) -> None:
    """Two ranks reduce and broadcast three chunks at a time."""
    rows: list[list[Row]] = [
        [("rrc", "i", 0, "i", 0, -1, -1), ("s", "i", 0, "i", 0, -1, -1)],
        [("s", "i", 0, "i", 0, -1, -1), ("r", "i", 0, "i", 0, -1, -1)],
    ]
    text = algo("allreduce", "wide", 3, [block(0, 1 - rank, 1 - rank, rows[rank]) for rank in range(2)])
    file = tmp_path / "wide.xml"
    file.write_text(text.replace('cnt="1"', 'cnt="3"'))
    name = import_msccl(file)
    with world_of("local", 2) as world:
        results = world.run(lambda comm: comm.allreduce(np.arange(8.0) + comm.rank, algorithm=name))
    np.testing.assert_array_equal(results, [2 * np.arange(8.0) + 1] * 2)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("</algo>", "", "XML"),
        ('coll="allreduce"', 'coll="custom"', "coll='custom': .*allreduce, allgather, reduce_scatter"),
        ('type="rrcs"', 'type="rrx"', "gpu 0, tb 0, step 2: type='rrx': .*r, rcs"),
        ('cnt="1"', 'cnt="x"', "gpu 0, tb 0, step 0: cnt='x': .*whole number"),
        ('ngpus="3"', 'ngpus="4"', "ngpus=4: .*3 <gpu>"),
        ('send="1"', 'send="7"', "gpu 0, tb 0: send=7, recv=2: .*GPUs, below 3"),
        ('type="s"', 'type="nop"', "thread blocks .*: gpu"),
        ('dstoff="1"', 'dstoff="9"', r"writes o\[9\]"),
        ('name="msccl_ring"', 'name="a b"', "name='a b': .*1 to 64 letters"),
    ],
)
def test_what_is_no_schedule_is_refused(tmp_path: Path, old: str, new: str, error: str) -> None:
    text = ring(3)
    assert old in text
    file = tmp_path / "algo.xml"
    file.write_text(text.replace(old, new) if new.startswith("dst") else text.replace(old, new, 1))
    with pytest.raises(ValueError, match=error) as caught:
        import_msccl(file)
    assert str(file) in str(caught.value)
    with pytest.raises(TypeError, match="path=None: must be a path"):
        import_msccl(None)  # type: ignore[arg-type]
    assert "msccl_ring" not in algorithms("allreduce")


def test_a_wrong_schedule_is_refused_by_the_prover(tmp_path: Path) -> None:
    file = tmp_path / "algo.xml"
    file.write_text(ring(3).replace('type="rrcs"', 'type="rcs"', 1))
    with pytest.raises(ProofError, match=r"allreduce 'msccl_ring': rank . of 3"):
        import_msccl(file)
    assert "msccl_ring" not in algorithms("allreduce")
