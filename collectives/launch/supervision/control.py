"""The door of a running elastic job for commands of the same user on the same machine: a Unix socket.

The socket is in a folder that nobody else may enter, and the kernel tells the user at the other end. A request and its
answer are one line of JSON each: {"drain": HOST, "reason": TEXT}, and {"text": TEXT} or {"error": TEXT}.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from collectives.folders import check_owner, own_folder, runtime_folders
from transports.errors import ConfigError, RondeError

_MAX_LINE: Final = 1 << 12
_ANSWER_SECONDS: Final = 10.0
_MOST_AT_ONCE: Final = 16


class ControlSocket:
    """The launcher's end, on the selector of its owner, in the first folder where it can be.

    name    the job's id
    answer  called with a request; its result is the answer. It may raise ConfigError

    Raises ConfigError if it can be in none.
    """

    def __init__(
        self, selector: selectors.BaseSelector, name: str, answer: Callable[[dict[str, Any]], dict[str, str]]
    ) -> None:
        self._selector = selector
        self._answer = answer
        self._clients: dict[socket.socket, bytearray] = {}
        self.path, self._listener = _listener(f"{name}.sock")
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Hang up and remove the socket. Idempotent."""
        if self._listener.fileno() >= 0:
            for client in list(self._clients):
                self._drop(client)
            self._selector.unregister(self._listener)
            self._listener.close()
            self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone already
            client, _ = self._listener.accept()
            if len(self._clients) >= _MOST_AT_ONCE or _user(client) not in (0, os.getuid()):
                client.close()
                return
            client.setblocking(False)
            self._clients[client] = bytearray()
            self._selector.register(client, selectors.EVENT_READ, partial(self._read, client))

    def _read(self, client: socket.socket) -> None:
        received = self._clients.get(client)
        if received is None:
            return
        try:
            data = client.recv(_MAX_LINE)
        except OSError:
            data = b""
        received += data
        if b"\n" in received:
            with contextlib.suppress(OSError):  # a short answer fits, and the client may have gone
                client.send(json.dumps(self._answered(bytes(received))).encode() + b"\n")
        if not data or b"\n" in received or len(received) >= _MAX_LINE:
            self._drop(client)

    def _answered(self, line: bytes) -> dict[str, str]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ConfigError("the request is not an object")
            return self._answer(request)
        except RecursionError:
            return {"error": "the request has too many brackets"}
        except (ValueError, RondeError) as error:
            return {"error": str(error)}

    def _drop(self, client: socket.socket) -> None:
        del self._clients[client]
        self._selector.unregister(client)
        client.close()


def running_jobs() -> list[str]:
    """The ids of the elastic jobs of this user that run here, sorted. Those whose launcher was killed are removed."""
    found = []
    for path in sorted(path for place in runtime_folders() for path in place.glob("*.sock")):
        try:
            _connected(path).close()
            found.append(path.stem)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:  # it is somebody else's
            continue
    return sorted(set(found))


def ask_job(name: str, request: dict[str, Any]) -> str:
    """Send a request to a job; the text of the answer. Raises ConfigError if there is no such job or it refuses."""
    try:
        with _connected(_path_of(name)) as client, client.makefile("rb") as answers:
            client.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(answers.readline(_MAX_LINE * 4) or b"{}")
    except (OSError, ValueError, RecursionError) as error:
        running = f"; running: {', '.join(found)}" if (found := running_jobs()) else ""
        text = "no such elastic job" if isinstance(error, FileNotFoundError) else f"does not answer: {error}"
        raise ConfigError(f"job {name}: {text}{running}") from error
    if "text" not in answer:
        raise ConfigError(f"job {name}: {answer.get('error', 'hung up')}")
    return str(answer["text"])


def _path_of(name: str) -> Path:
    """The socket of a job: the first that is there."""
    paths = [place / f"{name}.sock" for place in runtime_folders()]
    return next((path for path in paths if os.path.lexists(path)), paths[0])


def _listener(name: str) -> tuple[Path, socket.socket]:
    """A listener of this name, and its path, in the first folder where there can be one. Raises ConfigError."""
    causes = []
    for place in runtime_folders():
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        early = place / f"{name}.new"
        try:
            own_folder(place)
            listener.bind(str(early))
            listener.listen(_MOST_AT_ONCE)
            listener.setblocking(False)
            early.rename(place / name)  # not before it listens: `running_jobs` removes one that refuses
        except OSError as error:
            with contextlib.suppress(OSError):  # it is not there, or in no folder of this user
                early.unlink()
            listener.close()
            causes.append(f"{place}: {error.strerror or error}")
        else:
            return place / name, listener
    raise ConfigError(f"there can be no socket in {'; in '.join(causes)}")


def _connected(path: Path) -> socket.socket:
    check_owner(path.parent)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.settimeout(_ANSWER_SECONDS)
        client.connect(str(path))
    except OSError:
        client.close()
        raise
    return client


def _user(client: socket.socket) -> int:
    """The user at the other end; this one where the system does not tell, since the folder is closed to others."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getuid()
    _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)
