"""`ronde top` on jobs of several hosts that wait for one reason: a slow link, or a rank that comes late."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.collectives.launch.launcher import RONDE
from tests.command_line.top.jobs import WAITS
from tests.netns.network import Host, Network
from tests.netns.table import ROOT
from tests.netns.test_ssh import wait_until
from tests.netns.test_top import BOUND, OWN_FOLDER, look
from tests.transports.launchers import real
from tests.transports.launchers.real import Launched

pytestmark = pytest.mark.long

PAIR, TRIO = ("alpha", "beta"), ("alpha", "beta", "gamma")


@contextlib.contextmanager
def running(network: Network, case: str, folder: Path) -> Iterator[None]:
    """A job with a rank on each host, started there by hand."""
    variables = {**real.environment(), "RONDE_SECRET": secrets.token_hex(32)}
    program = ["sh", "-c", OWN_FOLDER, str(folder), sys.executable, str(WAITS), case, str(folder)]
    words = [*RONDE, "run", "--nodes", str(len(network.hosts)), "--meet", "alpha:29400", "-np", "1"]
    with contextlib.ExitStack() as stack:
        stack.callback((folder / "stop").touch)
        jobs = []
        for node, host in enumerate(network.hosts.values()):
            command = host.command("env", "-C", str(ROOT), *words, "--node-rank", str(node), *program)
            jobs.append(stack.enter_context(Launched(command, variables)))
        wait_until((folder / "ready").exists, BOUND)
        yield
        (folder / "stop").touch()
        assert [job.finish().code for job in jobs] == [0] * len(jobs)


def await_verdict(host: Host, folder: Path, expected: list[tuple[str, list[int], str]]) -> None:
    """Look at the job until a look has this verdict: in a single one the system may keep any rank from running."""
    seen: list[list[tuple[str, list[int], str]]] = []
    while expected not in seen:
        assert len(seen) < 20, seen
        seen.append(verdict(look(host, folder)))


def verdict(figures: Any) -> list[tuple[str, list[int], str]]:
    """The reasons, ranks and hosts."""
    return [(one["kind"], one["ranks"]["first"], one["host"]) for one in figures["culprits"]]


@pytest.mark.parametrize(
    ("hosts", "ranks", "named"), [(TRIO, [2], "gamma"), (PAIR, [0, 1], "alpha and beta")], ids=["trio", "pair"]
)
def test_a_host_with_a_narrow_link(hosts: Sequence[str], ranks: list[int], named: str, tmp_path: Path) -> None:
    with Network(hosts) as network:
        network.slow(hosts[-1], "20mbit", "200ms")
        with running(network, "large", tmp_path):
            for host in (network.hosts[hosts[0]], network.hosts[hosts[-1]]):
                await_verdict(host, tmp_path, [("slow link", ranks, named)])


@pytest.mark.parametrize(
    ("hosts", "ranks", "named"), [(TRIO, [2], "gamma"), (PAIR, [0, 1], "alpha and beta")], ids=["trio", "pair"]
)
def test_a_host_that_is_far_away(hosts: Sequence[str], ranks: list[int], named: str, tmp_path: Path) -> None:
    with Network(hosts, delay=0.02, far=hosts[-1:]) as network, running(network, "small", tmp_path):
        await_verdict(network.hosts["alpha"], tmp_path, [("slow link", ranks, named)])


@pytest.mark.parametrize("case", ["sleeps", "late"])
def test_a_rank_that_comes_late_is_no_slow_link(case: str, tmp_path: Path) -> None:
    with Network(TRIO) as network, running(network, case, tmp_path):
        await_verdict(network.hosts["alpha"], tmp_path, [("late", [2], "gamma")])


def test_a_rank_that_comes_late_over_a_slow_link(tmp_path: Path) -> None:
    with Network(TRIO, delay=0.0005, far=TRIO) as network, running(network, "late", tmp_path):
        await_verdict(network.hosts["beta"], tmp_path, [("late", [2], "gamma")])
