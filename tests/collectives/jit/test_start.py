"""The machine code is compiled beside the job: no rank misses the meeting because of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectives.execution import machine_code
from collectives.jit import cache
from collectives.jit.machine_code import _Target
from tests.collectives.launch.launcher import BOUND, RONDE, environment, ronde

pytest.importorskip("numba", reason="there is nothing to compile without Numba")
pytestmark = pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="needs `ronde run`")

NUMBA = """
import os, signal, sys, time
from pathlib import Path
from collectives.jit import cache

folder = Path(__file__).parent.parent
with open(folder / "makes", "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(float(os.environ["MAKE_SECONDS"]))
if os.environ.get("MAKE") == "killed" and len((folder / "makes").read_text().split()) == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("MAKE") == "fails":
    raise ImportError("this Numba is broken")
cache.keep(sys.argv[2], (folder / "code").read_bytes())
os._exit(0)
"""
"""Stands for Numba in the compiler, which is all that imports it."""

PROGRAM = """
import os, sys, time
import numpy as np

if sys.argv[1] == "apart" and os.environ["RONDE_RANK"] == "1":
    for name in ("HOME", "TMPDIR"):
        os.environ[name] += "/own"
        os.makedirs(os.environ[name])

import ronde
from collectives.jit import MachineCode, load

comm = ronde.init()
def check(comm):
    for size in (1, 1000, 300_000):
        found = comm.allreduce(np.full(size, comm.rank + 1.0, np.float32))
        assert (found == sum(range(1, comm.size + 1))).all(), found
        assert (comm.allgather(np.array([comm.rank])) == np.arange(comm.size)).all()

compiled = isinstance(load(0.0), MachineCode)
check(comm)
if sys.argv[1] == "later":
    load(time.monotonic() + 120)
    with comm.split(0) as other:
        check(other)
    check(comm)
print("rank", comm.rank, "compiled", compiled)
"""


class Place:
    """Folders for a job that starts with nothing compiled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "numba").mkdir()
        (path / "numba" / "__init__.py").write_text(NUMBA)
        (path / "program.py").write_text(PROGRAM)
        assert machine_code("on") is not None
        code = cache.find(_Target().name)
        assert code is not None
        (path / "code").write_bytes(code)
        for name in ("home", "tmp"):
            (path / name).mkdir(mode=0o700)

    def variables(self, make: float, **extra: str) -> dict[str, str]:
        places = {"PYTHONPATH": str(self.path), "HOME": str(self.path / "home"), "TMPDIR": str(self.path / "tmp")}
        return {**places, "XDG_CACHE_HOME": "", "MAKE_SECONDS": str(make), **extra}

    def run(self, size: int, make: float, *arguments: str, mode: str = "", **extra: str) -> tuple[list[bool], str]:
        """The ranks that had machine code, and stderr."""
        words = [*arguments, sys.executable, str(self.path / "program.py"), mode]
        ended = ronde("run", "-np", str(size), *words, extra=self.variables(make, **extra))
        err = ended.stderr.decode()
        assert ended.returncode == 0, err
        lines = sorted(line.rpartition("rank ")[2].split() for line in ended.stdout.decode().splitlines())
        assert [line[0] for line in lines] == [str(rank) for rank in range(size)]
        return [line[2] == "True" for line in lines], err

    @property
    def makes(self) -> int:
        log = self.path / "makes"
        return len(log.read_text().split()) if log.exists() else 0

    def kept(self) -> list[Path]:
        return [path for path in self.path.glob("**/interpreter-*.o") if "own" not in path.parts]

    def wait_until_kept(self) -> None:
        until = time.monotonic() + BOUND
        while len(self.kept()) < 2:
            assert time.monotonic() < until, "the compiler has kept nothing"
            time.sleep(0.05)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    for pid in (tmp_path / "makes").read_text().split() if found.makes else []:
        until = time.monotonic() + BOUND
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < until, "a compiler does not end"
            time.sleep(0.05)


ASSEMBLED = """
from collectives.jit.machine_code import _Target

target = _Target()
module = target._llvm.parse_assembly('define void @f() { call void asm sideeffect "nop", ""() ret void }')
print(len(target._machine.emit_object(module)))
"""


@pytest.mark.processes
def test_instructions_that_are_given_as_text_are_assembled() -> None:
    """The code for aarch64 has one. LLVM ends the process where it cannot assemble it."""
    ended = subprocess.run([sys.executable, "-c", ASSEMBLED], capture_output=True, text=True, timeout=BOUND)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 0


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_p1_the_ranks_meet_though_compiling_takes_longer_than_that(place: Place, transport: str) -> None:
    slow = {"RONDE_TRANSPORT": transport, "RONDE_CONNECT_TIMEOUT": "12"}
    compiled, err = place.run(2, 20, **slow)
    assert compiled == [False, False]
    assert err.count("Ronde compiles its interpreter once") == 1
    assert not place.kept()  # the job has ended, and the compiler goes on
    place.wait_until_kept()
    assert place.run(2, 20, **slow) == ([True, True], "")
    assert place.makes == 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_p1_compiling_takes_70_seconds(place: Place, transport: str) -> None:
    began = time.monotonic()
    assert place.run(2, 70, RONDE_TRANSPORT=transport)[0] == [False, False]
    assert time.monotonic() - began < 65
    place.wait_until_kept()
    assert place.run(2, 70, RONDE_TRANSPORT=transport)[0] == [True, True]
    assert place.makes == 1


def test_p1_communicators_that_are_made_later_have_the_code(place: Place) -> None:
    compiled, _ = place.run(2, 14, mode="later", RONDE_CONNECT_TIMEOUT="12")
    assert compiled == [False, False]
    assert place.makes == 1


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_p1_some_ranks_have_the_code_and_others_do_not(place: Place, transport: str) -> None:
    place.run(2, 0)
    slow = {"RONDE_TRANSPORT": transport, "RONDE_CONNECT_TIMEOUT": "12"}
    assert place.run(2, 20, mode="apart", **slow)[0] == [True, False]
    assert place.makes == 2


@pytest.mark.processes
@pytest.mark.parametrize("home", ["/proc/none", "new"])
def test_l14_a_home_that_cannot_be_written_or_is_new(place: Place, home: str) -> None:
    home = home if home.startswith("/") else str(place.path / home)
    compiled, err = place.run(4, 1, HOME=home, RONDE_TRANSPORT="tcp")
    assert compiled == [True] * 4
    assert err.count("Ronde compiles its interpreter once") == place.makes == 1
    assert place.run(2, 1, HOME=str(place.path / "other"))[0] == [True, True]
    assert place.makes == 1


def test_l14_on_waits_before_the_ranks_meet(place: Place) -> None:
    assert place.run(2, 8, RONDE_COMPILED="on", RONDE_CONNECT_TIMEOUT="6")[0] == [True, True]
    assert place.makes == 1


def test_l14_a_compiler_that_is_killed(place: Place) -> None:
    compiled, err = place.run(2, 1, MAKE="killed")
    assert any(compiled) or "has ended without it" in err
    place.run(2, 1, MAKE="killed")
    place.wait_until_kept()
    assert place.makes == 2


@pytest.mark.processes
def test_l14_a_compiler_that_fails(place: Place) -> None:
    compiled, err = place.run(2, 0, MAKE="fails")
    assert compiled == [False, False]
    assert "this Numba is broken" in err
    assert place.makes <= 2  # one of each process
    ended = ronde(
        *("run", "-np", "2", sys.executable, str(place.path / "program.py"), ""),
        extra=place.variables(0, MAKE="fails", RONDE_COMPILED="on"),
    )
    assert ended.returncode != 0
    assert b"ConfigError: compiled='on'" in ended.stderr


@pytest.mark.processes
def test_l14_a_damaged_file(place: Place) -> None:
    place.run(2, 0)
    for path in place.kept():
        path.write_bytes(path.read_bytes()[:-1])
    assert place.run(2, 0)[0] == [True, True]
    assert place.makes == 2


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root, to mount small disks")
@pytest.mark.parametrize(("memory", "compiled"), [("32m", True), ("4k", False)])
def test_l14_a_disk_that_is_full(place: Place, memory: str, compiled: bool) -> None:
    sizes = {"home": "64k", "tmp": "64k"}
    mounts = [f"mount -t tmpfs -o size={size} none {place.path / name}" for name, size in sizes.items()]
    script = " && ".join([*mounts, f"mount -t tmpfs -o size={memory} none /dev/shm", 'exec "$@"'])
    words = ["unshare", "-m", "sh", "-c", script, "sh", *RONDE, "run", "-np", "2", sys.executable]
    ended = subprocess.run(
        [*words, str(place.path / "program.py"), ""],
        env=environment(place.variables(0, RONDE_TRANSPORT="tcp")),
        capture_output=True,
        timeout=BOUND,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(f"compiled {compiled}".encode()) == 2
    assert place.makes == compiled
