"""Operations on memory that Python has no words for, as single instructions of LLVM.

An acquire load is not reordered with what comes after it, a release store not with what comes before it: a rank that
has loaded an epoch sees the data that were stored before the epoch. LLVM knows what that takes on each processor. Numba
is needed to import this module.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from collectives.jit.counter import counts_cycles

WORD = types.int64
"""A word of 64 bits: a number, or an address."""
compiled = numba.njit(error_model="numpy")
"""Compiles a function, which others that are compiled may call."""
_NOTHING = types.void
_WORD_BITS = ir.IntType(64)
_FUTEX = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98}.get(platform.machine().lower(), 0)
"""Linux' number of futex(2)."""
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_MONOTONIC = 1
_SECOND = 1_000_000_000
_MACHINE = platform.machine().lower()
_HAS_PAUSE = _MACHINE in ("x86_64", "amd64")
COUNTS_CYCLES = counts_cycles()
"""True where `cycles` counts at one rate on all cores."""


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD_BITS.as_pointer())


def _stores(order: str, bits: int = 64) -> Callable[..., Any]:
    """The maker of a store of the lower `bits` of a value."""
    kind = ir.IntType(bits)

    def make(typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
            address, value = operands
            place = builder.inttoptr(address, kind.as_pointer())
            builder.store_atomic(value if bits == 64 else builder.trunc(value, kind), place, order, bits // 8)
            return context.get_dummy_value()

        return _NOTHING(WORD, WORD), generate

    return make


@intrinsic
def word(typing: Any, address: Any) -> Any:
    """The word at an address."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return builder.load(_pointer(builder, operands[0]))

    return WORD(WORD), generate


@compiled
def field(record: int, index: int) -> int:
    """A word of a table, a row or a state."""
    return word(record + 8 * index)


@intrinsic
def half_word(typing: Any, address: Any) -> Any:
    """The 32 bits at an address: a C int."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        bits = ir.IntType(32)
        return builder.sext(builder.load(builder.inttoptr(operands[0], bits.as_pointer())), _WORD_BITS)

    return WORD(WORD), generate


@intrinsic
def put_half(typing: Any, address: Any, value: Any) -> Any:
    """Store the lower 32 bits of a value."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        bits = ir.IntType(32)
        builder.store(builder.trunc(operands[1], bits), builder.inttoptr(operands[0], bits.as_pointer()))
        return context.get_dummy_value()

    return _NOTHING(WORD, WORD), generate


@intrinsic
def put(typing: Any, address: Any, value: Any) -> Any:
    """Store a word that only this process reads."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        builder.store(operands[1], _pointer(builder, operands[0]))
        return context.get_dummy_value()

    return _NOTHING(WORD, WORD), generate


@intrinsic
def load_acquire(typing: Any, address: Any) -> Any:
    """A word that another rank writes, before everything that is read later."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return builder.load_atomic(_pointer(builder, operands[0]), "acquire", 8)

    return WORD(WORD), generate


store_release = intrinsic(_stores("release"))
"""Store a word after everything that was written before."""
store_ordered = intrinsic(_stores("seq_cst"))
"""The same, and before everything that is read later with `load_ordered`: a rank that stores its epoch and then looks
whether a peer sleeps, and a peer that says so and then looks at the epoch, cannot both miss the other."""
put_half_ordered = intrinsic(_stores("seq_cst", 32))
"""`store_ordered` of the lower 32 bits of a value."""


@intrinsic
def load_ordered(typing: Any, address: Any) -> Any:
    """A word, read after every earlier `store_ordered`."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return builder.load_atomic(_pointer(builder, operands[0]), "seq_cst", 8)

    return WORD(WORD), generate


@intrinsic
def swap(typing: Any, address: Any, value: Any) -> Any:
    """Store a word and return the one that was there, before everything that is read or written later."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return builder.atomic_rmw("xchg", _pointer(builder, operands[0]), operands[1], "acquire")

    return WORD(WORD, WORD), generate


@intrinsic
def pause(typing: Any) -> Any:
    """Tell the processor that this is a loop that waits."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        if _HAS_PAUSE:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return _NOTHING(), generate


@intrinsic
def cycles(typing: Any) -> Any:
    """The processor's counter, where COUNTS_CYCLES; else 0."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        kind = ir.FunctionType(_WORD_BITS, [])
        if not COUNTS_CYCLES:
            return _WORD_BITS(0)
        if _HAS_PAUSE:
            return builder.call(builder.module.declare_intrinsic("llvm.readcyclecounter", (), kind), [])
        return builder.asm(kind, "mrs $0, cntvct_el0", "=r", [], True)

    return WORD(), generate


def _call_futex(builder: Any, address: Any, operation: int, number: Any, timeout: Any) -> None:
    """futex(2), by the C library's variadic syscall, on processors where it is known."""
    if not _FUTEX:
        return
    kind = ir.FunctionType(_WORD_BITS, [_WORD_BITS], var_arg=True)
    syscall = cgutils.get_or_insert_function(builder.module, kind, "syscall")
    constant = _WORD_BITS
    builder.call(syscall, [constant(_FUTEX), address, constant(operation), number, timeout, constant(0), constant(0)])


@intrinsic
def futex_wait(typing: Any, address: Any, seen: Any, nanoseconds: Any) -> Any:
    """Sleep until another thread or process wakes those that sleep at an address, if the lower half of the word there
    is that of `seen`. It may return early. Negative `nanoseconds`: for any time."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        address, seen, nanoseconds = operands
        with builder.goto_entry_block():
            place = builder.alloca(_WORD_BITS, ir.Constant(ir.IntType(32), 2))
        second = _WORD_BITS(_SECOND)
        for index, value in enumerate((builder.sdiv(nanoseconds, second), builder.srem(nanoseconds, second))):
            builder.store(value, builder.gep(place, [ir.Constant(ir.IntType(32), index)]))
        endless = builder.icmp_signed("<", nanoseconds, _WORD_BITS(0))
        timeout = builder.select(endless, _WORD_BITS(0), builder.ptrtoint(place, _WORD_BITS))
        _call_futex(builder, address, _FUTEX_WAIT, builder.and_(seen, _WORD_BITS(0xFFFFFFFF)), timeout)
        return context.get_dummy_value()

    return _NOTHING(WORD, WORD, WORD), generate


@intrinsic
def futex_wake(typing: Any, address: Any, count: Any) -> Any:
    """Wake up to `count` threads that sleep at an address."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        _call_futex(builder, operands[0], _FUTEX_WAKE, operands[1], _WORD_BITS(0))
        return context.get_dummy_value()

    return _NOTHING(WORD, WORD), generate


@intrinsic
def copy_bytes(typing: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy bytes between two places that do not overlap: the C library's memcpy."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        octet = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(operand, octet) for operand in operands[:2])
        copy = builder.module.declare_intrinsic("llvm.memcpy", [octet, octet, _WORD_BITS])
        builder.call(copy, [target, source, operands[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return _NOTHING(WORD, WORD, WORD), generate


@intrinsic
def clear_bytes(typing: Any, target: Any, count: Any) -> Any:
    """Store zeros: the C library's memset."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        octet = ir.IntType(8)
        target = builder.inttoptr(operands[0], octet.as_pointer())
        clear = builder.module.declare_intrinsic("llvm.memset", [octet.as_pointer(), _WORD_BITS])
        builder.call(clear, [target, octet(0), operands[1], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return _NOTHING(WORD, WORD), generate


@intrinsic
def call_function(typing: Any, function: Any, a: Any, b: Any, c: Any) -> Any:
    """Call a C function of up to three words that returns a word, or nothing."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        kind = ir.FunctionType(_WORD_BITS, [_WORD_BITS] * 3)
        return builder.call(builder.inttoptr(operands[0], kind.as_pointer()), operands[1:])

    return WORD(WORD, WORD, WORD, WORD), generate


@intrinsic
def call_kernel(
    typing: Any, kernel: Any, a: Any, b: Any, result: Any, count: Any, stride: Any, b_stride: Any, data: Any
) -> Any:
    """Call a kernel of the form of NumPy's inner loops, void (char **, npy_intp *, npy_intp *, void *), on `count`
    elements. `stride` is that of operand a and of the result."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        kernel, a, b, result, count, stride, b_stride, data = operands

        def array(*words: Any) -> Any:
            with builder.goto_entry_block():
                place = builder.alloca(_WORD_BITS, ir.Constant(ir.IntType(32), len(words)))
            for index, value in enumerate(words):
                builder.store(value, builder.gep(place, [ir.Constant(ir.IntType(32), index)]))
            return builder.ptrtoint(place, _WORD_BITS)

        arguments = array(a, b, result), array(count), array(stride, b_stride, stride), data
        kind = ir.FunctionType(ir.VoidType(), [_WORD_BITS] * 4)
        builder.call(builder.inttoptr(kernel, kind.as_pointer()), arguments)
        return context.get_dummy_value()

    return _NOTHING(*[WORD] * 8), generate


send = types.ExternalFunction("send", WORD(WORD, WORD, WORD, WORD))
"""The C library's function: descriptor, address, bytes, flags."""
sendmsg = types.ExternalFunction("sendmsg", WORD(WORD, WORD, WORD))
"""The C library's function: descriptor, address of a struct msghdr, flags."""
recvmsg = types.ExternalFunction("recvmsg", WORD(WORD, WORD, WORD))
"""The C library's function: descriptor, address of a struct msghdr, flags."""
recv = types.ExternalFunction("recv", WORD(WORD, WORD, WORD, WORD))
"""The C library's function: descriptor, address, bytes, flags."""
poll = types.ExternalFunction("poll", WORD(WORD, WORD, WORD))
"""The C library's function: address and number of struct pollfd, milliseconds. The lower 32 bits are its answer."""
clock_gettime = types.ExternalFunction("clock_gettime", WORD(WORD, WORD))
"""The C library's function; writes seconds and nanoseconds."""
madvise = types.ExternalFunction("madvise", WORD(WORD, WORD, WORD))
"""The C library's function: address, bytes, advice. The lower 32 bits are its answer."""
munmap = types.ExternalFunction("munmap", WORD(WORD, WORD))
"""The C library's function: address, bytes."""
process_vm_readv = types.ExternalFunction("process_vm_readv", WORD(WORD, WORD, WORD, WORD, WORD, WORD))
"""The C library's function: process, address and number of struct iovec here, the same there, 0. Returns the bytes."""
sched_yield = types.ExternalFunction("sched_yield", WORD())
"""The C library's function: let another thread have the core."""
sched_getaffinity = types.ExternalFunction("sched_getaffinity", WORD(WORD, WORD, WORD))
"""The C library's function: thread, 0 for this one; bytes of a mask of cores, and its address, where it is put."""
sched_setaffinity = types.ExternalFunction("sched_setaffinity", WORD(WORD, WORD, WORD))
"""The C library's function, likewise."""
save_thread = types.ExternalFunction("PyEval_SaveThread", WORD())
"""Release the interpreter's lock; returns what `restore_thread` wants."""
restore_thread = types.ExternalFunction("PyEval_RestoreThread", _NOTHING(WORD))
"""Take the interpreter's lock again."""
new_int = types.ExternalFunction("PyLong_FromLongLong", WORD(WORD))
"""A Python int."""
int_value = types.ExternalFunction("PyLong_AsLongLong", WORD(WORD))
"""The value of a Python int."""
keep = types.ExternalFunction("Py_IncRef", _NOTHING(WORD))
"""Count one reference more to an object."""


@compiled
def now(clock: int) -> int:
    """The time in nanoseconds, of the clock of time.perf_counter_ns on Linux. `clock` has room for two words."""
    clock_gettime(_MONOTONIC, clock)
    return _SECOND * field(clock, 0) + field(clock, 1)
