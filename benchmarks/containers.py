"""Two ranks in containers that lack something: the table of docs/platforms.md.

    python -m benchmarks.containers                  # print the table, as root
    python -m benchmarks.containers pidfd_open       # the rows whose names have this word
    python -m benchmarks.containers --write          # put it between the markers in docs/platforms.md

No container software is needed: a row confines a process by what containers are made of, and then runs `ronde run` with
a program of allreduces of 4 B and 4 MiB, objects, messages and shared arrays, over `auto`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import os
import platform
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "platforms.md"
BEGIN: Final = "<!-- containers: made by python -m benchmarks.containers --write -->"
END: Final = "<!-- end of containers -->"
SECONDS: Final = 120.0
"""Bound of a row; a longer one hangs."""

PROGRAM: Final = """
import numpy as np
import ronde
world = ronde.init()
rank, size = world.rank, world.size
for count in (1, 1 << 20):
    found = world.allreduce(np.full(count, rank + 1, np.float32))
    assert (found == size * (size + 1) / 2).all(), found
    found = world.allreduce_async(np.full(count, rank + 1, np.float32)).wait()
    assert (found == size * (size + 1) / 2).all(), found
assert world.allgather_object({"rank": rank}) == [{"rank": peer} for peer in range(size)]
assert (world.sendrecv(np.full(9, rank), (rank + 1) % size, (rank - 1) % size) == (rank - 1) % size).all()
shared = world.empty(1 << 16, np.float32)
shared[:] = rank + 1
assert (world.allreduce(shared) == size * (size + 1) / 2).all()
print("right", flush=True)
"""

_NUMBERS: Final = (
    "pidfd_open 434 434, process_vm_readv 310 270, process_vm_writev 311 271, memfd_create 319 279, "
    "ptrace 101 117, sched_setaffinity 203 122, prlimit64 302 261, acct 163 89, add_key 248 217, "
    "bpf 321 280, clock_adjtime 305 266, clock_settime 227 112, delete_module 176 106, "
    "finit_module 313 273, get_mempolicy 239 236, init_module 175 105, io_uring_setup 425 425, "
    "io_uring_enter 426 426, kcmp 312 272, kexec_load 246 104, kexec_file_load 320 294, "
    "keyctl 250 219, mbind 237 235, mount 165 40, move_pages 279 239, open_by_handle_at 304 265, "
    "perf_event_open 298 241, pivot_root 155 41, quotactl 179 60, reboot 169 142, "
    "request_key 249 218, set_mempolicy 238 237, setns 308 268, settimeofday 164 170, swapon 167 224, "
    "swapoff 168 225, umount2 166 39, unshare 272 97, userfaultfd 323 282, "
)
"""Numbers of system calls on x86-64 and aarch64."""
_CALLS: Final = {name: numbers for name, *numbers in (call.split() for call in _NUMBERS.split(",") if call.strip())}
SINGLE: Final = ("pidfd_open", "process_vm_readv", "memfd_create", "ptrace", "sched_setaffinity", "prlimit64")
"""Calls that Ronde, or what it stands on, makes and may have to do without."""
DOCKER: Final = tuple(
    name for name in _CALLS if name not in ("pidfd_open", "memfd_create", "sched_setaffinity", "prlimit64")
)
"""The calls that Docker's default profile refuses, as its documentation lists them."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NEWNS, _NEWNET = 0x00020000, 0x40000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18


class Unavailable(Exception):
    """This machine cannot confine a process like that."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result:
        raise Unavailable(os.strerror(ctypes.get_errno()))


def refuse(names: Sequence[str], number: int) -> Callable[[], None]:
    """Let system calls fail with an error number from now on, by a filter of seccomp(2)."""

    def confine() -> None:
        place = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
        if place is None:
            raise Unavailable(f"the numbers of calls on {platform.machine()} are not known")
        code = [(_LOAD, 0, 0, 0)]
        for name in names:
            code += [(_EQUAL, 0, 1, int(_CALLS[name][place])), (_RETURN, 0, 0, _ERRNO | number)]
        code.append((_RETURN, 0, 0, _ALLOW))
        packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(packed)))
        _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _check(_libc().prctl(_PR_SET_SECCOMP, _MODE_FILTER, program, 0, 0))

    return confine


def _mounts() -> None:
    """Make mounts of this process its own from now on."""
    _check(_libc().unshare(_NEWNS))
    _check(_libc().mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None))


def _memory(folder: str, size: str, flags: int = 0) -> None:
    _check(_libc().mount(b"tmpfs", folder.encode(), b"tmpfs", flags, f"size={size}".encode()))


def shared_memory(size: str) -> Callable[[], None]:
    """A /dev/shm of this size."""

    def confine() -> None:
        _mounts()
        _memory("/dev/shm", size)

    return confine


def no_proc() -> None:
    """An empty /proc."""
    _mounts()
    _memory("/proc", "4k", _READ_ONLY)


def read_only() -> None:
    """Nothing can be written but /dev/shm, as with docker --read-only."""
    _mounts()
    lines = Path("/proc/self/mounts").read_text().splitlines()
    for folder in sorted({line.split()[1] for line in lines}):
        if not folder.startswith(("/proc", "/sys", "/dev")):
            _check(_libc().mount(None, folder.encode(), None, _REMOUNT | _BIND | _READ_ONLY, None))
    _memory("/dev/shm", "64m")


def _group() -> Path:
    """The control group of processes with half of a core, in version 2 or 1. Raises Unavailable."""
    for folder, file in (("", "cgroup.controllers"), ("cpu", "cpu.cfs_quota_us")):
        top = Path("/sys/fs/cgroup", folder)
        if (top / file).exists():
            return top / "ronde-half-a-core"
    raise Unavailable("there are no control groups here")


def half_a_core() -> None:
    """A control group with half of the time of a core."""
    group = _group()
    try:
        group.mkdir(exist_ok=True)
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_quota_us").write_text("50000")
        else:
            (group.parent / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text("50000 100000")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise Unavailable(f"a control group cannot be made here: {error}") from None


def remove_group() -> None:
    """Remove the control group of `half_a_core`, whose processes have ended."""
    with contextlib.suppress(Unavailable, OSError):
        _group().rmdir()


def no_loopback() -> None:
    """A network of its own without any interface that is up."""
    _check(_libc().unshare(_NEWNET))


class Row(NamedTuple):
    """A kind of container: its name, the function that confines the process, and the ranks that `ronde run` starts: by
    itself where `counted`, otherwise as it is told."""

    name: str
    confine: Callable[[], None]
    ranks: int = 2
    counted: bool = False


def rows() -> Iterator[Row]:
    """Every kind of container of the table."""
    yield Row("nothing is refused", lambda: None)
    yield Row("Docker's default profile (the calls that it refuses, EPERM)", refuse(DOCKER, errno.EPERM))
    for name in SINGLE:
        for number in (errno.ENOSYS, errno.EPERM):
            yield Row(f"`{name}` gives {errno.errorcode[number]}", refuse([name], number))
    yield Row("all of these give EPERM", refuse(SINGLE, errno.EPERM))
    for size in ("1m", "8m", "64m"):
        yield Row(f"/dev/shm of {size[:-1]} MB", shared_memory(size))
    yield Row("a read-only root, with /dev/shm of 64 MB", read_only)
    yield Row("no /proc", no_proc)
    yield Row("cpu.max of half a core", half_a_core)
    yield Row("the same, without `-np`: 1 rank", half_a_core, 1, counted=True)
    yield Row("no loopback", no_loopback)


def outcome(row: Row) -> str:
    """Run ranks in this kind of container: "right", the sentence of an error, or the end of a traceback."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RONDE_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.containers", "--inside", row.name, str(program)],
            cwd=ROOT,
            env=kept,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
            return f"hangs: {_last(err)}"
        finally:
            remove_group()
    if process.returncode == _UNAVAILABLE:
        return f"not run: {_last(err)}"
    if process.returncode == 0 and out.split().count("right") == row.ranks:
        return "right" if not err.strip() else f"right; it logs: {_last(err)}"
    sentences = re.findall(r"\b(?:transports|collectives)\.[\w.]+: (.*)", err)
    if "Traceback" in err and not sentences:
        return f"traceback: {_last(err)}"
    return f"refused: {_last(sentences[0] if sentences else err)}"


_UNAVAILABLE: Final = 77
_VARYING: Final = re.compile(r"^\[rank \d\] | \([^()]*pid \d+\)| at tcp://[\d.]+:\d+")


def _last(text: str) -> str:
    """The last line, without numbers that differ in each run."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _VARYING.sub("", lines[-1]).replace("|", "/") if lines else "it says nothing"


def inside(name: str, program: str) -> None:
    """Confine this process, and become the launcher."""
    (row,) = [row for row in rows() if row.name == name]
    try:
        row.confine()
    except (Unavailable, PermissionError) as error:
        print(error, file=sys.stderr)
        sys.exit(_UNAVAILABLE)
    count = [] if row.counted else ["-np", str(row.ranks)]
    os.execv(sys.executable, [sys.executable, "-m", "ronde", "run", *count, program])


def table(found: Sequence[tuple[str, str]]) -> str:
    """The part of the page between the markers."""
    lines = [f"| {name} | {text} |" for name, text in found]
    return "\n".join(["| container | `ronde run -np 2` |", "|---|---|", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.containers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only rows whose names have one of these words")
    parser.add_argument("--write", action="store_true", help="write the table into docs/platforms.md")
    parser.add_argument("--inside", metavar="ROW", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        inside(options.inside, options.words[0])
    found = []
    for row in rows():
        if not options.words or any(word in row.name for word in options.words):
            found.append((row.name, outcome(row)))
            print(*found[-1], sep=": ", flush=True)
    if options.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
