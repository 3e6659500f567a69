"""Debian's packages of another release or processor, unpacked into a folder.

apt has lists and a cache of its own in that folder; nothing of the system is changed, and nobody has to be root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SECONDS: Final = 600.0


class Unobtainable(Exception):
    """A package, or a tool that is needed to get one, is not to be had here."""


class Archive:
    """A release of Debian for one processor.

    folder        for apt's lists and cache, and for the packages
    suite         bookworm, trixie, sid, ...
    architecture  Debian's name of the processor: amd64, arm64, ...
    """

    def __init__(self, folder: Path, suite: str, architecture: str) -> None:
        self._suite = suite
        self._architecture = architecture
        self._folder = folder.resolve() / f"apt-{suite}-{architecture}"
        self._updated = False

    def unpack(self, packages: Sequence[str], target: Path) -> Path:
        """The folder `target` with these packages and all that they depend on; unpacked unless that has been done."""
        stamp = target / ".unpacked"
        wanted = " ".join(packages)
        if stamp.exists() and stamp.read_text() == wanted:
            return target
        self._update()
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        archives = self._folder / "archives"
        shutil.rmtree(archives, ignore_errors=True)
        (archives / "partial").mkdir(parents=True)
        self._apt("install", "--download-only", "--yes", "--no-install-recommends", *packages)
        for package in sorted(archives.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(target)], self._folder)
        shutil.rmtree(archives)
        stamp.write_text(wanted)
        return target

    def source(self, package: str, target: Path) -> Path:
        """The folder `target` with the source of a package: of the newest version that the mirror has."""
        if (target / "debian").is_dir():
            return target
        self._update()
        versions = [line.split("|")[1].strip() for line in self._query("madison", package) if "Sources" in line]
        for version in versions:
            fetched = self._folder / "sources"
            shutil.rmtree(fetched, ignore_errors=True)
            fetched.mkdir()
            try:
                self._apt("source", "--download-only", f"{package}={version}", folder=fetched)
            except Unobtainable:
                continue  # the list names versions that the mirror has no longer
            (description,) = fetched.glob("*.dsc")
            shutil.rmtree(target, ignore_errors=True)
            _run(["dpkg-source", "--no-check", "--extract", str(description), str(target)], fetched)
            shutil.rmtree(fetched)
            return target
        tried = ", ".join(versions) or "no version"
        raise Unobtainable(f"{self._suite} has no source of {package} that can be downloaded ({tried})")

    def _update(self) -> None:
        if self._updated:
            return
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise Unobtainable(f"{tool} is not installed: Debian's packages need a system with apt")
        for folder in ("lists/partial", "archives/partial"):
            (self._folder / folder).mkdir(parents=True, exist_ok=True)
        (self._folder / "status").touch()
        origin = f"signed-by={_KEYRING}] {_mirror()} {self._suite} main"
        (self._folder / "sources.list").write_text(
            f"deb [arch={self._architecture} {origin}\ndeb-src [{origin}\n", encoding="utf-8"
        )
        values = {
            "APT::Architecture": self._architecture,
            "APT::Sandbox::User": "root",  # it downloads into folders of ours
            "Acquire::Languages": "none",
            "Dir::State": self._folder,
            "Dir::State::lists": self._folder / "lists",
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder,
            "Dir::Cache::archives": self._folder / "archives",
            "Dir::Etc::sourcelist": self._folder / "sources.list",
            "Dir::Etc::sourceparts": self._folder / "none",
            "Dir::Etc::preferencesparts": self._folder / "none",
        }
        (self._folder / "none").mkdir(exist_ok=True)
        lines = [f'{name} "{value}";\n' for name, value in values.items()]
        lines.append(f'APT::Architectures {{ "{self._architecture}"; }};\n')
        (self._folder / "apt.conf").write_text("".join(lines), encoding="utf-8")
        self._apt("update")
        self._updated = True

    def _apt(self, *arguments: str, folder: Path | None = None) -> None:
        _run(["apt-get", "-qq", *arguments], folder or self._folder, self._environment)

    def _query(self, *arguments: str) -> list[str]:
        return _run(["apt-cache", *arguments], self._folder, self._environment).splitlines()

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "APT_CONFIG": str(self._folder / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}


def _mirror() -> str:
    """The mirror of Debian that this system uses."""
    query = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    found = _run(query, Path.cwd()).split()
    if not found:
        raise Unobtainable("this system has no mirror of Debian in its list of sources")
    return found[0]


def _run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    if ended.returncode:
        lines = (ended.stderr or ended.stdout).strip().splitlines()
        raise Unobtainable(f"{' '.join(command[:3])} ...: {lines[-1] if lines else f'exit code {ended.returncode}'}")
    return ended.stdout
