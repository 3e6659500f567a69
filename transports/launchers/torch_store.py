"""A client of torch's TCPStore, which torchrun serves to the processes that it starts.

It speaks the protocol itself: a NumPy program under torchrun need not import torch, which takes seconds. A request is
one byte for its kind, then its arguments; texts and bytes follow their length, numbers are in the machine's order
(torch/csrc/distributed/c10d/TCPStoreBackend.hpp). A connection begins with VALIDATE and a constant.
"""

from __future__ import annotations

import struct
from types import TracebackType
from typing import Final

from transports import names
from transports.errors import DeadlineExceeded, RendezvousError
from transports.launchers.keyvalue import KeyValue
from transports.moments import seconds_left
from transports.rendezvous import format_url

_VALIDATE: Final = 0
_SET: Final = 1
_GET: Final = 3
_WAIT: Final = 6
_MAGIC: Final = 0x3C85F7CE
_MAX_VALUE: Final = 1 << 20


class TorchStore(KeyValue):
    """A connection to the store at host and port. Keys are those of torch's Store, so torch's own clients see them.

    No fence is needed: `get` waits until the key is set.
    """

    def __init__(self, host: str, port: int, prefix: str, deadline: float) -> None:
        self._url = format_url(host, port)
        self._prefix = prefix
        try:
            self._socket = names.connect((host, port), deadline)
        except TimeoutError as error:
            raise DeadlineExceeded(f"torchrun's store at {self._url} was not reached in time") from error
        except (OSError, UnicodeError) as error:
            raise RendezvousError(f"no connection to torchrun's store at {self._url}: {error}") from error
        try:
            self._send(struct.pack("=BI", _VALIDATE, _MAGIC), deadline)
        except BaseException:
            self._socket.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def put(self, key: str, value: bytes, deadline: float) -> None:
        self._send(bytes([_SET]) + self._name(key) + _counted(value), deadline)

    def fence(self, deadline: float) -> None:
        """Nothing: `get` waits."""

    def get(self, key: str, deadline: float) -> bytes:
        name = self._name(key)
        self._send(bytes([_WAIT]) + struct.pack("=Q", 1) + name, deadline)
        if self._receive(1, deadline) != b"\0":
            raise RendezvousError(f"torchrun's store at {self._url} ended a wait")
        self._send(bytes([_GET]) + name, deadline)
        (length,) = struct.unpack("=Q", self._receive(8, deadline))
        if length > _MAX_VALUE:
            raise RendezvousError(f"torchrun's store at {self._url} sent an invalid answer")
        return self._receive(length, deadline)

    def _name(self, key: str) -> bytes:
        return _counted(f"/{self._prefix}/{key}".encode())

    def _send(self, data: bytes, deadline: float) -> None:
        try:
            self._socket.settimeout(seconds_left(deadline))
            self._socket.sendall(data)
        except OSError as error:
            raise self._failed(error) from error

    def _receive(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        try:
            while len(data) < count:
                self._socket.settimeout(seconds_left(deadline))
                piece = self._socket.recv(count - len(data))
                if not piece:
                    raise ConnectionResetError("it closed the connection")
                data += piece
        except OSError as error:
            raise self._failed(error) from error
        return bytes(data)

    def _failed(self, error: OSError) -> DeadlineExceeded | RendezvousError:
        if isinstance(error, TimeoutError):
            return DeadlineExceeded(f"rank 0 did not publish its address in torchrun's store at {self._url} in time")
        return RendezvousError(f"torchrun's store at {self._url} failed: {error}")


def _counted(data: bytes) -> bytes:
    return struct.pack("=Q", len(data)) + data
