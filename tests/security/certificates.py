"""Certificates for tests: those of the job, and those that must be refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from transports.tls import Tls


@dataclass(frozen=True)
class Files:
    """The files of one end."""

    certificate: str
    key: str
    ca: str

    @property
    def settings(self) -> dict[str, str]:
        return {"tls_certificate": self.certificate, "tls_key": self.key, "tls_ca": self.ca}

    @property
    def variables(self) -> dict[str, str]:
        """The settings as environment variables."""
        return {f"RONDE_{name.upper()}": path for name, path in self.settings.items()}

    def load(self) -> Tls:
        return Tls(self.certificate, self.key, self.ca)


class Authority:
    """A certificate authority, its files in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        self._count = 0
        self._ca.cert_pem.write_to_path(directory / "ca.pem")

    def end(self, *, expired: bool = False) -> Files:
        """A certificate of its own, with its key."""
        yesterday = datetime.now(UTC) - timedelta(days=1)
        given = {"not_before": yesterday - timedelta(days=1), "not_after": yesterday} if expired else {}
        issued = self._ca.issue_cert("ronde", **given)
        self._count += 1
        place = self._directory / f"end-{self._count}"
        place.mkdir()
        issued.cert_chain_pems[0].write_to_path(place / "certificate.pem")
        issued.private_key_pem.write_to_path(place / "key.pem")
        return Files(str(place / "certificate.pem"), str(place / "key.pem"), str(self._directory / "ca.pem"))
