"""`ronde bench --device cuda`: the same table for arrays on GPUs, and the transport's own call beside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frontends.command_line import bench, cli
from tests.collectives.launch.launcher import ronde
from tests.gpu.gpus import gpus


@pytest.mark.parametrize("collective", bench.COLLECTIVES)
def test_every_collective_through_the_host(collective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    with gpus(2):
        status = cli.main(
            ["bench", collective, "-np", "2", "--transport", "local", "--device", "cuda", "--max", "4K",
             "--factor", "32", "--seconds", "0.001", "--warmup", "1", "--json", str(file)]
        )  # fmt: skip
    said = capsys.readouterr().out
    assert status == 0, said
    assert "arrays on cuda" in said
    report = json.loads(file.read_text())
    assert report["machine"]["gpu"] == "a GPU that is not there"
    assert all(row["wrong"] + row["inplace_wrong"] == 0 and row["bare_time"] is None for row in report["rows"])


def test_the_bare_call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With NCCL's own call, rank by rank, since `run` has processes for this transport."""
    task = bench.Task("allreduce", (4, 4096), "float32", "sum", 0, None, 0.001, 1, "cuda")
    with gpus(2) as some, some.world(2) as world:
        rows = some.run(world, lambda comm, cupy: bench.measure(task))
        assert all(row.bare_time is not None and row.bare_time > 0 for found in rows for row in found)
        assert all(row.wrong + row.inplace_wrong == 0 for found in rows for row in found)
    head, _, names, _, first, *_ = capsys.readouterr().out.splitlines()
    assert "over nccl" in head
    assert names.endswith("bare")
    assert len(first.split()) == 14


def test_without_cupy_the_error_names_the_package() -> None:
    done = ronde("bench", "-np", "1", "--transport", "local", "--device", "cuda")
    try:
        import cupy  # noqa: F401
    except ImportError:
        assert done.returncode == 2
        assert "pip install 'ronde[cuda12]'" in done.stderr.decode()
