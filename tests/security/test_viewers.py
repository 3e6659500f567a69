"""A viewer is authenticated as a rank is: by the job's secret, and by certificates where the store has them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from collectives.flight import Door
from collectives.watchdog import Viewer
from tests.security.certificates import Authority
from transports.errors import RendezvousError
from transports.rendezvous import TcpStoreServer, open_store
from transports.store import Place

SECRET = b"a secret for tests only"


def ask(place: Place | None, secret: bytes, tls: tuple[str, ...]) -> None:
    assert place is not None
    with contextlib.closing(Viewer(Door(place, secret, tls, ((0,),)), 5.0)) as viewer:
        assert viewer.digests([0], time.monotonic() + 0.1) == {}  # there is no rank, but the store has answered


def test_secret_and_certificates_decide(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    own, other = (Authority(tmp_path / name).end().load() for name in ("own", "other"))
    with (
        TcpStoreServer("127.0.0.1", secret=SECRET, tls=own) as server,
        contextlib.closing(open_store(server.url, SECRET, 0.0, tls=own)) as store,
    ):
        place = store.prefixed("group").place()
        assert place is not None
        assert place.prefix == "group/"
        ask(place, SECRET, own.files)
        for secret, tls in ((SECRET, ()), (SECRET, other.files), (b"another secret for tests", own.files)):
            with pytest.raises(RendezvousError):
                ask(place, secret, tls)


def test_the_place_of_a_store_in_files_leads_there(tmp_path: Path) -> None:
    with contextlib.closing(open_store((tmp_path / "store").as_uri(), b"", 0.0)) as store:
        store.prefixed("group").set("key", b"value")
        place = store.prefixed("group").place()
        assert place is not None
        with contextlib.closing(open_store(place.url, b"", 0.0)) as again:
            assert again.peek(f"{place.prefix}key") == b"value"
        ask(place, b"", ())
