"""`run(fn)`, with ranks as threads and as processes."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy
import pytest

import collectives as ronde
from collectives.launch.calls.outcome import Failure, dump, load, root_cause
from tests.collectives.launch.launcher import BOUND, Watch, environment
from transports import shm
from transports.shm.segments import Segment, is_segment

PROCESSES = "tcp"
KINDS = ["local", PROCESSES]
TIMEOUT = 50.0


class Peculiar(Exception):
    """An error that can be pickled but not unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.two = two


def contribute(scale: float, *, offset: float = 0.0) -> tuple[int, int, float]:
    return ronde.rank(), ronde.size(), float(ronde.allreduce(scale * ronde.rank() + offset))


def nothing() -> None:
    pass


def fail_on_1(kind: Callable[..., Exception], *args: Any) -> None:
    if ronde.rank() == 1:
        raise kind(*args)
    ronde.barrier()


def leave(code: int) -> None:
    if ronde.rank() == 1:
        sys.exit(code)
    ronde.barrier()


def die(number: int) -> None:
    if ronde.rank() == 1:
        os.kill(os.getpid(), number)
    ronde.barrier()


def vanish() -> None:
    if ronde.rank() == 1:
        os._exit(7)
    ronde.barrier()


def die_with_named_memory(path: Path) -> None:
    path.write_text(Segment.create(4096).path)
    os._exit(7)


def die_in_a_piece() -> None:
    def send_a_part(pipe: Connection, *_: Any) -> NoReturn:
        os.write(pipe.fileno(), (100).to_bytes(4) + b"part")
        os._exit(7)

    Connection.send_bytes = send_a_part  # type: ignore[method-assign]


def die_before_a_child(path: Path) -> None:
    child = os.fork()
    if child:
        path.write_text(str(child))
        os._exit(7)
    threading.Event().wait(TIMEOUT)
    path.unlink()
    os._exit(0)


def wait_for_ever() -> None:
    ronde.recv(numpy.empty(1), 1 - ronde.rank())


def finish_unless_0() -> None:
    if ronde.rank() == 0:
        threading.Event().wait()


def give(size: int) -> numpy.ndarray:
    return numpy.full(size, ronde.rank(), numpy.uint8)


def give_unpicklable() -> Any:
    return threading.Lock() if ronde.rank() == 1 else None


def refuse_to_load() -> NoReturn:
    raise ValueError("does not want to be loaded")


class Unloadable:
    def __reduce__(self) -> Any:
        return refuse_to_load, ()


def give_unloadable() -> Unloadable:
    return Unloadable()


def run(fn: Callable[..., Any], np: int = 2, *args: Any, transport: str = PROCESSES, **kwargs: Any) -> list[Any]:
    return ronde.run(fn, np, args, kwargs, transport=transport, timeout=TIMEOUT)


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_in_rank_order(kind: str) -> None:
    assert run(contribute, 3, 10.0, offset=1.0, transport=kind) == [(0, 3, 33.0), (1, 3, 33.0), (2, 3, 33.0)]


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_single_rank(kind: str) -> None:
    assert run(contribute, 1, 1.0, offset=2.0, transport=kind) == [(0, 1, 2.0)]


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_error_of_a_rank_is_raised_with_a_note(kind: str) -> None:
    with pytest.raises(KeyError, match="the reason") as caught:
        run(fail_on_1, 2, KeyError, "the reason", transport=kind)
    (note,) = caught.value.__notes__
    assert note.startswith("raised on rank 1")
    if kind == PROCESSES:
        assert "KeyError: 'the reason'" in note
        assert "in fail_on_1" in note


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_system_exit_of_a_rank_becomes_a_runtime_error(kind: str) -> None:
    with pytest.raises(RuntimeError, match=r"rank 1 raised SystemExit: 3"):
        run(leave, 2, 3, transport=kind)


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_timeout_of_the_whole_call(kind: str) -> None:
    with pytest.raises(ronde.DeadlineExceeded, match=r"timeout=\S+ s: rank 0, 1$"):
        ronde.run(wait_for_ever, 2, transport=kind, timeout=0.3)


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_timeout_beyond_what_the_system_can_wait_for(kind: str) -> None:
    assert ronde.run(nothing, 1, transport=kind, timeout=1e10) == [None]


@pytest.mark.parametrize("base", [ValueError, BaseException])
def test_an_error_whose_text_cannot_be_made_ends_the_other_ranks_too(base: type[BaseException]) -> None:
    def no_text(error: BaseException) -> str:
        raise RuntimeError("the text of an error")

    kind = type("Textless", (base,), {"__str__": no_text, "__repr__": no_text})
    told = []

    def fail_on_0() -> None:
        ronde.barrier()  # all are there
        try:
            if ronde.rank() == 0:
                raise kind
            ronde.barrier()
        except ronde.AbortedError as error:
            told.append(str(error))
            raise

    with pytest.raises(kind if base is ValueError else RuntimeError):
        run(fail_on_0, transport="local")
    assert "rank 0 aborted: Textless: (its text cannot be made)" in told[0]


def test_threads_need_no_pickling() -> None:
    lock = threading.Lock()
    assert run(lambda: (ronde.rank(), lock), 2, transport="local") == [(0, lock), (1, lock)]


def test_the_calling_thread_has_no_world() -> None:
    run(nothing, 2, transport="local")
    assert not ronde.is_initialized()


@pytest.mark.processes
def test_large_results() -> None:
    for rank, result in enumerate(run(give, 2, 3_000_001)):
        assert result.shape == (3_000_001,)
        assert (result == rank).all()


@pytest.mark.processes
def test_error_names_a_rank_that_exits() -> None:
    with pytest.raises(RuntimeError, match=r"rank 1 \(pid \d+\) exited with 7"):
        run(vanish)


@pytest.mark.processes
@pytest.mark.skipif(shm.usable() is not None, reason=str(shm.usable()))
def test_memory_that_a_killed_rank_has_named_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exited with 7"):
        ronde.run(die_with_named_memory, 1, (tmp_path / "name",), transport=PROCESSES, timeout=TIMEOUT)
    path = (tmp_path / "name").read_text()
    assert is_segment(path)
    assert not os.path.exists(path)


@pytest.mark.processes
def test_error_names_a_rank_that_dies_while_it_sends_its_result() -> None:
    with pytest.raises(RuntimeError, match=r"rank 0 .* exited with 7"):
        run(die_in_a_piece, 1)


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes are watched by pidfds, as Linux has")
def test_error_names_a_rank_that_dies_before_a_process_that_it_has_forked(tmp_path: Path) -> None:
    path = tmp_path / "child"
    try:
        with pytest.raises(RuntimeError, match=r"rank 0 .* exited with 7"):
            ronde.run(die_before_a_child, 1, (path,), transport=PROCESSES)
    finally:
        os.kill(int(path.read_text()), signal.SIGKILL)  # it has not ended yet


@pytest.mark.processes
def test_a_process_that_ends_before_it_reads_a_large_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    with pytest.raises(RuntimeError, match=r"rank 0 .* exited with 3"):
        run(len, 1, bytes(1 << 20))


@pytest.mark.processes
def test_error_names_a_rank_that_is_killed() -> None:
    with pytest.raises(RuntimeError, match=r"rank 1 \(pid \d+\) .*SIGKILL"):
        run(die, 2, signal.SIGKILL)


@pytest.mark.processes
def test_error_names_a_rank_that_does_not_finish() -> None:
    with pytest.raises(ronde.DeadlineExceeded, match="rank 0"):
        ronde.run(finish_unless_0, 1, transport=PROCESSES, timeout=0.5)


@pytest.mark.processes
def test_error_that_cannot_be_unpickled() -> None:
    with pytest.raises(RuntimeError, match="rank 1 raised Peculiar: one") as caught:
        run(fail_on_1, 2, Peculiar, "one", "two")
    assert "in fail_on_1" in caught.value.__notes__[0]


@pytest.mark.processes
def test_result_that_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"result of rank 1 \(lock\)"):
        run(give_unpicklable)


@pytest.mark.processes
def test_result_that_cannot_be_unpickled() -> None:
    with pytest.raises(RuntimeError, match=r"result of rank 0 .*: ValueError: does not want"):
        run(give_unloadable, 1)


@pytest.mark.processes
def test_function_that_only_cloudpickle_pickles() -> None:
    pytest.importorskip("cloudpickle")

    class Own(Exception):
        pass

    def nested(x: float) -> Any:
        rank = ronde.rank()
        return lambda: x + rank

    def fails() -> NoReturn:
        raise Own("here")

    assert [fn() for fn in run(nested, 2, 0.5)] == [0.5, 1.5]
    with pytest.raises(Own, match="here"):
        run(fails, 1)


def test_function_that_cannot_be_pickled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()

    def nested() -> bool:
        return lock.locked()

    if importlib.util.find_spec("cloudpickle"):
        with pytest.raises(TypeError, match=r"pickled: .*lock"):
            run(nested)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    for fn in (nested, lambda: None):
        with pytest.raises(TypeError, match=r"import .*pip install 'ronde\[notebook\]'.*top level"):
            run(fn)


def test_arguments_that_cannot_be_pickled_are_refused() -> None:
    with pytest.raises(TypeError, match=r"args\[0\] .*pickled"):
        run(nothing, 2, threading.Lock())


@pytest.mark.processes
def test_function_of_an_interactive_session() -> None:
    script = (
        "import sys, collectives\n"
        "def f(): return collectives.rank()\n"
        "if 'without' in sys.argv: sys.modules['cloudpickle'] = None\n"
        "print(collectives.run(f, 2, transport='tcp'))"
    )

    def done(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=environment(), check=False)

    assert "cannot import it from an interactive session" in done("without").stderr
    if importlib.util.find_spec("cloudpickle"):
        assert done().stdout == "[0, 1]\n"


CELL = """
import collectives, os, sys
class Result:
    def __init__(self, value): self.value = value
def work():
    print("hello")
    os.write(2, b"C code\\n")
    print("half", end="")
    return Result(collectives.allreduce(collectives.rank() + 1.0))
results = collectives.run(work, 2, transport="tcp")
print([float(result.value) for result in results], isinstance(results[0], Result))
"""
EXECUTE = """
import sys, nbformat, nbclient
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(sys.argv[1])])
nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
print("".join(output.text for output in notebook.cells[0].outputs))
"""


@pytest.mark.processes
def test_notebook_shows_the_output_of_the_ranks() -> None:
    for name in ("cloudpickle", "nbclient", "ipykernel"):
        pytest.importorskip(name)
    command = [sys.executable, "-c", EXECUTE, CELL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[-1] == "[3.0, 3.0] True"
    assert sorted(lines[:-1]) == [f"[rank {rank}] {text}" for rank in (0, 1) for text in ("C code", "half", "hello")]


@pytest.mark.processes
def test_a_program_without_a_file_cannot_be_loaded_by_the_ranks() -> None:
    program = "import collectives\ncollectives.run(len, 2, args=('xyz',))"
    done = subprocess.run(
        [sys.executable], input=program, capture_output=True, text=True, timeout=BOUND, env=environment(), check=False
    )
    assert "its file '<stdin>' does not exist" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"fn": 3}, TypeError, "fn=3: .*callable"),
        ({"np": 0}, ValueError, "np=0: .* 1 to 65536"),
        ({"np": 2.0}, ValueError, "np=2.0: .* 1 to 65536"),
        ({"np": True}, ValueError, "np=True: .* 1 to 65536"),
        ({"np": 2**70, "transport": "local"}, ValueError, "np=1180591620717411303424: .* 1 to 65536"),
        ({"timeout": 0}, ValueError, "timeout=0: .*positive"),
        ({"timeout": "5"}, ValueError, "timeout='5': .*positive"),
        ({"args": {"x": 1}}, TypeError, "args={'x': 1}: .*sequence"),
        ({"args": 5}, TypeError, "args=5: .*sequence"),
        ({"kwargs": [("x", 1)]}, TypeError, "kwargs=.*: .*mapping"),
        ({"kwargs": {1: 2}}, TypeError, "kwargs={1: 2}: 1 .*name"),
        ({"transport": "pigeon"}, ronde.ConfigError, "transport='pigeon'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ronde.run(**{"fn": nothing, "np": 2, **arguments})


def test_arguments_of_numpy() -> None:
    assert run(lambda *args: sum(args) * ronde.size(), numpy.int64(2), *numpy.arange(3), transport="local") == [6, 6]
    assert ronde.run(lambda a, b: a + b, 1, numpy.array([3, 4]), transport="local") == [7]


def test_shutdown_in_a_rank_that_is_a_thread_leaves_the_world_of_the_process() -> None:
    def program() -> tuple[bool, int]:
        ronde.init()
        ronde.shutdown()
        return ronde.is_initialized(), ronde.init().size

    ronde.init(rank=0, size=1, store="memory:")
    try:
        assert run(program, 2, transport="local") == [(True, 2)] * 2
        assert ronde.is_initialized()
    finally:
        ronde.shutdown()


def test_a_daemon_of_multiprocessing_is_told_what_else_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(RuntimeError, match=r"run: .*daemon"):
        ronde.run(nothing, 2, transport=PROCESSES)
    assert ronde.run(nothing, 2, transport="local") == [None, None]


def test_root_cause_is_preferred_to_consequences() -> None:
    lost, deadline = Failure(0, ronde.PeerLost("rank 1 died")), Failure(2, ronde.DeadlineExceeded("late"))
    reason = Failure(1, RuntimeError("exited with 7"))
    assert root_cause([lost, deadline, reason]) is reason
    assert root_cause([lost, deadline]) is lost


def test_a_consequence_in_an_error_of_another_class_is_known_after_transit() -> None:
    wrapped = RuntimeError("rank 1 died, in the words of a framework")
    wrapped.__cause__ = ronde.PeerLost("rank 1 died")
    arrived = load(0, dump(Failure(0, wrapped)))
    reason = load(1, dump(Failure(1, ValueError("no such thing"))))
    assert isinstance(arrived, Failure)
    assert isinstance(reason, Failure)
    arrived.error.__cause__ = None  # a pickle loses it, unless a library such as tblib keeps it
    assert root_cause([arrived, reason]) is reason


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes are watched by pidfds, as Linux has")
def test_ranks_end_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, threading, collectives\n"
        "def work():\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"  # one write: print may take two, and the ranks share the pipe
        "    threading.Event().wait()\n"
        "if __name__ == '__main__':\n"
        "    collectives.run(work, 2, transport='tcp')\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment()) as parent:
        assert parent.stdout is not None
        try:
            pids = [int(parent.stdout.readline()) for _ in range(2)]
            with Watch(pids) as watch:
                assert watch.none_ended()
                parent.kill()
                assert watch.all_ended(within=BOUND)
        finally:  # else the context would wait for it for ever, and hide what went wrong
            parent.kill()
