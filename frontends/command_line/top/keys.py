"""Keys that a user presses, one at a time."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator

try:
    import termios
    import tty
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

_NAMES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b": "escape", "\x03": "q", "\r": "t"}


class Keys:
    """The keys of a terminal. See `keys`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._typed = ""

    def wait(self, seconds: float) -> str | None:
        """The next key, waited for; None if none is pressed in time. 'q' if the terminal is gone."""
        if not self._typed:
            if not select.select([self._descriptor], [], [], max(0.0, seconds))[0]:
                return None
            try:
                self._typed = os.read(self._descriptor, 64).decode("utf-8", "replace")
            except OSError:
                return "q"
            if not self._typed:
                return "q"
        code = next((code for code in _NAMES if self._typed.startswith(code)), self._typed[0])
        self._typed = self._typed[len(code) :]
        return _NAMES.get(code, code)


def usable() -> bool:
    """True if keys can be read and a screen can be shown: at a terminal."""
    return termios is not None and sys.stdin.isatty() and sys.stdout.isatty()


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """The keys of the terminal at stdin, which passes them on one by one and does not show them, until the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
