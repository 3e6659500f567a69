"""The guardian's program, which is also in a zip of Ronde."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest

from collectives.launch.processes import Guardian, guardian, processes

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_spawnp"), reason="the launcher needs POSIX")


@pytest.mark.processes
def test_it_kills_what_is_left_where_its_file_is_in_a_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.write(str(guardian.__file__), "guardian_in_zip.py")
    monkeypatch.syspath_prepend(tmp_path / "some.zip")
    monkeypatch.setattr(processes, "guardian", importlib.import_module("guardian_in_zip"))
    with (
        contextlib.closing(Guardian()) as here,
        subprocess.Popen(["sleep", "1000"], start_new_session=True) as victim,
    ):
        here.start()
        here.add(victim.pid)
        os.close(here._pipe)  # as when the launcher is killed
        here._pipe = -1
        try:
            assert victim.wait(60) == -signal.SIGKILL
        finally:
            victim.kill()
