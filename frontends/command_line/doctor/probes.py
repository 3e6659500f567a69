"""The ways to a host's probe: in this process, behind a command such as ssh, or in a rank that a launcher started."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import math
import secrets
import selectors
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from collectives.launch.hosts import CommandConnection, Link, Message
from collectives.launch.processes import Guardian, signal_group
from frontends.command_line.doctor.facts import facts_here
from frontends.command_line.doctor.probe import IDLE_SECONDS, Probe
from transports.errors import ConnectError, DeadlineExceeded, RondeError
from transports.packed import pack, unpack
from transports.store import Store

MODULE: Final = "frontends.command_line.doctor.probe"

END_SECONDS: Final = 1.0
"""Time for a command to end after the end of its output, or of its input; later it is killed."""


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

    def __init__(self, name: str, command: Sequence[str], header: Sequence[Any], guardian: Guardian) -> None:
        self.name = name
        self._command = command[0]
        self._answers: list[Message] = []
        self._begun = False
        self._asking = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._connection = CommandConnection(command, header, self._selector, guardian)
        marker = secrets.token_hex(16).encode()
        try:
            descriptors = self._connection.open()
        except OSError:
            self._selector.close()
            raise
        self._link = Link(self._selector, descriptors, self._answers.append, math.inf, marker)
        self._link.send_bytes(self._connection.preamble)
        self._link.send("open", marker)

    def ask(self, *question: object, seconds: float) -> Any:
        """The answer."""
        with self._asking:
            return self._ask(question, seconds)

    def _ask(self, question: Sequence[object], seconds: float) -> Any:
        self._link.send(*question)
        if not self._turn_until(lambda: bool(self._answers) or self._link.closed is not None, seconds):
            why = "" if self._begun else f": {self._command} does not connect, or Python does not start there"
            raise ConnectError(self._with_words(f"no answer within {seconds:g} s{why}"))
        if not self._answers:
            self._turn_until(lambda: self._connection.ended, END_SECONDS)
            if not self._begun and self._connection.words:
                raise ConnectError(self._connection.words)
            ending = self._connection.end or f"{self._command} has closed its output"
            raise ConnectError(self._with_words(f"its probe has ended ({ending})"))
        self._begun = True
        return _checked(self._answers.pop(0))

    def end(self) -> None:
        """Let the probe end. Nothing more can be asked. Idempotent."""
        self._link.close("nothing more is asked")

    def kill(self) -> None:
        """Kill the command, which also ends an `ask` in another thread."""
        signal_group(self._connection.pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end of the command for a moment, kill it, and release everything. Idempotent.

        Ctrl-C may leave an `ask` in a thread whose start it has interrupted, and for which its pool does not wait. So
        this waits for it: only one thread may collect the command.
        """
        with self._asking:
            self.end()
            if self._begun:
                self._turn_until(lambda: self._connection.ended, END_SECONDS)
            self._connection.close()
            self._selector.close()

    def _turn_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Handle events until `done` returns True; False if that takes longer."""
        until = time.monotonic() + seconds
        while not done():
            left = until - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self._selector.select(left):
                key.data()
        return True

    def _with_words(self, text: str) -> str:
        return f"{text}: {self._connection.words}" if self._connection.words else text


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
