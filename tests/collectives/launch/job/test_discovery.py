"""The ways to find the hosts of an elastic job."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest

from collectives.launch.job import discovery
from collectives.launch.job.discovery import AllocationEnded, Discovery, DiscoveryError, dns, host_file, slurm_job
from collectives.launch.job.host_list import NamedHost
from tests.collectives.launch.launcher import Watch
from transports.errors import ConfigError


def written(folder: Path, text: str, name: str = "script") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def slots(found: Discovery) -> dict[str, int]:
    return {host.name: host.slots for host in found.find()}


@pytest.mark.processes
def test_a_script(tmp_path: Path) -> None:
    text = 'echo "h1:4"; echo; echo "# none"; echo "user@h2"; echo "[fd00::1]:2"; echo $1 noise >&2'
    assert slots(discovery.script(written(tmp_path, text), 3)) == {"h1": 4, "h2": 3, "fd00::1": 2}


@pytest.mark.processes
def test_a_script_that_prints_a_mark_of_utf_8_and_ends_of_lines_of_windows(tmp_path: Path) -> None:
    """A host file may have such a mark too."""
    text = r"printf '\357\273\277h1:4\r\nh2\r\n'"
    assert slots(discovery.script(written(tmp_path, text), 3)) == {"h1": 4, "h2": 3}


@pytest.mark.processes
def test_a_script_with_arguments_that_names_no_host(tmp_path: Path) -> None:
    path = written(tmp_path, '[ "$2" = "a b" ]')
    assert slots(discovery.script(f"{path} x 'a b'", 1)) == {}


@pytest.mark.processes
def test_a_script_without_an_interpreter_is_run_by_sh(tmp_path: Path) -> None:
    """The shell of horovodrun does it. A program of another machine is refused as before."""
    path = tmp_path / "script"
    path.write_text('echo "$1:4"\n')
    path.chmod(0o755)
    assert slots(discovery.script(f"{path} 'h1'", 1)) == {"h1": 4}
    path.write_bytes(b"echo h1\0")
    with pytest.raises(DiscoveryError, match=re.escape(str(path))):
        discovery.script(str(path), 1).find()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("echo it broke >&2; exit 4", "exited with 4: it broke"),
        ("kill -9 $$", "killed by SIGKILL: (it printed nothing)"),
        ("echo h1:none", "'none' slots: must be an integer"),
        ("echo h1; echo h1:2", "names host 'h1' twice"),
        ("echo 'h 1'", "must be NAME"),
        (r"echo; printf 'h1\033[2J'", r"line 2 of its output: 'h1\x1b[2J': must be NAME"),
    ],
)
def test_a_script_that_fails(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DiscoveryError) as caught:
        discovery.script(written(tmp_path, text), 1).find()
    assert "--host-discovery-script" in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.processes
def test_e7_a_script_has_ended_though_a_child_holds_its_output(tmp_path: Path) -> None:
    alone = 'python3 -c \'import os, time; os.setsid(); open("{}", "w").write(str(os.getpid())); time.sleep(60)\' &'
    path = written(
        tmp_path, f"{alone.format(tmp_path / 'pid')} sleep 60 & while [ ! -s {tmp_path}/pid ]; do :; done; echo h1:2"
    )
    begun = time.monotonic()
    try:
        assert slots(discovery.script(path, 1)) == {"h1": 2}
        assert time.monotonic() - begun < discovery.COMMAND_SECONDS / 2
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.processes
def test_a_script_that_prints_too_much(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match=r"1048576 bytes"):
        discovery.script(written(tmp_path, "head -c 3000000 /dev/zero"), 1).find()


@pytest.mark.processes
def test_a_script_that_closes_its_output_early_is_waited_for(tmp_path: Path) -> None:
    path = written(tmp_path, "echo h1:2; exec >&- 2>&-; sleep 0.2; exit 3")
    with pytest.raises(DiscoveryError, match=r"script: exited with 3: "):
        discovery.script(path, 1).find()


@pytest.mark.processes
def test_a_script_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "COMMAND_SECONDS", 0.3)
    path = written(tmp_path, f"sleep 98764 & echo $! > {tmp_path}/pid; wait")
    begun = time.monotonic()
    with pytest.raises(DiscoveryError, match=r"script.* 0.3 s"):
        discovery.script(path, 1).find()
    assert time.monotonic() - begun < 30
    with contextlib.suppress(ProcessLookupError), Watch([int((tmp_path / "pid").read_text())]) as child:
        assert child.all_ended(within=30)


@pytest.mark.processes
def test_a_script_that_is_gone(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "echo h1"))
    found = discovery.script(str(path), 1)
    path.unlink()
    with pytest.raises(DiscoveryError, match="cannot be started: No such"):
        found.find()
    with pytest.raises(ConfigError, match="--host-discovery-script"):
        discovery.script(str(path), 1)


def test_a_host_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    for wrong in (path, tmp_path):
        with pytest.raises(ConfigError, match=r"^--hostfile .*: .*file .*read$"):
            host_file(wrong, 2)
    path.write_text("")
    found = host_file(path, 2)
    path.unlink()
    with pytest.raises(DiscoveryError, match=r"--hostfile .*No such file"):
        found.find()
    path.write_text("h1 slots=4\nh2\n")
    assert slots(found) == {"h1": 4, "h2": 2}
    path.write_text("h2:1\n")
    assert slots(found) == {"h2": 1}
    path.write_text("")
    with pytest.raises(DiscoveryError, match=r"host file .*no host"):
        found.find()


@pytest.mark.processes
def test_a_host_without_slots_is_not_used(tmp_path: Path) -> None:
    """So horovodrun's scripts name a host that is to be left."""
    assert slots(discovery.script(written(tmp_path, "echo h1:0; echo h2:2"), 3)) == {"h2": 2}
    path = tmp_path / "hosts"
    path.write_text("h1 slots=0\nh2:0\nh3\n")
    assert slots(host_file(path, 3)) == {"h3": 3}


def test_addresses_behind_a_name() -> None:
    assert slots(dns("127.0.0.1", 4)) == {"127.0.0.1": 4}
    with pytest.raises(DiscoveryError, match=r"--discover-dns no-such-host.invalid: "):
        dns("no-such-host.invalid", 1).find()


@pytest.mark.processes
def test_an_allocation_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text(
        "JobId=7 JobName=x ReqNodeList=(null) ExcNodeList=(null)\n NodeList=n[1-2] BatchHost=n1 NumNodes=2"
    )
    written(tmp_path, f'[ "$*" = "--oneliner show job 7" ] && cat {nodes}', "scontrol")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "2,4"}
    found = slurm_job(job, [NamedHost("n1", "n1", 2), NamedHost("n2", "n2", 4)], None)
    assert slots(found) == {"n1": 2, "n2": 4}
    nodes.write_text("JobId=7 NodeList=n[1,3]")
    assert slots(found) == {"n1": 2, "n3": 2}
    assert slots(slurm_job(job, [], 8)) == {"n1": 8, "n3": 8}
    nodes.write_text("JobId=7 NodeList=(null)")
    with pytest.raises(DiscoveryError, match=r"show job 7.*no nodes"):
        found.find()
    nodes.write_text("JobId=7 JobState=RUNNING NodeList=n1")
    assert slots(found) == {"n1": 2}
    for state in ("CANCELLED", "TIMEOUT", "NODE_FAIL", "COMPLETING"):
        nodes.write_text(f"JobId=7 JobState={state} NodeList=n[1-2]")  # it keeps them
        with pytest.raises(AllocationEnded, match=f"show job 7: JobState={state}"):
            found.find()
    with pytest.raises(DiscoveryError, match=r"scontrol show job 8: exited with 1"):
        slurm_job({"SLURM_JOB_ID": "8"}, [], 1).find()
