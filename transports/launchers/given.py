"""The way to meet in a store that the user or a launcher of ours names by its URL."""

from __future__ import annotations

import hashlib
import os

from transports.auth import new_secret
from transports.errors import RendezvousError
from transports.interfaces import is_own
from transports.launchers import secret as secrets
from transports.launchers.dialing import dial
from transports.launchers.serving import serve
from transports.launchers.variables import Env
from transports.launchers.ways import Meeting, Way
from transports.rendezvous import STORE_PURPOSE, open_store, parse_url
from transports.store import Store


class ServedByLauncher(Way):
    """A launcher of ours serves the store, and gives the secret with its URL."""

    def __init__(self, url: str, secret: bytes) -> None:
        self._url = url
        self._secret = secret

    def describe(self) -> str:
        return f"in the launcher's store, {self._url}"

    def missing(self) -> str | None:
        return None

    def open(self, meeting: Meeting) -> tuple[Store, bytes]:
        store = open_store(self._url, self._secret, meeting.deadline, tls=meeting.tls)
        meeting.resources.callback(store.close)
        return store, self._secret


class GivenByHand(Way):
    """The user names the store: an address, where rank 0 serves it if it is one of its host's and nobody else does, or
    a directory that all ranks share."""

    def __init__(self, env: Env, url: str) -> None:
        self._env = env
        self._url = url

    def describe(self) -> str:
        if self._url.startswith("tcp:"):
            return f"in the store at {self._url}, which rank 0 serves if nobody else does"
        return f"in the store {self._url}"

    def missing(self) -> str | None:
        if self._url.startswith("tcp:") and secrets.given_secret(self._env) is None:
            return secrets.HOW
        return None

    def open(self, meeting: Meeting) -> tuple[Store, bytes]:
        secret = secrets.given_secret(self._env)
        if self._url.startswith("tcp:"):
            assert secret is not None
            return self._at_address(secret, meeting), secret
        store = open_store(self._url, b"", meeting.deadline, size=meeting.size)
        meeting.resources.callback(store.close)
        store = store.prefixed(f"job-{hashlib.sha256(os.fsencode(meeting.job)).hexdigest()[:16]}")
        if secret is None:
            secret = store.set_default("secret", new_secret())
        return store, secret

    def _at_address(self, secret: bytes, meeting: Meeting) -> Store:
        host, port = parse_url(self._url)
        if meeting.rank == 0 and is_own(host):
            try:
                server = serve([port], secret, meeting, host)
            except RendezvousError as error:  # somebody serves there already, if it is a store of this job
                try:
                    return dial([(host, port)], secret, meeting, STORE_PURPOSE)
                except RendezvousError as other:
                    text = f"{error.message}; nor does another process serve it there: {other.message}"
                    raise RendezvousError(text, rank=0, peer=0) from other
            return dial(server.addresses, secret, meeting, meeting.purpose)
        return dial([(host, port)], secret, meeting, meeting.purpose, STORE_PURPOSE)
