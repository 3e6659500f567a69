"""The cores that a process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from transports import core_count


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("membership", "files", "allowed"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 50000\n"}, 3.0),
        (
            "4:memory:/m\n1:cpu,cpuacct:/x\n0::/\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "20000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            0.2,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("1:cpu:/elsewhere/of/the/host\n", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ("nonsense", {"cpu.max": "x"}, math.inf),
    ],
)
def test_control_groups_limit_the_cores(tmp_path: Path, membership: str, files: dict[str, str], allowed: float) -> None:
    (tmp_path / "membership").write_text(membership)
    groups = tree(tmp_path / "groups", files)
    assert core_count.allowance(tmp_path / "membership", groups) == allowed


def test_no_control_groups_limit_nothing(tmp_path: Path) -> None:
    assert core_count.allowance(tmp_path / "none", tmp_path) == math.inf


def test_there_is_a_core_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_count, "allowance", lambda: 0.2)
    assert core_count.usable_cores() == 1
    monkeypatch.setattr(core_count, "allowance", lambda: math.inf)
    if hasattr(os, "sched_getaffinity"):
        assert core_count.usable_cores() == len(os.sched_getaffinity(0))


def test_a_limit_below_the_affinity_leaves_the_first_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_count.os, "sched_getaffinity", lambda pid: {7, 3, 5}, raising=False)
    for allowed, mask in ((math.inf, 0b10101000), (2.5, 0b101000), (0.5, 0b1000)):
        monkeypatch.setattr(core_count, "allowance", lambda allowed=allowed: allowed)
        assert core_count.core_mask() == mask
        assert core_count.usable_cores() == mask.bit_count()


def test_cores_of_several_processes() -> None:
    assert core_count.count_together([0b0110, 0b1100]) == 3
    assert core_count.count_together([0b0110, 0]) == 0
    assert core_count.count_together([]) == 0
