"""Transports are found by name, with helpful errors, and their settings are read from text."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
import types
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from transports import registry
from transports.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Options:
    port: int = 7000
    seconds: float = 1.5
    fast: bool = False
    host: str = "here"
    hints: tuple[str, ...] = ("a",)

    def __post_init__(self) -> None:
        if self.port < 0:
            raise ConfigError(f"port={self.port}: must be 0 or more")


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A backend of another distribution, under the name 'other'."""
    module = types.ModuleType("other_backend")
    module.Options = Options  # type: ignore[attr-defined]
    module.create = module.usable = lambda *args: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    offer(monkeypatch, EntryPoint("other", module.__name__, registry.ENTRY_POINTS))
    return module


def offer(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    def found(*, group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "ronde.transports"
        return [point for point in points if name in (None, point.name)]

    monkeypatch.setattr(importlib.metadata, "entry_points", found)


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_built_in_backends_are_whole(name: str) -> None:
    backend = registry.backend(name)
    reason = backend.usable()
    assert reason is None or reason
    assert backend.Options is registry.options_class(name)
    assert backend.Options() == registry.make_options(name, {})
    assert dataclasses.is_dataclass(backend.Options)


@pytest.mark.processes
def test_nothing_is_imported_before_it_is_asked_for() -> None:
    text = (
        "import sys; from transports import registry; registry.names(); "
        "print([name for name in registry.BUILT_IN.values() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"transport 'tpc' .*'tcp'.*: .*local.*tcp"):
        registry.backend("tpc")
    with pytest.raises(ConfigError, match=r"transport 'xyzzy'; .*tcp"):
        registry.backend("xyzzy")


def test_third_parties_come_by_entry_point(third_party: types.ModuleType) -> None:
    assert registry.backend("other") is third_party
    assert registry.names() == ("auto", "faulty", "local", "nccl", "other", "shm", "tcp")
    assert registry.make_options("other", {"port": ("7", "test")}) == Options(port=7)


def test_a_built_in_name_cannot_be_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, EntryPoint("local", "json", registry.ENTRY_POINTS))
    assert registry.backend("local").__name__ == "transports.local"  # type: ignore[attr-defined]
    assert registry.names().count("local") == 1


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, EntryPoint("far", "no_such_package_of_ronde [rdma]", registry.ENTRY_POINTS))
    with pytest.raises(ConfigError) as caught:
        registry.backend("far")
    assert "transport 'far' needs module 'no_such_package_of_ronde'" in str(caught.value)
    assert "-m pip install 'no_such_package_of_ronde[rdma]'" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_entry_point_that_is_no_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, EntryPoint("odd", "json", registry.ENTRY_POINTS))
    with pytest.raises(ConfigError, match=r"transport 'odd' .*Options, create, usable"):
        registry.backend("odd")


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("port", "0x10", 16),
        ("port", " 1_000 ", 1000),
        ("port", 12, 12),
        ("seconds", "2", 2.0),
        ("seconds", 3, 3.0),
        ("seconds", "1e-3", 0.001),
        ("fast", "Yes", True),
        ("fast", "on", True),
        ("fast", "1", True),
        ("fast", "false", False),
        ("fast", "off", False),
        ("fast", True, True),
        ("host", "a=b, c", "a=b, c"),
        ("hints", "", ()),
        ("hints", "a, b,,c ", ("a", "b", "c")),
        ("hints", ["a", "b,c"], ("a", "b,c")),
    ],
)
def test_settings_are_read(third_party: Any, setting: str, value: object, expected: object) -> None:
    options = registry.make_options("other", {setting: (value, "test")})
    read = getattr(options, setting)
    assert read == expected
    assert type(read) is type(expected)


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("port", "many", "an integer"),
        ("port", "1.5", "an integer"),
        ("port", 1.5, "an integer"),
        ("port", True, "an integer"),
        ("seconds", "soon", "a number"),
        ("seconds", False, "a number"),
        ("fast", "maybe", "yes or no"),
        ("fast", 1, "yes or no"),
        ("host", 3, "text"),
        ("hints", 3, "texts, separated by commas"),
        ("hints", ["a", 3], "texts, separated by commas"),
    ],
)
def test_a_bad_value_is_named_with_its_source(third_party: Any, setting: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.make_options("other", {setting: (value, "environment RONDE_OTHER_X")})
    text = str(caught.value)
    assert f"transport 'other': {setting}={value!r} (from environment RONDE_OTHER_X): must be {allowed}" in text


def test_a_value_out_of_range_is_named_with_its_source(third_party: Any) -> None:
    with pytest.raises(ConfigError, match=r"port=-1: .* 0 or more \[transport 'other'; port from file ronde.toml\]"):
        registry.make_options("other", {"port": (-1, "file ronde.toml")})


def test_an_unknown_setting_is_an_error_that_lists_the_known_ones(third_party: Any) -> None:
    text = (
        r"transport 'other' .*'prot' \(from argument\) .*'port'.*; "
        r".*port, seconds, fast, host, hints"
    )
    with pytest.raises(ConfigError, match=text):
        registry.make_options("other", {"prot": (1, "argument")})
