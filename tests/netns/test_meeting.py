"""`ronde run --meet` on two hosts, as in pods: nobody can log in anywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectives.launch.launcher import RONDE, environment
from tests.netns.network import Network

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BOUND = 90.0
SUM = """
import collectives as ronde, numpy as np, socket
world = ronde.init()
print(world.rank, socket.gethostname(), world.allreduce(np.ones(9))[0], flush=True)
"""
ENDLESS = """
import collectives as ronde, numpy as np
world = ronde.init(); world.barrier(); print('ready', flush=True)
while True: world.allreduce(np.ones(9))
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(["alpha", "beta"]) as made:
        yield made


def launch(network: Network, host: str, node: int, *arguments: str, np: int = 1) -> subprocess.Popen[bytes]:
    """`ronde run` on a host, as node 0 or 1 of two that meet at alpha."""
    where = ["--nodes", "2", "--node-rank", str(node), "--meet", "alpha:29400", "-np", str(np), "--no-prefix"]
    return subprocess.Popen(
        network.hosts[host].command(*RONDE, "run", *where, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment({"PYTHONPATH": str(ROOT), "RONDE_SECRET": "5e" * 32}),
    )


def test_a_world_over_nodes(network: Network) -> None:
    with (
        launch(network, "beta", 1, sys.executable, "-c", SUM, np=2) as second,  # it may come first
        launch(network, "alpha", 0, sys.executable, "-c", SUM) as first,
    ):
        outputs = [process.communicate(timeout=BOUND) for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert sorted(outputs[0][0].split(b"\n")) == [b"", b"0 alpha 3.0"]
    assert sorted(outputs[1][0].split(b"\n")) == [b"", b"1 beta 3.0", b"2 beta 3.0"]


def test_a_node_is_cut_off(network: Network) -> None:
    options = ["--host-timeout", "4", "--grace", "1", "--set", "heartbeat=2", sys.executable, "-c", ENDLESS]
    with (
        network.healed(),
        launch(network, "alpha", 0, *options) as first,
        launch(network, "beta", 1, *options) as second,
    ):
        try:
            for process in (first, second):
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n", process.stderr and process.stderr.read()
            network.drop("beta")
            _, err = first.communicate(timeout=BOUND)
            _, other = second.communicate(timeout=BOUND)  # still cut off
        finally:
            for process in (first, second):
                process.kill()
    assert (first.returncode, second.returncode) == (255, 255)
    assert b"ronde: host beta was lost: no sign of life for 4 s\n" in err
    assert b"ronde: node 0 was lost: no sign of life for 4 s\n" in other
