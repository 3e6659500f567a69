"""Machine code of the interpreter: compiled once by Numba, kept in the cache folder, loaded by LLVM.

interpreter.py --Numba--> LLVM's language --LLVM--> object file --> cache folder
                                                                      |  every later process
                                                        run_table <---+  imports llvmlite alone
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectives.jit.cache import UnusableFolder, find_or_make
from transports import direct, onesided

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
_PREFIX: Final = "ronde_"
_FASTCALL: Final = 0x80
"""CPython's METH_FASTCALL: a method gets its arguments as a C array."""
WAIT_SECONDS: Final = 30.0
_loading = threading.Lock()
_SOURCES: Final = ("atomics.py", "interpreter.py", "kernels.py", "layout.py", "machine_code.py", "serving.py")


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

    def bind(self, name: str, words: NDArray[np.int64]) -> Callable[..., Any]:
        """One of the methods as a method of an array, which it keeps alive. The caller must keep this object,
        and all memory that the words name."""
        method: Callable[..., Any] = _new_method(self._methods[name], words, None)
        return method


def obstacle() -> str | None:
    """Why there can be no compiled interpreter here; None if there can."""
    if sys.implementation.name != "cpython":
        return f"the compiled interpreter is for CPython, not {sys.implementation.name}"
    if sys.maxsize < 2**32 or sys.byteorder != "little":
        return "the compiled interpreter needs a 64-bit little-endian machine"
    try:
        version("numba"), version("llvmlite")
    except PackageNotFoundError:
        return "Numba is not installed (pip install 'ronde[jit]')"
    return None


def load() -> MachineCode | str:
    """The interpreter for this machine, compiled now if no process has compiled it before; or why there is none.

    The first call in a process decides; later ones return the same. It takes some seconds if it compiles, and waits up
    to WAIT_SECONDS for another process that does.
    """
    with _loading:
        return _loaded()


@cache
def _loaded() -> MachineCode | str:
    reason = obstacle()
    if reason is not None:
        return reason
    try:
        return _load()
    except Exception as error:  # noqa: BLE001 - whatever a version of Numba or LLVM finds wrong, calls can do without
        log.warning("there is no compiled interpreter: %s: %s", type(error).__name__, error)
        return f"it cannot be made: {type(error).__name__}: {error}"


def _load() -> MachineCode:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple, cpu, features = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="jitdefault"
    )
    name, deadline = f"interpreter-{_digest(triple, cpu, features)}.o", time.monotonic() + WAIT_SECONDS
    converts_halves = "+f16c" in features.split(",") or platform.machine().lower() in ("aarch64", "arm64")
    names = _KERNELS + _KERNELS_OF_HALVES if converts_halves else _KERNELS

    def make() -> bytes:
        return _compile(llvm, machine, names)

    try:
        code = find_or_make(name, make, deadline)
    except UnusableFolder as error:
        log.warning("the compiled interpreter cannot be kept for later processes: %s", error)
        code = make()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return MachineCode(engine, names)


def _digest(*machine: str) -> str:
    """A name for the machine code: another one for every machine, version and source that may change it."""
    found = hashlib.sha256()
    for text in (
        *machine,
        platform.python_version(),
        sys.implementation.cache_tag,
        version("numba"),
        version("llvmlite"),
    ):
        found.update(f"{text}\n".encode())
    folder = Path(__file__).parent
    for path in (*(folder / name for name in _SOURCES), Path(onesided.__file__), Path(direct.__file__)):
        found.update(path.read_bytes())
    return found.hexdigest()[:32]


def _compile(llvm: Any, machine: Any, names: tuple[str, ...]) -> bytes:
    """The object file of the interpreter, with kernels of these names."""
    log.info("compiling the interpreter for this machine; this is done once")
    began = time.monotonic()
    level = logging.getLogger("numba").level
    logging.getLogger("numba").setLevel(logging.WARNING)  # at level debug it logs every instruction
    try:
        from collectives.jit import interpreter, kernels, serving

        methods = interpreter.METHODS | serving.METHODS
        functions = {name: interpreter.entry(methods[name]) for name in _METHODS}
        functions |= {name: kernels.entry(name) for name in names}
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
    log.info("compiled the interpreter in %.1f s", time.monotonic() - began)
    return code
