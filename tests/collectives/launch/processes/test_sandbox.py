"""Jobs where a sandbox or an emulator refuses calls of the system that are not needed."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from collectives.launch.processes.rank_processes import Reaper
from tests.collectives.launch.launcher import ronde

PATCH = """
import errno, os, resource

def refuse(*args):
    raise OSError(getattr(errno, os.environ["REFUSED"]), "refused")

os.pidfd_open = resource.getrlimit = resource.setrlimit = refuse
"""
PROGRAM = """
import numpy as np, ronde
comm = ronde.init()
assert comm.allreduce(np.ones(3)).tolist() == [comm.size] * 3
"""


@pytest.mark.processes
@pytest.mark.parametrize("refused", ["ENOSYS", "EPERM", "EINVAL"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_p2_calls_that_are_refused_are_not_needed(tmp_path: Path, refused: str, transport: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(PATCH)
    extra = {"PYTHONPATH": str(tmp_path), "REFUSED": refused, "RONDE_TRANSPORT": transport}
    for arguments in (["-np", "2"], ["-np", "2", "--min-np", "1"]):
        ended = ronde("run", *arguments, sys.executable, "-c", PROGRAM, extra=extra)
        assert ended.returncode == 0, ended.stderr


def test_p2_a_process_that_may_open_no_more_descriptors_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.pidfd_open", refuse, raising=False)
    reaper = Reaper()
    try:
        with pytest.raises(OSError, match="Too many"):
            reaper.add(1)
    finally:
        reaper.close()
