"""The output of a rank in an engine's worker, line by line."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


class Lines(io.TextIOBase):
    """A stream that passes whole lines on, and writes everything to the worker's own stream.

    own   the worker's stream
    send  called with each line, without its end
    """

    def __init__(self, own: Any, send: Callable[[str], None]) -> None:
        super().__init__()
        self._own = own
        self._send = send
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._own.write(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._send(line)
        return len(text)

    def flush(self) -> None:
        if not self._own.closed:  # it may be, when this stream is collected and flushed once more
            self._own.flush()

    def finish(self) -> None:
        """Send the line that has no end."""
        if self._rest:
            self._send(self._rest)
            self._rest = ""
