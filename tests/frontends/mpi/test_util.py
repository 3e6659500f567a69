"""Pools as those of multiprocessing, and locks, counters, conditions and semaphores that ranks share."""

from __future__ import annotations

import contextvars
import itertools
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any, get_type_hints

import numpy as np
import pytest

from tests.frontends.mpi.conftest import Run


def cube(x: int) -> int:
    if x < 0:
        raise KeyError(x)
    return x**3


def test_a_pool_has_the_calls_of_multiprocessing(ranks: Run) -> None:
    def body(comm: Any) -> None:
        from frontends.mpi.util.pool import ThreadPool

        with ThreadPool(2) as pool:
            numbers = list(range(25))
            assert pool.apply(cube, (3,)) == 27
            assert pool.map(cube, numbers) == pool.map(cube, iter(numbers), 4) == [x**3 for x in numbers]
            assert (
                sorted(pool.imap_unordered(cube, numbers, 3))
                == list(pool.imap(cube, numbers))
                == pool.map(cube, numbers)
            )
            assert pool.starmap(pow, [(2, 3), (3, 2)]) == list(pool.istarmap(pow, [(2, 3), (3, 2)])) == [8, 9]
            told: list[Any] = []
            pool.map_async(cube, [1, 2], callback=told.append).wait()
            pool.apply_async(cube, (-1,), error_callback=told.append).wait()
            assert told[0] == [1, 8]
            assert isinstance(told[1], KeyError)
            with pytest.raises(KeyError):
                pool.map(cube, [1, -1])
            results = pool.imap(cube, [1, -1, 2])
            assert next(results) == 1
            with pytest.raises(KeyError):
                next(results)
            assert list(results) == [8]
            with pytest.raises(ValueError, match="chunksize=0"):
                pool.map(cube, [1], 0)
        pool.join()
        with pytest.raises(RuntimeError):
            pool.apply(cube, (1,))

    ranks(1, body)


def test_a_call_that_was_terminated_has_no_result(ranks: Run) -> None:
    def body(comm: Any) -> None:
        from frontends.mpi.util.pool import Pool

        gate = threading.Event()
        pool = Pool(1)
        first, second = pool.apply_async(gate.wait), pool.apply_async(cube, (1,))
        assert not second.ready()
        with pytest.raises(ValueError, match="not ended"):
            second.successful()
        with pytest.raises(TimeoutError):
            second.get(0.01)
        pool.terminate()
        gate.set()
        pool.join()
        assert first.get()
        assert not second.successful()
        with pytest.raises(TimeoutError):
            second.get()

    ranks(1, body)


@pytest.mark.parametrize("form", ["imap", "imap_unordered"])
def test_a_result_that_is_late_comes_after_the_timeout(ranks: Run, form: str) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi.util.pool import Pool

        gate = threading.Event()
        with Pool(1) as pool:
            results = getattr(pool, form)(lambda x: (gate.wait(60), x)[1], [1, 2])
            with pytest.raises(TimeoutError):
                results.next(0)
            gate.set()
            found = list(results)
        pool.join()
        return found

    assert ranks(1, body) == [[1, 2]]


def test_an_initializer_that_fails_is_an_error_of_the_task_and_ends_the_executor(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi.futures import MPICommExecutor

        with MPICommExecutor(comm, initializer=cube, initargs=(-1,)) as executor:
            if executor is not None:
                ended = threading.Event()
                future = executor.submit(cube, 1)
                future.add_done_callback(lambda _: ended.set())
                assert ended.wait(60)
                with pytest.raises(BrokenExecutor, match="initializer of the worker"):
                    executor.submit(cube, 2)
                return isinstance(future.exception(), BrokenExecutor)
        return None

    for size in (1, 2):
        assert ranks(size, body)[0] is True


def test_a_worker_that_is_a_thread_is_alone_in_its_communicator(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi.futures import MPICommExecutor, get_comm_workers

        with MPICommExecutor(comm) as executor:
            assert executor is not None
            found = executor.submit(get_comm_workers).result(timeout=60).size
        with pytest.raises(RuntimeError, match="get_comm_workers"):
            get_comm_workers()
        return found

    assert ranks(1, body) == [1]


@pytest.mark.parametrize(("text", "most"), [("two", ""), ("0", ""), ("2.5", ""), ("", "2 to 8"), ("9", "2 to 8")])
def test_variables_that_are_no_such_number_are_errors(text: str, most: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from frontends.mpi.futures import MPIPoolExecutor
    from frontends.mpi.ints import from_environment
    from frontends.mpi.rc import Rc

    monkeypatch.setenv("MPI4PY_FUTURES_MAX_WORKERS", text)
    if not most:
        with pytest.raises(ValueError, match=f"MPI4PY_FUTURES_MAX_WORKERS='{text}': .* 1 or more"):
            MPIPoolExecutor()
    elif text:
        with pytest.raises(ValueError, match=f"MAX_WORKERS='{text}': .* {most}"):
            from_environment("MPI4PY_FUTURES_MAX_WORKERS", 2, 8, default=3)
    else:
        assert from_environment("MPI4PY_FUTURES_MAX_WORKERS", 2, 8, default=3) == 3
    with pytest.raises(ValueError, match=r"rc\.irecv_bufsz='much'"):
        Rc().read("irecv_bufsz", "much")


def test_an_executor_keeps_no_results(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi.futures import MPIPoolExecutor

        with MPIPoolExecutor(1) as executor:
            future = executor.submit(np.zeros, 3)
            result = weakref.ref(future.result(timeout=60))
            executor.submit(cube, 1).result(timeout=60)  # the worker holds the one before until it takes another
            del future
            return result()

    assert ranks(1, body) == [None]


def test_options_without_effect_give_a_warning(ranks: Run) -> None:
    def body(comm: Any) -> None:
        from frontends.mpi.util.pool import Pool

        with pytest.warns(UserWarning, match="maxtasksperchild"):
            Pool(1, maxtasksperchild=1)
        with pytest.raises(ValueError, match="max_workers=0"):
            Pool(0)
        with pytest.raises(TypeError, match="initializer=3"):
            Pool(1, initializer=3)  # type: ignore[arg-type]

    ranks(1, body)


def test_threads_of_a_rank_count_at_once(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi.util import sync

        counter = sync.Counter(comm=comm)
        comm.Barrier()
        with ThreadPoolExecutor(4) as threads:
            runs = [threads.submit(contextvars.copy_context().run, lambda: [next(counter) for _ in range(50)])]
            runs += [threads.submit(contextvars.copy_context().run, lambda: [next(counter) for _ in range(50)])]
            numbers = [number for run in runs for number in run.result()]
        everything = np.sort(np.ravel(comm.allgather(numbers))).tolist()
        counter.free()
        return everything == list(range(len(everything)))

    assert ranks(2, body, "shm") == [True] * 2


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_a_mutex_excludes_and_a_counter_counts(ranks: Run, transport: str) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi.util import sync

        mutex, counter = sync.Mutex(comm=comm), sync.Counter(5, 2, comm=comm, root=comm.size - 1)
        runs = []
        for _ in range(3):
            with mutex:
                runs.append([next(counter) for _ in range(4)])
        assert all(np.diff(run).tolist() == [2] * 3 for run in runs)
        with pytest.raises(RuntimeError, match="does not hold"):
            mutex.release()
        mutex.free()
        with pytest.raises(RuntimeError, match="freed"):
            mutex.acquire()
        everything = np.sort(np.ravel(comm.allgather(runs))).tolist()
        counter.free()
        with sync.Sequential(comm):
            pass
        return everything == list(range(5, 5 + 2 * len(everything), 2))

    assert ranks(3, body, transport) == [True] * 3


def test_a_condition_wakes_in_order_and_a_semaphore_has_its_permits(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi.util import sync

        condition, permits = sync.Condition(comm=comm), sync.Semaphore(comm.size - 1, comm=comm)
        if comm.rank:
            with condition:
                comm.send(None, 0)
                condition.wait()
        else:
            for _ in range(1, comm.size):
                comm.recv()
            with condition:  # all wait, since each held the lock when it sent
                woken = condition.notify(), condition.notify_all(), condition.notify()
            assert woken == (1, comm.size - 2, 0)
        with pytest.raises(RuntimeError, match="does not hold"):
            condition.notify()
        comm.Barrier()
        got = comm.allgather(permits.acquire(blocking=False))
        assert got.count(True) == comm.size - 1
        if got[comm.rank]:
            permits.release()
        comm.Barrier()
        with pytest.raises(ValueError, match=r"n=1: .*permits"):
            permits.release()
        condition.free()
        permits.free()
        return True

    assert ranks(3, body) == [True] * 3


class TwoArguments(Exception):
    """An error whose pickle cannot be loaded, as those of many libraries."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)

    def __reduce__(self) -> Any:
        """Pickle it as other exceptions are, also where Dask, which changes that, has been imported."""
        return type(self), self.args


class Refused:
    """An argument whose pickle cannot be loaded."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def raise_it(_: object) -> None:
    raise TwoArguments(1, "text")


class Unpickled:
    """A result that has no pickle."""

    def __init__(self, _: object) -> None:
        """Take an argument, as the other tasks do."""

    def __reduce__(self) -> Any:
        raise ZeroDivisionError("no pickle")


@pytest.mark.parametrize(
    ("function", "given", "error", "text"),
    [
        (raise_it, 1, RuntimeError, "TwoArguments: text"),
        (raise_it, Refused(), ValueError, "no number"),
        (Unpickled, 1, ZeroDivisionError, "no pickle"),
    ],
)
def test_what_has_no_pickle_is_an_error_of_its_task_alone(
    ranks: Run, function: Callable[[object], object], given: object, error: type[Exception], text: str
) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi.futures.workers import RankPool, Task, serve

        if comm.rank == 1:
            return serve(comm, 0)
        pool = RankPool(comm, None, None, ())
        futures: list[Future[Any]] = [Future(), Future()]
        pool.put(Task(futures[0], (function, (given,), {})))
        pool.put(Task(futures[1], (abs, (-2,), {})))
        with pytest.raises(error, match=text):
            futures[0].result(timeout=60)
        pool.close()
        return futures[1].result(timeout=60)

    assert ranks(2, body) == [2, True]


def test_a_worker_that_is_lost_fails_all_tasks_and_the_end(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi import MPI
        from frontends.mpi.futures.workers import TASK, RankPool, Task

        if comm.rank == 1:
            comm.recv(source=0, tag=TASK)
            comm.recv(source=0, tag=TASK)
            with pytest.raises(SystemExit):
                comm.Abort(3)
            return None
        pool = RankPool(comm, None, None, ())
        futures: list[Future[Any]] = [Future() for _ in range(3)]
        for future in futures:
            pool.put(Task(future, (abs, (-1,), {})))
        errors = [type(future.exception(timeout=60)) for future in futures]
        with pytest.raises(MPI.Exception):
            pool.close()
        return all(issubclass(error, MPI.Exception) for error in errors)

    assert ranks(2, body)[0] is True


def test_types_have_the_names_of_mpi4py_and_can_be_looked_at() -> None:
    import frontends.mpi.typing as types

    def send(buf: types.BufSpec, target: types.TargetSpec) -> None: ...

    assert set(get_type_hints(send, vars(types) | {"types": types})) == {"buf", "target", "return"}
    specs = {"BufSpec", "BufSpecB", "BufSpecV", "BufSpecW", "TargetSpec", "TypeSpec"}
    numbers = {"Aint", "Count", "Displ", "Offset"}
    assert specs | numbers | {"Bottom", "Buffer", "InPlace"} <= set(types.__all__)


def test_the_names_of_mpi_are_known_to_checkers_too() -> None:
    from frontends.mpi import MPI
    from ronde.mpi import MPI as face

    annotated = vars(MPI)["__annotations__"]
    datatypes = {name for name in MPI.__all__ if isinstance(getattr(MPI, name), MPI.Datatype)}
    assert {name for name, kind in annotated.items() if kind == "Datatype"} == datatypes - {"DATATYPE_NULL"}
    classes = {name for name in MPI.__all__ if name.startswith("ERR_")} - {"ERR_LASTCODE"}
    assert {name for name, kind in annotated.items() if kind == "int"} == classes | {"SUCCESS"}
    assert not [name for name in MPI.__all__ if isinstance(getattr(MPI, name), ModuleType)]
    assert face._typedict["d"] is MPI.DOUBLE


@pytest.mark.parametrize("align", [False, True])
def test_structs_of_numpy_become_datatypes_and_come_back(align: bool) -> None:
    from frontends.mpi.util.dtlib import from_numpy_dtype, to_numpy_dtype

    for one, other in itertools.product("?chilqBHfdgD", ["b", "h", "3i", "(2,2)d", "u8"]):
        given = np.dtype(f"{one},{other},{one}", align=align)
        datatype = from_numpy_dtype(given)
        found = to_numpy_dtype(datatype)
        assert found == given
        assert found.itemsize == datatype.extent


@pytest.mark.parametrize("code", ["M8[s]", "m8[ns]"])
def test_times_of_numpy_are_integers(code: str) -> None:
    from frontends.mpi.util.dtlib import from_numpy_dtype, to_numpy_dtype

    assert to_numpy_dtype(from_numpy_dtype(np.dtype(code))) == np.int64


@pytest.mark.parametrize("align", [False, True])
def test_a_struct_of_arrays_of_one_keeps_its_size(align: bool) -> None:
    from frontends.mpi.util.dtlib import from_numpy_dtype, to_numpy_dtype

    given = np.dtype("(1,)i2,(1,)?", align=align)
    found = to_numpy_dtype(from_numpy_dtype(given))
    assert found == given
    assert (found.itemsize, found.isalignedstruct) == (4 if align else 3, align)


def test_each_block_of_a_vector_is_an_array() -> None:
    from frontends.mpi import MPI
    from frontends.mpi.util.dtlib import to_numpy_dtype

    found = to_numpy_dtype(MPI.INT.Create_vector(2, 1, 2))
    assert [kind for kind, *_ in (found.fields or {}).values()] == [np.dtype("(1,)i4")] * 2


def test_a_struct_that_begins_late_has_the_length_of_its_extent() -> None:
    from frontends.mpi import MPI
    from frontends.mpi.util.dtlib import to_numpy_dtype

    datatype = MPI.Datatype.Create_struct([1, 2, 3], [1, 27, 71], [MPI.INT, MPI.DOUBLE, MPI.INT])
    assert to_numpy_dtype(datatype).itemsize == datatype.extent == 88
