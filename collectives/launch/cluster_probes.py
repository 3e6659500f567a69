"""The ways to a host's probe: in this process, behind a command such as ssh, or in a rank that a launcher started."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO, Any, Final

from collectives.launch.cluster_facts import facts_here
from collectives.launch.cluster_probe import IDLE_SECONDS, Probe
from collectives.launch.connection import Decoder, Message, encode
from collectives.launch.output import LineSplitter, Tail
from collectives.launch.processes import describe_status, signal_group
from transports.errors import ConnectError, DeadlineExceeded, RondeError
from transports.packed import pack, unpack
from transports.store import Store

MODULE: Final = "collectives.launch.cluster_probe"

END_SECONDS: Final = 1.0
"""Time for a command to end after the end of its output, or of its input; later it is killed."""

_READ: Final = 1 << 16


class ProbeHere:
    """Implements `HostProbe` for the host of this process."""

    def __init__(self, name: str, probe: Probe | None = None) -> None:
        self.name = name
        self._probe = probe or Probe()

    def ask(self, *question: object, seconds: float) -> Any:
        """The answer. The probe has time limits of its own."""
        return _checked(self._probe.answer(list(question)))

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._probe.close()


class ProbeByCommand:
    """Implements `HostProbe` for a host on which a command starts the bootstrap text of `agent_commands`.

    Raises OSError if the command cannot be started. What the command says on its stderr tells why there is no answer.
    """

    def __init__(self, name: str, command: Sequence[str], header: Sequence[Any]) -> None:
        self.name = name
        marker = secrets.token_hex(16).encode()
        self._command = command[0]
        self._decoder = Decoder(marker)
        self._splitter, self._tail = LineSplitter(), Tail()
        self._begun = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self._write(json.dumps(header).encode() + b"\n" + encode(["open", marker]))

    def ask(self, *question: object, seconds: float) -> Any:
        """The answer."""
        until = time.monotonic() + seconds
        self._write(encode(list(question)))
        while True:
            for answer in self._read(until, seconds):
                self._begun = True
                return _checked(answer)

    def end(self) -> None:
        """Let the probe end. Nothing more can be asked. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """Kill the command, which also ends an `ask` in another thread."""
        signal_group(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end of the command for a moment, kill it, and release everything. Idempotent."""
        self.end()
        try:
            self._process.wait(END_SECONDS if self._begun else 0.0)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its output tells why
            self._process.stdin.write(data)

    def _read(self, until: float, seconds: float) -> list[Message]:
        """Wait for output: the messages that it completes. Raises ConnectError at the end, or when it is late."""
        out, words = self._process.stdout, self._process.stderr
        assert out is not None
        assert words is not None
        ready = select.select([out, words], [], [], max(0.0, until - time.monotonic()))[0]
        if not ready:
            why = "" if self._begun else f": {self._command} does not connect, or Python does not start there"
            raise ConnectError(self._with_words(f"no answer within {seconds:g} s{why}"))
        if words in ready:
            self._note(words)
        if out not in ready:
            return []
        data = out.read(_READ)
        if not data:
            raise ConnectError(self._why())
        try:
            return self._decoder.feed(data)
        except ValueError as error:
            raise ConnectError(f"the probe sent {error}: another version of Ronde?") from error

    def _note(self, words: IO[bytes]) -> bool:
        """Keep the end of what the command says; False at its end."""
        data = words.read(_READ)
        for line in self._splitter.feed(data) if data else self._splitter.finish():
            self._tail.add(line)
        return bool(data)

    def _why(self) -> str:
        """The reason for the end of the output."""
        assert self._process.stderr is not None
        until = time.monotonic() + END_SECONDS
        while select.select([self._process.stderr], [], [], max(0.0, until - time.monotonic()))[0]:
            if not self._note(self._process.stderr):
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))
        status = self._process.returncode
        ending = "has closed its output" if status is None else describe_status(status)
        if not self._begun and self._tail.lines():
            return "; ".join(self._tail.lines()[-3:])
        return self._with_words(f"its probe has ended ({self._command} {ending})")

    def _with_words(self, text: str) -> str:
        words = "; ".join(self._tail.lines()[-3:])
        return f"{text}: {words}" if words else text


class ProbeByStore:
    """Implements `HostProbe` for another rank of the job, which calls `answer_by_store`."""

    def __init__(self, name: str, rank: int, store: Store) -> None:
        self.name = name
        self.rank = rank
        self._store = store.prefixed(f"doctor/{rank}")
        self._numbers = itertools.count()

    def ask(self, *question: object, seconds: float) -> Any:
        """The answer."""
        number = next(self._numbers)
        self._store.set(f"question/{number}", pack(list(question)))
        try:
            answer = self._store.get(f"answer/{number}", time.monotonic() + seconds)
        except DeadlineExceeded as error:
            raise ConnectError(f"no answer within {seconds:g} s") from error
        return _checked(unpack(answer))

    def close(self) -> None:
        """Tell the rank that nothing more is asked."""
        self._store.set(f"question/{next(self._numbers)}", pack(["end"]))


def answer_by_store(rank: int, store: Store) -> None:
    """Answer the questions of rank 0 until it asks no more. Raises DeadlineExceeded if it is gone."""
    own = store.prefixed(f"doctor/{rank}")
    with contextlib.closing(probe_of_rank(store)) as probe:
        for number in itertools.count():
            question = unpack(own.get(f"question/{number}", time.monotonic() + IDLE_SECONDS))
            if question == ["end"]:
                return
            own.set(f"answer/{number}", pack(probe.answer(question)))


def probe_of_rank(store: Store) -> Probe:
    """The probe of a rank. The address of its connection to the store leads to the others, unless it is loopback."""

    def facts() -> dict[str, Any]:
        found, address = facts_here(), store.local_address()
        if address is None or ipaddress.ip_address(address).is_loopback:
            return found
        return found | {"reached": address, "hints": [address]}

    return Probe(facts)


def _checked(answer: object) -> Any:
    """The value of an answer. Raises RondeError with the text of a failure."""
    match answer:
        case ["ok", value]:
            return value
        case ["failed", str(text)]:
            raise RondeError(text)
    raise RondeError("its probe gave an answer of an unknown form: another version of Ronde?")
