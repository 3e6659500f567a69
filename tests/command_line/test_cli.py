"""The command line: arguments, help and errors. No ranks are started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import collectives
from collectives import ConfigError
from frontends.command_line import cli
from frontends.command_line import run as run_command
from tests.collectives.launch.launcher import RONDE, environment, running

SHORTLY = ("--min", "4", "--max", "4", "--seconds", "0.001")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.environ", environment())
    monkeypatch.chdir(tmp_path)


def exits(*arguments: str) -> int:
    """The exit code of the command."""
    try:
        return cli.main(arguments)
    except SystemExit as left:
        return int(left.code or 0)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("--version") == 0
    assert capsys.readouterr().out == f"ronde {collectives.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--help"], ["run", "bench", "doctor", "examples:", "ronde run -np 4 train.py"]),
        (
            ["run", "--help"],
            [
                "examples:",
                "--num-proc N",
                "--transport NAME",
                "--set KEY=V",
                "--timeout S",
                "128 + N",
                "--min-num-proc N",
            ],
        ),
        (["doctor", "--help"], ["examples:", "--json", "exit code"]),
        (["bench", "--help"], ["examples:"]),
    ],
)
def test_help_text(arguments: list[str], texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(*arguments) == 0
    said = capsys.readouterr().out
    for text in texts:
        assert text in said
    assert all(len(line) <= 120 for line in said.splitlines())


@pytest.mark.parametrize("arguments", [[], ["rum"], ["--versio"], ["run", "--timeou", "3", "true"]])
def test_bad_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(*arguments) == 2
    assert "usage: ronde" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"), [(["bnch"], " (did you mean 'bench'?)"), (["-np", "4", "train.py"], ""), (["train.py"], "")]
)
def test_a_word_that_is_no_command(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(*words) == 2
    text = capsys.readouterr().err.splitlines()[-1]
    assert text.startswith(f"ronde: error: COMMAND={words[0]}: must be one of run, drain, ")
    assert text.endswith(f"simulate{hint}; `ronde run` starts a program")


def test_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert exits("run", "-np", "2", "train.py") == 2
    assert capsys.readouterr().err == f"ronde run: train.py: there is no such file in {tmp_path}\n"


def test_an_empty_variable_is_not_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RONDE_TIMEOUT", "")
    monkeypatch.setitem(os.environ, "RONDE_TCP_INTERFACE", "")
    assert collectives.Config.load() == collectives.Config()


@pytest.mark.parametrize("name", ["x" * 5000, "file/below"])
def test_a_file_that_can_never_be_written(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert exits("bench", "--json", name) == 2
    assert "argument --json: " in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["run -np 1 true", "draw allreduce -np 2"])
def test_standard_streams_may_be_closed(command: str, closed: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *RONDE, *command.split()]
    assert subprocess.run(shell, env=environment(), capture_output=True, timeout=60).returncode == 0


@pytest.mark.processes
def test_the_reader_of_the_output_may_leave() -> None:
    command = [*RONDE, "simulate", "allreduce", "--ranks", "16..1024", "--size", "1K..1G"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"# allreduce, simulated")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 128 + signal.SIGPIPE


@pytest.mark.processes
@pytest.mark.parametrize("command", ["bench --seconds 60", "tune allreduce --seconds 60", "simulate allreduce"])
def test_ctrl_c_ends_a_command_without_a_traceback(command: str) -> None:
    words = command.split()
    if words[0] == "simulate":
        words += ["--ranks", "1048576", "--size", "1,2,3,4,5,6,7,8,9,10,11,12"]
    with running(*words) as started:
        assert started.process.stdout is not None
        assert started.process.stdout.readline()
        os.killpg(started.process.pid, signal.SIGINT)
        code, _, err = started.finish()
    assert code == 128 + signal.SIGINT
    assert b"Traceback" not in err


@pytest.mark.parametrize("command", [[], ["--"], [""], ["", "--lr", "3"]])
def test_missing_program(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("run", "-np", "2", *command) == 2
    assert "no program given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--set", "tmeout=3"], 2, "ronde run: --set tmeout=3: unknown setting (did you mean 'timeout'?)"),
        (["--set", "rank=3"], 2, "--set rank=3: unknown setting"),
        (["--set", "timeout=soon"], 2, "timeout='soon' (from the command line): must be a number"),
        (["--set", "tcp.nonsense=1"], 2, "transport 'tcp' has no setting 'nonsense'"),
        (["--set", "timeout"], 2, "must be KEY=VALUE"),
        (["--set", "timeout="], 2, "must be KEY=VALUE"),
        (["--transport", "pigeon"], 2, "transport='pigeon'"),
        (["-np", "0"], 2, "'0': must be an integer, 1 to 65536"),
        (["-np", "some"], 2, "'some': must be an integer, 1 to 65536"),
        (["--timeout", "-1"], 2, "'-1': must be a number of seconds, 0 or more"),
        (["--grace", "inf"], 2, "'inf': must be a number of seconds, 0 or more"),
        (["-np", "9" * 5000], 2, "9': must be an integer, 1 to 65536"),
        (["--min-np", "4", "-H", "h1:2,h2"], 2, "--min-np 4: there are only 3 slots (h1:2, h2:1)"),
        (["-np", "2", "--max-np", "4", "-H", "h1"], 2, "-np 2: there are only 1 slots (h1:1)"),
        (["--min-np", "4", "--slots-per-host", "3"], 2, "--min-np 4: there are only 3 slots ("),
    ],
)
def test_bad_option_of_run(options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("run", *options, "true") == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train.py", "-x"], [sys.executable, "train.py", "-x"]),
        (["--", "train.py"], [sys.executable, "train.py"]),
        (["python", "train.py"], ["python", "train.py"]),
        (["ls", "--", "-x"], ["ls", "--", "-x"]),
        ([], []),
    ],
)
def test_command_to_execute(words: list[str], command: list[str]) -> None:
    assert run_command.as_command(words) == command


@pytest.mark.parametrize(("words", "command"), [(["a.b", "-m"], [sys.executable, "-m", "a.b", "-m"]), ([], [])])
def test_a_module_runs_in_this_python(words: list[str], command: list[str]) -> None:
    assert run_command.as_command(words, module=True) == command
    mpi = [*command[:1], "-m", "ronde.mpi", *command[1:]] if command else []
    assert run_command.as_command(words, module=True, mpi4py=True) == mpi


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train.py", "-x"], [sys.executable, "-m", "ronde.mpi", "train.py", "-x"]),
        (["python", "-u", "train.py"], ["python", "-u", "-m", "ronde.mpi", "train.py"]),
        (["/bin/python3", "-m", "module", "-m"], ["/bin/python3", "-m", "ronde.mpi", "-m", "module", "-m"]),
        (["python", "-W", "error", "-m", "m", "-c"], ["python", "-W", "error", "-m", "ronde.mpi", "-m", "m", "-c"]),
        (["python", "-X", "dev", "train.py"], ["python", "-X", "dev", "-m", "ronde.mpi", "train.py"]),
        (["python", "-Werror", "-uc", "pass"], ["python", "-Werror", "-u", "-m", "ronde.mpi", "-c", "pass"]),
        (["python", "-mtimeit"], ["python", "-m", "ronde.mpi", "-m", "timeit"]),
        ([], []),
    ],
)
def test_command_that_finds_ronde_under_the_name_of_mpi4py(words: list[str], command: list[str]) -> None:
    assert run_command.as_command(words, mpi4py=True) == command
    with pytest.raises(ConfigError, match="pytest"):
        run_command.as_command(["pytest"], mpi4py=True)


@pytest.mark.parametrize("words", [["python"], ["python", "-"], ["python", "-W"], ["python", "--version"]])
def test_mpi4py_needs_a_program(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=rf"^--mpi4py: {' '.join(words)}: .*program"):
        run_command.as_command(words, mpi4py=True)


def test_settings_become_variables() -> None:
    assert run_command.as_variables([("timeout", "3"), ("tcp.interface", "lo"), ("timeout", "4")]) == {
        "RONDE_TIMEOUT": "4",
        "RONDE_TCP_INTERFACE": "lo",
    }


def test_the_interface_of_the_store_may_be_set_in_a_file(tmp_path: Path) -> None:
    assert run_command.interface_of({}) == ""
    assert run_command.interface_of({"RONDE_TCP_INTERFACE": "eth1"}) == "eth1"
    (tmp_path / "ronde.toml").write_text('[tcp]\ninterface = "eth2"\n')
    assert run_command.interface_of({}) == "eth2"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["run", "--tranport", "tcp", "-np", "2", "x.py"], "--transport"),
        (["run", "-np", "2", "--time-limits=3", "x.py"], "--time-limit"),
        (["bench", "--algoritm=ring"], "--algorithm"),
    ],
)
def test_an_unknown_option_is_reported_by_its_command(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert f"ronde {words[0]}: error: " in err
    assert f"did you mean '{meant}'?" in err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--meet", "h1:29400"], "--meet: is for nodes that are started by hand; give --nodes as well"),
        (["--node-rank", "0"], "--node-rank: is for nodes that are started by hand; give --nodes as well"),
        (["--output-filename", ""], "--output-filename: '': must be the path of a folder"),
        (["--output-filename", __file__], f"--output-filename: '{__file__}': must be a folder, and "),
        (["--output-filename", f"{__file__}/logs"], f"must be a folder, and '{__file__}' is none"),
        (["--min-np", "1", "--preemption-file", ""], "--preemption-file '': must be the path of a file"),
        (["--output-filename", "x" * 300], ": cannot be written: File name too long"),
        (["--start-timeout", "-1"], "--start-timeout: '-1': must be a number of seconds, more than 0"),
        (["--start-timeout", "inf"], "--start-timeout: 'inf': must be a number of seconds, more than 0"),
        (["--grace", "-1"], "--grace: '-1': must be a number of seconds, 0 or more"),
        (["-p", "2222"], "--ssh-port 2222: is for -H or --hostfile; give it as well"),
        (["--min-np", "1", "-p", "2222"], "--ssh-port 2222: is for hosts that are named or found, such as -H"),
        (["--nodes", "2", "-p", "2222"], "--nodes starts this node alone: give it without -H, --hostfile, --ssh-port"),
        (["-H", "h1", "-i", "no/key"], "-i/--ssh-identity-file: 'no/key': there is no such file"),
        (["-H", "h1", "-i", "~no-user/key"], "-i/--ssh-identity-file: '~no-user/key': there is no such file"),
        (["-i", __file__], f"--ssh-identity-file {__file__}: is for -H or --hostfile; give it as well"),
    ],
)
def test_options_of_run_are_checked_before_the_start(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", *options, "true"])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_an_interface_that_this_host_does_not_have_is_an_error_of_the_launcher(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["run", "-np", "1", "--network-interface", "nosuch0", "true"]) == 2
    assert "interface='nosuch0': is not an interface or address of this machine" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["draw", "allreduce", "--algorithm", "ring", "-np", "2", "-o"], "--output"),
        (["simulate", "allreduce", "--ranks", "2", "--size", "4", "--timeline"], "--timeline"),
        (["simulate", "allreduce", "--ranks", "2", "--size", "4", "--rules"], "--rules"),
        pytest.param(
            ["bench", "allreduce", "-np", "2", "--transport", "local", *SHORTLY, "--json"],
            "--json",
            marks=pytest.mark.processes,  # it starts uname
        ),
        (["tune", "allreduce", "-np", "2", "--transport", "local", *SHORTLY, "-o"], "--output"),
    ],
)
def test_a_file_on_a_full_disk_is_named(
    words: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.svg"
    path.symlink_to("/dev/full")
    assert cli.main([*words, str(path)]) == 2
    assert f"ronde {words[0]}: {option} {path}: cannot be written: No space left" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *([command, "--network-interface", "lo"] for command in ("bench", "tune", "doctor")),
        *([command, "--ssh-port", "2222"] for command in ("bench", "tune", "doctor", "top")),
        ["top", "-i", __file__],
    ],
)
def test_options_on_hosts_need_hosts(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert ": is for " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--every", "1e300"], "--every: '1e300': must be a number of seconds, more than 0 and at most 86400"),
        (["--every", "0"], "--every: '0': must be a number of seconds, more than 0"),
        (["--metrics", "--once"], "--metrics: serves until Ctrl-C; give it without --once"),
        (["--web", "--stack", "0"], "--web: serves until Ctrl-C; give it without --stack"),
        (["--list", "--json"], "--list: prints text; give it without --json"),
        (["--into", "records"], "--into records: is for --save; give it as well"),
        (["--save", "--into", "."], "--into: '.': is there already; it must be a new folder"),
        (["--web", "--address", "0.0.0.0"], "--address 0.0.0.0: is for --metrics; give it as well"),
        (["--listen", "9400"], "--listen 9400: is for --web or --metrics; give it as well"),
    ],
)
def test_bad_options_of_top(options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("top", *options) == 2
    assert complaint in capsys.readouterr().err


def test_top_without_its_extra_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("rich.", "frontends.command_line.top.screen"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert exits("top", "--once") == 2
    err = capsys.readouterr().err
    assert err.startswith("ronde top: ")
    assert "pip install 'ronde[progress]'" in err


def loaded(code: str) -> set[str]:
    """The modules that a new interpreter has after it has run this."""
    code += "; import sys; sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


@pytest.mark.processes
def test_the_package_loads_no_command_line() -> None:
    found = loaded("import ronde")
    assert "ronde" in found
    assert not {"argparse", "frontends.command_line"} & found


@pytest.mark.processes
def test_a_command_is_imported_when_it_runs() -> None:
    commands = {f"frontends.command_line.{module}" for module, _ in cli.COMMANDS.values()}
    help_of_all = "from frontends.command_line import main\ntry: main(['--help'])\nexcept SystemExit: pass\nimport os"
    assert not {*commands, "collectives", "numpy"} & loaded(help_of_all)
    help_of_one = help_of_all.replace("'--help'", "'drain', '--help'")
    assert commands & loaded(help_of_one) == {"frontends.command_line.drain"}
