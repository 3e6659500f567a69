"""The choice among several interfaces of a host; and hosts that do not find each other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.netns import jobs
from tests.netns.cases import FAR, NEAR
from tests.netns.jobs import Story
from tests.netns.network import CABLE
from tests.netns.site import Site, check_sound

TRAP = "trap0"
"""An interface that leads nowhere and has the same address on all hosts, as bridges of containers do."""
COUNT, STEPS = 1000, 6


@pytest.fixture(scope="package")
def trapped(pair: Site) -> Site:
    for host in pair.network.hosts.values():
        pair.network.plug(host, TRAP, "172.17.0.1/16", connected=False)
    return pair


def compute(site: Site, transport: str, options: Mapping[str, Any] | None = None) -> list[Story]:
    """Some allreduces; `options` are of the TCP transport."""
    config = {"transport": transport, "tcp": dict(options or {}), "connect_timeout": 10.0}
    with site.running(jobs.stream, COUNT, STEPS, config=config) as run:
        return run.results()


def test_ipv6_alone_will_do(duo6: Site) -> None:
    check_sound(compute(duo6, "auto"))


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_the_interface_that_joins_the_hosts_is_found(trapped: Site, transport: str) -> None:
    check_sound(compute(trapped, transport))


def test_it_can_be_named(trapped: Site) -> None:
    check_sound(compute(trapped, "auto", {"interface": CABLE}))


def test_names_of_hosts_do_not_matter(trapped: Site) -> None:
    """All hosts have one name, which each of them takes for loopback."""
    with trapped.renamed("node", "127.0.1.1 node"):
        check_sound(compute(trapped, "auto"))


def test_names_need_not_be_known(trapped: Site) -> None:
    with trapped.renamed("unheard-of", ""):
        check_sound(compute(trapped, "auto"))


def test_a_wrong_interface_is_named_by_the_error(trapped: Site) -> None:
    for story in compute(trapped, "auto", {"interface": TRAP}):
        failure = story.failure
        assert failure is not None
        assert "connect to rank" in failure.message
        assert "interface" in failure.message


def test_an_interface_that_is_not_there_is_an_error_that_lists_those_that_are(trapped: Site) -> None:
    failures = [story.failure for story in compute(trapped, "auto", {"interface": "eth7"})]
    assert any(failure is not None and failure.kind == "ConfigError" for failure in failures)
    for failure in failures:
        assert failure is not None
        if failure.kind == "RendezvousError":  # the first rank, which has the store, was quicker and has ended
            continue
        assert failure.kind == "ConfigError" or (failure.kind == "ConnectError" and "gave up" in failure.message)
        assert "'eth7'" in failure.message
        assert CABLE in failure.message
        assert TRAP in failure.message


def test_hosts_that_never_meet_name_the_missing_ranks(pair: Site) -> None:
    """A host is cut off before `init`."""
    begun = time.monotonic()
    pair.network.drop(FAR)
    with pair.running(jobs.stream, COUNT, STEPS, config={"transport": "auto", "connect_timeout": 1.5}) as run:
        stories = run.results()
    for story in stories:
        failure = story.failure
        assert failure is not None
        if story.rank in pair.ranks_on(NEAR):
            assert failure.kind == "DeadlineExceeded"
            assert "ranks 2, 3 of 4 did not come within" in failure.message
        else:
            assert failure.kind == "RendezvousError"
            assert "no connection to the store at tcp://" in failure.message
        assert failure.at - begun < 8
