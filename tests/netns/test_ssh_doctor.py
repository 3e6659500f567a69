"""`ronde doctor -H` over real ssh, between hosts with networks and names of their own; and `ronde bench` there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.netns import cluster
from tests.netns.cluster import Cluster
from tests.transports.launchers.real import BOUND, ROOT, environment, mpi_command

pytestmark = pytest.mark.long

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def examined(made: Cluster, hosts: str, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the findings of `ronde doctor` on alpha, which must come in time."""
    with cluster.in_time():
        code, out, err = made.ronde("alpha", "-H", hosts, "--json", *options, command="doctor")
    assert err == ""
    return code, json.loads(out)


def patient(*options: str) -> tuple[str, ...]:
    """Options for hosts of which all answer: on a loaded machine they need more time than the default to start."""
    return (*options, "--start-timeout", "30")


def gone(made: Cluster) -> None:
    """No probe is left on any host."""
    until = time.monotonic() + 10
    while made.processes("frontends.command_line.doctor.probe"):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_sound_cluster(ssh_trio: Cluster) -> None:
    code, found = examined(ssh_trio, "alpha,beta,root@gamma", *patient())
    assert (code, found["problems"]) == (0, []), found
    assert [(host["name"], host["address"], host["interface"]) for host in found["hosts"]] == [
        (name, host.address, "eth0") for name, host in ssh_trio.hosts.items()
    ]
    assert [link["state"] for link in found["links"]] == ["ok"] * 6
    assert {link["packet"] for link in found["links"]} == {1500}
    gone(ssh_trio)


def test_hosts_that_cannot_be_reached(ssh_trio: Cluster) -> None:
    """An unknown name, and a host that is off; the others are checked."""
    with ssh_trio.network.healed():
        ssh_trio.network.drop("gamma")
        code, found = examined(ssh_trio, "alpha,beta,gamma,nosuch")
    assert code == 1
    problems = {problem.partition(":")[0]: problem for problem in found["problems"]}
    assert "ssh: Could not resolve hostname nosuch" in problems["host nosuch"]
    assert problems["host gamma"].startswith(("host gamma: no answer within 8 s", "host gamma: ssh: connect to host"))
    gone(ssh_trio)


def test_a_firewall_that_lets_ssh_in_only(ssh_trio: Cluster) -> None:
    with ssh_trio.network.healed():
        ssh_trio.network.drop_new("gamma")
        code, found = examined(ssh_trio, "alpha,beta,gamma", *patient())
    assert code == 1
    assert len(found["problems"]) == 1, found
    (problem,) = found["problems"]
    assert problem.startswith(
        "host gamma: no connection to it works, those from it do: no answer from 10.77.0.3 (eth0)"
    )


def test_an_interface_that_is_not_there(ssh_trio: Cluster) -> None:
    code, found = examined(ssh_trio, "alpha,beta", *patient("--network-interface", "eth7"))
    assert code == 1
    assert [problem.partition(": ")[0] for problem in found["problems"]] == ["host alpha", "host beta"]
    assert all("'eth7': is not an interface" in problem for problem in found["problems"])


def test_ipv6_alone(ssh_duo6: Cluster) -> None:
    code, found = examined(ssh_duo6, f"alpha,[{ssh_duo6.hosts['beta'].address}]", *patient())
    assert (code, found["problems"]) == (0, []), found
    assert {link["packet"] for link in found["links"]} == {1500}


def test_bench_over_two_hosts(ssh_trio: Cluster) -> None:
    options = ["--max", "1K", "--factor", "16", "--seconds", "0.01", "--json", "/dev/null"]
    code, out, err = ssh_trio.ronde("alpha", "-H", "beta,gamma", *options, command="bench")
    assert code == 0, err
    assert "# allreduce, 2 ranks over auto" in out
    assert "# wrong elements: 0" in out


# As the ranks of launchers


def test_by_every_rank_of_mpich(ssh_trio: Cluster) -> None:
    command = mpi_command("mpich", 4, "-hosts", "alpha,beta")
    code, found = as_ranks(ssh_trio, {"alpha": command})
    assert (code, found["problems"]) == (0, []), found
    assert [(host["name"], host["address"]) for host in found["hosts"]] == [
        ("alpha", "10.77.0.1"),
        ("beta", "10.77.0.2"),
    ]
    assert [link["state"] for link in found["links"]] == ["ok", "ok"]


@needs_torch
def test_by_every_rank_of_torchrun_with_a_firewall(ssh_trio: Cluster) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nnodes", "2", "--nproc-per-node", "2"]
    commands = {
        host: [*torchrun, "--master-addr", "alpha", "--master-port", "29511", "--node-rank", str(number)]
        for number, host in enumerate(["alpha", "beta"])
    }
    with ssh_trio.network.healed():
        ssh_trio.network.drop_new("beta")
        code, found = as_ranks(ssh_trio, commands)
    assert code != 0
    (problem,) = found["problems"]
    assert problem.startswith("alpha to beta: no answer from 10.77.0.2 (eth0)")
    assert "; the other direction works" in problem


def as_ranks(made: Cluster, commands: Mapping[str, list[str]]) -> tuple[int, dict[str, Any]]:
    """Let launchers on hosts start `ronde doctor --cluster`: the exit code of the first, and the findings."""
    words = [sys.executable, "-m", "ronde", "doctor", "--cluster", "--json"]
    with ExitStack() as stack:
        started = []
        for host, command in commands.items():
            process = stack.enter_context(
                subprocess.Popen(
                    made.hosts[host].command(*command, *words),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment(),
                    cwd=ROOT,
                )
            )
            stack.callback(process.kill)
            started.append(process)
        out, err = started[0].communicate(timeout=BOUND)
        for process in started[1:]:
            process.communicate(timeout=BOUND)
    assert out, err.decode()
    return started[0].returncode, json.loads(out)
