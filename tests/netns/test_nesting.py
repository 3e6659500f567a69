"""Launchers inside srun, and srun inside launchers: one world of the right size, or an error that names both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transports.launchers import nested

pytestmark = pytest.mark.long

SRUN = nested.KINDS["srun"]
PAIRS = [(SRUN, kind) for kind in nested.KINDS.values()] + [
    (kind, SRUN) for kind in nested.KINDS.values() if kind is not SRUN
]


@pytest.fixture(scope="module")
def run() -> Iterator[nested.Run]:
    reason = SRUN.obstacle()
    if reason is not None:
        pytest.skip(reason)
    with nested.slurm_run() as made:
        yield made


@pytest.mark.parametrize(("outer", "inner"), PAIRS, ids=lambda kind: kind.name)
def test_l4_launcher_in_launcher(run: nested.Run, outer: nested.Kind, inner: nested.Kind) -> None:
    for kind in (outer, inner):
        if kind.obstacle() is not None:
            pytest.skip(str(kind.obstacle()))
    found = [nested.verdict(outer, inner, sizes, run) for sizes in ((1, 2), (2, 1), (2, 2))]
    refused = [nested.REFUSED] * 3
    assert found in (["one world of 2", "error that names both", "error that names both"], refused)
