"""Several programs in the shell of one rank: one after the other, and at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.collectives.launch.launcher import ronde

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whether a process runs is told by /proc")

PROGRAM = """
import sys, pathlib, time
import numpy as np
import collectives as ronde
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
world = ronde.init(config={"connect_timeout": 60.0})
ronde.allreduce(np.ones(3))
(folder / f"{name}{world.rank}").touch()
if name == "a":  # until it is aborted
    while True:
        ronde.barrier(timeout=200.0)
        time.sleep(0.05)
ronde.shutdown()
print(name, world.rank, world.size, flush=True)
"""


def run(folder: Path, script: str) -> tuple[int, list[str], str]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    variables = {"PYTHON": sys.executable, "PROGRAM": str(program), "FOLDER": str(folder)}
    done = ronde("run", "--no-prefix", "-np", "2", "sh", "-c", script, extra=variables)
    return done.returncode, sorted(done.stdout.decode().splitlines()), done.stderr.decode()


@pytest.mark.processes
def test_one_after_the_other(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "for name in b c d; do $PYTHON $PROGRAM $name $FOLDER || exit; done")
    assert (code, out) == (0, [f"{name} {rank} 2" for name in "bcd" for rank in range(2)]), err


@pytest.mark.processes
def test_l19_two_at_once_fail_both(tmp_path: Path) -> None:
    """The second program comes on each rank while the first one runs: neither of them goes on, nor with the other."""
    code, out, err = run(
        tmp_path,
        """
        $PYTHON $PROGRAM a $FOLDER & first=$!
        while [ ! -e $FOLDER/a0 ] || [ ! -e $FOLDER/a1 ]; do sleep 0.05; done
        $PYTHON $PROGRAM b $FOLDER; echo b $?
        wait $first; echo a $?
        exit 3
        """,
    )
    assert (code, out) == (3, ["a 1", "a 1", "b 1", "b 1"]), err
    assert "two processes are rank" in err
