"""The words of a table and of a state, 64 bits each: what Python writes and the compiled interpreter reads.

A table is made for a plan. It has a head and a row for each instruction:

    head   STATE CHECK ROWS ...
    row 0  opcode, count, address of the result, of operand a, of operand b, ...
    row 1  ...

A ring belongs to a thread that runs jobs without Python, one after the other (serving.py).
A state belongs to an executor: where its window is, and the log of its calls (collectives/flight), which has their
number. Both change with every call.
A kind describes arrays: type, dtype, shape, flags, place.
An operand is a base and an offset: the base says whether the offset counts from the caller's source or target, from the
staging slot of the call, or is an address as it is.
"""

from __future__ import annotations

import enum
from typing import Final

from transports.compiled import HEAD_BYTES
from transports.onesided import MASK_BYTES

# Words of a state.
LOG: Final = 0
"""Address of the words of the log of calls."""
STAGED: Final = 1
"""Number of calls that used the staging window."""
EPOCHS: Final = 2
"""Epochs of one call: call n has the epochs from n * EPOCHS on."""
STOPPED: Final = 3
"""Address of a word that is not 0 once the window cannot be used any more."""
OWN: Final = 4
"""Address of this rank's control words in the window (transports.onesided.Controls)."""
SPINS: Final = 5
"""Reads of an epoch, or of the word of a ring, before the first yield."""
HALF: Final = 6
"""Bytes from the first half of the staging window to the second one."""
NONE: Final = 7
"""Address of the object None, the answer of a call that is complete."""
PUBLISHED: Final = 8
"""Address of this rank's own note of its epoch."""
BELLS: Final = 9
"""Address of the addresses of the doorbells of the window's ranks; see Controls."""
BELL_COUNT: Final = 10
"""Their number; 0 if compiled code can wake nobody."""
YIELDS: Final = 11
"""Yields of the core, after the reads or the attempts to receive, before the first sleep."""
CLOCK: Final = 12
"""Two words for a reading of the clock."""
FRAME: Final = CLOCK + 2
"""Address of memory of FRAME_BYTES, in which a frame is put together."""
POLLS: Final = FRAME + 1
"""Attempts to receive a message before the first yield."""
MOVED: Final = FRAME + 2
"""Bytes, head included, that were sent or received of the message of a row that is left to Python. If that is all of
them, the row is complete, but the peer must be woken."""
ARENA: Final = FRAME + 3
"""Address of what this process tells of its arena (transports.arenas.OWN)."""
PROCESS: Final = FRAME + 4
"""Number of this process."""
SPANS: Final = FRAME + 5
"""Two of struct iovec, address and bytes each: where to copy to and from."""
PROBE: Final = SPANS + 4
"""Room for a byte."""
SLEEPS: Final = SPANS + 5
"""Sleeps of a millisecond at most, after the yields, before an epoch or a message is left to Python."""
CORES: Final = SLEEPS + 1
"""Address of three masks of cores, of CORE_WORDS each: those of Cores.masks, and room for one; 0: threads that sleep
are not bound."""
CORE_WORDS: Final = MASK_BYTES // 8
STATE_WORDS: Final = SLEEPS + 2

# The memory of a frame: bytes. Behind its head a small payload, or Linux' struct msghdr for frames in two places.
GATHERED: Final = HEAD_BYTES
PARTS: Final = GATHERED + 56
"""The head and the payload of such a frame: two times address and length (struct iovec)."""
JOINED_BYTES: Final = 1 << 12
"""The largest payload that is copied behind the head, which takes less time than a longer system call."""
FRAME_BYTES: Final = HEAD_BYTES + JOINED_BYTES

# Words of a table's head.
STATE: Final = 0
"""Address of the executor's state."""
ROWS: Final = 1
CHECK: Final = 2
SLOTS: Final = 3
"""Calls of the plan use so many staging slots in rotation."""
SLOT_STRIDE: Final = 4
"""Bytes from one slot to the next of the same half."""
NUMBER: Final = 5
"""Number of the plan, which the log has of each call."""
RELEASES: Final = 6
"""1 if other threads may run Python while the table runs: it moves much data."""
TALLY: Final = 7
"""Address of the plan's counters: TALLY_CALLS, TALLY_NEXT."""
TALLY_CALLS: Final = 0
TALLY_NEXT: Final = 1
MISALIGNED: Final = 8
"""The bits that an address must not have: kernels are for aligned elements."""
TIMED: Final = 9
"""Number of the call that is timed. Its times are behind the rows, one word each: its begin, the end of every row, its
end, which is 0 until then. 0: the times of the last one were taken, and the next call that is to be timed is."""
LOAD: Final = 10
STORE: Final = 13
"""The scaling of the source into the target before the rows, and of the target after them: a kernel, its data, and the
address of a number, three words each; 0 for not at all. The rows of a table that scales its source find it in the
target."""
ELEMENTS: Final = 16
ELEMENT_BYTES: Final = 17
"""Elements to scale, and the bytes of one."""
STAGED_CALLS: Final = 18
"""1 if calls of the plan use the staging window, else 0."""
TAG: Final = 19
"""The tag of messages."""
EXPOSES: Final = 20
"""The arrays that peers read where they lie, and that must be readable there: SOURCE_IS_READ, TARGET_IS_READ or both.
0: none."""
SOURCE_IS_READ: Final = 1
TARGET_IS_READ: Final = 2
CHECKED: Final = 21
"""Address of three things: the address of a word that must be 0 before a signal other than the one that exposes arrays;
the number of the words that must be OPENED then; their addresses. 0: nothing is to be checked. See
transports.onesided.Controls.ends."""
HEAD_WORDS: Final = 22

# Words of a row. A WAIT has its phase and the address of the awaited rank's control words instead of operands; a SEND
# has operand a alone, a TAKE the result alone. A READ has the result, and as operand a the number of the exposed array
# and an offset in it.
OPCODE: Final = 0
COUNT: Final = 1
"""COPY, SEND and TAKE: bytes. REDUCE: elements. SIGNAL and WAIT: phase."""
RESULT: Final = 2
A: Final = 4
B: Final = 6
"""Operands, two words each: base and offset."""
KERNEL: Final = 8
KERNEL_DATA: Final = 9
"""Address of the kernel of a REDUCE, and of the data that it wants: the form of NumPy's inner loops."""
STRIDE: Final = 10
"""Bytes from one element to the next."""
DIVISION: Final = 11
DIVISION_DATA: Final = 12
DIVISOR: Final = 13
"""A REDUCE whose result is divided afterwards: a kernel that combines the result with one number, and the address of
that; 0 for none."""
CONTROL: Final = 2
"""WAIT: address of the awaited rank's control words."""
EXPOSED_BY: Final = 8
PEER: Final = 9
"""READ: addresses of the control words of the rank that exposes the array, and of the words that locate its arena."""
READ_FROM: Final = 11
"""READ: number of the process of that rank."""
REFERENCE: Final = 10
"""READ: address of a word that gets the address of the array instead of a copy in the result, for operands of base
REFERRED; 0: there is none."""
EXPOSE: Final = 2
"""SIGNAL: 1 to expose the arrays before."""
LANES: Final = 8
"""SEND and TAKE: address of the words of the lanes of the peer (transports.compiled)."""
ROW_WORDS: Final = 14

# Opcodes.
COPY: Final = 0
REDUCE: Final = 1
SIGNAL: Final = 2
WAIT: Final = 3
SEND: Final = 4
"""Send a message, or leave it to Python if there is no room for all of it now, or if the peer sleeps on a
descriptor."""
TAKE: Final = 5
"""Receive a message, or leave it to Python if it does not come soon, or if the peer sleeps on a descriptor until there
is room."""
IDLE: Final = 6
"""An instruction that has nothing to do: the begin of a receive, whose TAKE follows, or the end of a send."""
READ: Final = 7
"""Copy from an array that a peer exposes: from its arena, or by process_vm_readv(2). Leave it to Python if the arena is
not known here, or if the system does not copy all."""

# Bases.
ABSOLUTE: Final = 0
SOURCE: Final = 1
TARGET: Final = 2
STAGED_SLOT: Final = 3
REFERRED: Final = 4
"""The offset is the address of the REFERENCE of a READ."""


class Answer(enum.IntEnum):
    """The answer of the interpreter where it is not the index of a row, 0 or more, that is left to Python."""

    DONE = -1
    """All rows have run. Python gets None instead."""
    OVER = -2
    """The window cannot be used any more: nothing was done."""
    OBSERVED = -3
    """All rows have run, and the times of the call are to be taken from the table."""
    UNFIT = -4
    """The arrays are not aligned, or the lanes are in use: nothing was done."""
    UNTRIED = -5
    """No code was called. Not an answer of the interpreter itself."""


DONE: Final = Answer.DONE.value
OVER: Final = Answer.OVER.value
OBSERVED: Final = Answer.OBSERVED.value
UNFIT: Final = Answer.UNFIT.value
UNTRIED: Final = Answer.UNTRIED.value
"""The answers as numbers, for compiled code and for the way of small calls."""

# Words of a ring of jobs. A futex looks at the lower half of a word.
BELL: Final = 0
"""Grows with every submitted job and every call; the server sleeps on it."""
ASLEEP: Final = 1
"""1 while the server sleeps or is about to."""
CALLED: Final = 2
"""1 if the server is to come back to Python after its present job."""
SUBMITTED: Final = 3
"""Number of jobs that were ever submitted."""
ENDED: Final = 4
"""Number of jobs that have ended; the waiters sleep on it."""
WAITERS: Final = 5
"""Number of threads that sleep until a job has ended, or are about to."""
RING_NONE: Final = 6
RING_TRUE: Final = 7
RING_FALSE: Final = 8
"""Addresses of None, True and False."""
JOBS: Final = 9
"""The first job; job n has the place n % CAPACITY, of JOB_WORDS words: the addresses of its table and its arrays."""
JOB_TABLE: Final = 0
JOB_SOURCE: Final = 1
JOB_TARGET: Final = 2
JOB_WORDS: Final = 3
CAPACITY: Final = 256
RING_WORDS: Final = JOBS + CAPACITY * JOB_WORDS

# Words of a kernel that Python calls.
FUNCTION: Final = 0
ELEMENT: Final = 1
"""Bytes of an element."""
UNRELEASED: Final = 2
"""The most elements that are combined without letting other threads run Python meanwhile."""
NOTHING: Final = 3
"""Address of None."""

# Words of a pair of kinds of arrays, of an input and a result.
NO_ARRAY: Final = 0
TRUE: Final = 1
FALSE: Final = 2
"""Addresses of None, True and False."""
IN_PLACE: Final = 3
"""1 if the result is the input, else 0."""
RESULT_KIND: Final = 4
"""Number of the word where the kind of the result begins."""
EXTENTS: Final = 5
"""Address of a word with the address of the extents of all windows: their number, then begin and end of each."""
KIND: Final = 6
"""The kind of the input."""

# Words of a kind of arrays.
TYPE: Final = 0
"""Address of the type numpy.ndarray."""
DTYPE: Final = 1
"""Address of the dtype."""
FLAGS: Final = 2
"""Flags that the array must have (numpy/ndarraytypes.h)."""
BYTES: Final = 3
START: Final = 4
"""Address at which the array must begin, or ANYWHERE or OUTSIDE."""
ROOT: Final = 5
"""With an address in START: the object that must be the array's `base`."""
DIMENSIONS: Final = 6
"""Number of dimensions; then the dimensions follow."""
LENGTHS: Final = 7
ANYWHERE: Final = 0
OUTSIDE: Final = 1
"""The array must begin in no window."""

# Fields of NumPy's array objects: bytes behind the head that all objects have.
ARRAY_DATA: Final = 0
ARRAY_DIMENSIONS: Final = 8
ARRAY_LENGTHS: Final = 16
ARRAY_BASE: Final = 32
ARRAY_DTYPE: Final = 40
ARRAY_FLAGS: Final = 48
