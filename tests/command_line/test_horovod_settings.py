"""Variables and options of Horovod that `ronde run` honours. Nothing is started but the last."""

from __future__ import annotations

import pytest

from collectives.config import Config
from frontends.command_line import cli, horovod_settings
from frontends.command_line import run as run_command
from tests.collectives.launch.launcher import environment, ronde


def test_variables_with_a_counterpart() -> None:
    given = {
        "HOROVOD_TIMELINE": "/t.json",
        "HOROVOD_FUSION_THRESHOLD": "1048576",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "45",
        "HOROVOD_GLOO_IFACE": "eth0",
    }
    found = horovod_settings.translated(given)
    assert found == {
        "RONDE_TIMELINE": "/t.json",
        "RONDE_TIMELINE_STYLE": "horovod",
        "RONDE_FUSION_BYTES": "1048576",
        "RONDE_STALL": "20",
        "RONDE_TIMEOUT": "60",
        "RONDE_CONNECT_TIMEOUT": "45",
        "RONDE_TCP_INTERFACE": "eth0",
    }
    assert Config.load(environment=found).stall == 20.0
    assert horovod_settings.ignored(given) == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "9"}, {"RONDE_STALL": "0"}),
        ({"HOROVOD_STALL_CHECK_DISABLE": "0"}, {}),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0.0"}, {}),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, {}),
        ({"HOROVOD_GLOO_IFACE": "eth0", "RONDE_TCP_INTERFACE": "eth1"}, {}),
        ({"HOROVOD_LOG_LEVEL": "TRACE"}, {"RONDE_LOG_LEVEL": "debug"}),
        ({"HOROVOD_LOG_LEVEL": "fatal"}, {"RONDE_LOG_LEVEL": "error"}),
        ({"HOROVOD_LOG_LEVEL": "loud"}, {}),
        ({"HOROVOD_TIMELINE": ""}, {}),
        ({"HOROVOD_TIMELINE": "DYNAMIC"}, {}),
        ({"HOROVOD_TIMELINE": "t", "RONDE_TIMELINE": "u"}, {}),
        (
            {"HOROVOD_TIMELINE": "t", "HOROVOD_TIMELINE_MARK_CYCLES": "1"},
            {"RONDE_TIMELINE": "t", "RONDE_TIMELINE_STYLE": "horovod-cycles"},
        ),
    ],
)
def test_special_values(given: dict[str, str], found: dict[str, str]) -> None:
    assert horovod_settings.translated(given) == found


def test_the_others_are_named() -> None:
    given = dict.fromkeys(
        ["HOROVOD_CYCLE_TIME", "HOROVOD_AUTOTUNE", "HOROVOD_RANK", "HOROVOD_START_TIMEOUT", "PATH"], "1"
    )
    assert horovod_settings.ignored(given) == ["HOROVOD_AUTOTUNE", "HOROVOD_CYCLE_TIME"]


def test_options_are_settings() -> None:
    words = ["run", "--timeline-filename", "t", "--fusion-threshold-mb", "2", "--gloo-timeout-seconds", "40"]
    words += [
        "--stall-check-warning-time-seconds",
        "9",
        "--stall-check-shutdown-time-seconds",
        "60",
        "--no-stall-check",
    ]
    args = cli.parser().parse_args([*words, "true"])
    assert run_command.as_variables(args.horovod) == {
        "RONDE_TIMELINE": "t",
        "RONDE_FUSION_BYTES": "2097152",
        "RONDE_CONNECT_TIMEOUT": "40",
        "RONDE_STALL": "0",
        "RONDE_TIMEOUT": "60",
    }


@pytest.mark.parametrize(
    ("variable", "value", "setting"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "1e6", "fusion_bytes='1e6'"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "-1", "stall=-1.0"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "nan", "timeout=nan"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "0", "connect_timeout=0.0"),
    ],
)
def test_a_wrong_value_is_that_of_the_variable_of_horovod(
    variable: str, value: str, setting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.environ", environment({variable: value}))
    assert cli.main(["run", "true"]) == 2
    err = capsys.readouterr().err
    assert setting in err
    assert f"from environment {variable}" in err
    assert "RONDE_" not in err


@pytest.mark.parametrize("words", [("--set", "timeout=-1"), ("-x", "RONDE_TIMEOUT=-1")])
def test_a_wrong_value_is_that_of_the_command_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.environ", environment({}))
    assert cli.main(["run", *words, "true"]) == 2
    assert "timeout=-1.0: must be a positive number of seconds" in (err := capsys.readouterr().err)
    assert "timeout from the command line" in err


def test_start_timeout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command.start_timeout({}) == 30.0
    assert run_command.start_timeout({"HOROVOD_START_TIMEOUT": "90"}) == 90.0
    assert run_command.start_timeout({"HOROVOD_START_TIMEOUT": ""}) == 30.0
    monkeypatch.setattr("os.environ", environment({"HOROVOD_START_TIMEOUT": "soon"}))
    assert cli.main(["run", "true"]) == 2
    assert "HOROVOD_START_TIMEOUT='soon': must be a number of seconds" in capsys.readouterr().err


@pytest.mark.processes
def test_a_job_with_variables_of_horovod() -> None:
    extra = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "20", "HOROVOD_CYCLE_TIME": "1", "HOROVOD_AUTOTUNE": "1"}
    done = ronde("run", "-np", "1", "--no-prefix", "sh", "-c", "echo $RONDE_STALL", extra=extra)
    assert (done.returncode, done.stdout) == (0, b"20\n")
    warning = "no setting of Ronde is like HOROVOD_AUTOTUNE, HOROVOD_CYCLE_TIME; see docs/launch-flags.md"
    assert done.stderr.decode() == f"ronde: warning: {warning}\n"


@pytest.mark.processes
def test_zero_means_the_same_as_for_horovodrun() -> None:
    """No fusion, and no end of a job that stalls but by the default of the setting timeout."""
    words = ["--fusion-threshold-mb", "0", "--stall-check-shutdown-time-seconds", "0"]
    done = ronde(
        "run", "-np", "1", "--no-prefix", *words, "sh", "-c", 'echo "$RONDE_FUSION_BYTES ${RONDE_TIMEOUT-none}"'
    )
    assert (done.returncode, done.stdout) == (0, b"0 none\n"), done.stderr
