"""`ronde run -H` over real ssh, between hosts with networks and names of their own."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.netns import cluster
from tests.netns.cluster import Cluster

pytestmark = pytest.mark.long

SLEEP = "98765"
"""An argument of sleep(1) by which ranks are found."""
SUM = """
import collectives as ronde, numpy as np, socket
world = ronde.init()
total = world.allreduce(np.arange(1000.0) * (world.rank + 1))
print(world.rank, socket.gethostname(), total[999] / 999, flush=True)
"""


def wait_until(happened: Callable[[], bool], within: float) -> float:
    """Wait for something that no event tells of, on other hosts; how long it took."""
    begun = time.monotonic()
    while not happened():
        assert time.monotonic() - begun < within, f"it did not happen within {within:g} s"
        time.sleep(0.05)
    return time.monotonic() - begun


def gone(made: Cluster, within: float) -> None:
    """No rank, no agent and no session of sshd is left on any host."""
    words = (SLEEP, "collectives.launch", "@notty")
    wait_until(lambda: not any(made.processes(word) for word in words), within)


@pytest.mark.parametrize(
    ("hosts", "where"),
    [
        ("alpha:2,beta:2", ["alpha", "alpha", "beta", "beta"]),
        ("beta:1,gamma:1", ["beta", "gamma"]),
        ("beta,alpha,root@gamma", ["beta", "alpha", "gamma"]),
    ],
)
def test_a_world_over_hosts(ssh_trio: Cluster, hosts: str, where: list[str]) -> None:
    code, out, err = ssh_trio.ronde("alpha", "-H", hosts, "--no-prefix", sys.executable, "-c", SUM)
    assert code == 0, err
    total = float(sum(range(1, len(where) + 1)))
    assert sorted(out.splitlines()) == [f"{rank} {host} {total}" for rank, host in enumerate(where)]
    gone(ssh_trio, 5.0)


def test_the_example_has_the_result_of_one_process(ssh_trio: Cluster) -> None:
    code, out, err = ssh_trio.ronde("alpha", "-H", "beta:2,gamma:1", "examples/train_digits.py")
    assert code == 0, err
    assert "[rank 0, beta] parameters bit-identical on 3 ranks: yes" in out
    assert "(ok)" in out


def test_ipv6_alone(ssh_duo6: Cluster) -> None:
    hosts = f"alpha:1,[{ssh_duo6.hosts['beta'].address}]:1"
    code, out, err = ssh_duo6.ronde("alpha", "-H", hosts, "--no-prefix", sys.executable, "-c", SUM)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["0 alpha 3.0", "1 beta 3.0"]


def test_a_dead_interface_is_not_chosen(ssh_trio: Cluster) -> None:
    with contextlib.ExitStack() as plugged:
        for host in ssh_trio.hosts.values():
            ssh_trio.network.plug(host, "trap0", "172.17.0.1/16", connected=False)
            plugged.callback(ssh_trio.network.unplug, host, "trap0")
        for options in ([], ["--network-interface", "eth0"]):
            code, _, err = ssh_trio.ronde("alpha", "-H", "alpha,beta", *options, sys.executable, "-c", SUM)
            assert code == 0, err


def test_a_store_that_hosts_do_not_reach_is_an_error(ssh_trio: Cluster) -> None:
    code, _, err = ssh_trio.ronde("alpha", "-H", "alpha,beta", "--network-interface", "lo", sys.executable, "-c", SUM)
    assert code == 1
    assert err.startswith("ronde run: host beta: ")
    assert "tcp://127.0.0.1:" in err


def login_file() -> str:
    """The file that bash reads at a login by ssh. Skips the test where there is none, as it could not be replaced."""
    user = pwd.getpwuid(os.geteuid())
    path = Path(user.pw_dir) / ".bashrc"
    if not path.exists() or Path(user.pw_shell).name != "bash":
        pytest.skip(f"needs a user with bash and {path}")
    return str(path)


def test_login_files_that_talk(ssh_trio: Cluster) -> None:
    noise = "echo welcome; printf '\\000\\001\\002binary'; echo to stderr >&2\n"
    with ssh_trio.changed("beta", login_file(), noise):
        code, out, err = ssh_trio.ronde("alpha", "-H", "alpha,beta", "--no-prefix", "hostname")
    assert (code, sorted(out.splitlines())) == (0, ["alpha", "beta"]), err


@pytest.mark.parametrize("shell", ["csh", "dash", "fish"])
def test_other_login_shells(ssh_trio: Cluster, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    user = pwd.getpwuid(os.geteuid())
    users = Path("/etc/passwd").read_text()
    changed = re.sub(rf"(?m)^({user.pw_name}:.*):[^:]*$", rf"\1:{path}", users)
    with ssh_trio.changed("beta", "/etc/passwd", changed):
        code, out, err = ssh_trio.ronde("alpha", "-H", "alpha,beta", "--no-prefix", "sh", "-c", "echo $SHELL")
    assert (code, path in out.splitlines()) == (0, True), err


def test_variables_that_shells_would_change(ssh_trio: Cluster) -> None:
    odd = {
        "with.dots": "1.5",
        "with space": "a  b",
        "QUOTES": """it's "quoted" `x` $HOME !y \\n""",
        "LINES": "one\ntwo\n",
        "BASH_FUNC_f%%": "() {  true\n}",
    }
    options = [word for name, value in odd.items() for word in ("-x", f"{name}={value}")]
    program = f"import os; print({{name: os.environ[name] for name in {list(odd)}}})"
    code, out, err = ssh_trio.ronde("alpha", "-H", "beta", "--no-prefix", *options, sys.executable, "-c", program)
    assert (code, out) == (0, f"{odd}\n"), err


# Hosts that cannot be reached


def refused(made: Cluster, *arguments: str) -> str:
    """The error of a job that cannot start, which must come in time."""
    with cluster.in_time():
        code, _, err = made.ronde("alpha", *arguments, "true")
    assert code == 1
    return err


def test_an_unknown_host_key(ssh_trio: Cluster) -> None:
    ssh_trio.know("beta")
    try:
        err = refused(ssh_trio, "-H", "beta,gamma")
    finally:
        ssh_trio.know(*ssh_trio.hosts)
    assert re.match(r"ronde run: host gamma: .*Host key verification failed", err)


def test_a_host_that_wants_a_password(ssh_trio: Cluster, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=30)
    with ssh_trio.changed("beta", str(ssh_trio.folder / "user_key.pub"), (tmp_path / "key.pub").read_text()):
        err = refused(ssh_trio, "-H", "alpha,beta")
    assert re.match(r"ronde run: host beta: .*Permission denied \(publickey,password", err)


def test_a_name_that_does_not_resolve(ssh_trio: Cluster) -> None:
    assert re.match(
        r"ronde run: host nosuch: ssh: Could not resolve hostname nosuch", refused(ssh_trio, "-H", "nosuch")
    )


def test_a_port_that_refuses(ssh_trio: Cluster) -> None:
    err = refused(ssh_trio, "-H", "beta", "-p", "4444")
    assert re.match(r"ronde run: host beta: ssh: connect to host beta port 4444: Connection refused", err)


def test_a_host_that_is_off(ssh_trio: Cluster) -> None:
    with ssh_trio.network.healed():
        ssh_trio.network.drop("beta")
        err = refused(ssh_trio, "-H", "beta")
    assert re.match(r"ronde run: host beta: ssh: connect to host beta port 22: ", err)


# Something dies


def begun(process: subprocess.Popen[bytes], count: int) -> None:
    """Wait until `count` ranks have said that they run."""
    assert process.stdout is not None
    for _ in range(count):
        line = process.stdout.readline()
        assert b"ready" in line, (process.stderr.read() if process.stderr else b"").decode()


SLEEPING = ("sh", "-c", f"echo ready; sleep {SLEEP} & wait")


def test_ctrl_c(ssh_trio: Cluster) -> None:
    with ssh_trio.running("alpha", "-H", "alpha:1,beta:2", *SLEEPING) as process:
        begun(process, 3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=cluster.BOUND)
        assert (process.returncode, err) == (130, b"ronde: ended by SIGINT\n")
    gone(ssh_trio, 5.0)


def test_nothing_is_left_after_the_launcher_was_killed(ssh_trio: Cluster) -> None:
    with ssh_trio.running("alpha", "-H", "alpha:1,beta:1,gamma:1", *SLEEPING) as process:
        begun(process, 3)
        process.kill()
        gone(ssh_trio, 20.0)
        wait_until(lambda: not ssh_trio.processes("ssh -T"), 20.0)


@pytest.mark.parametrize("part", ["\0collectives.launch.agent", "sshd: root"])
def test_an_agent_or_its_sshd_is_killed(ssh_trio: Cluster, part: str) -> None:
    with ssh_trio.running("alpha", "-H", "alpha:1,beta:1", *SLEEPING) as process:
        begun(process, 2)
        for pid in ssh_trio.processes(part):
            os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=cluster.BOUND)
    assert process.returncode == 255
    assert b"ronde: host beta was lost: its agent has ended (ssh exited with " in err
    gone(ssh_trio, 20.0)


def test_a_host_is_cut_off(ssh_trio: Cluster) -> None:
    program = (
        "import collectives as ronde, numpy as np\n"
        "world = ronde.init(); world.barrier(); print('ready', flush=True)\n"
        f"while True: world.allreduce(np.ones(1000))  # {SLEEP}"
    )
    options = ["--host-timeout", "6", "--grace", "1", "--set", "heartbeat=2"]
    with ssh_trio.running("alpha", "-H", "alpha:1,beta:1,gamma:1", *options, sys.executable, "-c", program) as process:
        begun(process, 3)
        with ssh_trio.network.healed():
            ssh_trio.network.drop("beta")
            _, err = process.communicate(timeout=cluster.BOUND)
            gone(ssh_trio, 30.0)  # also on the host that is still cut off
    assert process.returncode == 255
    assert b"ronde: host beta was lost: no sign of life for 6 s\n" in err


# Secrets


def test_the_secret_is_on_no_command_line_and_in_no_log(ssh_trio: Cluster) -> None:
    script = f"echo secret $RONDE_SECRET ready; sleep {SLEEP} & wait"
    with ssh_trio.running("alpha", "-H", "alpha:1,beta:1", "sh", "-c", script) as process:
        assert process.stdout is not None
        secret = process.stdout.readline().split()[-2].decode()
        assert re.fullmatch("[0-9a-f]{64}", secret)
        assert ssh_trio.processes(SLEEP)
        assert not ssh_trio.processes(secret)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=cluster.BOUND)
        assert secret.encode() not in err
    for host in ("alpha", "beta"):
        assert secret not in ssh_trio.log(host).read_text(errors="replace")
    assert "Starting session: command" in ssh_trio.log("beta").read_text(errors="replace")
