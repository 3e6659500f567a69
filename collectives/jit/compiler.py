"""The process that compiles the interpreter, once for all processes of this user on this host.

It is nobody's child and outlives the rank that starts it: a job that ends early leaves it to end by itself, within
SECONDS, so that the next job finds the code.

    rank 0 --takes the lock, starts--> compiler --holds the lock, writes--> cache folder, folder of this host
    rank 1, other jobs                 look for the file until the lock is free
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final

from collectives.jit import cache

SECONDS: Final = 600
"""Seconds after which the compiler gives up. It takes about ten of a processor, and some hundred of an emulated one."""

_START_SECONDS: Final = 30.0
_DETACH: Final = """
import json, subprocess, sys
subprocess.Popen(sys.argv[2:], start_new_session=True, pass_fds=json.loads(sys.argv[1]))
"""
_PROGRAM: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from collectives.jit.machine_code import compile_and_keep
compile_and_keep(sys.argv[2])
"""


def start(name: str, making: cache.Making) -> None:
    """Start a process that makes the file `name`, and has the right to do so as long as it runs. Raises OSError,
    subprocess.SubprocessError."""
    held = [making.descriptor] if making.descriptor >= 0 else []
    path = json.dumps([os.path.abspath(entry) for entry in sys.path])
    # It is no rank: whoever looks for processes that ranks have left behind does not find it
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RONDE_")}
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", _DETACH, json.dumps(held), sys.executable, "-P", "-c", _PROGRAM, path, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        pass_fds=held,
        start_new_session=True,
        timeout=_START_SECONDS,
        check=True,
    )


def make(name: str, compiled: Callable[[], bytes]) -> None:
    """Make the file `name`, in the process that `start` has started. Its error can be read by `cache.noted`."""
    if hasattr(signal, "alarm"):
        signal.alarm(SECONDS)  # the system ends it
    else:
        timer = threading.Timer(SECONDS, os._exit, [1])
        timer.daemon = True
        timer.start()
    cache.forget_note(name)
    with cache.note(name):
        cache.keep(name, compiled())
