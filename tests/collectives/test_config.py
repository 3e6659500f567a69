"""Settings: which source goes before which, and what is said of a bad value."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import collectives as ronde
from collectives import Config, ConfigError
from collectives.config import unknown_variables
from collectives.launch.hosts import folder_here
from collectives.startup import _connect_at, _Place
from frontends.mpi import info
from transports.rendezvous import MemoryStore


def load(directory: Path, environment: dict[str, str] | None = None, arguments: dict[str, Any] | None = None) -> Config:
    return Config.load(arguments, environment=environment or {}, directory=directory)


def test_default_file_environment_argument_in_this_order(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.transport, config.timeout, config.sources) == ("auto", 1800.0, {})
    (tmp_path / "ronde.toml").write_text('transport = "tcp"\ntimeout = 60\nreproducible = true\n')
    config = load(tmp_path, {"RONDE_TIMEOUT": "50", "RONDE_TRANSPORT": "shm"}, {"transport": "local"})
    assert (config.transport, config.timeout, config.reproducible) == ("local", 50.0, True)
    assert config.sources == {
        "transport": "argument",
        "timeout": "environment RONDE_TIMEOUT",
        "reproducible": f"file {tmp_path / 'ronde.toml'}",
    }


def test_pyproject_and_a_file_by_name(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ronde]\ntimeout = 7\n[tool.other]\nx = 1\n")
    assert load(tmp_path).timeout == 7
    named = tmp_path / "elsewhere.toml"
    named.write_text("timeout = 8\n")
    assert load(tmp_path, {"RONDE_CONFIG": str(named)}).timeout == 8
    (tmp_path / "pyproject.toml").write_text("this is not TOML")
    assert load(tmp_path).timeout == 1800


def test_a_working_directory_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert Config.load(environment={}) == Config.load(environment={"RONDE_CONFIG": ""}) == Config()
    assert info.Info.Create_env([]).Get("wdir") is None
    with pytest.raises(ConfigError, match="working directory"):
        folder_here()


def test_options_of_transports_and_of_those_inside_them(tmp_path: Path) -> None:
    (tmp_path / "ronde.toml").write_text('[tcp]\ninterface = "lo"\n[faulty]\nrules = ["drop send nth=3"]\n')
    config = load(tmp_path, {"RONDE_TCP_PEER_TIMEOUT": "2.5"}, {"faulty": {"inner": "tcp"}})
    tcp = config.transport_options("tcp")
    assert (tcp.interface, tcp.peer_timeout) == ("lo", 2.5)
    faulty = config.transport_options("faulty")
    assert faulty.inner == "tcp"
    assert sorted(faulty.inner_options) == ["interface=lo", "peer_timeout=2.5"]
    assert sorted(config.transport_options("auto").inter_options) == ["interface=lo", "peer_timeout=2.5"]


BAD: list[tuple[str, dict[str, str], dict[str, Any], str]] = [
    ("", {"RONDE_TIMEOUT": "soon"}, {}, r"timeout='soon' \(from environment RONDE_TIMEOUT\): .*number"),
    ("", {"RONDE_TIMEOUT": "-1"}, {}, r"timeout=-1.0: .*positive.*RONDE_TIMEOUT"),
    ("", {"RONDE_HEARTBEAT": "0.1"}, {}, r"heartbeat=0.1: .*0 \(never\) or 0.5 to 1e\+09 seconds"),
    ("", {"RONDE_TIMEOUT": "1e12"}, {}, r"timeout=1.*: .*positive.* 1e\+09"),
    ("", {"RONDE_CONNECT_TIMEOUT": "nan"}, {}, "connect_timeout=nan: .*positive"),
    ("", {}, {"join_timeout": 1e300}, r"join_timeout=.*: .*positive.* 1e\+09"),
    ("", {}, {"stall": 1e12}, r"stall=1000000000000.0: .*0 \(never\).* 1e\+09"),
    ("", {}, {"fusion_bytes": 10**23}, "fusion_bytes=1.*: .*0 .* to 281474976710656 bytes"),
    ("", {}, {"stage_bytes": 64 * 10**20}, "stage_bytes=64.*: .*multiple of 64, 4096 to 281474976710656"),
    ("", {}, {"heartbeat": float("inf")}, r"heartbeat=inf: .*0 \(never\)"),
    ("", {}, {"stall": -1}, r"stall=-1.0: .*0 \(never\) or .*positive"),
    ("", {"RONDE_REPRODUCIBLE": "perhaps"}, {}, r"reproducible='perhaps'.*yes or no"),
    ("", {"RONDE_TRANSPORT": "tpc"}, {}, r"transport='tpc': .*'tcp'.*auto"),
    ("", {}, {"transport": 3}, r"transport=3 \(from argument\): .*text"),
    ("", {}, {"timout": 3}, r"no setting 'timout' \(from argument\) .*'timeout'"),
    ("", {"RONDE_TCP_INTERFAC": "lo"}, {}, r"no setting 'interfac' \(from environment RONDE_TCP_INTERFAC\)"),
    ("", {"RONDE_CONFIG": "/nowhere.toml"}, {}, r"RONDE_CONFIG='/nowhere.toml': .*no such file"),
    ("stage_bytes = 100", {}, {}, r"stage_bytes=100: .*multiple of 64.*ronde.toml"),
    ("timeout = [1]", {}, {}, r"timeout=\[1\] \(from file .*ronde.toml\): .*number"),
    ("[tpc]\nx = 1", {}, {}, r"\[tpc\] .*transport .*'tcp'"),
    ("[tcp]\npeer_timeout = 'x'", {}, {}, r"peer_timeout='x' \(from file .*\[tcp\]\): .*number"),
    ("tcp = 5", {}, {}, r"file .*ronde.toml: tcp=5: must be a table"),
    ("", {}, {"shm": None}, r"argument: shm=None: must be a table"),
    ("not toml", {}, {}, r"ronde.toml: .*TOML"),
]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RONDE_AUTO_INTRA": "tcp"}, "over auto, intra=tcp"),
        ({"RONDE_CALIBRATE": "off"}, "over auto with calibrate=False"),
    ],
)
def test_ranks_with_other_settings_are_named_at_once(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    usual, other = load(tmp_path, {}), load(tmp_path, variables)
    assert usual.terms.endswith("over auto")
    store, deadline = MemoryStore(), time.monotonic() + 60
    with ThreadPoolExecutor(2) as pool:
        outcomes = [
            pool.submit(_connect_at, _Place(rank, 2, store, b""), config, deadline)
            for rank, config in enumerate((usual, other))
        ]
    for outcome in outcomes:
        with pytest.raises(ConfigError, match="do not fit together") as caught:
            outcome.result()
        assert words in str(caught.value)


@pytest.mark.parametrize(("text", "environment", "arguments", "message"), BAD)
def test_a_bad_value_is_named_with_its_source(
    tmp_path: Path, text: str, environment: dict[str, str], arguments: dict[str, Any], message: str
) -> None:
    if text:
        (tmp_path / "ronde.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"(?s){message}"):
        load(tmp_path, environment, arguments)


def test_misspelt_variables_are_found() -> None:
    environment = {"RONDE_TRANSPROT": "tcp", "RONDE_TIMEOUT": "3", "RONDE_RANK": "0", "RONDE_TCP_INTERFACE": "lo"}
    assert unknown_variables(environment) == ["RONDE_TRANSPROT (did you mean 'RONDE_TRANSPORT'?)"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "size, store missing"),
        ({"rank": 0, "size": 1, "store": "ftp://x"}, "ftp"),
        ({"rank": 0, "size": 2, "store": "memory:"}, "store='memory:': .*2 ranks"),
        ({"rank": "0", "size": 2, "store": "memory:"}, "init: rank='0': .* 0 or more"),
        ({"rank": True, "size": 2, "store": "memory:"}, "init: rank=True: .* integer"),
        ({"rank": 0, "size": "2", "store": "memory:"}, "init: size='2': .* 1 or more"),
        ({"rank": 0.0, "size": 1, "store": "memory:"}, "init: rank=0.0: .* integer"),
        ({"rank": 2, "size": 2, "store": "memory:"}, "init: rank=2: .*less than size=2"),
        ({"rank": 0, "size": 1, "store": 5}, "init: store=5: .*Store, or the URL of one"),
        ({"config": 3}, "config=3: .*Config or a mapping"),
        ({"config": Config(), "transport": "tcp"}, "transport='tcp': .*Config"),
        ({"transport": "nccl2"}, "transport='nccl2': unknown"),
    ],
)
def test_init_refuses_bad_arguments_and_stays_uninitialised(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ronde.init(**arguments)
    assert not ronde.is_initialized()


def test_init_by_arguments(tmp_path: Path) -> None:
    store = tmp_path / "store"
    world = ronde.init(rank=0, size=1, store=f"file://{store}", transport="tcp", config={"timeout": 9})
    try:
        assert (world.size, world.config.timeout, world.transport.name) == (1, 9.0, "tcp")
    finally:
        ronde.shutdown()
