"""Python stacks of running threads, as text.

`faulthandler` walks the frames in C while it holds the interpreter lock, so no thread can run meanwhile. To follow
`f_back` in Python from a frame of a running thread has crashed CPython 3.11.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import tempfile
from collections.abc import Iterator
from typing import IO, Final

DEPTH: Final = 32
"""Innermost frames of a stack that are shown. Some 20 are Ronde's own, and the program's must be among them."""

_THREAD: Final = re.compile(r"(?:Thread|Current thread) 0x([0-9a-f]+)")
_FRAME: Final = re.compile(r'  File "?(.+?)"?, line (\d+|\?\?\?) in (.*)')
_ESCAPED: Final = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")


def stack_of(thread: int) -> str:
    """The innermost frames of a thread, the innermost last, as in a traceback.

    thread  its `threading.Thread.ident`

    Never raises: if the thread has ended, or its stack is not available, the text says so. `faulthandler` shows at most
    100 threads, the newest ones.
    """
    try:
        dump = _dump()
    except OSError as error:
        return f"  its stack cannot be had: {error}\n"
    lines: list[str] | None = None
    for line in dump.splitlines():
        if line == "..." and lines is None:
            return "  its stack cannot be had: there are more than 100 threads\n"
        head = _THREAD.match(line)
        if head is not None and lines is not None:
            break
        if head is not None and int(head[1], 16) == thread:
            lines = []
        elif lines is not None and len(lines) < DEPTH:
            lines += _described(line)
    return "".join(reversed(lines)) if lines else "  its thread has ended\n"


def _dump() -> str:
    with _file() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode("ascii", "replace")


def _file() -> IO[bytes]:
    """A file in memory where the system has such files."""
    try:
        return open(os.memfd_create("ronde-stacks"), "w+b", buffering=0)
    except (AttributeError, OSError):  # not Linux, or a sandbox refuses it
        return tempfile.TemporaryFile(buffering=0)


def _described(line: str) -> Iterator[str]:
    """A frame of a dump as a traceback shows it; nothing for another line."""
    frame = _FRAME.fullmatch(line)
    if frame is None:
        return
    file, number, function = _ESCAPED.sub(_unescaped, frame[1]), frame[2], _ESCAPED.sub(_unescaped, frame[3])
    source = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
    yield f'  File "{file}", line {number}, in {function}\n' + (f"    {source}\n" if source else "")


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[match.lastindex or 0], 16))
