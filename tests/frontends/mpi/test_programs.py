"""Programs that are not changed: the name mpi4py, its launch forms, executors, and the end of a rank."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from frontends.mpi.rc import Rc
from frontends.mpi.run import main
from frontends.programs import prepared

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.processes

HELLO = """
import mpi4py.rc
mpi4py.rc.finalize = True
from mpi4py import MPI
import mpi4py.util.pkl5
assert mpi4py.__version__.split(".")[0] == "4"
import importlib.metadata
assert importlib.metadata.version("mpi4py") == mpi4py.__version__
assert "mpi4py" in [found.name for found in importlib.metadata.distributions()]
assert not list(importlib.metadata.distributions(path=["/nowhere"]))
comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank + 1)
assert comm.gather(comm.rank) == (list(range(comm.size)) if comm.rank == 0 else None)
if comm.rank == 0:
    print("total", total, mpi4py.rc.initialize, type(mpi4py.rc).__name__)
"""
POOL = """
from itertools import count, islice
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor, collect, compose

def square(x):
    return x * x

def fail(x):
    raise ValueError(f"no {x}")

class Point:
    def __init__(self, x):
        self.x = x

class Broken(Exception):
    def __init__(self, code, text):
        super().__init__(text)

def point(x):
    return Point(x)

def break_it():
    raise Broken(1, "two arguments")

if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        print("squares", list(pool.map(square, range(5), chunksize=2)), pool.num_workers)
        print("without an end", list(islice(pool.map(square, count(), buffersize=3, chunksize=2), 5)))
        print("raised", pool.submit(fail, 3).exception())
        print("chained", compose(collect(pool.submit(square, x) for x in range(4)), sum).result())
        print("of the script", type(pool.submit(point, 3).result()) is Point)
        print("cannot be loaded", "Broken: two arguments" in str(pool.submit(break_it).exception()))
        pool.shutdown(wait=False)
    try:
        MPIPoolExecutor(initializer=lambda: None).submit(square, 1)
    except Exception:
        print("no pickle of the initializer")
    with MPIPoolExecutor(max_workers=1) as pool:
        print("again", pool.submit(square, 9).result())
    dropped = MPIPoolExecutor().submit(square, 2)
    with MPIPoolExecutor() as one, MPIPoolExecutor(2) as two:
        print("together", dropped.result(), one.submit(square, 3).result(), two.submit(square, 4).result())
        try:
            MPIPoolExecutor(1).bootup()
        except RuntimeError as error:
            print("of another size:", error)
    MPIPoolExecutor(initializer=square, initargs=(1,)).submit(square, 1)
    with MPICommExecutor() as pool:
        print("in a statement", list(pool.map(square, [5])))
"""
LEFT = """
import sys
from mpi4py.futures import MPIPoolExecutor

class Square:
    def __init__(self, x):
        self.side = x

def tell(future):
    print("told", future.result().side)

if __name__ == "__main__":
    pool = MPIPoolExecutor()
    for x in range(4):
        pool.submit(Square, x).add_done_callback(tell)
    sys.exit(int(sys.argv[1]))
"""
AT_ONCE = """
import threading
from mpi4py.futures import MPIPoolExecutor

together = threading.Barrier(2)

class Initializer:
    def __reduce__(self):  # both executors are about to send it if none of them waits for the other
        try:
            together.wait(0.2)
        except threading.BrokenBarrierError:
            pass
        return Initializer, ()
    def __call__(self):
        pass

def begin():
    try:
        held.append(MPIPoolExecutor(initializer=Initializer()).bootup())
    except RuntimeError as error:
        told.append(error)

if __name__ == "__main__":
    held, told = [], []
    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(held), "has the workers,", len(told), "is told")
    for pool in held:
        pool.shutdown()
"""
LOST = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.rank == 1:
    raise ValueError("this rank is broken")
try:
    comm.recv(source=1)
except MPI.Exception as error:
    print("told", error.Get_error_class() == MPI.ERR_PROC_FAILED, "rank 1" in str(error))
"""
THREAD = """
import threading, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.rank == 1:
    threading.Thread(target=comm.Abort, args=(7,)).start()
    time.sleep(60)
try:
    comm.Barrier()
except MPI.Exception as error:
    print("told", "MPI.Comm.Abort(7)" in str(error), flush=True)
    time.sleep(60)
"""
CAUGHT = """
import threading
from mpi4py import MPI
comm = MPI.COMM_WORLD
try:
    if comm.rank == 1:
        threading.Thread(target=threading.Event().wait).start()
        comm.Abort(7)
    comm.Barrier()
except BaseException as error:
    print("told", type(error).__name__)
"""
ENDS = """
from mpi4py import MPI
for name in "first", "second":
    key = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, name: print(name, MPI.Is_finalized(), flush=True))
    MPI.COMM_SELF.Set_attr(key, name)
"""
SETTINGS = """
from mpi4py import MPI, rc
from mpi4py.util import pkl5
from mpi4py.futures import MPIPoolExecutor
assert not MPI.Is_initialized()
assert (rc.initialize, rc.finalize, rc.thread_level, rc.irecv_bufsz) == (False, True, "single", 1)
for pickle in MPI.pickle, pkl5.pickle:
    pickle.__init__()
    assert (pickle.PROTOCOL, pickle.THRESHOLD, pickle.dumps(1)[1]) == (3, 1024, 3)
MPI.Init()
with MPIPoolExecutor() as pool:
    print("workers", pool.num_workers)
"""
FINALIZED = """
from mpi4py import MPI
comm, copy = MPI.COMM_WORLD, MPI.COMM_WORLD.Dup()
MPI.Finalize()
for call in (comm.Get_rank, comm.Barrier, comm.Dup, copy.Barrier, lambda: copy.send(1, 0), lambda: MPI.Win.Allocate(8)):
    try:
        call()
    except MPI.Exception:
        continue
    raise SystemExit("no error")
print("finalized", MPI.Is_finalized())
"""


def run(tmp_path: Path, text: str, *words: str, code: int = 0, arguments: tuple[str, ...] = ()) -> str:
    script = tmp_path / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "ronde", "run", "--no-prefix", *words, str(script), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_script_under_ronde_run(tmp_path: Path) -> None:
    assert run(tmp_path, HELLO, "-np", "2", "--mpi4py") == "total 3 True Rc\n"


def test_a_script_under_the_module(tmp_path: Path) -> None:
    assert run(tmp_path, HELLO, "-np", "2", sys.executable, "-m", "ronde.mpi") == "total 3 True Rc\n"


@pytest.mark.parametrize(
    ("option", "shown"),
    [("--version", r"mpi4py 4\.\d+\.\d+"), ("--mpi-std-version", r"MPI 4\.1"), ("--mpi-lib-version", "Ronde .+")],
)
def test_versions_are_shown(option: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option])
    assert ended.value.code == 0
    assert re.fullmatch(shown + "\n", capsys.readouterr().out)


def test_an_unknown_option_is_an_error_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--verison"])
    assert ended.value.code == 2
    assert "usage: python -m ronde.mpi" in capsys.readouterr().err


def test_a_script_finds_the_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_script.py").write_text("value = 7")
    (tmp_path / "script.py").write_text("from beside_the_script import value")
    monkeypatch.setattr(sys, "path", ["elsewhere", *sys.path[1:]])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    try:
        names = prepared(["script.py", "word"], "")(run_name="__main__")
        assert names["value"] == 7
        assert names["__file__"] == str(tmp_path / "script.py")  # it may change the folder, and find itself again
        assert sys.path[0] == str(tmp_path)
        assert sys.argv == ["script.py", "word"]
    finally:
        sys.modules.pop("beside_the_script", None)


def test_objects_of_the_classes_of_a_command_are_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    main_module = sys.modules["__main__"]
    text = "import pickle\nclass Point: ...\nfound = isinstance(pickle.loads(pickle.dumps(Point())), Point)"
    assert prepared(["-c", text], "")(run_name="__main__")["found"]
    assert sys.modules["__main__"] is main_module


def test_executors_on_the_other_ranks(tmp_path: Path) -> None:
    told = run(tmp_path, POOL, "-np", "3", sys.executable, "-m", "ronde.mpi.futures")
    assert told.splitlines() == [
        "squares [0, 1, 4, 9, 16] 2",
        "without an end [0, 1, 4, 9, 16]",
        "raised no 3",
        "chained 14",
        "of the script True",
        "cannot be loaded True",
        "no pickle of the initializer",
        "again 81",
        "together 4 9 16",
        "of another size: the workers serve another executor: shut that down first",
        "in a statement [25]",
    ]


def test_one_of_two_executors_that_begin_at_once_has_the_workers(tmp_path: Path) -> None:
    told = run(tmp_path, AT_ONCE, "-np", "2", sys.executable, "-m", "ronde.mpi.futures")
    assert told == "1 has the workers, 1 is told\n"


@pytest.mark.parametrize("code", [0, 5])
def test_tasks_that_a_script_has_left_are_done_after_its_end(tmp_path: Path, code: int) -> None:
    words = "-np", "3", "--mpi4py", sys.executable, "-m", "mpi4py.futures"
    told = run(tmp_path, LEFT, *words, code=code, arguments=(str(code),))
    assert sorted(told.splitlines()) == [f"told {x}" for x in range(4)]


def test_a_script_under_the_run_of_mpi4py(tmp_path: Path) -> None:
    words = "-np", "2", "--mpi4py", sys.executable, "-m", "mpi4py.run"
    assert run(tmp_path, HELLO, *words) == "total 3 True Rc\n"


def test_a_rank_that_raises_is_named_on_the_others(tmp_path: Path) -> None:
    assert "told True True" in run(tmp_path, LOST, "-np", "2", "--mpi4py", code=1)


def test_abort_in_a_thread_ends_the_process_with_its_code(tmp_path: Path) -> None:
    assert "told True" in run(tmp_path, THREAD, "-np", "2", "--mpi4py", code=7)


def test_abort_ends_a_process_that_catches_all_errors_and_has_threads(tmp_path: Path) -> None:
    assert run(tmp_path, CAUGHT, "-np", "2", "--mpi4py", code=7) == "told Failure\n"


def test_interfaces_of_c_say_what_to_do(tmp_path: Path) -> None:
    text = "import mpi4py\ntry:\n    mpi4py.get_include()\nexcept NotImplementedError as error:\n    print(error)\n"
    assert "build the extension with mpi4py and an MPI" in run(tmp_path, text, "-np", "1", "--mpi4py")


def test_calls_after_finalize_raise_errors_of_mpi(tmp_path: Path) -> None:
    assert run(tmp_path, FINALIZED, "-np", "1", "--mpi4py") == "finalized True\n"


@pytest.mark.parametrize("end", ["", "MPI.Finalize()"])
def test_attributes_of_comm_self_are_deleted_at_the_end_the_last_one_first(tmp_path: Path, end: str) -> None:
    assert run(tmp_path, ENDS + end, "-np", "1", "--mpi4py") == "second False\nfirst False\n"


def test_the_environment_variables_of_mpi4py_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RC_INITIALIZE": "no",
        "RC_FINALIZE": "1",
        "RC_THREAD_LEVEL": "Single",
        "RC_IRECV_BUFSZ": "1",
        "PICKLE_PROTOCOL": "3",
        "PICKLE_THRESHOLD": "1024",
        "FUTURES_MAX_WORKERS": "3",
    }.items():
        monkeypatch.setenv(f"MPI4PY_{name}", value)
    assert run(tmp_path, SETTINGS, "-np", "1", "--mpi4py") == "workers 3\n"


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"initialize": "yes"}, (True, True)),
        ({"initialize": False}, (False, False)),
        ({"finalize": "False"}, (True, False)),
        ({"initialize": "no", "finalize": True}, (False, True)),
    ],
)
def test_settings_may_be_words(settings: dict[str, object], found: tuple[bool, bool]) -> None:
    rc = Rc(**settings)
    assert (rc.initializes, rc.finalizes) == found


@pytest.mark.parametrize("name", ["initialise", "initializes", "read"])
def test_a_name_that_is_no_setting_is_an_error(name: str) -> None:
    rc = Rc()
    for give in (partial(setattr, rc, name), lambda value: rc(threads=False, **{name: value})):
        with pytest.raises(TypeError, match="is no setting"):
            give(False)
    assert rc.threads


def test_a_setting_without_a_meaning_is_an_error() -> None:
    with pytest.raises(ValueError, match="initialize='maybe'"):
        _ = Rc(initialize="maybe").finalizes
