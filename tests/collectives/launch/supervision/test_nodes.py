"""`ronde run --nodes N --node-rank I --meet HOST:PORT`: nodes that are started by hand, here on one machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from collectives.launch.supervision.nodes import Meeting, StorePipes, parse_address
from tests.collectives.launch.launcher import BOUND, Running, Watch, ronde, running
from tests.security.certificates import Authority
from tests.transports.groups import free_port
from transports.errors import ConfigError
from transports.rendezvous import MemoryStore

SECRET = "5e" * 32
SLEEP = "echo ready $$; exec sleep 1000"


@contextlib.contextmanager
def nodes(
    count: int, script: str, *options: str, np: int = 1, extra: Mapping[str, str] | None = None
) -> Iterator[list[Running]]:
    """Launchers of all nodes, each with `np` ranks of a shell script."""
    meet = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                running(
                    "run", "--nodes", str(count), "--node-rank", str(node), "--meet", meet, "-np", str(np), *options,
                    "sh", "-c", script, extra={"RONDE_SECRET": SECRET} | dict(extra or {}),
                )
            )
            for node in range(count)
        ]  # fmt: skip


# In this process


@pytest.mark.parametrize(
    ("text", "address"),
    [("h1:29400", ("h1", 29400)), ("a-b.c:1", ("a-b.c", 1)), ("[fd00::1]:80", ("fd00::1", 80))],
)
def test_address(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["h1", "h1:", "h1:0", "h1:70000", "fd00::1:80", "tcp://h1:80", ":80"])
def test_bad_address(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(text)


def test_no_repr_shows_the_secret() -> None:
    assert "5e5e" not in repr(Meeting(2, 0, "h", 1, 0.0, bytes.fromhex(SECRET), None))
    assert Meeting(2, 0, "fd00::1", 1, 0.0, b"", None).url == "tcp://[fd00::1]:1"


def test_bytes_travel_through_a_store_both_ways_and_end() -> None:
    store = MemoryStore()
    a, b = StorePipes(store.prefixed("x"), "up", "down"), StorePipes(store.prefixed("x"), "down", "up")
    (a_read, a_write), (b_read, b_write) = a.open(), b.open()
    data = os.urandom(300_000)
    with open(a_write, "wb") as writer, open(b_read, "rb") as reader:
        writer.write(data[:10])
        writer.flush()
        assert reader.read(10) == data[:10]
        writer.write(data[10:])
        writer.close()
        assert reader.read() == data[10:]
    with open(b_write, "wb") as writer, open(a_read, "rb") as reader:
        writer.close()
        assert reader.read() == b""
    a.close()
    b.close()
    assert a.ended
    assert b.ended


# With processes


@pytest.mark.processes
def test_nodes_make_one_world_and_print_their_own_output() -> None:
    with nodes(3, "echo $RONDE_RANK $RONDE_SIZE $RONDE_LOCAL_RANK $RONDE_LOCAL_SIZE; echo e >&2", np=2) as launchers:
        for node, launcher in enumerate(launchers):
            code, out, err = launcher.finish()
            assert code == 0, err.decode()
            words = [line.split("] ")[1] for line in sorted(out.decode().splitlines())]
            assert words == [f"{2 * node} 6 0 2", f"{2 * node + 1} 6 1 2"]
            assert len(err.splitlines()) == 2


@pytest.mark.processes
def test_a_world_over_nodes() -> None:
    script = (
        "import collectives as ronde, numpy as np; w = ronde.init();"
        "print(int(w.allreduce(np.full(9, w.rank + 1))[0]), w.size)"
    )
    with nodes(2, f'exec {sys.executable} -c "{script}"', "--no-prefix", np=2) as launchers:
        for launcher in launchers:
            code, out, err = launcher.finish()
            assert (code, out) == (0, b"10 4\n10 4\n"), err.decode()


@pytest.mark.processes
def test_a_world_over_nodes_with_tls(tmp_path: Path) -> None:
    script = "import collectives as ronde; w = ronde.init(); print(int(w.allreduce(w.rank + 1.0)))"
    options = ["--transport", "tcp", "--no-prefix"]
    certificates = Authority(tmp_path).end().variables
    with nodes(2, f'exec {sys.executable} -c "{script}"', *options, extra=certificates) as launchers:
        for launcher in launchers:
            code, out, err = launcher.finish()
            assert (code, out) == (0, b"3\n"), err.decode()


@pytest.mark.processes
def test_a_failing_rank_ends_all_nodes_and_node_0_reports() -> None:
    script = "if [ $RONDE_RANK = 1 ]; then echo the reason >&2; exit 7; fi; exec sleep 1000"
    with nodes(2, script) as (first, second):
        code, _, err = first.finish()
        assert code == 7
        assert re.search(r"ronde: rank 1 failed: exited with 7 .*\n.*\n +the reason\n", err.decode())
        code, _, err = second.finish()
        assert code == 7
        assert err.decode().endswith("the reason\nronde: the job ended with exit code 7; node 0 tells why\n")


@pytest.mark.processes
def test_a_program_that_one_node_does_not_have(tmp_path: Path) -> None:
    script = tmp_path / "there"
    with nodes(2, f"exec {script}") as launchers:
        assert [launcher.finish()[0] for launcher in launchers] == [127, 127]


@pytest.mark.processes
def test_a_program_that_no_node_has_or_may_run() -> None:
    with nodes(2, "", "--", "/") as launchers:
        assert [launcher.finish()[0] for launcher in launchers] == [126, 126]


@pytest.mark.processes
@pytest.mark.parametrize(("victim", "number"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGINT)])
def test_a_node_that_dies_ends_the_others(victim: int, number: signal.Signals) -> None:
    with nodes(2, SLEEP, "--host-timeout", "3", "--grace", "1") as launchers:
        pids = [int(launcher.read_words("ready", 1)[0][0]) for launcher in launchers]
        with Watch(pids) as watch:
            assert watch.none_ended()
            begun = time.monotonic()
            launchers[victim].process.send_signal(number)
            code, _, err = launchers[1 - victim].finish()
            assert watch.all_ended(within=BOUND)
            assert time.monotonic() - begun < BOUND / 5
            assert launchers[victim].finish()[0] == (130 if number == signal.SIGINT else -number)
    assert code == 255, err.decode()
    lost = "node 0" if victim == 0 else f"host {re.escape(socket.gethostname())}"
    assert re.search(rf"^ronde( run)?: {lost} was lost: ", err.decode(), re.MULTILINE), err.decode()


@pytest.mark.processes
def test_ctrl_c_on_node_0_ends_all() -> None:
    with nodes(2, SLEEP) as launchers:
        pids = [int(launcher.read_words("ready", 1)[0][0]) for launcher in launchers]
        with Watch(pids) as watch:
            launchers[0].process.send_signal(signal.SIGINT)
            assert [launcher.finish()[0] for launcher in launchers] == [130, 130]
            assert watch.all_ended()


# Nodes that do not meet


def alone(*options: str, extra: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and stderr of one node."""
    done = ronde("run", *options, "--meet", f"127.0.0.1:{free_port()}", "true", extra=extra or {"RONDE_SECRET": SECRET})
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


@pytest.mark.processes
def test_a_node_that_does_not_come_is_named() -> None:
    code, err = alone("--nodes", "3", "--node-rank", "0", "--start-timeout", "0.5")
    assert code == 1
    assert "ronde run: --meet: node 1, 2 of 3 did not come to tcp://127.0.0.1:" in err


@pytest.mark.processes
def test_no_node_0() -> None:
    code, err = alone("--nodes", "3", "--node-rank", "1", "--start-timeout", "0.5")
    assert code == 1
    assert re.match(r"ronde run: no connection to the store at tcp://127.0.0.1:\d+: .*refused", err)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "extra", "code", "text"),
    [
        (["--nodes", "2", "--node-rank", "0"], {"X": ""}, 2, "--meet: the nodes need a secret"),
        (["--nodes", "2", "--node-rank", "0"], {"RONDE_SECRET": "abc"}, 2, "at least 32 hexadecimal digits"),
        (["--nodes", "2", "--node-rank", "2"], None, 2, "--node-rank, 0 to 1"),
        (["--nodes", "2"], None, 2, "needs --meet HOST:PORT and --node-rank"),
        (["--nodes", "2", "--node-rank", "0", "-H", "h1"], None, 2, "without -H, --hostfile"),
    ],
)
def test_bad_options(options: list[str], extra: dict[str, str] | None, code: int, text: str) -> None:
    found, err = alone(*options, extra=extra)
    assert (found, text in err) == (code, True), err


@pytest.mark.processes
def test_another_secret() -> None:
    port = free_port()
    options = ["--meet", f"127.0.0.1:{port}", "--start-timeout", "5"]
    with running("run", "--nodes", "2", "--node-rank", "0", *options, "true", extra={"RONDE_SECRET": SECRET}) as first:
        done = ronde("run", "--nodes", "2", "--node-rank", "1", *options, "true", extra={"RONDE_SECRET": "ab" * 32})
        assert done.returncode == 1
        assert b"does not know the job's secret" in done.stderr
        assert first.finish()[0] == 1


@pytest.mark.processes
def test_the_same_node_twice() -> None:
    with nodes(3, SLEEP, "--start-timeout", "5") as launchers:
        arguments = launchers[1].process.args
        assert isinstance(arguments, list)
        options = [str(word) for word in arguments[3:] if word != "--node-rank"]
        with running(*options[:3], "--node-rank", *options[3:], extra={"RONDE_SECRET": SECRET}) as twin:
            ends = [twin.process, launchers[1].process]
            while all(process.poll() is None for process in ends):
                time.sleep(0.02)
            process = next(process for process in ends if process.poll() is not None)
            assert process.stderr is not None
            assert b"--node-rank 1: another process has come as this node" in process.stderr.read()
