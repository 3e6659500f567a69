"""The table of `python -m benchmarks.mpi`."""

from __future__ import annotations

from benchmarks.mpi import OURS, table


def test_the_table_has_medians_of_ratios() -> None:
    rounds = [
        {OURS: {"Bcast 8 B": 2e-6, "own Bcast 8 B": 1e-6, "x": 4e-6}, "peer": {"Bcast 8 B": 1e-6, "x": factor * 4e-6}}
        for factor in (1, 3, 100)
    ]
    assert table(rounds, ["peer"]).splitlines()[2:] == ["| Bcast 8 B | 2.0 | 0.50 | 0.50 |", "| x | 4.0 | 3.00 | |"]
