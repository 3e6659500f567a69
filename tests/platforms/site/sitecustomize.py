"""Shows Ronde another system: Python imports this module at its start where the folder is in PYTHONPATH.

The variable SHIM names the system, `darwin` or `win32`. Ronde's modules, and no others, then see modules of the
standard library without the names that this system lacks. The folders of Linux, /proc, /sys and /dev/shm, are hidden
from the whole process. What the standard library itself does is still Linux.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import importlib
import io
import multiprocessing
import os
import selectors
import signal
import socket
import stat
import sys
from types import ModuleType
from typing import Any

RONDE = {"ronde", "collectives", "transports", "frontends"}
FOLDERS = ("/proc", "/sys", "/dev/shm")

LINUX = {
    "os": "memfd_create pidfd_open sched_getaffinity sched_setaffinity posix_fallocate posix_fadvise waitid eventfd "
    "splice copy_file_range getrandom setns unshare O_TMPFILE O_PATH O_DIRECT MFD_CLOEXEC P_PIDFD CLONE_NEWNET",
    "signal": "SIGSTKFLT SIGPWR SIGPOLL SIGRTMIN SIGRTMAX sigtimedwait sigwaitinfo pidfd_send_signal",
    "select": "epoll EPOLLIN EPOLLOUT",
    "selectors": "EpollSelector",
    "socket": "AF_NETLINK AF_PACKET AF_VSOCK SO_PEERCRED SO_BINDTODEVICE TCP_USER_TIMEOUT TCP_QUICKACK TCP_INFO "
    "TCP_CORK TCP_DEFER_ACCEPT TCP_CONGESTION MSG_ERRQUEUE MSG_NOSIGNAL MSG_CONFIRM SOCK_CLOEXEC SOCK_NONBLOCK "
    "SO_DOMAIN SO_PROTOCOL SCM_CREDENTIALS SO_MARK",
    "resource": "prlimit",
}
"""Names that only Linux has."""
POSIX = {
    "os": "fork forkpty killpg getpgid getpgrp setpgid setsid getsid getuid geteuid getgid getegid getgroups wait "
    "wait3 wait4 waitpid WNOHANG WEXITED WIFEXITED WEXITSTATUS P_PID P_PGID posix_spawn posix_spawnp register_at_fork "
    "sched_yield pread pwrite preadv pwritev readv writev O_NOFOLLOW O_NONBLOCK O_NOCTTY O_CLOEXEC O_DIRECTORY O_SYNC "
    "uname getloadavg sysconf confstr statvfs fstatvfs fchown chown lchown mkfifo mknod nice ttyname openpty sendfile "
    "sync fdatasync getpriority chroot lockf ctermid minor major",
    "signal": "SIGKILL SIGHUP SIGCHLD SIGCLD SIGUSR1 SIGUSR2 SIGPIPE SIGSTOP SIGCONT SIGTSTP SIGTTIN SIGTTOU SIGXFSZ "
    "SIGXCPU SIGALRM SIGVTALRM SIGPROF SIGQUIT SIGTRAP SIGBUS SIGSYS SIGURG SIGWINCH SIGIO SIG_BLOCK SIG_UNBLOCK "
    "SIG_SETMASK pthread_sigmask pthread_kill sigwait sigpending setitimer getitimer alarm pause siginterrupt",
    "select": "poll POLLIN POLLOUT POLLERR POLLHUP PIPE_BUF",
    "selectors": "PollSelector DevpollSelector KqueueSelector",
    "socket": "AF_UNIX SO_REUSEPORT MSG_DONTWAIT MSG_TRUNC MSG_EOF CMSG_LEN CMSG_SPACE SCM_RIGHTS send_fds recv_fds "
    "sethostname",
    "mmap": "MAP_SHARED MAP_PRIVATE MAP_ANON MAP_ANONYMOUS MAP_POPULATE PROT_READ PROT_WRITE PROT_EXEC MADV_DONTNEED",
    "time": "clock_gettime clock_getres CLOCK_MONOTONIC CLOCK_REALTIME pthread_getcpuclockid tzset",
    "faulthandler": "register unregister",
    "multiprocessing": "",
}
"""Names that POSIX systems have, and Windows lacks."""
ABSENT = {
    "darwin": (),
    "win32": ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "crypt", "readline"),
}
"""Modules that a system lacks."""


class View(ModuleType):
    """A module without some of its names, and with others in their place."""

    def __init__(self, real: ModuleType, hidden: str, **instead: Any) -> None:
        super().__init__(real.__name__)
        vars(self).pop("__doc__")
        vars(self).update(_real=real, _hidden=set(hidden.split()), **instead)

    def __getattr__(self, name: str) -> Any:
        if name in vars(self)["_hidden"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on {SHIM}")
        return getattr(vars(self)["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_real"], name, value)


class Library(ctypes.CDLL):
    """The C library of macOS."""

    def __getattr__(self, name: str) -> Any:
        if name in ("prctl", "process_vm_readv", "syscall", "memfd_create", "gettid", "futex"):
            raise AttributeError(f"symbol not found: {name}")
        return super().__getattr__(name)


def library_of_windows(name: str | None, *args: Any, **options: Any) -> Any:
    raise (TypeError("no library is given") if name is None else FileNotFoundError(f"Could not find module {name!r}"))


class SocketsOnly(selectors.SelectSelector):
    """The selector of Windows, which takes nothing but sockets."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        found = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if not stat.S_ISSOCK(real_fstat(found).st_mode):
            raise OSError(10038, "an operation was attempted on something that is not a socket")
        return super().register(fileobj, events, data)


class SocketKind(type):
    """The class of sockets of Windows: no messages with control data."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("sendmsg", "recvmsg", "recvmsg_into"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, real_socket)


def terminate(pid: int, number: int) -> None:
    """os.kill of Windows: whatever the number, the process ends."""
    os.kill(pid, signal.SIGKILL)


def context(method: str | None = None) -> Any:
    if method not in (None, "spawn"):
        raise ValueError(f"cannot find context for {method!r}")
    return real_context("spawn")


def views() -> dict[str, View]:
    """The modules that Ronde sees, by their names."""
    names = {name: f"{LINUX.get(name, '')} {POSIX.get(name, '') if SHIM == 'win32' else ''}" for name in LINUX | POSIX}
    there = names.keys() - ABSENT[SHIM]
    found = {name: View(importlib.import_module(name), names[name]) for name in there}
    found["sys"] = View(sys, "getwindowsversion", platform=SHIM)
    vars(found["select"]).update(kqueue=None) if SHIM == "darwin" else None
    if SHIM == "darwin":
        vars(found["selectors"]).update(DefaultSelector=selectors.PollSelector)
        found["ctypes"] = View(ctypes, "", CDLL=Library)
    else:
        vars(found["os"]).update(name="nt", kill=terminate, path=os.path)
        vars(found["multiprocessing"]).update(get_all_start_methods=lambda: ["spawn"], get_context=context)
        vars(found["selectors"]).update(DefaultSelector=SocketsOnly, SelectSelector=SocketsOnly)
        vars(found["socket"]).update(socket=SocketKind("socket", (real_socket,), {}))
        found["ctypes"] = View(ctypes, "PyDLL", CDLL=library_of_windows)
    return found


def hide_folders() -> None:
    """Calls that name a file in the hidden folders find none."""

    def hiding(function: Any) -> Any:
        def called(path: Any = ".", *args: Any, **options: Any) -> Any:
            if isinstance(path, (str, bytes, os.PathLike)):
                text = os.fsdecode(path)
                if any(text == folder or text.startswith(folder + "/") for folder in FOLDERS):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
            return function(path, *args, **options)

        return called

    for name in ("stat", "lstat", "open", "listdir", "scandir", "readlink", "mkdir", "unlink", "statvfs"):
        setattr(os, name, hiding(getattr(os, name)))
    access = os.access
    os.access = lambda path, *args, **options: os.path.exists(path) and access(path, *args, **options)
    builtins.open = io.open = hiding(io.open)


def view_modules() -> None:
    """Let Ronde's modules import the views."""
    seen, real_import = views(), builtins.__import__

    def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        caller = str((globals or {}).get("__name__", "")).partition(".")[0]
        if level == 0 and caller in RONDE:
            if name in ABSENT[SHIM]:
                raise ModuleNotFoundError(f"No module named {name!r} on {SHIM}", name=name)
            if name in seen:
                return seen[name]
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = importing


SHIM = os.environ.get("SHIM", "")
real_socket, real_fstat, real_context = socket.socket, os.fstat, multiprocessing.get_context
if SHIM:
    import multiprocessing.connection
    import multiprocessing.popen_spawn_posix
    import uuid  # noqa: F401 - it reads folders of Linux

    view_modules()
    hide_folders()
