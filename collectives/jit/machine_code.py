"""Machine code of the interpreter: compiled once by Numba, in a process of its own, kept in the cache folder, loaded by
LLVM.

interpreter.py --Numba--> LLVM's language --LLVM--> object file --> cache folder
                                                                      |  every process of a rank
                                                        run_table <---+  imports llvmlite alone
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import platform
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectives import flight
from collectives.jit import cache, compiler
from collectives.jit.counter import counts_cycles
from transports import arenas, compiled, onesided

log = logging.getLogger("ronde.compiled")

RunTable = Callable[..., int | None]
"""run(source, target) or run(source, target, first, stop): see interpreter.run_table."""

_METHODS: Final = ("run_table", "fits", "combine_arrays", "serve", "submit", "end", "call", "ended")
"""The functions of interpreter.METHODS and serving.METHODS."""
_KERNELS: Final = tuple(f"{name}_{dtype}" for name in ("mean", "share") for dtype in ("float32", "float64"))
_KERNELS_OF_HALVES: Final = tuple(
    f"{name}_{dtype}" for name in ("add", "mean", "scale") for dtype in ("float16", "bfloat16")
)
"""The functions of kernels.KERNELS; those of halves are for processors that convert float16."""
_ALLOCATOR: Final = ("malloc", "calloc", "realloc", "free", "retire", "settle", "used_pages")
"""The functions of allocator.FUNCTIONS."""
_PREFIX: Final = "ronde_"
_FASTCALL: Final = 0x80
"""CPython's METH_FASTCALL: a method gets its arguments as a C array."""
_USUAL_SECONDS: Final = 10
_LOOK_SECONDS: Final = 0.05
"""Pause between two looks for the code that another process makes: systems offer no wait for a lock of a file that ends
at a deadline."""
_SOURCES: Final = (
    *("allocator.py", "atomics.py", "blocks.py", "interpreter.py", "kernels.py"),
    *("lanes.py", "layout.py", "machine_code.py", "serving.py", "waits.py", "windows.py"),
)


class _MethodDefinition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_new_method = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_MethodDefinition), ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


class MachineCode:
    """The interpreter, loaded into this process. It stays loaded until the process ends."""

    def __init__(self, engine: Any, kernels: tuple[str, ...]) -> None:
        """`kernels`: the names of those that it has."""
        self._engine = engine
        self._methods = {
            name: _MethodDefinition(name.encode(), engine.get_function_address(_PREFIX + name), _FASTCALL, None)
            for name in _METHODS
        }
        self.kernels: Mapping[str, int] = {name: engine.get_function_address(_PREFIX + name) for name in kernels}
        """Addresses of kernels of the form of NumPy's inner loops."""
        self.allocator: Mapping[str, int] = {name: engine.get_function_address(_PREFIX + name) for name in _ALLOCATOR}
        """Addresses of the functions of the allocator."""

    def bind(self, name: str, words: NDArray[np.int64]) -> Callable[..., Any]:
        """One of the methods as a method of an array, which it keeps alive. The caller must keep this object,
        and all memory that the words name."""
        method: Callable[..., Any] = _new_method(self._methods[name], words, None)
        return method


def obstacle() -> str | None:
    """Why there can be no compiled interpreter here; None if there can."""
    if sys.implementation.name != "cpython":
        return f"the compiled interpreter is for CPython, not {sys.implementation.name}"
    if sys.platform != "linux":
        return f"the compiled interpreter calls Linux, and this system is {sys.platform}"
    if sys.maxsize < 2**32 or sys.byteorder != "little":
        return "the compiled interpreter needs a 64-bit little-endian machine"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the compiled interpreter needs Python's lock, which this build of Python can run without"
    from importlib.metadata import PackageNotFoundError, version  # here, since ranks without machine code need none

    try:
        version("numba"), version("llvmlite")
    except PackageNotFoundError:
        return "Numba is not installed (pip install 'ronde[jit]')"
    return None


@dataclass(frozen=True)
class NotYet:
    """There is no machine code yet, since it is still being compiled."""

    text: str = "it is still being compiled"

    def __str__(self) -> str:
        return self.text


def load(until: float) -> MachineCode | NotYet | str:
    """The interpreter for this machine; NotYet if it is still being compiled at `until`, a time of time.monotonic();
    or why there is none.

    A process that makes the code is started if there is neither the code nor such a process. What is found in the end
    is the same for all later calls in this process.
    """
    return _LOADER.load(until)


class _Loader:
    """Finds the machine code for a process, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: MachineCode | str | None = None
        self._target: _Target | None = None
        self._folder = Path()
        self._started = False

    def load(self, until: float) -> MachineCode | NotYet | str:
        """See the function."""
        while True:
            with self._lock:
                if self._found is None:
                    self._found = obstacle() or self._look()
                if self._found is not None:
                    return self._found
            if time.monotonic() >= until:
                return NotYet()
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> MachineCode | str | None:
        """The code or what prevents it; None if it is being made."""
        try:
            if self._target is None:
                self._target = _Target()
            code = cache.find(self._target.name)
            if code is None:
                code = self._begin(self._target.name)
            return None if code is None else self._target.load(code)
        except Exception as error:  # noqa: BLE001 - whatever a version of Numba or LLVM finds wrong, calls can do without
            log.warning("there is no compiled interpreter: %s: %s", type(error).__name__, error)
            return f"it cannot be made: {type(error).__name__}: {error}"

    def _begin(self, name: str) -> bytes | None:
        """Have the object file made unless another process makes it; the file if that has just ended."""
        if self._folder == Path():
            self._folder = cache.folder_for_making()
        making = cache.begin_making(self._folder)
        if making is None:
            return None
        with contextlib.closing(making):
            code = cache.find(name)
            if code is None and not self._started:
                self._started = True
                log.warning(
                    "Ronde compiles its interpreter once for this machine (about %d s); communicators that are made "
                    "before it is there run calls as functions of Python",
                    _USUAL_SECONDS,
                )
                compiler.start(name, making)
            elif code is None and making.descriptor >= 0:
                raise RuntimeError(cache.noted(name) or "the process that compiled it has ended without it")
            return code


_LOADER: Final = _Loader()


class _Target:
    """The machine for which code is compiled.

    name  of the file with its code
    """

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()  # on aarch64 the counter is read by an instruction that is given as text
        triple, cpu, features = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
        self._llvm: Any = llvm
        self._machine = llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu, features=features.flatten(), opt=3, reloc="pic", codemodel="jitdefault"
        )
        converts_halves = features.get("f16c", False) or platform.machine().lower() in ("aarch64", "arm64")
        self._kernels = _KERNELS + _KERNELS_OF_HALVES if converts_halves else _KERNELS
        self.name = f"interpreter-{_digest(triple, cpu, features.flatten())}.o"

    def load(self, code: bytes) -> MachineCode:
        """Load an object file into this process."""
        engine = self._llvm.create_mcjit_compiler(self._llvm.parse_assembly(""), self._machine)
        engine.add_object_file(self._llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return MachineCode(engine, self._kernels)

    def compile(self) -> bytes:
        """The object file."""
        return _compile(self._llvm, self._machine, self._kernels)


def compile_and_keep(name: str) -> None:
    """Compile the interpreter and keep it as the file `name`: the program of the process that `compiler` starts."""
    compiler.make(name, lambda: _Target().compile())


def _digest(*machine: str) -> str:
    """A name for the machine code: another one for every machine, version and source that may change it."""
    from importlib.metadata import version

    found = hashlib.sha256()
    for text in (
        *machine,
        platform.python_version(),
        sys.implementation.cache_tag,
        version("numba"),
        version("llvmlite"),
        f"cycles {counts_cycles()}",
    ):
        found.update(f"{text}\n".encode())
    folder, log_layout = Path(__file__).parent, Path(flight.__file__).parent / "layout.py"
    parts = (Path(str(found.__file__)) for found in (arenas, onesided, compiled))
    for path in (*(folder / name for name in _SOURCES), *parts, log_layout):
        found.update(path.read_bytes())
    return found.hexdigest()[:32]


def _compile(llvm: Any, machine: Any, names: tuple[str, ...]) -> bytes:
    """The object file of the interpreter, with kernels of these names."""
    level = logging.getLogger("numba").level
    logging.getLogger("numba").setLevel(logging.WARNING)  # at level debug it logs every instruction
    try:
        from collectives.jit import allocator, interpreter, kernels, serving

        methods = interpreter.METHODS | serving.METHODS
        functions = {name: interpreter.entry(methods[name]) for name in _METHODS}
        functions |= {name: kernels.entry(name) for name in names}
        functions |= {name: allocator.entry(name) for name in _ALLOCATOR}
    finally:
        logging.getLogger("numba").setLevel(level)
    module = llvm.parse_assembly("")
    for name, function in functions.items():
        part = llvm.parse_assembly(function.inspect_llvm())
        for found in part.functions:
            if found.name == function.native_name:
                found.name = _PREFIX + name
            elif not found.is_declaration:
                found.linkage = "internal"
        module.link_in(part)
    # Numba reports exceptions of a C function through functions of its own. The interpreter raises none: optimized
    # together, this part is found to be dead, and the code needs nothing of Numba.
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code
