"""Builds the wheel and looks into it."""

from __future__ import annotations

import configparser
import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import collectives

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"ronde", "collectives", "transports", "frontends"}
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, timeout=200, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.long
def test_the_wheel_is_for_every_platform(wheel: Path) -> None:
    assert wheel.name == f"ronde-{collectives.__version__}-py3-none-any.whl"


def test_it_holds_the_packages_and_metadata(wheel: Path) -> None:
    top = {name.split("/")[0] for name in contents(wheel)}
    assert top == PACKAGES | {f"ronde-{collectives.__version__}.dist-info"}


def test_it_holds_every_module_and_nothing_else(wheel: Path) -> None:
    sources = {
        str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()
    }
    sources = {name for name in sources if "__pycache__" not in name}
    assert {name for name in contents(wheel) if ".dist-info/" not in name} == sources
    assert {f"{package}/py.typed" for package in PACKAGES} <= sources


def test_p4_it_needs_numpy_and_msgpack_only(wheel: Path) -> None:
    files = contents(wheel)
    (metadata,) = [email.message_from_bytes(data) for name, data in files.items() if name.endswith("/METADATA")]
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in needed} == {"numpy", "msgpack"}
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("/licenses/LICENSE") for name in files)


def test_it_brings_the_command(wheel: Path) -> None:
    (text,) = [data.decode() for name, data in contents(wheel).items() if name.endswith("/entry_points.txt")]
    parser = configparser.ConfigParser()
    parser.read_string(text)
    assert dict(parser["console_scripts"]) == {"ronde": "ronde.__main__:main"}


def test_the_changelog_keeps_its_form() -> None:
    """Keep a Changelog: the version, or Unreleased, and the six kinds of changes."""
    headings = re.findall(r"^(#+) (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert headings[0] == ("#", "Changelog")
    assert {text for mark, text in headings if mark == "###"} <= kinds
    assert all(re.match(r"\[(Unreleased|\d+\.\d+\.\d+)\]", text) for mark, text in headings if mark == "##")


def test_the_version_is_written_once() -> None:
    version = collectives.__version__
    assert not re.search(rf'version\s*[=:]\s*"?{re.escape(version)}', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version:" not in (ROOT / "CITATION.cff").read_text("utf-8").replace("cff-version:", "")
