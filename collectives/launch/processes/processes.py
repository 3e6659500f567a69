"""Processes and signals: starting, signalling, describing. Every rank gets a session of its own, to end it with its
children."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import inspect
import os
import selectors
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Final, TypeVar

from collectives.launch.processes import guardian

T = TypeVar("T")

_PR_SET_CHILD_SUBREAPER: Final = 36
_BEGINNING: Final = 256
"""Bytes of a file that tell a text from a program."""
_DEFAULTS: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGCHLD", "SIGXFSZ", "SIGUSR1", "SIGUSR2")


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent has died, so that it can wait for them.

    Linux only. Elsewhere it does nothing, and children that ranks leave behind are not waited for.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fill_standard_descriptors() -> None:
    """Open /dev/null for the closed ones among the descriptors 0, 1, 2, so that no pipe gets their number."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)


@contextlib.contextmanager
def signals_as_bytes(selector: selectors.BaseSelector, handle: Callable[[bytes], None]) -> Iterator[None]:
    """Turn signals into bytes in a pipe that the selector watches. Ignored signals (nohup, `&`) stay ignored;
    blocked ones are unblocked: without SIGCHLD no job would end."""

    def do_nothing(number: int, frame: FrameType | None) -> None:
        """The interpreter has written the number to the wakeup descriptor already."""

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in wanted}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    before[signal.SIGCHLD] = signal.getsignal(signal.SIGCHLD)
    read, write = os.pipe()
    os.set_blocking(write, False)
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in before:
        signal.signal(number, do_nothing)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
    selector.register(read, selectors.EVENT_READ, lambda: handle(os.read(read, 4096)))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        selector.unregister(read)
        os.close(read)
        os.close(write)


def spawn(command: Sequence[str], environment: Mapping[str, str], stdin: int, stdout: int, stderr: int) -> int:
    """Start `command` in a session of its own, with default signal handling, and return its process id.

    Raises OSError if it cannot be started (not found, not executable, too many processes).
    """

    def start(words: Sequence[str]) -> int:
        return os.posix_spawnp(
            words[0],
            list(words),
            dict(environment),
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((stdin, stdout, stderr))],
            setsid=True,
            setsigmask=[],
            setsigdef=[getattr(signal, name) for name in _DEFAULTS],
        )

    return start_script(command, start)


def start_script(command: Sequence[str], start: Callable[[Sequence[str]], T]) -> T:
    """Start a command; by sh if it is a script without '#!', as shells and execvp(3) do it. Raises the OSError of
    `start`."""
    try:
        return start(command)
    except OSError as error:
        path = shutil.which(command[0]) if error.errno == errno.ENOEXEC else None
        if path is None or b"\0" in _beginning(path):  # a program of another machine
            raise
        return start(["/bin/sh", path, *command[1:]])


def _beginning(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_BEGINNING)


def signal_group(group: int, *numbers: int) -> bool:
    """Send signals to a process group; False if it has no process that this one may signal. 0 only checks that."""
    try:
        for number in numbers:
            os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_process(pid: int, *numbers: int) -> None:
    """Send signals to a process, if there is one that this one may signal."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for number in numbers:
            os.kill(pid, number)


def group_of(pid: int) -> int:
    """The process group of a process, 0 if it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def exit_code(status: int) -> int:
    """The exit code that a shell reports for a status of `os.waitstatus_to_exitcode`: 128 + N for signal N."""
    return 128 - status if status < 0 else status


def describe_status(status: int) -> str:
    """Format a status of `os.waitstatus_to_exitcode`: 'exited with 3', 'killed by SIGKILL'."""
    if status >= 0:
        return f"exited with {status}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


class Guardian:
    """A small process that kills the ranks if this process is killed. guardian.py is its program."""

    def __init__(self) -> None:
        self._pid = 0
        self._pipe = -1

    def start(self) -> None:
        """Start the process. Raises OSError if that fails."""
        read, self._pipe = os.pipe()
        try:
            program = inspect.getsource(guardian)  # its file may be in a zip
            with open(os.devnull, "wb") as null:
                arguments = [sys.executable, "-I", "-S", "-c", program]
                self._pid = spawn(arguments, os.environ, read, null.fileno(), null.fileno())
        finally:
            os.close(read)

    def add(self, group: int) -> None:
        """Kill this process group when this process is gone."""
        self._send(f"+{group}\n")

    def mark(self, marks: frozenset[bytes]) -> None:
        """Kill every process with these variables when this process is gone."""
        self._send(f"={' '.join(mark.hex() for mark in sorted(marks))}\n")

    def remove(self, group: int) -> None:
        """Spare this process group: it has ended, and the system may use its number again."""
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the guardian was killed: the job goes on without it
            os.write(self._pipe, line.encode())

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = 0
