"""Hosts for the tests of this folder, kept between them; without them, the reason why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.netns import cluster
from tests.netns.cases import FAR, NEAR, PAIR, TRIO
from tests.netns.cluster import Cluster
from tests.netns.network import obstacle
from tests.netns.site import Site


@pytest.fixture(scope="package", autouse=True)
def hosts_are_possible() -> None:
    """Skips all tests where they are not."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="package")
def pair() -> Iterator[Site]:
    """Two hosts with two ranks each."""
    with Site(PAIR) as site:
        yield site


@pytest.fixture(scope="package")
def trio() -> Iterator[Site]:
    """Three hosts with one rank each."""
    with Site(TRIO) as site:
        yield site


@pytest.fixture(scope="package")
def duo6() -> Iterator[Site]:
    """Two hosts with one rank each that have no IPv4."""
    with Site((NEAR, FAR), ipv6=True) as site:
        yield site


@pytest.fixture(scope="package")
def ssh_trio() -> Iterator[Cluster]:
    """Three hosts with sshd."""
    with ssh_hosts("alpha", "beta", "gamma") as made:
        yield made


@pytest.fixture(scope="package")
def ssh_duo6() -> Iterator[Cluster]:
    """Two hosts with sshd that have no IPv4."""
    with ssh_hosts("alpha", "beta", ipv6=True) as made:
        yield made


def ssh_hosts(*names: str, ipv6: bool = False) -> Cluster:
    """Hosts with sshd. Skips the test where there can be none."""
    reason = cluster.obstacle()
    if reason is not None:
        pytest.skip(reason)
    return Cluster(names, ipv6=ipv6)
