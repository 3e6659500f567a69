"""Launchers inside srun, and srun inside launchers: one world of the right size, or an error that names both."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from tests.transports.launchers import nested, real

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


def test_l4_copies_that_are_meant_are_worlds_of_their_own(run: nested.Run) -> None:
    outer = nested.KINDS["openmpi"]
    if outer.obstacle() is not None:
        pytest.skip(str(outer.obstacle()))
    settings = real.environment(RONDE_SECRET="5a" * 16, RONDE_LAUNCHER="slurm")
    words = [*outer.words(2), *SRUN.words(2), sys.executable, "-c", nested.PROGRAM]
    code, text = run(words, settings)
    assert code == 0, text
    assert sorted(re.findall(r"rank (\d+) of (\d+) sum (\d+)", text)) == sorted(2 * [("0", "2", "3"), ("1", "2", "3")])
