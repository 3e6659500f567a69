"""The core dependencies are wheels on every platform of docs/platforms.md. Needs an index of packages."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks import installs

RELEASED = ("3.11", "3.12", "3.13", "3.14")


def check(platform: str, python: str) -> None:
    try:
        found = installs.resolve(platform, python, installs.dependencies())
    except (ConnectionError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"needs an index of packages: {error}")
    assert found.keys() == {"numpy", "msgpack"}


@pytest.mark.processes
@pytest.mark.parametrize(("platform", "python"), [("Linux with musl, aarch64", "3.13"), ("Windows, x86-64", "3.11")])
def test_p4_nothing_is_compiled(platform: str, python: str) -> None:
    check(platform, python)


@pytest.mark.nightly
@pytest.mark.parametrize("python", RELEASED)
@pytest.mark.parametrize("platform", installs.PLATFORMS)
def test_p4_nothing_is_compiled_on_any_platform(platform: str, python: str) -> None:
    check(platform, python)


@pytest.mark.processes
def test_a_package_without_a_wheel_is_named() -> None:
    try:
        with pytest.raises(LookupError):
            installs.resolve("macOS, x86-64", "3.13", ["jetstream-that-is-no-package"])
    except ConnectionError as error:
        pytest.skip(f"needs an index of packages: {error}")


def test_the_page_has_every_platform() -> None:
    shown = installs.PAGE.read_text("utf-8").split(installs.BEGIN)[1].split(installs.END)[0]
    rows = [line.split("|")[1].strip() for line in shown.strip().splitlines()[2:]]
    assert sorted(platform for row in rows for platform in row.split(installs.BETWEEN)) == sorted(installs.PLATFORMS)


def test_platforms_with_the_same_cells_share_a_row() -> None:
    rows = installs.table([["one", "1", "2"], ["other", "1", "3"], ["another", "1", "2"]]).splitlines()[2:]
    assert rows == ["| one; another | 1 | 2 |", "| other | 1 | 3 |"]
