"""`ronde doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import collectives
from frontends.command_line import cli
from frontends.command_line.doctor import machine as doctor
from tests.collectives.launch.launcher import environment, ronde
from transports import registry

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.environ", environment())
    monkeypatch.chdir(tmp_path)


def report(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = cli.main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = report(capsys)
    assert code == 0
    assert found["problems"] == found["warnings"] == []
    assert found["versions"]["ronde"] == collectives.__version__
    assert set(found["versions"]) == {"ronde", "python", "numpy", "msgpack", "ml_dtypes", "numba"}
    assert set(found["frameworks"]) == {"torch", "tensorflow", "keras", "jax", "mxnet"}
    assert {"CUDA", "NCCL", "cupy", "driver"} <= set(found["gpu"])
    assert set(found["transports"]) == set(registry.names())
    assert found["transports"]["local"] is None
    assert found["machine"]["usable_cores"] >= 1
    assert any("127.0.0.1" in addresses for addresses in found["interfaces"].values())
    assert {"name": "timeout", "value": 1800.0, "source": "default"} in found["settings"]


def test_every_setting_says_where_it_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ronde.toml").write_text('timeout = 60\nconnect_timeout = 5\n[tcp]\ninterface = "lo"\n')
    monkeypatch.setenv("RONDE_CONNECT_TIMEOUT", "7")
    code, found = report(capsys)
    assert code == 0
    rows = {row["name"]: (row["value"], row["source"]) for row in found["settings"]}
    assert rows["timeout"] == (60.0, f"file {tmp_path / 'ronde.toml'}")
    assert rows["connect_timeout"] == (7.0, "environment RONDE_CONNECT_TIMEOUT")
    assert rows["tcp.interface"] == ("lo", f"file {tmp_path / 'ronde.toml'}, [tcp]")
    assert rows["transport"] == ("auto", "default")


def test_settings_are_shown_if_they_differ_from_their_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDE_TIMEOUT", "60")
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out.partition("\nsettings\n")[2].splitlines()
    assert shown[0].split() == ["timeout", "60.0", "environment", "RONDE_TIMEOUT"]
    assert shown[1] == "  the others have their defaults; --all shows them"
    assert shown[-1].startswith("usable here: ")
    assert shown[-1].endswith("; no problem found")
    assert cli.main(["doctor", "--all"]) == 0
    assert "connect_timeout" in capsys.readouterr().out


def test_launcher_of_this_process(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor names the launcher, its variables, and the way to meet; a problem if there is none."""
    secret = "5a" * 16
    for name, value in {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "0", "RONDE_SECRET": secret}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "rank        1 of 2\n  variables   PMI_RANK=1, PMI_SIZE=2, PMI_FD=0\n" in said
    assert "publishes its address through the launcher's PMI-1" in said
    assert secret not in said
    monkeypatch.setenv("PMI_FD", "987")
    code, found = report(capsys)
    assert code == 1
    assert found["launcher"]["meeting"] == "not possible"
    assert "PMI_FD=987 is not open" in found["problems"][0]


def test_it_reads_well(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDE_TIMOUT", "3")
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    for heading in (
        "versions",
        "frameworks",
        "software for GPUs",
        "machine",
        "interfaces",
        "transports",
        "compiled interpreter",
        "settings",
    ):
        assert f"{heading}\n  " in said
    assert "\nwarning: no setting is called RONDE_TIMOUT (did you mean 'RONDE_TIMEOUT'?)\n" in said


def test_a_bad_setting_is_a_problem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDE_TIMEOUT", "soon")
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "\nproblem: " in said
    assert "RONDE_TIMEOUT" in said
    assert said.endswith("; 1 problem found\n")
    assert "transports\n  " in said


def test_what_settings_name_and_cannot_be_used_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each rank would fail in `init`. All are told, not only the first."""
    why_not = doctor.why_not
    monkeypatch.setattr(doctor, "why_not", lambda name: "no GPU" if name == "nccl" else why_not(name))
    monkeypatch.setattr(doctor, "obstacle", lambda: "there is no Numba")
    named = {"RULES": "rules.toml", "TLS_CERTIFICATE": "no.pem", "TLS_KEY": "no.pem", "TLS_CA": "no.pem"}
    for name, file in named.items():
        monkeypatch.setenv(f"RONDE_{name}", str(tmp_path / file))
    monkeypatch.setenv("RONDE_TRANSPORT", "nccl")
    monkeypatch.setenv("RONDE_COMPILED", "on")
    monkeypatch.setenv("RONDE_TCP_INTERFACE", "eth99")
    code, found = report(capsys)
    assert code == 1
    certificate, rules, interface, transport, compiled = found["problems"]
    assert certificate.startswith(f"tls_certificate='{tmp_path / 'no.pem'}': cannot be read")
    assert rules.startswith(f"rules='{tmp_path / 'rules.toml'}': cannot be read as TOML")
    assert interface.startswith("interface='eth99': is not an interface or address of this machine")
    assert transport == "transport='nccl' cannot be used here: no GPU"
    assert compiled == "compiled='on', and there can be no machine code: there is no Numba"


def test_no_usable_transport_is_a_problem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "why_not", lambda name: f"{name} is out of order")
    code, found = report(capsys)
    assert code == 1
    assert found["problems"] == ["no transport can be used here"]
    assert found["transports"]["tcp"] == "tcp is out of order"


def test_it_keeps_the_secret(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDE_SECRET", "c0ffee" * 10)
    assert cli.main(["doctor"]) == 0
    assert "c0ffee" not in capsys.readouterr().out


def test_ranks_are_for_calibration_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "-np", "3"])
    assert ended.value.code == 2
    assert "-np 3: is for --calibrate" in capsys.readouterr().err


def test_it_shows_how_ranks_are_calibrated() -> None:
    done = ronde("doctor", "--calibrate", "--json", extra={"RONDE_TRANSPORT": "local"})
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)["calibration"]
    assert (found["transport"], found["ranks"]) == ("local", 2)
    assert found["copies_seconds"] >= 0
    done = ronde("doctor", "--calibrate", "-np", "3", extra={"RONDE_TRANSPORT": "local", "RONDE_CALIBRATE": "no"})
    assert done.returncode == 0, done.stderr.decode()
    said = done.stdout.decode()
    assert "\ncalibration\n  ranks   3 over local\n" in said
