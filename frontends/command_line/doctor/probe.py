"""The probe of `ronde doctor`: one process per host, which answers the questions of the doctor.

    question                                     answer
    ["facts"]                                    see `facts_here`
    ["listen", secret, name, interface, hints]   {"address", "port"}: other probes may connect from now on
    ["reach", [[name, address, port], ...]]      what came of a connection to each of them; see `Caller.reach`
    ["rate", name, address, port]                bits per second that reach that probe

As a program it reads questions from stdin and writes answers to stdout, in the frames of `messages`; a line of JSON for
the bootstrap text and ["open", marker] come first. It ends with its stdin, or after IDLE_SECONDS without a question.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from collectives.launch.hosts import Link, Message, end_sshd, serving_address, take_over_pipes
from frontends.command_line.doctor.facts import facts_here
from transports import names
from transports.auth import CHALLENGE_BYTES, HELLO_BYTES, PROOF_BYTES, Client, Server
from transports.errors import ConnectError, RondeError

IDLE_SECONDS: Final = 60.0
"""Time without a question after which the doctor is gone."""

CONNECT_SECONDS: Final = 3.0
"""Time for a connection, and for the proofs that follow. The system repeats a lost request after 1 s."""

STUCK_SECONDS: Final = 1.0
"""Time for a packet to come through. The system repeats a lost one after 0.2 s, and again after 0.4 s."""

RATE_SECONDS: Final = 3.0
"""Limit for one measurement of the rate."""

ENOUGH_SECONDS: Final = 0.1
"""A transfer that takes this long says enough about the rate."""

PINGS: Final = 20
SIZES: Final = (576, 1280, 1400, 1420, 1450, 1476, 1480, 1492, 1500, 4000, 8000, 9000)
"""Bytes of the packets to try, as far as an interface allows: the usual limits of networks and tunnels."""

LARGEST: Final = 1 << 28
"""Bytes of the longest transfer."""

MOST_AT_ONCE: Final = 64
"""Number of probes to which one connects at the same time."""

_PURPOSE: Final = b"ronde doctor"
_REQUEST: Final = struct.Struct("!I")
"""A request: the number of bytes that follow."""
_REPLY: Final = struct.Struct("!d")
"""The reply to a request, when all its bytes have come: the time of the clock there."""
_NAME: Final = struct.Struct("!B")
_BUFFER: Final = 1 << 20
_HEADERS: Final = {socket.AF_INET: 40, socket.AF_INET6: 60}
"""Bytes of the headers of IP and TCP without options."""
_TIMESTAMPS: Final = 12
"""Bytes of the option that most connections have."""
_OPTIONS: Final = 5
"""Place of tcpi_options in the structure tcp_info of Linux; its first bit stands for time stamps."""


class Probe:
    """Answers questions, and connections of other probes.

    facts  describes this host
    clock  the seconds of its clock
    """

    def __init__(
        self, facts: Callable[[], dict[str, Any]] = facts_here, clock: Callable[[], float] = time.time
    ) -> None:
        self._facts = facts
        self._clock = clock
        self._secret = b""
        self._name = ""
        self._listener: _Listener | None = None

    def answer(self, question: Message) -> list[Any]:
        """["ok", value], or ["failed", text]."""
        try:
            return ["ok", self._answer(question)]
        except (RondeError, OSError) as error:
            return ["failed", str(error)]

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _answer(self, question: Message) -> Any:
        match question:
            case ["facts"]:
                return self._facts()
            case ["listen", bytes(secret), str(name), str(interface), [*hints]]:
                self.close()
                self._secret, self._name = secret, name
                address = serving_address(interface, [str(hint) for hint in hints])
                self._listener = _Listener(address, secret, name, self._clock)
                return {"address": address, "port": self._listener.port}
            case ["reach", [*targets]]:
                with ThreadPoolExecutor(max(1, min(MOST_AT_ONCE, len(targets)))) as pool:
                    return list(pool.map(self._reach, targets))
            case ["rate", str(name), str(address), int(port)]:
                return self._caller([name, address, port]).rate()
        raise RondeError(f"the probe got an unknown question ({question[0]!r:.40}): another version of Ronde?")

    def _reach(self, target: Any) -> dict[str, Any]:
        return self._caller(target).reach()

    def _caller(self, target: Sequence[Any]) -> Caller:
        name, address, port = target
        return Caller(self._secret, name, (address, port), self._clock)


class Caller:
    """Connections from this host to the probe called `name`."""

    def __init__(self, secret: bytes, name: str, address: tuple[str, int], clock: Callable[[], float]) -> None:
        self._secret = secret
        self._name = name
        self._address = address
        self._clock = clock

    def reach(self) -> dict[str, Any]:
        """Connect, measure, and try packets up to the largest.

        state    "ok"; "silent": no answer; "refused": the host answers that nothing listens, or a firewall rejects;
                 "unreachable": no route; "stranger": another service or host
                 answers; "cut": large packets are lost
        detail   the system's words
        latency  seconds there and back, the median
        clock    seconds that the clock there is ahead, and how exact that is
        packet   bytes of the largest packet that came through
        lost     bytes of the smallest packet that did not; 0 if none
        """
        found: dict[str, Any] = {"to": self._name, "state": "ok", "detail": "", "latency": None, "clock": None}
        found |= {"packet": None, "lost": 0}
        try:
            with self._connected() as link:
                round_trips = sorted(self._ping(link) for _ in range(PINGS))
                found["latency"] = round_trips[PINGS // 2][0]
                shortest, ahead = round_trips[0]
                found["clock"] = [ahead, shortest / 2]
                found |= self._largest(link)
                if found["lost"]:
                    found["state"] = "cut"
        except TimeoutError as error:
            found |= {"state": "silent", "detail": str(error)}
        except ConnectionRefusedError as error:
            found |= {"state": "refused", "detail": str(error)}
        except (ConnectError, ConnectionResetError, ConnectionAbortedError) as error:
            found |= {"state": "stranger", "detail": str(error)}
        except OSError as error:
            found |= {"state": "unreachable", "detail": str(error)}
        return found

    def rate(self) -> float:
        """Bits per second of a transfer. Raises OSError, ConnectError."""
        until = time.monotonic() + RATE_SECONDS
        with self._connected() as link:
            count = 1 << 16
            while True:
                link.settimeout(max(0.1, until - time.monotonic()))
                began = time.perf_counter()
                self._transfer(link, count)
                taken = time.perf_counter() - began
                if taken >= ENOUGH_SECONDS or count >= LARGEST:
                    return 8 * count / taken
                count = min(LARGEST, count * (8 if taken < ENOUGH_SECONDS / 8 else 2))

    def _connected(self) -> socket.socket:
        """A connection whose other end has proved to be the right probe. Raises OSError, ConnectError."""
        link = names.connect(self._address, time.monotonic() + CONNECT_SECONDS)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = Client(self._secret, _PURPOSE)
            link.sendall(client.hello)
            link.sendall(client.answer(_read(link, CHALLENGE_BYTES)))
            (length,) = _NAME.unpack(_read(link, _NAME.size))
            name = _read(link, length).decode(errors="replace")
            if name != self._name:
                raise ConnectError(f"{self._address[0]} leads to {name}: several hosts have this address")
        except BaseException:
            link.close()
            raise
        return link

    def _ping(self, link: socket.socket) -> tuple[float, float]:
        """Seconds there and back, and seconds that the clock there is ahead."""
        began, clock = time.perf_counter(), self._clock()
        there = self._transfer(link, 1)
        taken = time.perf_counter() - began
        return taken, there - (clock + taken / 2)

    def _largest(self, link: socket.socket) -> dict[str, Any]:
        """The sizes of the largest packet that comes through, and of one that does not come twice."""
        headers, most = _packet_limits(link)
        passed = 0
        for size in [*(size for size in SIZES if size < most), most]:
            if not self._passes(link, size - headers) and not self._passes_again(size - headers):
                return {"packet": passed, "lost": size, "detail": f"a packet of {size} bytes did not arrive"}
            passed = size
        return {"packet": passed}

    def _passes(self, link: socket.socket, payload: int) -> bool:
        """True if a packet with this payload, alone on its way, comes through in time."""
        link.settimeout(STUCK_SECONDS)
        try:
            self._transfer(link, payload - _REQUEST.size)
        except TimeoutError:
            return False
        link.settimeout(CONNECT_SECONDS)
        return True

    def _passes_again(self, payload: int) -> bool:
        """Another try on another connection, since it may have been late only."""
        with self._connected() as link:
            return self._passes(link, payload)

    def _transfer(self, link: socket.socket, count: int) -> float:
        """Send `count` bytes, and wait for the reply: the time there."""
        first = min(count, _BUFFER)
        link.sendall(_REQUEST.pack(count) + bytes(first))
        rest, piece = count - first, bytes(_BUFFER)
        while rest:
            rest -= link.send(memoryview(piece)[: min(rest, _BUFFER)])
        (there,) = _REPLY.unpack(_read(link, _REPLY.size))
        return float(there)


class _Listener:
    """Answers the connections of other probes, each in a thread, until it is closed."""

    def __init__(self, address: str, secret: bytes, name: str, clock: Callable[[], float]) -> None:
        self._secret = secret
        self._name = name.encode()[:255]
        self._clock = clock
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        ((family, kind, protocol, _, target), *_) = socket.getaddrinfo(
            address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.bind(target)
            self._socket.listen(1024)
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._accept, name="ronde-doctor", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            self._closed = True
            for link in self._links:
                with contextlib.suppress(OSError):  # the other end may have ended it already
                    link.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):  # a system may refuse this for a listener
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self) -> None:
        threads = []
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:  # closed
                break
            with self._lock:
                if self._closed:
                    link.close()
                    continue
                self._links.add(link)
            threads.append(threading.Thread(target=self._serve, args=[link], name="ronde-doctor-link", daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, link: socket.socket) -> None:
        try:
            self._reply(link)
        except (OSError, EOFError, RondeError):  # the caller notices, and says so
            pass
        finally:
            with self._lock:
                self._links.discard(link)
                link.close()

    def _reply(self, link: socket.socket) -> None:
        link.settimeout(CONNECT_SECONDS)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = Server(self._secret, _PURPOSE)
        link.sendall(server.challenge(_read(link, HELLO_BYTES)))
        server.verify(_read(link, PROOF_BYTES))
        link.sendall(_NAME.pack(len(self._name)) + self._name)
        buffer = memoryview(bytearray(_BUFFER))
        link.settimeout(2 * RATE_SECONDS)
        while True:
            (rest,) = _REQUEST.unpack(_read(link, _REQUEST.size))
            while rest:
                count = link.recv_into(buffer[: min(rest, _BUFFER)])
                if not count:
                    raise EOFError
                rest -= count
            link.sendall(_REPLY.pack(self._clock()))


def _packet_limits(link: socket.socket) -> tuple[int, int]:
    """The bytes of the headers of a full packet, and of the largest packet that the system would send."""
    headers = _HEADERS[link.family]
    if not hasattr(socket, "TCP_INFO") or link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[_OPTIONS] & 1:
        headers += _TIMESTAMPS
    return headers, headers + link.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


def _read(link: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes. Raises ConnectionError at the end of the connection."""
    data = bytearray()
    while len(data) < count:
        piece = link.recv(count - len(data))
        if not piece:
            raise ConnectionAbortedError("the other end closed the connection")
        data += piece
    return bytes(data)


def main() -> int:
    """Run the probe; its exit code."""
    with selectors.DefaultSelector() as selector, contextlib.closing(Probe()) as probe:

        def obey(question: Message) -> None:
            match question:
                case ["open", bytes(marker)]:
                    link.send_bytes(marker)
                case _:
                    link.send(*probe.answer(question))

        link = Link(selector, take_over_pipes(), obey, IDLE_SECONDS)
        while link.closed is None:
            for key, _ in selector.select(max(0.0, link.wake_at - time.monotonic())):
                key.data()
            link.tick()
    if link.silent:
        end_sshd()
    return int(link.silent)


if __name__ == "__main__":
    sys.exit(main())
