"""The interpreter, as Numba compiles it. `layout` names the words that it works on.

It does what execution/rows.py does for the same instructions, as long as nothing has to be decided: it never
raises, and knows no deadline. Where a peer's epoch or message does not come soon, where its check differs, or
where a peer has to be woken that sleeps on a descriptor, it returns the number of the row. Python does that row, in its
one way, and calls it again for the rows behind it. Epochs are in windows.py, messages in lanes.py. Numba is needed to
import this module.
"""

from __future__ import annotations

from typing import Any

import numba

from collectives.flight import (
    BEGAN,
    CALLS,
    ENDED,
    ENTRIES,
    ENTRY_WORDS,
    FIRST_CYCLES,
    FIRST_TIME,
    KEPT_MASK,
    LAST_CYCLES,
    LAST_TIME,
    TEXT,
    TIMED,
)
from collectives.jit import layout as at
from collectives.jit.atomics import (
    COUNTS_CYCLES,
    WORD,
    call_kernel,
    compiled,
    copy_bytes,
    cycles,
    field,
    half_word,
    int_value,
    keep,
    load_acquire,
    new_int,
    now,
    process_vm_readv,
    put,
    restore_thread,
    save_thread,
    store_release,
    word,
)
from collectives.jit.lanes import sent, taken
from collectives.jit.waits import LOCKED, UNLOCKED
from collectives.jit.windows import NO_CHECK, agrees, published, reached
from transports.arenas import BEGIN, END, PEER_BEGIN, PEER_END, SHARED, SHIFT, TOLD
from transports.onesided import ARENA, EXPOSED, OPENED

_HEAD = object.__basicsize__
"""Bytes of the head that all objects have. The second word of it is the type."""
_OFTEN = 16
"""Calls between two readings of the clock beside the processor's counter."""


@compiled
def data_of(array: int) -> int:
    """The address of an array's data."""
    return word(array + _HEAD + at.ARRAY_DATA)


@compiled
def operand(row: int, index: int, source: int, target: int, slot: int) -> int:
    """The address of an operand."""
    base, offset = field(row, index), field(row, index + 1)
    if base == at.SOURCE:
        return source + offset
    if base == at.TARGET:
        return target + offset
    if base == at.STAGED_SLOT:
        return slot + offset
    if base == at.REFERRED:
        return word(offset)
    return offset


@compiled
def is_own(arena: int, array: int) -> bool:
    """True if an array begins in the arena of this process."""
    return field(arena, BEGIN) <= array < field(arena, END)


@compiled
def copied(state: int, process: int, start: int, result: int, count: int) -> bool:
    """Copy memory of a process by process_vm_readv(2). False unless the system copies all."""
    spans = state + 8 * at.SPANS
    put(spans, result)
    put(spans + 8, count)
    put(spans + 16, start)
    put(spans + 24, count)
    return process_vm_readv(process, spans, 1, spans + 16, 1, 0) == count


@compiled
def is_readable(state: int, array: int) -> bool:
    """True if each process with the right to read this one's memory can read an array: it is in the arena, or the
    system reads its first byte. It does not read all memory for others, such as that of some devices."""
    if is_own(field(state, at.ARENA), array):
        return True
    return copied(state, field(state, at.PROCESS), array, state + 8 * at.PROBE, 1)


@compiled
def fits_table(table: int, source: int, target: int) -> bool:
    """True if the rows can work on these arrays."""
    if (source | target) & field(table, at.MISALIGNED) != 0:
        return False
    exposes, state = field(table, at.EXPOSES), field(table, at.STATE)
    if field(table, at.LOAD) != 0:
        source = target
    if exposes & at.SOURCE_IS_READ != 0 and not is_readable(state, source):
        return False
    return exposes & at.TARGET_IS_READ == 0 or is_readable(state, target)


@compiled
def expose(state: int, source: int, target: int) -> None:
    """Do what Window.expose_arrays does, with arrays that are readable."""
    own, arena = field(state, at.OWN), field(state, at.ARENA)
    put(own + 8 * EXPOSED, source)
    put(own + 8 * (EXPOSED + 1), target)
    for index in range(TOLD):
        if field(own, ARENA + index) != field(arena, index):
            put(own + 8 * (ARENA + index), field(arena, index))


@compiled
def located(row: int) -> int:
    """The address here of the array that a READ reads; 0 if it is in no arena that is mapped here, and shared."""
    array, peer = field(field(row, at.EXPOSED_BY), EXPOSED + field(row, at.A)), field(row, at.PEER)
    if field(peer, PEER_BEGIN) <= array < field(peer, PEER_END) and load_acquire(field(peer, SHARED)) != 0:
        return array + field(peer, SHIFT)
    return 0


@compiled
def read_private(state: int, row: int, result: int) -> bool:
    """Have the system copy the array that a READ reads, which is in no arena. False if it may be in one that is not
    known here, or if the system does not copy all."""
    control, peer = field(row, at.EXPOSED_BY), field(row, at.PEER)
    array, arena = field(control, EXPOSED + field(row, at.A)), field(control, ARENA + BEGIN)
    if arena != field(peer, PEER_BEGIN) or arena <= array < field(peer, PEER_END):
        return False
    return copied(state, field(row, at.READ_FROM), array + field(row, at.A + 1), result, field(row, at.COUNT))


@compiled
def is_sound(table: int) -> bool:
    """True unless a rank has failed, or one whose arrays are read has closed: it need not keep them then. Peers may
    close once this rank has published that it has read."""
    checked = field(table, at.CHECKED)
    if checked == 0:
        return True
    if load_acquire(field(checked, 0)) != 0:
        return False
    for index in range(field(checked, 1)):  # noqa: SIM110 - Numba compiles no generators
        if load_acquire(field(checked, 2 + index)) != OPENED:
            return False
    return True


@compiled
def combine(row: int, source: int, target: int, slot: int) -> None:
    """A REDUCE."""
    a, b = operand(row, at.A, source, target, slot), operand(row, at.B, source, target, slot)
    result, stride, count = operand(row, at.RESULT, source, target, slot), field(row, at.STRIDE), field(row, at.COUNT)
    call_kernel(field(row, at.KERNEL), a, b, result, count, stride, stride, field(row, at.KERNEL_DATA))
    division = field(row, at.DIVISION)
    if division != 0:
        data, divisor = field(row, at.DIVISION_DATA), field(row, at.DIVISOR)
        call_kernel(division, result, divisor, result, count, stride, 0, data)


@compiled
def scale(table: int, kernel: int, source: int, target: int) -> None:
    """Scale the source into the target; `kernel` is LOAD or STORE."""
    function = field(table, kernel)
    if function != 0:
        count, stride = field(table, at.ELEMENTS), field(table, at.ELEMENT_BYTES)
        call_kernel(function, source, field(table, kernel + 2), target, count, stride, 0, field(table, kernel + 1))


@compiled
def is_timed(table: int, state: int) -> bool:
    """True if the newest call is timed."""
    return field(table, at.TIMED) == field(field(state, at.LOG), CALLS)


@compiled
def times_of(table: int) -> int:
    """The address of the times of a call: that of its begin, and one for each row and for the end."""
    return table + 8 * (at.HEAD_WORDS + field(table, at.ROWS) * at.ROW_WORDS)


@compiled
def note_time(table: int, state: int, index: int) -> None:
    """Put the time to the times of a call."""
    store_release(times_of(table) + 8 * index, now(state + 8 * at.CLOCK))


@compiled
def do_rows(table: int, state: int, source: int, target: int, first: int, stop: int, thread: int) -> int:
    """Run the rows from `first` to `stop` of the newest call, and what belongs before the first and after the last one.
    Returns the number of the row that is left to Python, or DONE; the number of rows if what was read of peers may be
    wrong, since a rank has failed. `thread`: see `rises`."""
    if field(table, at.LOAD) != 0:
        if first == 0:
            scale(table, at.LOAD, source, target)
        source = target
    number, staged = number_of(state), field(state, at.STAGED) % field(table, at.SLOTS)
    epoch = number * field(state, at.EPOCHS)
    check = field(table, at.CHECK) ^ (number & 0xFFFFFFFF)
    slot = staged % 2 * field(state, at.HALF) + staged // 2 * field(table, at.SLOT_STRIDE)
    if first == 0 and field(table, at.STAGED_CALLS) == 0 and field(state, at.OWN) != 0:
        # A peer may await this rank in another, one-sided call by mistake.
        put(state + 8 * at.MOVED, 0)
        if not published(state, epoch + 1, NO_CHECK):
            return 0
    row = table + 8 * (at.HEAD_WORDS + first * at.ROW_WORDS)
    for index in range(first, stop):
        opcode = field(row, at.OPCODE)
        if opcode == at.COPY:
            result = operand(row, at.RESULT, source, target, slot)
            copy_bytes(result, operand(row, at.A, source, target, slot), field(row, at.COUNT))
        elif opcode == at.REDUCE:
            combine(row, source, target, slot)
        elif opcode == at.READ:
            start, reference = located(row), field(row, at.REFERENCE)
            result, offset = operand(row, at.RESULT, source, target, slot), field(row, at.A + 1)
            if reference != 0:
                put(reference, result)
            if start == 0:
                if not read_private(state, row, result):
                    return index
            elif reference != 0 and (start + offset) & field(table, at.MISALIGNED) == 0:
                put(reference, start + offset)
            else:
                copy_bytes(result, start + offset, field(row, at.COUNT))
        elif opcode == at.SIGNAL:
            if field(row, at.EXPOSE) != 0:
                expose(state, source, target)
            elif not is_sound(table):
                return field(table, at.ROWS)
            if not published(state, epoch + field(row, at.COUNT), check):
                return index
        elif opcode == at.SEND:
            payload, lanes = operand(row, at.A, source, target, slot), field(row, at.LANES)
            if not sent(lanes, state, field(table, at.TAG), check, payload, field(row, at.COUNT)):
                return index
        elif opcode == at.TAKE:
            result, lanes = operand(row, at.RESULT, source, target, slot), field(row, at.LANES)
            if not taken(lanes, state, field(table, at.TAG), check, result, field(row, at.COUNT), thread):
                return index
        elif opcode == at.WAIT:
            control, phase = field(row, at.CONTROL), field(row, at.COUNT)
            if not reached(state, control, epoch + phase, thread):
                return index
            if phase == 1 and not agrees(state, control, epoch + phase, check):
                return index
        row += 8 * at.ROW_WORDS
    if stop == field(table, at.ROWS):
        scale(table, at.STORE, target, target)
    return at.DONE


@compiled
def interpret(table: int, state: int, source: int, target: int, first: int, stop: int, thread: int, timed: bool) -> int:
    """`do_rows`; if the call is timed, with the time of each row's end."""
    if first == stop or not timed:
        return do_rows(table, state, source, target, first, stop, thread)
    for index in range(first, stop):
        left = do_rows(table, state, source, target, index, index + 1, thread)
        if left != at.DONE:
            return left
        note_time(table, state, index + 1)
    return at.DONE


@compiled
def number_of(state: int) -> int:
    """The number of the newest call."""
    return field(field(state, at.LOG), CALLS)


@compiled
def entry_of(log: int, number: int) -> int:
    """The entry of a call in a log."""
    return log + 8 * (ENTRIES + (number & field(log, KEPT_MASK)) * ENTRY_WORDS)


@compiled
def stamp(state: int) -> int:
    """The time for an entry of the log: cycles, negative, where the processor counts them, since its clock takes three
    times as long to read."""
    if COUNTS_CYCLES:
        return -cycles()
    return now(state + 8 * at.CLOCK)


@compiled
def compare_clocks(state: int, log: int) -> None:
    """Note the processor's counter and the clock of the same moment."""
    first = field(log, FIRST_CYCLES) == 0
    put(log + 8 * LAST_CYCLES, cycles())
    put(log + 8 * LAST_TIME, now(state + 8 * at.CLOCK))
    if first:
        put(log + 8 * FIRST_TIME, field(log, LAST_TIME))
        put(log + 8 * FIRST_CYCLES, field(log, LAST_CYCLES))


@compiled
def end_call(table: int, state: int, timed: bool) -> int:
    """Note that the newest call has ended. Returns OBSERVED if it is timed, else DONE."""
    log = field(state, at.LOG)
    if field(log, TIMED) != 0:
        put(entry_of(log, field(log, CALLS)) + 8 * ENDED, stamp(state))
    if not timed:
        return at.DONE
    note_time(table, state, field(table, at.ROWS) + 1)
    return at.OBSERVED


@compiled
def begin(table: int, state: int) -> int:
    """Number, note and count a new call. Returns OVER, or OBSERVED if it is timed, or DONE."""
    if load_acquire(field(state, at.STOPPED)) != 0:
        return at.OVER
    log = field(state, at.LOG)
    number = field(log, CALLS) + 1
    entry = entry_of(log, number)
    put(entry + 8 * TEXT, field(table, at.NUMBER))
    if field(log, TIMED) != 0:
        if COUNTS_CYCLES and (number < _OFTEN or number % _OFTEN == 0):
            compare_clocks(state, log)
        put(entry + 8 * BEGAN, stamp(state))
    put(log + 8 * CALLS, number)
    put(state + 8 * at.STAGED, field(state, at.STAGED) + field(table, at.STAGED_CALLS))
    tally = field(table, at.TALLY)
    calls = field(tally, at.TALLY_CALLS) + 1
    put(tally + 8 * at.TALLY_CALLS, calls)
    if calls < field(tally, at.TALLY_NEXT) or field(table, at.TIMED) != 0:
        return at.DONE
    for index in range(field(table, at.ROWS) + 1):
        put(times_of(table) + 8 * (index + 1), 0)
    put(table + 8 * at.TIMED, number)
    note_time(table, state, 0)
    return at.OBSERVED


@compiled
def run_table(owner: int, arguments: int, count: int) -> int:
    """The function of a builtin method of Python whose object is the array with the table:

    run(source, target)               begin a call, and run all rows
    run(source, target, first, stop)  go on with the newest call

    Both arrays are contiguous NumPy arrays. Returns None, or an int: the row that is left to Python, OVER or UNFIT; or
    OBSERVED, if the call was begun here.
    """
    table = data_of(owner)
    state = field(table, at.STATE)
    source, target = data_of(field(arguments, 0)), data_of(field(arguments, 1))
    first, stop, timed = 0, field(table, at.ROWS), False
    if count == 2:
        answer = begin(table, state) if fits_table(table, source, target) else at.UNFIT
        timed = answer == at.OBSERVED
        if answer != at.DONE and not timed:
            return new_int(answer)
    else:
        first, stop = int_value(field(arguments, 2)), int_value(field(arguments, 3))
        timed = is_timed(table, state)
    if field(table, at.RELEASES) != 0:
        lock = save_thread()
        answer = interpret(table, state, source, target, first, stop, UNLOCKED, timed)
        restore_thread(lock)
    else:
        answer = interpret(table, state, source, target, first, stop, LOCKED, timed)
    if answer == at.DONE and stop == field(table, at.ROWS):
        answer = end_call(table, state, timed)
        if count != 2:
            answer = at.DONE
    if answer != at.DONE:
        return new_int(answer)
    none = field(state, at.NONE)
    keep(none)
    return none


@compiled
def is_of_kind(kind: int, array: int) -> bool:
    """True if an object is an array of a kind."""
    fields, flags, dimensions = array + _HEAD, field(kind, at.FLAGS), field(kind, at.DIMENSIONS)
    if word(fields - 8) != field(kind, at.TYPE):
        return False
    if (
        word(fields + at.ARRAY_DTYPE) != field(kind, at.DTYPE)
        or half_word(fields + at.ARRAY_FLAGS) & flags != flags
        or half_word(fields + at.ARRAY_DIMENSIONS) != dimensions
    ):
        return False
    lengths, same = word(fields + at.ARRAY_LENGTHS), 0
    while same < dimensions and field(lengths, same) == field(kind, at.LENGTHS + same):
        same += 1
    return same == dimensions


@compiled
def is_in_place(kind: int, array: int, extents: int) -> bool:
    """True if an array begins where its kind says."""
    start, data = field(kind, at.START), data_of(array)
    if start == at.ANYWHERE:
        return True
    if start != at.OUTSIDE:
        return data == start and word(array + _HEAD + at.ARRAY_BASE) == field(kind, at.ROOT)
    windows = word(extents)
    for index in range(field(windows, 0)):
        if field(windows, 2 * index + 1) <= data <= field(windows, 2 * index + 2):
            return False
    return True


@compiled
def fits(owner: int, arguments: int, count: int) -> int:
    """The function of a builtin method of Python whose object is the array with two kinds:

    fits(x, out)   True if x is an array of the first kind, and out is x (in place), None where the second kind may be
                   anywhere or outside the windows, or of the second kind without overlapping x; else False
    """
    kinds, x, out = data_of(owner), field(arguments, 0), field(arguments, 1)
    first, second = kinds + 8 * at.KIND, kinds + 8 * field(kinds, at.RESULT_KIND)
    extents = field(kinds, at.EXTENTS)
    good = is_of_kind(first, x) and (x == out) == (field(kinds, at.IN_PLACE) != 0) and is_in_place(first, x, extents)
    if good and out == field(kinds, at.NO_ARRAY):
        good = field(second, at.START) <= at.OUTSIDE
    elif good and x != out:
        good = is_of_kind(second, out) and is_in_place(second, out, extents)
        if good:
            start, result = data_of(x), data_of(out)
            good = start + field(first, at.BYTES) <= result or result + field(second, at.BYTES) <= start
    answer = field(kinds, at.TRUE) if good else field(kinds, at.FALSE)
    keep(answer)
    return answer


@compiled
def combine_arrays(owner: int, arguments: int, count: int) -> int:
    """The function of a builtin method of Python whose object is the array with the words of a kernel:

    combine(a, b, out)   call the kernel on flat arrays; the length is that of `out`
    """
    words, out = data_of(owner), field(arguments, 2)
    a, b, result = data_of(field(arguments, 0)), data_of(field(arguments, 1)), data_of(out)
    elements, stride = word(word(out + _HEAD + at.ARRAY_LENGTHS)), field(words, at.ELEMENT)
    if elements > field(words, at.UNRELEASED):
        thread = save_thread()
        call_kernel(field(words, at.FUNCTION), a, b, result, elements, stride, stride, 0)
        restore_thread(thread)
    else:
        call_kernel(field(words, at.FUNCTION), a, b, result, elements, stride, stride, 0)
    none = field(words, at.NOTHING)
    keep(none)
    return none


METHODS = {"run_table": run_table, "fits": fits, "combine_arrays": combine_arrays}


def entry(method: Any) -> Any:
    """A method as a C function of three words."""
    return numba.cfunc(WORD(WORD, WORD, WORD), error_model="numpy")(method.py_func)
