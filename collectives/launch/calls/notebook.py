"""The output of ranks in Jupyter: the cell that calls `run` shows every line with its rank.

The kernel shows what is written to `sys.stdout`. Processes write to descriptors, so a thread carries their lines over.
"""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing import connection
from typing import Final, TextIO

from collectives.launch.processes import LineSplitter

_CHUNK: Final = 1 << 16


def notebook_output() -> RankOutput | None:
    """Shows the output of ranks in the notebook whose kernel this process is; None in any other process."""
    streams = sys.modules.get("ipykernel.iostream")
    if streams is None or not isinstance(sys.stdout, streams.OutStream):
        return None
    return RankOutput(sys.stdout)


class RankOutput:
    """Writes the lines of the ranks to a stream. `pipe` for each rank, then `start`; always `close`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._ranks: dict[connection.Connection, tuple[int, LineSplitter]] = {}
        self._thread: threading.Thread | None = None
        self._stopped, self._stop = connection.Pipe(duplex=False)

    def pipe(self, rank: int) -> connection.Connection:
        """The end of a new pipe into which the rank writes."""
        reader, writer = connection.Pipe(duplex=False)
        self._ranks[reader] = rank, LineSplitter()
        return writer

    def start(self) -> None:
        """Show the output from now on."""
        self._thread = threading.Thread(target=self._show, name="ronde-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show the rest that has arrived, and release everything. For when the ranks have ended. Idempotent."""
        self._stop.close()
        if self._thread is not None:
            self._thread.join()
        for reader in (*self._ranks, self._stopped):
            reader.close()

    def _show(self) -> None:
        waiting = [*self._ranks, self._stopped]
        while waiting:
            ready = connection.wait(waiting, None if self._stopped in waiting else 0)
            if self._stopped in ready:
                waiting.remove(self._stopped)
            elif not ready:  # a child of a rank may keep the pipe open
                break
            for reader in ready:
                if isinstance(reader, connection.Connection) and reader is not self._stopped:
                    data = os.read(reader.fileno(), _CHUNK)
                    rank, lines = self._ranks[reader]
                    self._write(rank, lines.feed(data) if data else lines.finish())
                    if not data:
                        waiting.remove(reader)

    def _write(self, rank: int, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace")
            self._stream.write(f"[rank {rank}] {text}" if text.endswith(("\n", "\r")) else f"[rank {rank}] {text}\n")
