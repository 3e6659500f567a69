"""A client of the store that horovodrun serves over HTTP to the processes that it starts without MPI."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final

from transports.errors import DeadlineExceeded, RendezvousError
from transports.launchers.keyvalue import KeyValue
from transports.moments import seconds_until
from transports.rendezvous import format_url

_SCOPE: Final = "ronde"
_MAX_VALUE: Final = 1 << 20
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5


class HorovodStore(KeyValue):
    """The store at host and port: PUT and GET of /SCOPE/KEY; a key that is not set answers 404.

    No fence is needed: `get` asks again until the key is set, since the store cannot wait.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: every request has a connection of its own."""

    def put(self, key: str, value: bytes, deadline: float) -> None:
        status, _ = self._request("PUT", key, value, deadline)
        if status != 200:
            raise RendezvousError(f"horovodrun's store at {self._url} refused a value (status {status})")

    def fence(self, deadline: float) -> None:
        """Nothing: `get` waits."""

    def get(self, key: str, deadline: float) -> bytes:
        waiting = threading.Event()
        pause = _FIRST_PAUSE
        while True:
            try:
                status, value = self._request("GET", key, b"", deadline)
            except DeadlineExceeded as error:
                if pause > _FIRST_PAUSE:  # it has answered before: the value is late, not the store
                    raise self._unpublished() from error
                raise
            if status == 200:
                return value
            if status != 404:
                raise RendezvousError(f"horovodrun's store at {self._url} failed (status {status})")
            if time.monotonic() + pause >= deadline:
                raise self._unpublished()
            waiting.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _unpublished(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"rank 0 did not publish its address in horovodrun's store at {self._url} in time")

    @property
    def _url(self) -> str:
        return format_url(self._host, self._port).replace("tcp:", "http:")

    def _request(self, method: str, key: str, value: bytes, deadline: float) -> tuple[int, bytes]:
        import http.client  # here, since it loads a parser of mail, which no other launcher needs

        left = seconds_until(deadline)
        if not left:
            raise DeadlineExceeded(f"horovodrun's store at {self._url} did not answer in time")
        try:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=left)
        except http.client.InvalidURL as error:
            raise RendezvousError(f"horovodrun's store at {self._url}: {error}") from error
        try:
            connection.request(method, f"/{_SCOPE}/{key}", value or None)
            response = connection.getresponse()
            return response.status, response.read(_MAX_VALUE)
        except TimeoutError as error:
            raise DeadlineExceeded(f"horovodrun's store at {self._url} did not answer in time") from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise RendezvousError(f"horovodrun's store at {self._url} failed: {error}") from error
        finally:
            connection.close()
