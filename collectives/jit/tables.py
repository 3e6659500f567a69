"""State and tables: the memory that Python writes for the interpreter, by the layout of `layout`."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from math import prod
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.flight import CallLog
from collectives.jit import layout
from collectives.jit.machine_code import MachineCode, RunTable
from transports import arenas
from transports.onesided import MASK_BYTES, Controls, address


class Operand(NamedTuple):
    """Memory that a row works on: an address, or where it is within the arrays or the staging slot of a call."""

    base: int
    offset: int


class ArrayKind(NamedTuple):
    """The dtype and the shape that an array must have."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Location(NamedTuple):
    """The place that an array must have: an address and the id of its `base`, or ANYWHERE or OUTSIDE of all windows."""

    start: int
    root: int = 0


ANYWHERE: Final = Location(layout.ANYWHERE)
OUTSIDE: Final = Location(layout.OUTSIDE)


class Extents:
    """The addresses of memory in windows. It may change while functions of `fitting` use it.

    word  holds the address of the extents, see layout.EXTENTS; it is at `address`
    """

    def __init__(self) -> None:
        self.word = np.zeros(1, np.int64)
        self.address = address(self.word)
        self.set(())

    def set(self, extents: Sequence[tuple[int, int]]) -> None:
        """Begin and end of each window."""
        found = np.array([len(extents), *(limit for extent in extents for limit in extent)], np.int64)
        self.word[0] = address(found)
        self._found = found  # after that, since a function may read the previous ones until then


class CFunction(NamedTuple):
    """The addresses of a kernel and of its last argument; see layout.KERNEL."""

    function: int
    data: int


_UNRELEASED: Final = 1 << 15
"""The most bytes of a result that are combined without letting other threads run Python."""
_C_CONTIGUOUS: Final = 0x1
_CARRAY: Final = 0x1 | 0x100 | 0x400
"""Flags of NumPy's arrays: contiguous; contiguous, aligned and writeable."""
_READS_PER_POLL: Final = 16
"""Reads of the counter of a ring that take as long as an attempt to receive from a socket."""
_NO_OPERAND: Final = Operand(0, 0)
_NO_WORDS: Final = (0,) * layout.ROW_WORDS


class State:
    """The numbers that an executor shares with the interpreter.

    code      the interpreter; None if the executor runs no tables
    log       the log of the executor's calls
    words     see `layout`; they are at `address`
    controls  the control words of the window; None if no table can be run
    """

    def __init__(self, code: MachineCode | None, log: CallLog, epochs: int) -> None:
        """`epochs` is layout.EPOCHS."""
        self.code = code
        self.log = log
        self.controls: Controls | None = None
        self._bells = np.zeros(0, np.int64)
        self._cores = np.zeros(0, np.int64)
        self._frame = np.zeros(0, np.uint8)
        self._never_stopped = np.zeros(1, np.int64)
        self.array = np.zeros(layout.STATE_WORDS, np.int64)
        self.words = self.array.data
        self.address = address(self.array)
        self.words[layout.LOG] = address(log.memory)
        self.words[layout.EPOCHS] = epochs
        self.words[layout.NONE] = id(None)
        self.words[layout.STOPPED] = address(self._never_stopped)
        self.words[layout.ARENA] = address(arenas.OWN)
        self.words[layout.PROCESS] = os.getpid()

    def use(self, controls: Controls | None, index: int, half: int) -> None:
        """Run tables on the window of these control words; None: run none. `index` is this rank's position, `half` the
        bytes of half the window."""
        self.controls = controls if self.code is not None else None
        if controls is not None:
            self.words[layout.STOPPED] = controls.stopped
            self.words[layout.PUBLISHED] = controls.published
            self.words[layout.OWN] = controls.addresses[index]
            self.words[layout.SPINS] = controls.spins
            self.words[layout.YIELDS] = controls.yields
            self.words[layout.SLEEPS] = controls.sleeps
            self.words[layout.HALF] = half
            self._bells = np.array(controls.bells, np.int64)
            self.words[layout.BELLS] = address(self._bells)
            self.words[layout.BELL_COUNT] = len(controls.bells)
            self._cores = np.frombuffer(controls.cores + bytes(MASK_BYTES), np.int64).copy()
            self.words[layout.CORES] = address(self._cores) if controls.cores else 0

    def use_messages(self, polls: int, yields: int, sleeps: int) -> None:
        """Run tables with messages; see layout.POLLS, YIELDS and SLEEPS."""
        self._frame = np.empty(layout.FRAME_BYTES, np.uint8)
        self.words[layout.FRAME] = address(self._frame)
        self.words[layout.POLLS], self.words[layout.YIELDS], self.words[layout.SLEEPS] = polls, yields, sleeps
        self.words[layout.SPINS] = polls * _READS_PER_POLL

    def close_log(self) -> None:
        """Note no more calls for others."""
        self.log.close()
        self.words[layout.LOG] = address(self.log.memory)

    @property
    def moved(self) -> int:
        """See layout.MOVED."""
        return self.words[layout.MOVED]

    @property
    def wakes(self) -> bool:
        """True if compiled code can sleep, and wake ranks that do."""
        return self.controls is not None and len(self.controls.bells) > 0


class Scale(NamedTuple):
    """A multiplication by one number: its kernel, and the address of the number."""

    kernel: CFunction
    number: int


class TableWriter:
    """Writes the rows of one table.

    moved  bytes that the rows copy or combine
    """

    def __init__(self) -> None:
        self.moved = 0
        self._words: list[int] = []

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._words) // layout.ROW_WORDS

    def copy(self, nbytes: int, result: Operand, a: Operand) -> None:
        """Copy by memcpy."""
        self._operate(layout.COPY, nbytes, (*result, *a))
        self.moved += nbytes

    def reduce(self, count: int, result: Operand, a: Operand, b: Operand, kernel: CFunction, itemsize: int) -> None:
        """Combine `count` elements of two operands by a kernel."""
        self._operate(layout.REDUCE, count, (*result, *a, *b, *kernel, itemsize))
        self.moved += count * itemsize

    def divide(self, kernel: CFunction, number: int) -> None:
        """Combine the result of the last row with one number, whose address is given."""
        self._set(layout.DIVISION, *kernel, number)

    def signal(self, phase: int) -> None:
        """Publish a phase."""
        self._operate(layout.SIGNAL, phase)

    def expose(self) -> None:
        """Have the last row, a signal, expose the arrays of the call before."""
        self._set(layout.EXPOSE, 1)

    def read(
        self, nbytes: int, result: Operand, array: Operand, control: int, peer: int, reference: int, process: int
    ) -> None:
        """Copy from an exposed array, whose number and offset are given; see layout.READ for the other words."""
        self._operate(layout.READ, nbytes, (*result, *array))
        self._set(layout.EXPOSED_BY, control, peer, reference, process)
        self.moved += nbytes

    def wait(self, phase: int, control: int) -> None:
        """Wait until the rank with these control words has published a phase."""
        self._operate(layout.WAIT, phase, (control,))

    def send(self, nbytes: int, a: Operand, lanes: int) -> None:
        """Send a message to the peer whose lanes have their words at this address."""
        self._operate(layout.SEND, nbytes, (*_NO_OPERAND, *a))
        self._set(layout.LANES, lanes)
        self.moved += nbytes

    def take(self, nbytes: int, result: Operand, lanes: int) -> None:
        """Receive a message from the peer whose lanes have their words at this address."""
        self._operate(layout.TAKE, nbytes, result)
        self._set(layout.LANES, lanes)
        self.moved += nbytes

    def idle(self) -> None:
        """Do nothing."""
        self._operate(layout.IDLE, 0)

    def table(
        self,
        state: State,
        number: int,
        check: int,
        slots: int,
        slot_stride: int,
        tally: int,
        *,
        tag: int = 0,
        staged: bool = True,
        exposes: int = 0,
        checked: int = 0,
        alignment: int,
        releases: bool,
    ) -> NDArray[np.int64]:
        """The table, for arrays whose addresses are multiples of `alignment`; for its words see `layout`. `tag` is
        that of its messages; `staged`: its calls use the staging window; `exposes`, `checked`: see
        layout.EXPOSES and CHECKED."""
        head = [0] * layout.HEAD_WORDS
        head[layout.STATE] = state.address
        head[layout.ROWS] = self.rows
        head[layout.CHECK] = check
        head[layout.SLOTS] = slots
        head[layout.SLOT_STRIDE] = slot_stride
        head[layout.NUMBER] = number
        head[layout.RELEASES] = releases
        head[layout.TALLY] = tally
        head[layout.MISALIGNED] = alignment - 1
        head[layout.STAGED_CALLS] = staged
        head[layout.EXPOSES] = exposes
        head[layout.CHECKED] = checked
        head[layout.TAG] = tag - (tag >> 63 << 64)  # its 64 bits as those of a signed number
        times = [0] * (self.rows + 2)
        return _array([*head, *self._words, *times])

    def _operate(self, opcode: int, count: int, words: Sequence[int] = ()) -> None:
        """Begin a row: `words` are those from layout.RESULT on."""
        self._words += [opcode, count, *words, *_NO_WORDS[layout.RESULT + len(words) :]]

    def _set(self, at: int, *words: int) -> None:
        """Set words of the last row, from `at` on."""
        at -= layout.ROW_WORDS
        self._words[at : at + len(words) or None] = words


def note_time(table: NDArray[np.int64], number: int, row: int) -> None:
    """Put the time of the end of a row, which Python has done, to the times of a call if that is timed."""
    if table[layout.TIMED] == number:
        table[row - int(table[layout.ROWS]) - 1] = perf_counter_ns()


def take_times(table: NDArray[np.int64], *, failed: bool = False) -> tuple[int, list[int]] | None:
    """The number of the call of a table that was timed last, and its times, as Meter.ended takes them; None if they
    were taken before, or if the call has not ended. `failed`: it has if its times are not complete."""
    number = int(table[layout.TIMED])
    if not number:
        return None
    times: list[int] = table[-int(table[layout.ROWS]) - 2 :].tolist()
    if not times[-1]:
        if not failed:
            return None
        times = [*times[: times.index(0)], perf_counter_ns()]
    table[layout.TIMED] = 0
    return number, times


def scaled(
    table: NDArray[np.int64], load: Scale | None, store: Scale | None, count: int, itemsize: int
) -> NDArray[np.int64]:
    """The same table for calls on arrays of `count` elements that are scaled before and after."""
    words = table.copy()
    words[layout.TIMED] = 0
    for at, scale in ((layout.LOAD, load), (layout.STORE, store)):
        if scale is not None:
            words[at : at + 3] = *scale.kernel, scale.number
    words[layout.ELEMENTS], words[layout.ELEMENT_BYTES] = count, itemsize
    return words


def bind(state: State, table: NDArray[np.int64]) -> RunTable:
    """The interpreter as a method of a table, which it keeps alive. The caller keeps the state, and all memory that the
    table names."""
    assert state.code is not None
    return state.code.bind("run_table", table)


class JobRing:
    """A ring of jobs: one thread submits, another one, the server, runs them in machine code. See serving.py."""

    def __init__(self, code: MachineCode) -> None:
        words = np.zeros(layout.RING_WORDS, np.int64)
        words[layout.RING_NONE], words[layout.RING_TRUE], words[layout.RING_FALSE] = id(None), id(True), id(False)
        self.capacity: Final = layout.CAPACITY
        self._words = words.data
        self.serve: Callable[[], int | None] = code.bind("serve", words)
        """Run jobs without Python's lock until the server is called, and sleep where there are none. Returns None; or
        an answer of the oldest job (see RunTable): then Python has to end the job, and to call `end`."""
        self.submit: Callable[[NDArray[np.int64], Any, Any], None] = code.bind("submit", words)
        """submit(table, source, target): add a job, if fewer than `capacity` have not ended. The caller keeps all
        three until it has."""
        self.end: Callable[[], None] = code.bind("end", words)
        """The oldest job has ended: see `serve`."""
        self.call: Callable[[int], None] = code.bind("call", words)
        """call(1): have `serve` return after each job, and as soon as there is none; call(0): not any more."""
        self.ended: Callable[[int, int], bool] = code.bind("ended", words)
        """ended(number, nanoseconds): True once so many jobs have ended; sleeps for that time at most until then."""

    @property
    def submitted(self) -> int:
        """Number of jobs that were ever submitted."""
        return self._words[layout.SUBMITTED]


def combining(code: MachineCode, name: str, itemsize: int) -> Callable[[Any, Any, Any], object] | None:
    """A function (a, b, out) that calls one of the kernels by its name on flat, contiguous arrays of one dtype; None if
    there is no such kernel."""
    function = code.kernels.get(name)
    if function is None:
        return None
    return code.bind("combine_arrays", np.array([function, itemsize, _UNRELEASED // itemsize, id(None)], np.int64))


def fitting(
    code: MachineCode,
    x: NDArray[Any],
    result: ArrayKind,
    extents: Extents,
    locations: tuple[Location, Location] = (ANYWHERE, ANYWHERE),
    *,
    in_place: bool,
) -> Callable[[Any, Any], bool]:
    """A function (x, out) that tells whether any objects are NumPy arrays that can be used as they are: of the type,
    dtype and shape of `x`, contiguous; and `out` is x if `in_place`, otherwise None, or an array as `result` says that
    does not overlap x. What is written to is aligned and writeable. Both are at the `locations`; the caller keeps the
    `extents`."""
    words = [0] * layout.KIND
    words[layout.NO_ARRAY], words[layout.TRUE], words[layout.FALSE] = id(None), id(True), id(False)
    words[layout.IN_PLACE] = in_place
    words[layout.EXTENTS] = extents.address
    words += _kind(ArrayKind(x.dtype, x.shape), _CARRAY if in_place else _C_CONTIGUOUS, locations[0])
    words[layout.RESULT_KIND] = len(words)
    words += _kind(result, _CARRAY, locations[1])
    return code.bind("fits", _array(words))


def _kind(kind: ArrayKind, flags: int, location: Location) -> list[int]:
    dtype, shape = kind
    words = [0] * layout.LENGTHS
    words[layout.TYPE] = id(np.ndarray)
    words[layout.DTYPE] = id(dtype)
    words[layout.FLAGS] = flags
    words[layout.BYTES] = prod(shape) * dtype.itemsize
    words[layout.START : layout.ROOT + 1] = location
    words[layout.DIMENSIONS] = len(shape)
    return [*words, *shape]


def _array(words: Sequence[int]) -> NDArray[np.int64]:
    """The words in memory. NumPy takes several times as long to make an array of numbers of Python's."""
    return np.frombuffer(array("q", words), np.int64)
