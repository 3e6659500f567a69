"""`ronde doctor` for several hosts, behind a fake ssh on this machine, and as the ranks of a launcher."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from collectives.launch.processes import Guardian
from frontends.command_line.doctor.probes import ProbeByCommand
from tests.collectives.launch.fake_ssh import install
from tests.collectives.launch.launcher import BOUND, RONDE, Watch, environment, ronde, running
from transports.errors import ConnectError

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_spawnp"), reason="ssh is a command of POSIX systems")

ROOT = Path(__file__).resolve().parents[3]


def doctor(folder: Path, *options: str, before: str = "") -> tuple[int, dict[str, Any], str]:
    """Run `ronde doctor --json` with the fake ssh: exit code, findings, stderr."""
    variables = install(folder, before) | {"PYTHONPATH": str(ROOT)}
    done = ronde("doctor", "--json", "--start-timeout", "60", *options, extra=variables)
    return done.returncode, json.loads(done.stdout or b"{}"), done.stderr.decode()


@pytest.mark.processes
def test_hosts_by_ssh(tmp_path: Path) -> None:
    code, found, err = doctor(tmp_path, "-H", "localhost,h1:4,h2")
    assert (code, found["problems"], err) == (0, [], "")
    assert [host["name"] for host in found["hosts"]] == ["localhost", "h1", "h2"]
    assert {(link["source"], link["target"]) for link in found["links"]} == {
        (a, b) for a in ("localhost", "h1", "h2") for b in ("localhost", "h1", "h2") if a != b
    }
    for link in found["links"]:
        assert link["state"] == "ok"
        assert link["rate"] > 0


@pytest.mark.processes
def test_hosts_that_do_not_answer_are_named_and_the_others_are_checked(tmp_path: Path) -> None:
    before = """case $host in
        h2) echo "ssh: Could not resolve hostname h2: Name or service not known" >&2; exit 255 ;;
        h3) exec sleep 120 ;;
    esac"""
    begun = time.monotonic()
    code, found, err = doctor(tmp_path, "--start-timeout", "8", "-H", "h1,h2,h3,h4", before=before)
    assert time.monotonic() - begun < 40
    assert (code, err) == (1, "")
    assert found["problems"][0] == "host h2: ssh: Could not resolve hostname h2: Name or service not known"
    assert found["problems"][1].startswith("host h3: no answer within 8 s")
    assert len(found["problems"]) == 2
    assert [(link["source"], link["target"]) for link in found["links"]] == [("h1", "h4"), ("h4", "h1")]
    for host in ("h1", "h3", "h4"):
        assert not Path(f"/proc/{(tmp_path / f'{host}.ssh').read_text().strip()}").exists()


@pytest.mark.processes
def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    variables = install(tmp_path, "echo here >&2; exec sleep 120") | {"PYTHONPATH": str(ROOT)}
    with running("doctor", "--start-timeout", "100", "-H", "h1", extra=variables) as started:
        while not (tmp_path / "h1.ssh").exists() or not (tmp_path / "h1.ssh").read_text():
            time.sleep(0.02)
        ssh = int((tmp_path / "h1.ssh").read_text())
        with Watch([ssh]) as watch:
            started.process.send_signal(signal.SIGINT)
            assert started.finish() == (130, b"", b"")
            assert watch.all_ended()


@pytest.mark.processes
def test_a_question_that_nobody_waits_for_is_over_before_its_probe_is_closed() -> None:
    """Ctrl-C during the start of a thread leaves a pool that does not know the thread."""
    with contextlib.closing(Guardian()) as guardian, ThreadPoolExecutor(1) as pool:
        guardian.start()
        for _ in range(30):
            probe = ProbeByCommand("h1", ["sleep", "60"], ["header"], guardian)
            asked = pool.submit(probe.ask, "facts", seconds=50)
            while not asked.running():
                time.sleep(0.001)
            probe.kill()
            probe.close()
            assert isinstance(asked.exception(20), ConnectError)


@pytest.mark.processes
def test_the_table(tmp_path: Path) -> None:
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    done = ronde("doctor", "--start-timeout", "60", "-H", "h1,h2", extra=variables)
    out = done.stdout.decode()
    assert done.returncode == 0, out + done.stderr.decode()
    assert re.search(r"^  h1 +127\.0\.0\.1 +lo +65536 +[+-]0\.\d ms  see below$", out, re.MULTILINE)
    assert re.search(r"^  python +3\.\d+\.\d+$", out, re.MULTILINE)
    assert re.search(r"^  h2 +h1 +\d+\.\d\d ms +[\d.]+ [GM]bit/s +\d+ B +ok$", out, re.MULTILINE)
    assert out.endswith("hosts h1, h2: all right\n")


@pytest.mark.processes
def test_a_bad_list_of_hosts() -> None:
    done = ronde("doctor", "-H", "a b")
    assert done.returncode == 2
    assert b"ronde doctor: -H a b:" in done.stderr


@pytest.mark.processes
def test_no_launcher_and_no_hosts() -> None:
    done = ronde("doctor", "--cluster")
    assert done.returncode == 2
    assert b"no launcher has started this process as a rank; name the hosts by -H or --hostfile" in done.stderr


@pytest.mark.processes
def test_every_rank_of_a_launcher_runs_it() -> None:
    """By the variables of `ronde run`; ranks of one host have one probe, so there is no link."""
    done = ronde(
        "run", "-np", "3", "--no-prefix", *RONDE, "doctor", "--cluster", "--json", extra={"PYTHONPATH": str(ROOT)}
    )
    found = json.loads(done.stdout)
    assert (done.returncode, found["problems"], found["links"]) == (0, [], [])
    assert len(found["hosts"]) == 1


@pytest.mark.processes
def test_ranks_that_do_not_come(tmp_path: Path) -> None:
    """Rank 1 of 2 never starts; they would meet in a file."""
    extra = {"RONDE_RANK": "0", "RONDE_SIZE": "2", "RONDE_STORE": f"file://{tmp_path}", "RONDE_SECRET": "0" * 64}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ronde", "doctor", "--cluster", "--json"],
        capture_output=True,
        timeout=BOUND,
        env=environment(extra),
        check=False,
    )
    assert time.monotonic() - begun < 40
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"] == ["host rank 1: the rank does not answer: no answer within 5 s"]
