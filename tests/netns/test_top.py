"""`ronde top` on jobs of several hosts, under each launcher: the ranks of other hosts answer through their store."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_line.top.jobs import PROGRAM
from tests.netns.cluster import Cluster
from tests.netns.launchers import LAUNCHERS, Launcher
from tests.netns.network import Host
from tests.netns.table import ROOT
from tests.netns.test_ssh import wait_until
from tests.transports.launchers.real import Launched

pytestmark = pytest.mark.long

BOUND = 120.0
OWN_FOLDER = 'mkdir -p "$0/$(hostname)"; export XDG_RUNTIME_DIR="$0/$(hostname)" RONDE_COMPILED=off; exec "$@"'
"""Hosts share the file system here, but are to have folders of their own for records."""


def program(folder: Path) -> list[str]:
    return ["sh", "-c", OWN_FOLDER, str(folder), sys.executable, str(PROGRAM), "straggler", str(folder)]


def top(host: Host, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    variables = [f"XDG_RUNTIME_DIR={folder / host.name}", f"TMPDIR={folder}", f"PYTHONPATH={ROOT}"]
    return subprocess.run(
        host.command("env", *variables, sys.executable, "-m", "ronde", "top", *options),
        capture_output=True,
        text=True,
        timeout=BOUND,
    )


def look(host: Host, folder: Path) -> Any:
    done = top(host, folder, "--once", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(figures: Any, size: int, hosts: int) -> None:
    assert (figures["silent"]["count"], figures["missing"]["count"], figures["trouble"]) == (0, 0, "")
    assert [row["rank"] for row in figures["ranks"]] == list(range(size))
    assert len(figures["hosts"]) == hosts
    assert max(figures["ranks"], key=lambda row: row["caused"])["rank"] == size - 1
    assert [one["ranks"]["first"] for one in figures["culprits"]] == [[size - 1]]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_each_launcher(launcher: Launcher, tmp_path: Path) -> None:
    reason = launcher.obstacle()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(launcher.site())
        stack.callback((tmp_path / "stop").touch)
        jobs = []
        for name, command in launcher.commands(program(tmp_path)).items():
            words = site.network.hosts[name].command("env", "-C", str(ROOT), *command)
            jobs.append(stack.enter_context(Launched(words, dict(site.variables))))
        wait_until((tmp_path / "ready").exists, BOUND)
        near, far = site.network.hosts["alpha"], site.network.hosts["beta"]
        check(look(near, tmp_path), 4, 2)
        check(look(far, tmp_path), 4, 2)
        assert "in main" in top(near, tmp_path, "--stack", "3").stdout
        (tmp_path / "stop").touch()
        assert [job.finish().code for job in jobs] == [0] * len(jobs)
    assert not list(tmp_path.glob("*/ronde/flights/*/door"))


@pytest.fixture
def on_three_hosts(ssh_trio: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A job of three ranks, and its folder."""
    with ssh_trio.running("alpha", "-H", "alpha:1,beta:1,gamma:1", *program(tmp_path)) as job:
        wait_until((tmp_path / "ready").exists, BOUND)
        yield tmp_path
        (tmp_path / "stop").touch()
        _, said = job.communicate(timeout=BOUND)
        assert job.returncode == 0, said


def test_three_hosts_from_each_and_one_that_stops(ssh_trio: Cluster, on_three_hosts: Path) -> None:
    for host in ssh_trio.hosts.values():
        check(look(host, on_three_hosts), 3, 3)
    saved = top(ssh_trio.hosts["beta"], on_three_hosts, "--save", "--into", str(on_three_hosts / "saved"))
    assert saved.returncode == 0, saved.stderr
    assert len(list((on_three_hosts / "saved").glob("rank-*.flight"))) == 3


def test_another_host_by_ssh(ssh_trio: Cluster, tmp_path: Path) -> None:
    """Logins there have the folder for records that ranks of `ronde run` have there."""
    words = ["env", "RONDE_COMPILED=off", sys.executable, str(PROGRAM), "straggler", str(tmp_path)]
    with ssh_trio.running("alpha", "-H", "alpha:1,gamma:1", *words) as job:
        wait_until((tmp_path / "ready").exists, BOUND)
        code, out, err = ssh_trio.ronde("beta", "-H", "gamma", "--list", command="top")
        assert code == 2, err
        code, out, err = ssh_trio.ronde("gamma", "--list", command="top")
        (name,) = (line.split()[0] for line in out.splitlines() if str(tmp_path) in line)
        code, out, err = ssh_trio.ronde("beta", "-H", "gamma", "--once", "--json", "--job", name, command="top")
        assert code == 0, err
        assert [row["rank"] for row in json.loads(out)["ranks"]] == [0, 1]
        code, out, err = ssh_trio.ronde("beta", "-H", "gamma", "--stack", "1", "--job", name, command="top")
        assert "in main" in out, err
        code, out, err = ssh_trio.ronde("beta", "-H", "gamma", "--once", "--job", "another", command="top")
        assert code == 2, err
        assert "another" in err
        code, out, err = ssh_trio.ronde("beta", "-H", "gamma", "--save", "--job", "another", command="top")
        assert (code, out) == (2, ""), err
        (tmp_path / "stop").touch()
        assert job.wait(BOUND) == 0
