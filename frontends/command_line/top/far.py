"""The figures of a job on another host: those of `ronde top` there, by ssh."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Any, Final

from collectives.launch.hosts import Ssh
from collectives.launch.processes import passed_on
from frontends.top import Figures
from transports.errors import ConfigError, RendezvousError

_ANSWER_SECONDS: Final = 20.0
"""Time for another host to answer."""
_END_SECONDS: Final = 5.0
"""Time for ssh to end once it has closed its output."""
_LONGEST_LINE: Final = 64 << 20


class There:
    """A job with ranks on another host. `every` seconds there are figures."""

    def __init__(self, host: str, ssh: Ssh, job: str | None, every: float) -> None:
        self._host = host
        self._command = ssh.command(host)
        self._job = ["--job", job] if job is not None else []
        self._every = every
        self._process: subprocess.Popen[bytes] | None = None  # that tells the figures, once they are asked for
        self._rest = b""
        self._ended = False

    def begin(self) -> None:
        if self._process is None:
            self._process = self._start("--json", "--every", f"{self._every:g}", *self._job)

    def figures(self) -> Figures:
        self.begin()
        assert self._process is not None
        line = self._newest_line(self._process, time.monotonic() + _ANSWER_SECONDS)
        try:
            found: Any = json.loads(line)
        except ValueError as error:
            raise RendezvousError(f"-H {self._host}: ronde top there has answered something else: {error}") from error
        if not isinstance(found, dict):
            raise RendezvousError(f"-H {self._host}: ronde top there has answered something else")
        return found

    def stack(self, rank: int) -> str:
        return self._run("--stack", str(rank), *self._job)

    def save(self, folder: Path | None) -> str:
        into = ["--into", str(folder)] if folder is not None else []
        return f"{self._host}: {self._run('--save', *into, *self._job).strip()}"

    def close(self) -> None:
        if self._process is not None:
            _end(self._process, 0.0)
            _forget(self._process)

    def _newest_line(self, process: subprocess.Popen[bytes], until: float) -> bytes:
        """The newest whole line that has come, waited for. Raises RendezvousError, ConfigError with the other end's
        text."""
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        while True:
            lines = self._rest.split(b"\n")
            more = bool(select.select([descriptor], [], [], 0)[0]) and not self._ended
            if len(lines) > 1 and not more:
                self._rest = b"\n".join(lines[-2:])  # it stays the newest until the next one has come
                return lines[-2]
            left = until - time.monotonic()
            if left <= 0 or self._ended:
                raise self._failure(process) if self._ended else self._silence()
            if select.select([descriptor], [], [], left)[0]:
                data = os.read(descriptor, 1 << 20)
                self._ended = not data
                self._rest = b"\n".join(self._rest.split(b"\n")[-2:]) + data
                if len(self._rest) > _LONGEST_LINE:
                    raise RendezvousError(f"-H {self._host}: ronde top there has answered too much")

    def _silence(self) -> RendezvousError:
        return RendezvousError(f"-H {self._host}: no answer within {_ANSWER_SECONDS:g} s")

    def _failure(self, process: subprocess.Popen[bytes]) -> RendezvousError | ConfigError:
        """The reason for which a process that has closed its output has failed."""
        code = _end(process, _END_SECONDS)
        text = _tail(process.stderr)
        kind = ConfigError if code == 2 else RendezvousError
        return kind(f"-H {self._host}: {text or f'ssh ended with exit code {code}'}")

    def _run(self, *options: str) -> str:
        """The output of `ronde top` there. Raises RendezvousError, ConfigError."""
        process = self._start(*options)
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(_ANSWER_SECONDS, end)
        timer.start()
        try:
            assert process.stdout is not None
            text = process.stdout.read().decode("utf-8", "replace")
            code = process.wait()
        finally:
            timer.cancel()
            timer.join()
            _end(process, 0.0)
        if code and not late.is_set():
            raise self._failure(process)
        _forget(process)
        if late.is_set():
            raise self._silence()
        return text

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start `ronde top` there. Raises RendezvousError."""
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise RendezvousError(f"-H {self._host}: cannot start {self._command[0]}: {error.strerror}") from error
        header = [passed_on(os.environ, {}), ["-P", "-m", "ronde", "top", *options]]
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # ssh has ended: it has told the reason
            process.stdin.write(json.dumps(header).encode() + b"\n")
            process.stdin.flush()
        return process


def _end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """End a process of ssh that does not end by itself within some seconds; its exit code. What runs there ends when it
    writes again."""
    try:  # ssh closes its output before it has the exit code
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        code = process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    return code


def _forget(process: subprocess.Popen[bytes]) -> None:
    """Read no more of what a process that has ended has complained of."""
    if process.stderr is not None:
        process.stderr.close()


def _tail(pipe: IO[bytes] | None) -> str:
    if pipe is None or pipe.closed:
        return ""
    with pipe:
        return pipe.read(1 << 16).decode("utf-8", "replace").strip()[-2000:]
