"""Copies to memory that other processes read, and the choice of their kernels."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from transports import copying
from transports.copying import (
    CACHED_BYTES,
    MEASURED_BYTES,
    Circumstance,
    KernelTable,
    array_kernel,
    assign,
    fetch_bytes,
    install,
    kernel_table,
    store_array,
    write_bytes,
)
from transports.onesided import Window

EVERYTHING = KernelTable(
    frozenset(itertools.starmap(Circumstance, itertools.product((False, True), (False, True), MEASURED_BYTES)))
)


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose copies nobody has measured."""
    monkeypatch.setattr(copying, "_process", copying._Process())


@pytest.mark.parametrize("table", [None, KernelTable(), EVERYTHING])
@pytest.mark.parametrize("length", [0, 1, 2047, 2048, 2049, 8192, 100_000, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_copies_of_bytes_are_exact(length: int, table: KernelTable | None) -> None:
    if table is not None:
        install(table)
    for seed, copy in enumerate((write_bytes, fetch_bytes)):
        source = random.Random(seed).randbytes(length)
        target = bytearray(length + 3)
        copy(memoryview(target)[3:], memoryview(source))
        assert target == bytes(3) + source


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "complex128", ml_dtypes.bfloat16])
@pytest.mark.parametrize("kernel", [assign, store_array])
def test_arrays_keep_every_bit(dtype: Any, kernel: Any) -> None:
    octets = np.frombuffer(random.Random(1).randbytes(1001 * np.dtype(dtype).itemsize), np.uint8)
    source = (octets & 1 if dtype == "bool" else octets).view(dtype)  # signalling NaNs are among the others
    target = np.zeros(1002, dtype)
    kernel(target[1:], source)
    assert target[1:].tobytes() == source.tobytes()
    assert not np.any(target[:1].view(np.uint8))


def test_an_array_may_be_stored_onto_itself() -> None:
    x = np.arange(50_000, dtype=np.float32)
    store_array(x, x)
    assert np.array_equal(x, np.arange(50_000))


def test_a_kernel_is_for_its_circumstance_only() -> None:
    assert array_kernel(1 << 16) is None
    install(KernelTable(frozenset({Circumstance(True, False, 1 << 16), Circumstance(False, True, 1 << 12)})))
    assert array_kernel(1 << 16, 1 << 16, True) is store_array
    assert array_kernel((1 << 14) + 1, CACHED_BYTES, True) is store_array
    assert array_kernel((1 << 16) + 1, 0, True) is None
    assert array_kernel(1 << 14, 0, True) is None
    assert array_kernel(1 << 16, CACHED_BYTES + 1, True) is None
    assert array_kernel(1 << 16, 1 << 16, False) is None
    assert array_kernel(1 << 12, 1 << 24, False) is store_array
    assert array_kernel((1 << 11) + 1, 1 << 24, False) is store_array
    assert array_kernel(1 << 11, 1 << 24, False) is None
    assert array_kernel(0) is None


@pytest.mark.parametrize("copy", [fetch_bytes, write_bytes])
def test_bytes_are_copied_by_the_table_from_8_kib_on(copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: set[int] = set()
    monkeypatch.setattr(copying, "store_bytes", lambda target, source: stored.add(len(source)))
    install(EVERYTHING)
    for nbytes in (0, 1, 4096, 8192, 8193, 1 << 20, 1 << 21):
        copy(memoryview(bytearray(nbytes)), memoryview(bytes(nbytes)))
    assert stored == {8192, 8193, 1 << 20}


def test_kernels_never_change() -> None:
    first = KernelTable(frozenset({Circumstance(True, True, 1 << 12)}))
    install(first)
    install(EVERYTHING)
    assert kernel_table() is first


class Board:
    """The shared state of the windows of some threads."""

    def __init__(self, size: int, nbytes: int) -> None:
        self.parts = [bytearray(nbytes) for _ in range(size)]
        self.epochs = [0] * size
        self.moved = threading.Condition()


class ThreadWindow(Window):
    """A window that threads share."""

    def __init__(self, board: Board, index: int) -> None:
        self.ranks, self.index, self.nbytes = tuple(range(len(board.parts))), index, len(board.parts[0])
        self._board = board

    def view(self, index: int) -> memoryview:
        return memoryview(self._board.parts[index])

    def publish(self, epoch: int, check: int = 0) -> None:
        with self._board.moved:
            assert epoch > self._board.epochs[self.index]
            self._board.epochs[self.index] = epoch
            self._board.moved.notify_all()

    def wait(self, index: int, epoch: int, deadline: float, check: int | None = None) -> None:
        with self._board.moved:
            assert self._board.moved.wait_for(lambda: self._board.epochs[index] >= epoch, 20)

    def expose_arrays(self, *pieces: Any) -> bool:
        return True

    def read(self, index: int, piece: int, offset: int, target: Any) -> None: ...

    def close(self) -> None: ...


def calibrate(
    size: int,
    clock: Callable[[int], Callable[[], float]],
    nbytes: int = 2 << 20,
    kind: type[ThreadWindow] = ThreadWindow,
    **more: Any,
) -> Board:
    """Calibrate on as many threads, each with a clock of its own."""
    board = Board(size, nbytes)
    with ThreadPoolExecutor(size) as pool:
        for done in [
            pool.submit(copying.calibrate, kind(board, index), 1e9, clock(index), **more) for index in range(size)
        ]:
            done.result(30)
    return board


@pytest.mark.parametrize(("assigning", "storing", "stores"), [(300, 100, True), (105, 100, False), (50, 100, False)])
@pytest.mark.parametrize("size", [2, 3])
def test_the_faster_kernel_is_chosen(
    monkeypatch: pytest.MonkeyPatch, size: int, assigning: int, storing: int, stores: bool
) -> None:
    now = threading.local()

    def taking(kernel: Any, seconds: int) -> Any:
        def copy(target: Any, source: Any) -> None:
            now.value = getattr(now, "value", 0) + seconds
            kernel(target, source)

        return copy

    monkeypatch.setattr(copying, "assign", taking(assign, assigning))
    monkeypatch.setattr(copying, "store_array", taking(store_array, storing))
    calibrate(size, lambda index: lambda: getattr(now, "value", 0), budget=1e9)
    table = kernel_table()
    assert table is not None
    assert table.vector == (EVERYTHING.vector if stores else frozenset())


def test_all_stop_when_the_time_of_one_is_up() -> None:
    """And with how many sizes is the same for all: else this would wait for ever."""

    def clock(index: int) -> Callable[[], float]:
        return itertools.count(0, 1.0 if index == 1 else 0.0).__next__

    measured: set[tuple[int, int]] = set()

    def noted(target: Any, source: Any) -> None:
        measured.add((threading.get_ident(), len(source)))
        assign(target, source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "assign", noted)
        calibrate(3, clock, budget=60.0)
    assert [nbytes for _, nbytes in measured] == [MEASURED_BYTES[0]] * 3


def test_it_is_done_once_in_a_process_and_with_small_windows_too() -> None:
    calibrate(2, lambda index: itertools.count().__next__, 4096)
    table = kernel_table()
    assert table is not None
    assert not table.vector
    board = calibrate(2, lambda index: itertools.count().__next__, 4096)
    assert board.epochs == [4, 4]
    assert kernel_table() is table


def test_a_process_that_is_calibrated_helps_others() -> None:
    first = KernelTable(frozenset({Circumstance(True, True, 1 << 12)}))
    asked = threading.Event()

    class AskingWindow(ThreadWindow):
        def publish(self, epoch: int, check: int = 0) -> None:
            if self.index == 1 and not asked.is_set():  # this rank has no table yet
                asked.set()
                self.view(1)[-1] = True
            super().publish(epoch, check)

    install(first)
    board = calibrate(2, lambda index: itertools.count(0, 0).__next__, kind=AskingWindow)
    assert min(board.epochs) > 4
    assert kernel_table() is first


def test_the_table_is_described_in_words() -> None:
    assert KernelTable().describe() == "memcpy everywhere"
    some = KernelTable(frozenset({Circumstance(True, False, 1 << 16), Circumstance(True, False, 1 << 14)}))
    assert some.describe() == "vector stores for fetch, cached array: 16 KiB, 64 KiB"
