"""Pythons to run Ronde on: those of this machine, of other releases of Debian, of another processor, and without the
lock. Each is a virtual environment in `build/platforms`, with what the tests need from wheels; the second time it is
found there.

    3.12, 3.13, ...      python3.12 on the PATH, else Debian's, with Debian's C library
    3.13t, 3.14t, ...    python3.13t on the PATH, else built here from Debian's source, without Python's lock
    aarch64              Debian's Python 3.11 for that processor, emulated by qemu-user
    oldest               this Python with the oldest versions of all dependencies that pyproject.toml allows
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.platforms.debian import Archive, Unobtainable

REPOSITORY: Final = Path(__file__).parents[2]
FOLDER: Final = REPOSITORY / "build" / "platforms"
_SUITES: Final = {"3.11": "bookworm", "3.13": "trixie"}
_NEWEST_SUITE: Final = "sid"
_LIBRARIES: Final = ("libgcc-s1", "libstdc++6")
"""The libraries that the wheels of NumPy and Numba take from the system."""
_GLIBC_TAGS: Final = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 24, 26, 27, 28)))
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_TEST_PACKAGES: Final = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100")
_PACKAGES: Final = "packages"
"""Folder of an environment. It is on PYTHONPATH: Debian's Pythons look for packages at places of their own."""
_PURE: Final = {"cp313t": "msgpack"}
"""Packages without a wheel that can be installed from their source in pure Python."""
_BUILD_SECONDS: Final = 3600.0
_HEADERS: Final = {"ffi.h": "libffi-dev", "openssl/ssl.h": "libssl-dev", "zlib.h": "zlib1g-dev"}


@dataclass(frozen=True)
class Interpreter:
    """A Python with the packages of the tests.

    name     as on the command line
    python   its executable: of the virtual environment
    how      native, or emulated
    lacks    optional packages that have no wheel for it
    """

    name: str
    python: Path
    how: str
    lacks: tuple[str, ...] = ()

    @property
    def has_lock(self) -> bool:
        """False for a build without Python's lock."""
        return re.fullmatch(r"3\.\d+t", self.name) is None

    def variables(self) -> dict[str, str]:
        """The environment for it. Machine code is kept in `build/platforms` too."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RONDE_", "PYTHON"))}
        path = f"{REPOSITORY}:{self.python.parents[1] / _PACKAGES}"
        return {**kept, "PYTHONPATH": path, "XDG_CACHE_HOME": str(FOLDER / "cache")}

    def describe(self) -> str:
        """Its version, lock, processor and the versions of NumPy, msgpack and Numba."""
        text = (
            "import importlib.metadata as m, platform as p, sys;"
            "lock = getattr(sys, '_is_gil_enabled', lambda: True)();"
            "names = {d.metadata['Name'].lower().replace('-', '_'): d.version for d in m.distributions()};"
            "print(p.python_version() + ('' if lock else ' without the lock'), p.machine(), p.libc_ver()[1],"
            " *(f'{n} {names[n]}' for n in ('numpy', 'msgpack', 'ml_dtypes', 'numba') if n in names), sep=', ')"
        )
        command, environment = [str(self.python), "-c", text], self.variables()
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        return ended.stdout.strip()


def interpreter(name: str) -> Interpreter:
    """The interpreter of that name. Raises Unobtainable, with the reason."""
    if sys.platform != "linux":
        raise Unobtainable("Debian's packages run on Linux")
    if name == "oldest":
        return _oldest()
    if name == "aarch64":
        return _emulated()
    version = name.removesuffix("t")
    if not re.fullmatch(r"3\.\d+", version):
        raise ValueError(f"{name!r}: must be like 3.13, like 3.13t, aarch64 or oldest")
    abi = "cp" + version.replace(".", "") + ("t" if name.endswith("t") else "")
    found = _installed(name)
    start = ""
    if found is not None:
        executable = found
    elif name.endswith("t"):
        executable = _built_without_lock(version) / "bin" / f"python{name}"
    else:
        suite = _SUITES.get(version, _NEWEST_SUITE)
        architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
        root = Archive(FOLDER, suite, architecture).unpack([f"python{version}", *_LIBRARIES], FOLDER / f"root-{name}")
        (loader,) = {*root.glob("lib*/ld-linux-*"), *root.glob("usr/lib*/ld-linux-*")}
        libraries = ":".join(map(str, (*root.glob("lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu"))))
        executable = root / "usr" / "bin" / f"python{version}"
        start = f'exec {loader} --argv0 "$0" --library-path {libraries} {executable} "$@"'
    made = _environment(name, executable, start)
    lacks = _install(made, version, abi, platform.machine(), _requirements(), _optional())
    return Interpreter(name, made / "bin" / "python", "native", lacks)


def _installed(name: str) -> Path | None:
    """The executable of a Python of this machine: on the PATH, or one that pyenv keeps. None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{name}")
    for candidate in filter(None, (on_path, *sorted(pyenv.glob(f"{name}*/bin/python{name}")))):
        ended = subprocess.run(
            [candidate, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, timeout=60
        )
        executable = Path(ended.stdout.strip()) / "bin" / f"python{name}"
        if ended.returncode == 0 and executable.exists():
            return executable
    return None


def _emulated() -> Interpreter:
    """Debian's Python for aarch64. The emulator looks for files in the root first; what the processes start is the
    script `python`, which starts the emulator again, so the kernel has to know nothing."""
    name, version, suite = "aarch64", "3.11", "bookworm"
    native = _ARCHITECTURES.get(platform.machine(), platform.machine())
    emulator = Archive(FOLDER, suite, native).unpack(["qemu-user-static"], FOLDER / "emulator")
    root = Archive(FOLDER, suite, "arm64").unpack([f"python{version}", *_LIBRARIES], FOLDER / f"root-{name}")
    executable = root / "usr" / "bin" / f"python{version}"
    start = f'exec {emulator}/usr/bin/qemu-aarch64-static -0 "$0" -L {root} {executable} "$@"'
    made = _environment(name, executable, start)
    lacks = _install(made, version, "cp311", "aarch64", _requirements(), _optional())
    return Interpreter(name, made / "bin" / "python", "emulated by qemu-user", lacks)


def _oldest() -> Interpreter:
    """This Python, with the lower bounds of the requirements."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    made = _environment("oldest", Path(os.path.realpath(sys.executable)), "")
    project = _project()
    extras = project["optional-dependencies"]
    bounds = [*project["dependencies"], *extras["bfloat16"], *extras["jit"]]
    pinned = [re.sub(r">=([\d.]+).*", r"==\1", one) for one in bounds]
    abi = f"cp{version.replace('.', '')}"
    _install(made, version, abi, platform.machine(), [*pinned, *_TEST_PACKAGES], (), binary=False)
    return Interpreter("oldest", made / "bin" / "python", "native")


def _environment(name: str, executable: Path, start: str) -> Path:
    """The virtual environment of that name, without packages. `start`: how its Python is started, if not as it is."""
    made = FOLDER / f"environment-{name}"
    (made / "bin").mkdir(parents=True, exist_ok=True)
    text = f"home = {executable.parent}\ninclude-system-site-packages = false\n"
    (made / "pyvenv.cfg").write_text(text, encoding="utf-8")
    python = made / "bin" / "python"
    python.unlink(missing_ok=True)
    if start:
        python.write_text(f"#!/bin/sh\n{start}\n", encoding="utf-8")
        python.chmod(0o755)
    else:
        python.symlink_to(executable)
    return made


def _project() -> dict[str, Any]:
    with open(REPOSITORY / "pyproject.toml", "rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    return project


def _requirements() -> list[str]:
    project = _project()
    return [*project["dependencies"], *project["optional-dependencies"]["bfloat16"], *_TEST_PACKAGES]


def _optional() -> list[str]:
    found: list[str] = _project()["optional-dependencies"]["jit"]
    return found


def _install(
    made: Path,
    version: str,
    abi: str,
    machine: str,
    requirements: Sequence[str],
    optional: Sequence[str],
    *,
    binary: bool = True,
) -> tuple[str, ...]:
    """Install wheels into a virtual environment by this Python's pip; the optional ones that there are not.

    binary  False: build those that have no wheel for this Python
    """
    target = made / _PACKAGES
    stamp = made / "installed"
    wanted = "\n".join([*requirements, "", *optional])
    if stamp.exists():
        before, _, lacks = stamp.read_text(encoding="utf-8").partition("\nlacks: ")
        if before == wanted:
            return tuple(lacks.split())
    shutil.rmtree(target, ignore_errors=True)
    command = [*_installer(), "install", "--quiet", "--disable-pip-version-check", "--target", str(target)]
    if binary:
        tags = [f"{tag}_{machine}" for tag in _GLIBC_TAGS]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", version, "--abi", abi]
        command += [word for tag in tags for word in ("--platform", tag)]
    lacks: tuple[str, ...] = ()
    pure = _PURE.get(abi, "")
    if pure:
        source = [*_installer(), "install", "--quiet", "--target", str(target), "--no-deps"]
        _pip([*source, f"--no-binary={pure}", pure], MSGPACK_PUREPYTHON="1")
        requirements = [one for one in requirements if not one.startswith(pure)]
    try:
        _pip([*command, *requirements, *optional])
    except Unobtainable:
        if not optional:
            raise
        _pip([*command, *requirements])
        lacks = tuple(re.split(r"[<>=]", one)[0] for one in optional)
    stamp.write_text(f"{wanted}\nlacks: {' '.join(lacks)}", encoding="utf-8")
    return lacks


def _installer() -> list[str]:
    """The newest pip: that of an older Python takes wheels of the stable ABI for a Python without the lock."""
    folder = FOLDER / "pip"
    if not (folder / "pip").is_dir():
        _pip([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "pip"])
    return [sys.executable, str(folder / "pip")]


def _pip(command: Sequence[str], **variables: str) -> None:
    environment = {**os.environ, **variables}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_BUILD_SECONDS)
    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ["pip has failed"]
        raise Unobtainable(errors[-1].removeprefix("ERROR: "))


def _built_without_lock(version: str) -> Path:
    """CPython of Debian's source, configured with --disable-gil, without the optimizations that need a training run."""
    made = FOLDER / f"python-{version}t"
    if (made / "built").exists():
        return made
    for tool in ("gcc", "make", "dpkg-source"):
        if shutil.which(tool) is None:
            raise Unobtainable(f"{tool} is not installed (apt install build-essential dpkg-dev)")
    missing = [package for header, package in _HEADERS.items() if not _has_header(header)]
    if missing:
        raise Unobtainable(f"headers are missing (apt install {' '.join(missing)})")
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    source = Archive(FOLDER, _NEWEST_SUITE, architecture).source(f"python{version}", FOLDER / f"source-{version}")
    objects = FOLDER / f"objects-{version}t"
    shutil.rmtree(objects, ignore_errors=True)
    objects.mkdir()
    shutil.rmtree(made, ignore_errors=True)
    configure = [f"{source}/configure", "--disable-gil", f"--prefix={made}", "--disable-test-modules"]
    jobs = f"-j{min(2, os.cpu_count() or 1)}"
    for command in (
        [*configure, "--without-ensurepip", "OPT=-DNDEBUG -O2"],
        ["nice", "-n", "10", "make", jobs],
        ["make", "install"],
    ):
        with open(objects / "log", "ab") as log:
            ended = subprocess.run(command, cwd=objects, stdout=log, stderr=log, timeout=_BUILD_SECONDS)
        if ended.returncode:
            raise Unobtainable(f"Python {version}t cannot be built: see {objects / 'log'}")
    shutil.rmtree(objects)
    (made / "built").touch()
    return made


def _has_header(header: str) -> bool:
    program = f"#include <{header}>\n"
    return subprocess.run(["gcc", "-E", "-"], input=program.encode(), capture_output=True, timeout=60).returncode == 0
