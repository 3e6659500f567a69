"""`ronde run -H` over real ssh, between hosts with networks and names of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.netns import cluster
from tests.netns.cluster import Cluster

pytestmark = pytest.mark.long

NOTICE = 15.0
"""Seconds within which an error about a host must come, on a machine that is not loaded."""
LOADED = 3.0
"""Factor for a machine that has other things to do."""
SLEEP = "98765"
"""An argument of sleep(1) by which ranks are found."""
SUM = """
import collectives as ronde, numpy as np, socket
world = ronde.init()
total = world.allreduce(np.arange(1000.0) * (world.rank + 1))
print(world.rank, socket.gethostname(), total[999] / 999, flush=True)
"""


@pytest.fixture(scope="module")
def trio() -> Iterator[Cluster]:
    """Three hosts with sshd."""
    reason = cluster.obstacle()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(["alpha", "beta", "gamma"]) as made:
        yield made


def wait_until(happened: Callable[[], bool], within: float) -> float:
    """Wait for something that no event tells of, on other hosts; how long it took."""
    begun = time.monotonic()
    while not happened():
        assert time.monotonic() - begun < within, f"it did not happen within {within:g} s"
        time.sleep(0.05)
    return time.monotonic() - begun


def gone(made: Cluster, within: float) -> None:
    """No rank and no agent is left on any host."""
    wait_until(lambda: not made.processes(SLEEP) and not made.processes("collectives.launch"), within)


@pytest.mark.parametrize(
    ("hosts", "where"),
    [
        ("alpha:2,beta:2", ["alpha", "alpha", "beta", "beta"]),
        ("beta:1,gamma:1", ["beta", "gamma"]),
        ("beta,alpha,root@gamma", ["beta", "alpha", "gamma"]),
    ],
)
def test_a_world_over_hosts(trio: Cluster, hosts: str, where: list[str]) -> None:
    code, out, err = trio.ronde("alpha", "-H", hosts, "--no-prefix", sys.executable, "-c", SUM)
    assert code == 0, err
    total = float(sum(range(1, len(where) + 1)))
    assert sorted(out.splitlines()) == [f"{rank} {host} {total}" for rank, host in enumerate(where)]
    gone(trio, 5.0)


def test_the_example_has_the_result_of_one_process(trio: Cluster) -> None:
    code, out, err = trio.ronde("alpha", "-H", "beta:2,gamma:1", "examples/train_digits.py")
    assert code == 0, err
    assert "[rank 0, beta] parameters bit-identical on 3 ranks: yes" in out
    assert "(ok)" in out


def test_ipv6_alone() -> None:
    reason = cluster.obstacle()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(["alpha", "beta"], ipv6=True) as made:
        hosts = f"alpha:1,[{made.hosts['beta'].address}]:1"
        code, out, err = made.ronde("alpha", "-H", hosts, "--no-prefix", sys.executable, "-c", SUM)
        assert code == 0, err
        assert sorted(out.splitlines()) == ["0 alpha 3.0", "1 beta 3.0"]


def test_a_dead_interface_is_not_chosen(trio: Cluster) -> None:
    for host in trio.hosts.values():
        trio.network.plug(host, "trap0", "172.17.0.1/16", connected=False)
    for options in ([], ["--network-interface", "eth0"]):
        code, _, err = trio.ronde("alpha", "-H", "alpha,beta", *options, sys.executable, "-c", SUM)
        assert code == 0, err


def test_a_store_that_hosts_do_not_reach_is_an_error(trio: Cluster) -> None:
    code, _, err = trio.ronde("alpha", "-H", "alpha,beta", "--network-interface", "lo", sys.executable, "-c", SUM)
    assert code == 1
    assert err.startswith("ronde run: host beta: ")
    assert "tcp://127.0.0.1:" in err


def test_login_files_that_talk(trio: Cluster) -> None:
    noise = "echo welcome; printf '\\000\\001\\002binary'; echo to stderr >&2\n"
    with trio.changed("beta", "/root/.bashrc", noise):
        code, out, err = trio.ronde("alpha", "-H", "alpha,beta", "--no-prefix", "hostname")
    assert (code, sorted(out.splitlines())) == (0, ["alpha", "beta"]), err


# Hosts that cannot be reached


def refused(made: Cluster, *arguments: str) -> str:
    """The error of a job that cannot start, which must come in time."""
    begun = time.monotonic()
    code, _, err = made.ronde("alpha", *arguments, "true")
    assert time.monotonic() - begun < NOTICE * (LOADED if os.getloadavg()[0] > 4 else 1.0)
    assert code == 1
    return err


def test_an_unknown_host_key(trio: Cluster) -> None:
    trio.know("beta")
    try:
        err = refused(trio, "-H", "beta,gamma")
    finally:
        trio.know(*trio.hosts)
    assert re.match(r"ronde run: host gamma: .*Host key verification failed", err)


def test_a_host_that_wants_a_password(trio: Cluster, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=30)
    with trio.changed("beta", str(trio.folder / "user_key.pub"), (tmp_path / "key.pub").read_text()):
        err = refused(trio, "-H", "alpha,beta")
    assert re.match(r"ronde run: host beta: .*Permission denied", err)


def test_a_name_that_does_not_resolve(trio: Cluster) -> None:
    assert re.match(r"ronde run: host nosuch: ssh: Could not resolve hostname nosuch", refused(trio, "-H", "nosuch"))


def test_a_port_that_refuses(trio: Cluster) -> None:
    err = refused(trio, "-H", "beta", "-p", "4444")
    assert re.match(r"ronde run: host beta: ssh: connect to host beta port 4444: Connection refused", err)


def test_a_host_that_is_off(trio: Cluster) -> None:
    trio.network.drop("beta")
    try:
        err = refused(trio, "-H", "beta")
    finally:
        trio.network.heal()
    assert re.match(r"ronde run: host beta: ssh: connect to host beta port 22: ", err)


# Something dies


def begun(process: subprocess.Popen[bytes], count: int) -> None:
    """Wait until `count` ranks have said that they run."""
    assert process.stdout is not None
    for _ in range(count):
        line = process.stdout.readline()
        assert b"ready" in line, (process.stderr.read() if process.stderr else b"").decode()


SLEEPING = ("sh", "-c", f"echo ready; sleep {SLEEP} & wait")


def test_ctrl_c(trio: Cluster) -> None:
    with trio.running("alpha", "-H", "alpha:1,beta:2", *SLEEPING) as process:
        begun(process, 3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=cluster.BOUND)
        assert (process.returncode, err) == (130, b"ronde: ended by SIGINT\n")
    gone(trio, 5.0)


def test_nothing_is_left_after_the_launcher_was_killed(trio: Cluster) -> None:
    with trio.running("alpha", "-H", "alpha:1,beta:1,gamma:1", *SLEEPING) as process:
        begun(process, 3)
        process.kill()
        gone(trio, 20.0)
        wait_until(lambda: not trio.processes("ssh -T"), 20.0)


@pytest.mark.parametrize("part", ["-m\0collectives.launch.agent", "sshd: root"])
def test_an_agent_or_its_sshd_is_killed(trio: Cluster, part: str) -> None:
    with trio.running("alpha", "-H", "alpha:1,beta:1", *SLEEPING) as process:
        begun(process, 2)
        for pid in trio.processes(part):
            os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=cluster.BOUND)
    assert process.returncode == 255
    assert b"ronde: host beta was lost: its agent has ended (ssh exited with " in err
    gone(trio, 20.0)


def test_a_host_is_cut_off(trio: Cluster) -> None:
    program = (
        "import collectives as ronde, numpy as np\n"
        "world = ronde.init(); world.barrier(); print('ready', flush=True)\n"
        f"while True: world.allreduce(np.ones(1000))  # {SLEEP}"
    )
    options = ["--host-timeout", "6", "--grace", "1", "--set", "heartbeat=2"]
    with trio.running("alpha", "-H", "alpha:1,beta:1,gamma:1", *options, sys.executable, "-c", program) as process:
        begun(process, 3)
        trio.network.drop("beta")
        try:
            _, err = process.communicate(timeout=cluster.BOUND)
            gone(trio, 30.0)  # also on the host that is still cut off
        finally:
            trio.network.heal()
    assert process.returncode == 255
    assert b"ronde: host beta was lost: no sign of life for 6 s\n" in err


# Secrets


def test_the_secret_is_on_no_command_line(trio: Cluster) -> None:
    script = f"echo secret $RONDE_SECRET ready; sleep {SLEEP} & wait"
    with trio.running("alpha", "-H", "alpha:1,beta:1", "sh", "-c", script) as process:
        assert process.stdout is not None
        secret = process.stdout.readline().split()[-2].decode()
        assert re.fullmatch("[0-9a-f]{64}", secret)
        assert trio.processes(SLEEP)
        assert not trio.processes(secret)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=cluster.BOUND)
        assert secret.encode() not in err
