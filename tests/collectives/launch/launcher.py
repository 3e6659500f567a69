"""Starts `ronde` as a user would, with a time limit, and watches the processes that it starts."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

BOUND = 300.0
"""Seconds after which a test fails; normal runs take far less."""

RONDE = [sys.executable, "-m", "ronde"]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without variables that the launcher reads."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("RONDE_") and "_THREADS" not in name
    }
    return kept | dict(extra or {})


def ronde(
    *arguments: str, extra: Mapping[str, str] | None = None, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run `ronde` to its end."""
    command = [*RONDE, *arguments]
    return subprocess.run(command, input=given, capture_output=True, timeout=BOUND, env=environment(extra), check=False)


@dataclass
class Running:
    """A running launcher. `read_words` reads the output of its ranks."""

    process: subprocess.Popen[bytes]

    def read_words(self, word: str, count: int) -> list[list[str]]:
        """The words after `word` in the next lines of stdout that hold it, until `count` of them have come."""
        assert self.process.stdout is not None
        found: list[list[str]] = []
        while len(found) < count:
            line = self.process.stdout.readline()
            assert line, "the launcher ended before its ranks printed this"
            _, there, after = line.decode().partition(word)
            if there:
                found.append(after.split())
        return found

    def finish(self) -> tuple[int, bytes, bytes]:
        """Wait for its end; exit code, and the rest of stdout and stderr."""
        out, err = self.process.communicate(timeout=BOUND)
        return self.process.returncode, out, err


_HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
"""Shells ignore these signals in background jobs and under nohup."""


@contextlib.contextmanager
def running(*arguments: str, extra: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Start `ronde`, and kill it at the end. It handles signals even if the tests run in the background."""
    before = {number: signal.signal(number, handler) for number, handler in _HANDLERS.items()}
    try:
        process = subprocess.Popen(
            [*RONDE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(extra),
            start_new_session=True,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    with process:
        try:
            yield Running(process)
        finally:
            process.kill()


class Watch:
    """Waits for the end of processes that are not children of this one."""

    def __init__(self, pids: list[int]) -> None:
        self._pidfds = [os.pidfd_open(pid) for pid in pids]

    def all_ended(self, within: float = 0.0) -> bool:
        """True if all have ended, waiting `within` seconds for each."""
        return all(select.select([pidfd], [], [], within)[0] for pidfd in self._pidfds)

    def none_ended(self) -> bool:
        """True if all are still running."""
        return not select.select(self._pidfds, [], [], 0)[0]

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        for pidfd in self._pidfds:
            os.close(pidfd)
