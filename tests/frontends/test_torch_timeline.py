"""Timelines of Horovod scripts: the function and the variable, the file and its events."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends.pool import Pool

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import frontends.torch as hvd  # noqa: E402
from tests.frontends.test_torch_ops import in_world  # noqa: E402

Pools = Callable[[int], Pool]


def check(file: Path, *, cycles: bool) -> None:
    """The events that the test of Horovod's timeline looks for."""
    text = file.read_text()
    assert json.loads(text)
    for word in ("allreduce.test_allreduce", "start_time_since_epoch_in_micros", "NEGOTIATE_ALLREDUCE", '"ALLREDUCE"'):
        assert word in text
    assert ("CYCLE_START" in text) == cycles


def by_the_function(rank: int, size: int, folder: str) -> None:
    files = [Path(folder) / name for name in ("one.json", "two.json", "three.json")]
    for file, cycles in zip(files, (True, True, False), strict=True):
        hvd.start_timeline(str(file), mark_cycles=cycles)  # ends the one before
        hvd.allreduce(torch.ones(3), name="test_allreduce")
        if file is not files[1]:
            hvd.stop_timeline()
            if rank == 0:
                check(file, cycles=cycles)
    hvd.allreduce(torch.ones(3), name="later")
    if rank == 0:
        check(files[1], cycles=True)
        assert sorted(Path(folder).iterdir()) == sorted(files)
        assert not any("later" in file.read_text() for file in files)


def test_start_timeline(pool: Pools) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pool(2).run(in_world, by_the_function, folder)


def by_the_variable(variables: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        in_world(lambda rank, size: hvd.allreduce(torch.ones(3), name="test_allreduce"))


@pytest.mark.parametrize("cycles", ["0", "1"])
def test_the_variable_names_exactly_the_file(pool: Pools, tmp_path: Path, cycles: str) -> None:
    file = tmp_path / "timeline.json"
    variables = {"HOROVOD_TIMELINE": str(file), "HOROVOD_TIMELINE_MARK_CYCLES": cycles}
    pool(2).run(by_the_variable, variables)
    check(file, cycles=cycles == "1")
    assert list(tmp_path.iterdir()) == [file]


def test_a_timeline_that_the_program_starts(pool: Pools) -> None:
    pool(2).run(by_the_variable, {"HOROVOD_TIMELINE": "DYNAMIC"})
    assert not Path("DYNAMIC").exists()
    assert not Path("DYNAMIC.rank0").exists()
