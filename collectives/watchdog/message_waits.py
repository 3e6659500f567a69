"""The waits for messages in the flight record. The messages themselves note nothing, since each takes microseconds: the
watchdog notes those that it finds waiting."""

from __future__ import annotations

import threading

from collectives.execution import CallPositions
from collectives.failure import AbortSignal
from collectives.flight import MESSAGE, MESSAGES, Description, NoteLog


class MessageWaits:
    """The waits of one rank for messages. Any thread may call `look`."""

    def __init__(self, positions: CallPositions, abort_signal: AbortSignal) -> None:
        self._positions = positions
        self._abort_signal = abort_signal
        self._begun: dict[tuple[object, int], tuple[NoteLog, int]] = {}
        self._lock = threading.Lock()

    def look(self) -> None:
        """Note the waits that have begun since the last look, and the ends of those that are over; not those that this
        rank's failure has ended."""
        with self._lock:
            here = {(at.caller, at.step): at for at in self._positions.now() if not at.number}
            failed = self._abort_signal.failure is not None  # asked last: a failure comes before the ends of its waits
            for key in () if failed else self._begun.keys() - here.keys():
                log, entry = self._begun.pop(key)
                log.end(entry)
            for key in here.keys() - self._begun.keys():
                position = here[key]
                log = position.caller.notes(MESSAGES, "messages")
                peer = -1 if position.awaits is None else position.awaits
                self._begun[key] = log, log.begin(Description(position.text, MESSAGE, 0, "", 0, peer, ""))
