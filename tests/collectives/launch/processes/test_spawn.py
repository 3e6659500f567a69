"""Programs that the system cannot start by itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from collectives.launch.processes import spawn


def words_of(command: list[str], folder: Path) -> str:
    """The output of a command, started as a rank."""
    with (folder / "out").open("w+b") as out, open(os.devnull, "rb") as null:
        pid = spawn(command, os.environ, null.fileno(), out.fileno(), out.fileno())
        _, status = os.waitpid(pid, 0)
        assert status == 0
    return (folder / "out").read_text()


@pytest.mark.processes
def test_a_script_without_an_interpreter_is_run_by_sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells and mpirun do it, with the words as they are, by a path or by a name in PATH."""
    script = tmp_path / "my job"
    script.write_text('printf "%s|" "$@"\n')
    script.chmod(0o755)
    assert words_of([str(script), "a b", "$HOME", ""], tmp_path) == "a b|$HOME||"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert words_of(["my job", "x"], tmp_path) == "x|"


@pytest.mark.processes
def test_a_program_of_another_machine_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\0\0\0not here")
    program.chmod(0o755)
    with pytest.raises(OSError) as caught:
        words_of([str(program)], tmp_path)
    assert caught.value.errno == errno.ENOEXEC
