"""`ronde run -H` with agents behind a fake ssh, on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from collectives.launch.hosts.connection import CommandConnection, Decoder, encode, fields_of
from collectives.launch.hosts.host import Facts, Failure, Here, Listener, Start
from collectives.launch.hosts.local_host import LocalHost
from collectives.launch.hosts.remote_host import RemoteHost
from collectives.launch.processes import Guardian
from tests.collectives.launch.fake_ssh import install
from tests.collectives.launch.launcher import BOUND, RONDE, environment, ronde
from tests.security.certificates import Authority
from transports.errors import RendezvousError, RondeError

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes are watched by pidfds, as Linux has")

ROOT = Path(__file__).resolve().parents[4]


def run(
    folder: Path, script: str, *options: str, given: bytes = b"", before: str = "", extra: dict[str, str] | None = None
) -> tuple[int, list[str], str]:
    """Run a shell script on every rank: exit code, sorted lines of stdout, stderr."""
    variables = install(folder, before) | {"PYTHONPATH": str(ROOT)} | (extra or {})
    done = ronde("run", *options, "sh", "-c", script, given=given, extra=variables)
    return done.returncode, sorted(done.stdout.decode().splitlines()), done.stderr.decode()


@pytest.mark.processes
def test_ranks_of_two_hosts(tmp_path: Path) -> None:
    """They are one machine under two names, whose ranks have local ranks of their own: they choose devices by them."""
    script = "echo $RONDE_RANK $RONDE_SIZE $RONDE_LOCAL_RANK $RONDE_LOCAL_SIZE $OF_LOGIN $PWD; echo problem >&2"
    code, out, err = run(tmp_path, script, "-H", "h1:2,h2")
    assert code == 0, err
    assert out == [
        f"[rank 0, h1] 0 3 0 3 h1 {os.getcwd()}",
        f"[rank 1, h1] 1 3 1 3 h1 {os.getcwd()}",
        f"[rank 2, h2] 2 3 2 3 h2 {os.getcwd()}",
    ]
    assert sorted(err.splitlines()) == [
        "[rank 0, h1] problem",
        "[rank 1, h1] problem",
        "[rank 2, h2] problem",
    ]


@pytest.mark.processes
def test_ranks_here_are_started_without_ssh(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "echo ${OF_LOGIN:-here}", "-H", "localhost:1,h2:1")
    assert (code, out) == (0, ["[rank 0, localhost] here", "[rank 1, h2] h2"]), err
    assert not (tmp_path / "localhost.ssh").exists()


@pytest.mark.processes
def test_a_host_file_and_fewer_ranks_than_slots(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("h1 slots=2\nh2 slots=2\nh3 slots=2\n")
    code, out, err = run(tmp_path, "echo $OF_LOGIN", "--hostfile", str(tmp_path / "hosts"), "-np", "3", "--no-prefix")
    assert (code, out) == (0, ["h1", "h1", "h2"]), err
    assert not (tmp_path / "h3.ssh").exists()


@pytest.mark.processes
def test_environment_on_another_host(tmp_path: Path) -> None:
    value = 'it\'s "quoted" $HOME `x` !y\nand a line'
    extra = {"BASH_FUNC_f%%": "() {  true\n}", "LANG_OF": "x", "ODD": value, "RONDE_STALL": "7"}
    options = ["-H", "h1", "--no-prefix", "-x", "ODD", "-x", "GIVEN=a=b c", "--set", "timeout=11"]
    options += ["-x", "with.dots=1.5", "-x", f"with space={value}", "-x", "BASH_FUNC_g%%=() {  true\n}"]
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)} | extra
    done = ronde("run", *options, sys.executable, "-c", script, extra=variables)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert (found["ODD"], found["GIVEN"]) == (value, "a=b c")
    assert (found["RONDE_TIMEOUT"], found["RONDE_STALL"]) == ("11", "7")
    assert (found["with.dots"], found["with space"], found["BASH_FUNC_g%%"]) == ("1.5", value, "() {  true\n}")
    assert (found["HOME"], found["OF_LOGIN"]) == ("/", "h1")
    assert not {"LANG_OF", "BASH_FUNC_f%%"} & set(found)


@pytest.mark.processes
def test_only_rank_0_reads_the_input_wherever_it_is(tmp_path: Path) -> None:
    text = b"".join(b"line %d\n" % n for n in range(100_000))
    code, out, err = run(tmp_path, "wc -c", "-H", "h1:1,h2:1", "--no-prefix", given=text)
    assert (code, out) == (0, sorted(["0", str(len(text))])), err


@pytest.mark.processes
def test_an_input_that_nobody_reads_holds_nothing_up(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "exec <&-; exit 0", "-H", "h1:1", given=b"x" * 1_000_000)
    assert code == 0, err


@pytest.mark.processes
def test_large_output_arrives_completely_and_in_order(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 20000 ]; do echo line $i of a rank that has much to say; i=$((i+1)); done"
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    done = ronde("run", "-H", "h1:1,h2:1", "sh", "-c", script, extra=variables)
    lines = done.stdout.decode().splitlines()
    for rank, host in ((0, "h1"), (1, "h2")):
        mine = [line for line in lines if line.startswith(f"[rank {rank}, {host}] ")]
        assert mine == [f"[rank {rank}, {host}] line {n} of a rank that has much to say" for n in range(20000)]


@pytest.mark.processes
def test_output_files(tmp_path: Path) -> None:
    script = r"printf 'out %s\nno end' $RONDE_RANK; echo err >&2"
    code, _, err = run(tmp_path, script, "-H", "localhost:1,h2:1", "--output-filename", str(tmp_path / "logs"))
    assert code == 0, err
    for rank in (0, 1):
        assert (tmp_path / f"logs/rank.{rank}/stdout").read_text() == f"out {rank}\nno end"
        assert (tmp_path / f"logs/rank.{rank}/stderr").read_text() == "err\n"


@pytest.mark.processes
@pytest.mark.parametrize("hosts", ["h1:2,h2:2", "localhost:1,h2:2"])
def test_a_world_over_agents(tmp_path: Path, hosts: str) -> None:
    script = (
        "import collectives as ronde, numpy as np; w = ronde.init();"
        "print(int(w.allreduce(np.full(9, w.rank))[0]), w.size)"
    )
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    done = ronde("run", "-H", hosts, "--no-prefix", sys.executable, "-c", script, extra=variables)
    size = 4 if hosts.startswith("h1") else 3
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == [f"{sum(range(size))} {size}"] * size


@pytest.mark.processes
def test_a_world_over_agents_with_tls(tmp_path: Path) -> None:
    script = "import collectives as ronde; w = ronde.init(); print(int(w.allreduce(w.rank + 1.0)))"
    certificates = Authority(tmp_path).end().variables
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)} | certificates
    options = ["-H", "h1,h2:2", "--transport", "tcp", "--no-prefix"]
    done = ronde("run", *options, sys.executable, "-c", script, extra=variables)
    assert (done.returncode, done.stdout) == (0, b"6\n6\n6\n"), done.stderr.decode()


@pytest.mark.processes
def test_several_ranks_of_another_host_ask_a_proxy_of_the_store(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "echo $OF_LOGIN $RONDE_STORE", "-H", "h1:2,h2:3,h3", "--no-prefix")
    assert code == 0, err
    stores = [line.split() for line in out]
    assert [host for host, _ in stores] == ["h1"] * 2 + ["h2"] * 3 + ["h3"]
    (store,) = {url for host, url in stores if host == "h1"}
    (proxy,) = {url for host, url in stores if host == "h2"}
    assert proxy != store
    assert stores[-1] == ["h3", store], "a single rank asks the store itself"


@pytest.mark.processes
def test_ranks_behind_proxies_lose_one_and_go_on(tmp_path: Path) -> None:
    script = """
import os, signal
import collectives as ronde
world = ronde.init()
assert world.allreduce(1) == 6
if world.rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        world.allreduce(1)
except ronde.PeerLost as error:
    assert error.peer == 3, error
world = world.shrink()
print(world.allreduce(1))
"""
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    options = ["-H", "h1:2,h2:4", "--no-prefix", "--keep-going"]
    done = ronde("run", *options, sys.executable, "-c", script, extra=variables)
    assert (done.returncode, done.stdout) == (0, b"5\n" * 5), done.stderr.decode()


# How a job ends


@pytest.mark.processes
def test_a_failing_rank_ends_those_of_other_hosts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    script = f"""
        if [ $RONDE_RANK = 2 ]; then read x < {tmp_path}/begun; echo the reason >&2; exit 3; fi
        [ $RONDE_RANK = 0 ] && echo begun > {tmp_path}/begun; exec sleep 1000
    """
    code, _, err = run(tmp_path, script, "-H", "h1:2,h2:1")
    assert code == 3
    assert re.search(r"ronde: rank 2 failed: exited with 3 \(host h2, pid \d+\)\n.*\n +the reason\n", err)
    assert re.search(r"ronde: rank 0 afterwards: ended by the launcher \(SIGTERM\), pid \d+ on h1\n", err)


@pytest.mark.processes
def test_the_store_on_another_host_knows_the_culprit(tmp_path: Path) -> None:
    script = (
        "import collectives as ronde, os, signal; w = ronde.init(); w.barrier()\n"
        "if w.rank == 1: raise KeyError('the reason')\n"
        "w.barrier()"
    )
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    done = ronde("run", "-H", "h1:1,h2:1", sys.executable, "-c", script, extra=variables)
    assert done.returncode == 1
    assert "ronde: rank 1 failed: exited with 1 (host h2" in done.stderr.decode()


@pytest.mark.processes
def test_keep_going(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "[ $RONDE_RANK = 0 ] && exit 5; echo done", "-H", "h1,h2", "--keep-going")
    assert (code, out) == (0, ["[rank 1, h2] done"])
    assert re.search(r"ronde: rank 0 failed: exited with 5, pid \d+", err)


@pytest.mark.processes
def test_time_limit(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "exec sleep 1000", "-H", "h1,h2", "--time-limit", "0.5")
    assert code == 124
    assert "ronde: timed out after 0.5 s\n" in err
    assert re.search(r"ronde: rank 1: ended by the launcher \(SIGTERM\), pid \d+ on h2", err)


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    script = f"[ $RONDE_RANK = 1 ] && kill -{number.value} $$; exec sleep 1000"
    code, _, err = run(tmp_path, script, "-H", "h1,h2")
    assert code == 128 + number
    assert f"ronde: rank 1 failed: killed by {number.name} (host h2" in err


@pytest.mark.processes
def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    done = ronde("run", "-H", "localhost,h2", "no-such-program", extra=variables)
    assert done.returncode == 127
    assert b"host localhost: cannot start 'no-such-program': No such file" in done.stderr


# A host that is lost, seen by the launcher alone


class Wire(CommandConnection):
    """A connection to an agent that the test plays."""

    def __init__(self) -> None:
        self.launcher, self.agent = socket.socketpair()

    def open(self) -> tuple[int, int]:
        return os.dup(self.launcher.fileno()), os.dup(self.launcher.fileno())

    @property
    def preamble(self) -> bytes:
        return b""

    @property
    def ended(self) -> bool:
        return False

    def close(self) -> None:
        self.launcher.close()
        self.agent.close()


class Deaf(Listener):
    """Needs to hear nothing: the host tells its failure."""


@pytest.mark.parametrize("told_to_start", [False, True])
def test_a_host_is_lost_from_the_moment_at_which_it_may_have_ranks(told_to_start: bool) -> None:
    """Ranks may run before the launcher has heard of it."""
    wire = Wire()
    with selectors.DefaultSelector() as selector, contextlib.closing(wire):
        host = RemoteHost("h1", wire, selector, Deaf(), limit=10.0, grace=1.0)
        with contextlib.closing(host):
            host.open()
            _, marker, *_ = Decoder().feed(wire.agent.recv(1000))[0]
            if told_to_start:
                host.start(Start(["true"], [1], 2, "tcp://h:1", "job", ("h", 1), b""))
            wire.agent.sendall(marker + encode(["ending", "its agent was ended by SIGINT"]))
            for key, _ in selector.select(BOUND):
                key.data()
            assert host.failure == Failure("its agent was ended by SIGINT", lost=told_to_start)


@pytest.mark.processes
def test_l1_program_that_is_missing_on_another_host(tmp_path: Path) -> None:
    """The rank that has started here is ended. The program is a descriptor that the other host does not have."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    variables = environment(install(tmp_path, "exec 9<&-") | {"PYTHONPATH": str(ROOT)})
    command = [*RONDE, "run", "-H", "localhost:1,h2:1", "/proc/self/fd/9"]
    shell = ["sh", "-c", f'exec 9<{program}; exec "$0" "$@"', *command]
    done = subprocess.run(shell, env=variables, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (done.returncode in (126, 127), "Traceback" in done.stderr) == (True, False), done.stderr
    assert "host h2: cannot start '/proc/self/fd/9'" in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("hosts", ["localhost:1,h2:1", "h1:1,h2:1", "localhost:1,127.0.0.2:1", "h1"])
def test_l1_program_that_is_missing_on_all_hosts(tmp_path: Path, hosts: str) -> None:
    done = ronde("run", "-H", hosts, "./nosuch", extra=install(tmp_path) | {"PYTHONPATH": str(ROOT)})
    text = done.stderr.decode()
    assert (done.returncode, "Traceback" in text, "./nosuch" in text) == (127, False, True), text


@pytest.mark.processes
def test_a_folder_that_is_missing_on_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    variables = install(tmp_path, f"rmdir {folder}") | {"PYTHONPATH": str(ROOT)}
    done = ronde("run", "-H", "h1", "true", extra=variables)
    text = done.stderr.decode()
    assert (done.returncode, "Traceback" in text, str(folder) in text) == (127, False, True), text
    assert len(text.splitlines()) == 1


@pytest.mark.processes
@pytest.mark.parametrize("more", [[], ["--min-np", "2"]], ids=["plain", "elastic"])
def test_l2_two_names_of_this_host(more: list[str]) -> None:
    done = ronde(
        "run",
        *more,
        "--no-prefix",
        "-H",
        "localhost:1,127.0.0.1:1",
        "sh",
        "-c",
        "echo $RONDE_RANK of $RONDE_LOCAL_SIZE",
    )
    assert (done.returncode, sorted(done.stdout.split(b"\n"))) == (0, [b"", b"0 of 2", b"1 of 2"]), done.stderr


def test_l10_facts_of_another_version() -> None:
    """Fields that this version does not know, and some that are missing."""
    assert Facts.told({**asdict(Facts.own("h1")), "new": [1]}) == Facts.own("h1")
    assert Facts.told({}).versions != Facts.own().versions
    with pytest.raises(RondeError, match="another version"):
        fields_of(Start, {"command": ["x"]})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("hosts", "address"), [("h1:1,localhost:1", "127.0.0.5"), ("localhost:1,h1:1", "127.0.0.1")], ids=["there", "here"]
)
def test_l13_the_address_for_torch_is_where_rank_0_runs(tmp_path: Path, hosts: str, address: str) -> None:
    variables = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    ssh = tmp_path / "ssh"
    ssh.write_text(ssh.read_text().replace("127.0.0.1 22", "127.0.0.5 22"))
    options = ["--min-np", "2", "--network-interface", "lo", "--start-timeout", "100", "-H", hosts]
    done = ronde("run", *options, "--no-prefix", "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT", extra=variables)
    first, second, *_ = done.stdout.decode().splitlines()
    assert (done.returncode, first.split()[0]) == (0, address), done.stderr
    assert first == second
    assert int(first.split()[1]) > 0


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [1, 3], ids=["one rank", "several ranks, which get a proxy"])
def test_no_rank_starts_where_the_store_cannot_be_reached(ranks: int) -> None:
    with selectors.DefaultSelector() as selector, contextlib.closing(Guardian()) as guardian, socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nothing listens there
        guardian.start()
        host = LocalHost("h1", Here(selector, guardian, Deaf(), os.environ))
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        start = Start(["true"], range(ranks), ranks + 1, url, "job", ("h", 1), bytes(32))
        with contextlib.closing(host), pytest.raises(RendezvousError):
            host.start(start)
        assert host.gone
        assert not host.running
