"""Failures of `ronde run -H`: hosts that cannot be reached, and parts that die. The ssh is a fake on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectives.scaling import MOST_AT_ONCE
from tests.collectives.launch.fake_ssh import install
from tests.collectives.launch.launcher import BOUND, Running, Watch, ronde, running

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes are watched by pidfds, as Linux has")

ROOT = Path(__file__).resolve().parents[4]
WITH_CHILD = "sleep 1000 & echo ready $$ $! $RONDE_RANK; wait"
"""A rank with a child in the background."""


def attempt(folder: Path, *options: str, before: str = "", command: tuple[str, ...] = ("true",)) -> tuple[int, str]:
    """Run a job that does not get far: exit code and stderr."""
    begun = time.monotonic()
    variables = install(folder, before) | {"PYTHONPATH": str(ROOT)}
    done = ronde("run", *options, *command, extra=variables)
    assert time.monotonic() - begun < BOUND / 10
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


# Hosts that cannot be reached


@pytest.mark.processes
def test_words_of_ssh(tmp_path: Path) -> None:
    before = 'if [ $host = h2 ]; then echo "ssh: Could not resolve hostname h2" >&2; exit 255; fi'
    code, err = attempt(tmp_path, "-H", "h1,h2", before=before)
    assert (code, err) == (1, "ronde run: host h2: ssh: Could not resolve hostname h2\n")


@pytest.mark.processes
def test_all_hosts_are_named_that_fail(tmp_path: Path) -> None:
    before = 'if [ $host != h1 ]; then echo "No ED25519 host key is known for $host" >&2; exit 255; fi'
    code, err = attempt(tmp_path, "-H", "h1,h2,h3", before=before)
    assert code == 1
    assert err == (
        "ronde run: 2 hosts\n"
        "    host h2: No ED25519 host key is known for h2\n"
        "    host h3: No ED25519 host key is known for h3\n"
    )


@pytest.mark.processes
def test_an_ssh_that_says_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "silent"
    folder.mkdir()
    (folder / "ssh").write_text("#!/bin/sh\nexit 3\n")
    (folder / "ssh").chmod(0o755)
    extra = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = ronde("run", "-H", "h1", "true", extra=extra)
    assert (done.returncode, done.stderr) == (1, b"ronde run: host h1: ssh exited with 3 and said nothing\n")


@pytest.mark.processes
def test_a_login_that_is_refused_by_its_shell(tmp_path: Path) -> None:
    code, err = attempt(tmp_path, "-H", "h1", before='echo; echo "This account is currently not available."; exit 1')
    assert code == 1
    assert err.startswith("ronde run: host h1: ")
    assert err.endswith("This account is currently not available.\n")


@pytest.mark.processes
def test_a_host_that_does_not_answer(tmp_path: Path) -> None:
    code, err = attempt(tmp_path, "-H", "h1,h2", "--start-timeout", "6", before="[ $host = h2 ] && sleep 1000")
    assert code == 1
    assert err.startswith("ronde run: host h2: was not reached within 6 s")
    assert "an rc file that talks" in err, "a login may have asked for something"


@pytest.mark.processes
def test_how_many_hosts_are_reached_at_once(tmp_path: Path) -> None:
    """Those beyond the limit are not begun with while none of the others has answered, and are named as well."""
    hosts = [f"h{number}" for number in range(MOST_AT_ONCE + 3)]
    code, err = attempt(tmp_path, "-H", ",".join(hosts), "--start-timeout", "8", before="exec sleep 60")
    assert code == 1
    assert {path.stem for path in tmp_path.glob("*.ssh")} == set(hosts[:MOST_AT_ONCE])
    assert f"{len(hosts)} hosts" in err
    assert f"host {hosts[-1]}: was not reached within 8 s" in err


@pytest.mark.processes
def test_no_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    done = ronde("run", "-H", "h1", "true", extra={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert done.stderr.startswith(b"ronde run: cannot reach host h1: ")
    assert b"'ssh'" in done.stderr


@pytest.mark.processes
def test_a_host_without_this_python(tmp_path: Path) -> None:
    before = 'if [ $host = h2 ]; then command="exec /no/python -c x"; fi'
    code, err = attempt(tmp_path, "-H", "h1,h2", before=before)
    assert code == 1
    assert re.match(r"ronde run: host h2: .*/no/python: (No such file|not found)", err)


@pytest.mark.processes
def test_a_host_with_another_version(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import collectives.version\ncollectives.version.__version__ = '0.0.1'\n")
    before = f"""
        if [ $host = h2 ]; then
            command=$(printf %s "$command" | sed 's|os.execv|os.environ["PYTHONPATH"]="{other}:{ROOT}";os.execv|')
        fi
    """
    code, err = attempt(tmp_path, "-H", "h1,h2", before=before)
    assert code == 1
    assert re.search(r"the launcher has Ronde \S+, CPython [\d.]+; all hosts must have the same, but\n", err)
    assert re.search(r"\n    host h2 has Ronde 0\.0\.1, CPython", err)
    assert "host h1" not in err


@pytest.mark.processes
def test_more_ranks_than_slots_is_said_before_anything_starts(tmp_path: Path) -> None:
    code, err = attempt(tmp_path, "-H", "h1:2,h2:2", "-np", "5")
    assert code == 2
    assert "ronde run: -np 5: there are only 4 slots" in err
    assert not (tmp_path / "h1.ssh").exists()


# Something dies


@contextlib.contextmanager
def started(
    folder: Path, *options: str, hosts: str = "h1:2,h2:1", script: str = WITH_CHILD
) -> Iterator[tuple[Running, Watch, Watch]]:
    """A running job, and watches over all its processes: those of ranks, and those of ssh and agents."""
    variables = install(folder) | {"PYTHONPATH": str(ROOT)}
    with running("run", "-H", hosts, "--grace", "1", *options, "sh", "-c", script, extra=variables) as launcher:
        count = sum(int(host.partition(":")[2]) for host in hosts.split(","))
        words = launcher.read_words("ready", count)
        pids = [int(word) for line in words for word in line[:2]]
        others = [int(path.read_text()) for path in sorted(folder.glob("h*.*"))]
        with Watch(pids) as ranks, Watch(others) as agents:
            assert ranks.none_ended()
            assert agents.none_ended()
            yield launcher, ranks, agents


def pid_of(folder: Path, host: str, part: str) -> int:
    """The process id of a host's ssh or agent."""
    return int((folder / f"{host}.{part}").read_text())


@pytest.mark.processes
def test_ctrl_c_while_hosts_are_being_reached(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "reached")
    variables = install(tmp_path, f"echo > {tmp_path}/reached; exec sleep 1000") | {"PYTHONPATH": str(ROOT)}
    with running("run", "-H", "h1", "true", extra=variables) as launcher:
        (tmp_path / "reached").read_bytes()
        with Watch([pid_of(tmp_path, "h1", "ssh")]) as ssh:
            launcher.process.send_signal(signal.SIGINT)
            assert launcher.finish() == (130, b"", b"ronde: ended by SIGINT\n")
            assert ssh.all_ended()


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as (launcher, ranks, agents):
        launcher.process.send_signal(number)
        code, _, err = launcher.finish()
        assert ranks.all_ended()
        assert agents.all_ended(within=5.0)
    assert (code, err.decode()) == (128 + number, f"ronde: ended by {number.name}\n")


@pytest.mark.processes
def test_everything_ends_after_the_launcher_is_killed(tmp_path: Path) -> None:
    with started(tmp_path) as (launcher, ranks, agents):
        launcher.process.kill()
        assert ranks.all_ended(within=BOUND)
        assert agents.all_ended(within=BOUND)


@pytest.mark.processes
@pytest.mark.parametrize(("part", "number"), [("agent", signal.SIGKILL), ("ssh", signal.SIGKILL)])
def test_an_agent_or_its_ssh_is_killed(tmp_path: Path, part: str, number: signal.Signals) -> None:
    with started(tmp_path) as (launcher, ranks, agents):
        os.kill(pid_of(tmp_path, "h2", part), number)
        code, _, err = launcher.finish()
        assert ranks.all_ended(within=BOUND)
        assert agents.all_ended(within=BOUND)
    assert code == 255
    assert re.search(r"ronde: host h2 was lost: its agent has ended \(ssh .*\)", err.decode())
    assert re.search(r"ronde: rank 2: lost with its host, pid \d+ on h2\n", err.decode())
    assert re.search(r"ronde: rank 0: ended by the launcher \(SIGTERM\), pid \d+ on h1\n", err.decode())


@pytest.mark.processes
def test_an_agent_that_is_told_to_end_says_so(tmp_path: Path) -> None:
    with started(tmp_path) as (launcher, ranks, agents):
        os.kill(pid_of(tmp_path, "h1", "agent"), signal.SIGTERM)
        code, _, err = launcher.finish()
        assert ranks.all_ended(within=BOUND)
        assert agents.all_ended(within=BOUND)
    assert code == 255
    assert err.decode().startswith("ronde: host h1 was lost: its agent was ended by SIGTERM\n")


@pytest.mark.processes
def test_a_host_falls_silent(tmp_path: Path) -> None:
    with started(tmp_path, "--host-timeout", "1") as (launcher, ranks, agents):
        agent = pid_of(tmp_path, "h2", "agent")
        os.kill(agent, signal.SIGSTOP)
        code, _, err = launcher.finish()
        os.kill(agent, signal.SIGCONT)  # it finds that the launcher is gone
        assert ranks.all_ended(within=BOUND)
        assert agents.all_ended(within=BOUND)
    assert code == 255
    assert err.decode().startswith("ronde: host h2 was lost: no sign of life for 1 s\n")


@pytest.mark.processes
def test_the_launcher_falls_silent(tmp_path: Path) -> None:
    with started(tmp_path, "--host-timeout", "1") as (launcher, ranks, agents):
        launcher.process.send_signal(signal.SIGSTOP)
        assert ranks.all_ended(within=BOUND)
        launcher.process.send_signal(signal.SIGCONT)
        code, _, err = launcher.finish()
        assert agents.all_ended(within=BOUND)
    assert code == 255
    assert re.search(r"(?m)^ronde: host h[12] was lost: .*the launcher: no sign of life for 1 s", err.decode())


@pytest.mark.processes
@pytest.mark.parametrize("ended", [False, True])
def test_ranks_outlast_a_silent_launcher_if_the_store_has_standbys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """They end by themselves, or when a signal ends the agent; their output is in files."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "go")
    script = f"echo ready $$ $$; read x < {tmp_path}/go; echo done $RONDE_RANK; echo oops >&2"
    options = ("--set", "standbys=2", "--host-timeout", "1")
    with started(tmp_path, *options, script=script, hosts="h1:1,h2:1") as (launcher, ranks, agents):
        launcher.process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + BOUND
        while len(list(tmp_path.glob("ronde-*/rank.*/stderr"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert ranks.none_ended()
        if ended:
            for host in ("h1", "h2"):
                os.kill(pid_of(tmp_path, host, "agent"), signal.SIGTERM)
        else:
            (tmp_path / "go").write_text("go\ngo\n")
        assert ranks.all_ended(within=BOUND)
        assert agents.all_ended(within=BOUND)
        launcher.process.send_signal(signal.SIGCONT)
        code, _, _ = launcher.finish()
    found = {str(file.relative_to(file.parents[1])): file.read_bytes() for file in tmp_path.glob("ronde-*/*/std*")}
    texts = [b"", b""] if ended else [b"done %d\n", b"oops\n"]
    assert found == {
        f"rank.{rank}/{name}": text % rank if b"%" in text else text
        for rank in range(2)
        for name, text in zip(("stdout", "stderr"), texts, strict=True)
    }
    assert code == 255


@pytest.mark.processes
def test_the_others_go_on_without_a_host(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    script = f"echo ready $$ $$; [ $RONDE_RANK = 2 ] && exec sleep 1000; read x < {tmp_path}/go; echo done"
    with started(tmp_path, "--keep-going", script=script, hosts="h1:1,h2:1,h3:1") as (launcher, ranks, _):
        os.kill(pid_of(tmp_path, "h3", "agent"), signal.SIGKILL)
        assert launcher.process.stderr is not None
        assert any(b"rank 2 failed: lost with host h3: its agent has ended" in line for line in launcher.process.stderr)
        (tmp_path / "go").write_text("go\ngo\n")
        code, out, _ = launcher.finish()
        assert ranks.all_ended(within=BOUND)
    assert code == 0
    assert b"done" in out


@pytest.mark.processes
def test_processes_left_behind_on_another_host_are_ended(tmp_path: Path) -> None:
    script = "sleep 1000 >/dev/null 2>&1 & echo ready $! $!; sleep 0.1"
    with started(tmp_path, hosts="h1:1", script=script) as (launcher, ranks, agents):
        code, _, err = launcher.finish()
        assert ranks.all_ended()
        assert agents.all_ended(within=5.0)
    assert (code, err) == (0, b"")


@pytest.mark.processes
def test_closed_output_ends_the_job(tmp_path: Path) -> None:
    with started(tmp_path, script="echo ready $$ $$; while :; do echo talk; done") as (launcher, ranks, agents):
        assert launcher.process.stdout is not None
        launcher.process.stdout.close()
        assert launcher.process.wait(BOUND) == 128 + signal.SIGPIPE
        assert ranks.all_ended()
        assert agents.all_ended(within=5.0)


@pytest.mark.processes
def test_a_slow_reader_makes_ranks_wait_and_holds_no_sign_of_life_up(tmp_path: Path) -> None:
    script = "echo ready $$ $$; while :; do echo talk >&2; done"
    with started(tmp_path, "--host-timeout", "1", script=script) as (launcher, ranks, _):
        assert not ranks.all_ended(within=2.0)  # nobody reads, and nothing is lost
        launcher.process.terminate()
        assert launcher.process.wait(BOUND) == 128 + signal.SIGTERM
        assert ranks.all_ended(within=BOUND)


@pytest.mark.processes
def test_the_cause_is_found_when_the_host_with_the_store_dies(tmp_path: Path) -> None:
    script = (
        "import collectives as ronde, os; w = ronde.init(); w.barrier()\n"
        "print('ready', os.getpid(), flush=True); w.barrier()\n"
        "w.recv(1 - w.rank)"
    )
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    with running("run", "-H", "h1,h2", sys.executable, "-c", script, extra=variables) as launcher:
        pids = [int(words[0]) for words in launcher.read_words("ready", 2)]
        with Watch(pids) as ranks:
            os.kill(pid_of(tmp_path, "h1", "agent"), signal.SIGKILL)
            code, _, err = launcher.finish()
            assert ranks.all_ended(within=BOUND)
    assert code == 255
    assert "ronde: host h1 was lost: its agent has ended" in err.decode()
