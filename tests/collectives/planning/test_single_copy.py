"""Single copy: from which size on it is used, by rules and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collectives import ConfigError
from collectives.algorithms import algorithms
from collectives.planning import Model, Rules, Selector
from collectives.planning.rules import SingleCopy
from collectives.planning.select import SINGLE_COPY_BYTES, Demand
from collectives.planning.single_copy import NEVER, SHARED_BYTES, SINGLE_COPY_FROM
from collectives.schedule import SPECS, Geometry
from transports.copying import MEASURED_BYTES

STAGE = 2 << 20
COLLECTIVES = [name for name in SPECS if any(found.single_copy for found in algorithms(name).values())]


def chosen(selector: Selector, collective: str, nbytes: int, size: int = 2, **more: Any) -> bool:
    """True if a call uses single copy."""
    more = {"single_copy": True, **more}
    demand = Demand(collective, Geometry(0, size), nbytes, nbytes // size, STAGE, **more)
    return selector.choose(demand).algorithm.single_copy


def selector(*rows: SingleCopy, shared: bool = False) -> Selector:
    made = Selector(Model(), Rules(single_copy=rows), "shm")
    made.shared_arrays = shared
    return made


def test_each_collective_with_single_copy_has_a_size() -> None:
    assert set(SINGLE_COPY_FROM) == set(COLLECTIVES)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_usual_size_decides(collective: str) -> None:
    usual = SINGLE_COPY_FROM[collective]
    assert chosen(selector(), collective, 1 << 30) == (usual != NEVER)
    if usual != NEVER:
        assert chosen(selector(), collective, usual)
        assert not chosen(selector(), collective, usual - 64)
        assert not chosen(selector(), collective, usual, single_copy=False)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [2, 4])
def test_arrays_that_are_born_shared_are_read_where_they_lie(collective: str, size: int) -> None:
    start = SHARED_BYTES * (size if collective == "allgather" else 1)
    assert chosen(selector(shared=True), collective, start, size)
    assert not chosen(selector(shared=True), collective, start - 64, size)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_rules_come_first(collective: str) -> None:
    later, never = selector(SingleCopy(collective, 1 << 21)), selector(SingleCopy(collective, NEVER), shared=True)
    for nbytes in (1 << 12, 1 << 16, (1 << 21) - 64, 1 << 21, 1 << 24, 1 << 30):
        assert chosen(later, collective, nbytes) == (nbytes >= 1 << 21)
        assert not chosen(later, collective, nbytes, single_copy=False)
        assert not chosen(never, collective, nbytes)
    assert not chosen(selector(SingleCopy(collective, 1)), collective, SINGLE_COPY_BYTES - 64)


def test_rules_for_other_ranks_and_transports_do_not_count() -> None:
    ruled = selector(SingleCopy("allgather", 1 << 20, 2, 2, "shm"), SingleCopy("broadcast", 1 << 20, 1, 9, "tcp"))
    assert chosen(ruled, "allgather", 1 << 20)
    assert not chosen(ruled, "allgather", 1 << 20, size=3)
    assert not chosen(ruled, "broadcast", 1 << 20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[single_copy]]\ncollective = 'barrier'", "collective='barrier': .*allreduce"),
        ("[[single_copy]]\nfrom_bytes = 3", "collective='': .*allreduce"),
        ("[[single_copy]]\ncollective = 'alltoall'\nfrom_bytes = -1", r"from_bytes=-1: .*0 \(never\)"),
        ("[[single_copy]]\ncollective = 'alltoall'\nfrom = 1", "no setting 'from'"),
        ("[[copy_kernel]]\nkernel = 'fast'", "kernel='fast': .*vector or memcpy"),
        ("[[copy_kernel]]\nkernel = 'vector'\nbytes = 5", r"bytes=5: .*0 \(all\) or one of .*65536"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "rules.toml"
    table.write_text(text)
    with pytest.raises(ConfigError, match=rf"(?s){message}.*from .*rules.toml|rules.toml.*{message}"):
        Rules.read(str(table))


def test_kernels_of_copies_from_rules(tmp_path: Path) -> None:
    table = tmp_path / "rules.toml"
    table.write_text("[[copy_kernel]]\nkernel = 'vector'\nfetched = true\n[[copy_kernel]]\nkernel = 'memcpy'\n")
    assert Rules.read("").kernel_table() is None
    kernels = Rules.read(str(table)).kernel_table()
    assert kernels is not None
    assert {(kind.fetched, kind.large) for kind in kernels.vector} == {(True, False)}
    assert {kind.nbytes for kind in kernels.vector} == set(MEASURED_BYTES)
