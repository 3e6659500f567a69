"""The probes of `ronde doctor` between hosts: each fault is found and named, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from frontends.command_line.doctor import report as cluster_report
from frontends.command_line.doctor.check import Findings, check
from frontends.command_line.doctor.facts import facts_here
from frontends.command_line.doctor.probe import Probe
from frontends.command_line.doctor.probes import ProbeHere
from tests.netns.network import CABLE, Host, Network

pytestmark = pytest.mark.long

NAMES = ("alpha", "beta", "gamma")
RATE, QUEUE = "200mbit", "400ms"
"""So the wire and not the processors limit the transfers."""


class ProbeOn(ProbeHere):
    """A probe on a host, in a thread that is in its network."""

    def __init__(self, host: Host, probe: Probe) -> None:
        super().__init__(host.name, probe)
        self._host = host

    def ask(self, *question: object, seconds: float) -> Any:
        return self._host.within(lambda: super(ProbeOn, self).ask(*question, seconds=seconds))


@pytest.fixture(scope="module")
def trio() -> Iterator[Network]:
    with Network(NAMES) as network:
        yield network


def facts_of(host: Host, versions: dict[str, str]) -> Callable[[], dict[str, Any]]:
    def facts() -> dict[str, Any]:
        found = facts_here() | {"reached": host.address, "hostname": host.name}
        return found | {"versions": found["versions"] | versions}

    return facts


def examined(
    network: Network,
    *,
    versions: dict[str, dict[str, str]] | None = None,
    ahead: dict[str, float] | None = None,
    interface: str = "",
    rates: bool = False,
) -> Findings:
    """Check all hosts. `versions` and `ahead`: what some hosts claim to have, and by how much their clocks differ."""
    with ExitStack() as stack:
        probes = []
        for name, host in network.hosts.items():
            offset = (ahead or {}).get(name, 0.0)
            facts = facts_of(host, (versions or {}).get(name, {}))
            probes.append(ProbeOn(host, Probe(facts, lambda offset=offset: time.time() + offset)))
            stack.callback(probes[-1].close)
        pool = stack.enter_context(ThreadPoolExecutor(len(probes)))
        return check(probes, pool, interface=interface, start_seconds=5.0, rates=rates)


def problems(findings: Findings) -> list[str]:
    print(cluster_report.render(findings))
    return cluster_report.problems(findings)


def test_a_sound_network(trio: Network) -> None:
    with trio.healed():
        for name in NAMES:
            trio.slow(name, RATE, QUEUE)
        findings = examined(trio, rates=True)
    assert problems(findings) == []
    assert [(host.address, host.interface) for host in findings.hosts] == [
        (host.address, CABLE) for host in trio.hosts.values()
    ]
    assert len(findings.links) == 6
    for link in findings.links:
        assert link.packet == 1500
        assert 0 < (link.latency or 0.0) < 1.0
        assert 20e6 < (link.rate or 0.0) < 260e6


def test_a_firewall_for_one_direction(trio: Network) -> None:
    begun = time.monotonic()
    with trio.healed():
        trio.drop_new("beta")
        findings = examined(trio)
    (problem,) = problems(findings)
    assert problem.startswith("host beta: no connection to it works, those from it do: no answer from 10.77.0.2 (eth0)")
    assert "a firewall drops the connections" in problem
    assert time.monotonic() - begun < 15


def test_a_host_that_is_cut_off(trio: Network) -> None:
    with trio.healed():
        trio.drop("gamma")
        findings = examined(trio)
    (problem,) = problems(findings)
    assert problem.startswith("host gamma: nothing passes to it or from it: ")


def test_a_host_whose_interface_is_down(trio: Network) -> None:
    with trio.healed():
        trio.take_down("gamma")
        findings = examined(trio)
    (problem,) = problems(findings)
    assert problem.startswith("host gamma: interface='' (automatic): no address of this machine leads to ")


def test_large_packets_that_are_lost(trio: Network) -> None:
    begun = time.monotonic()
    with trio.healed():
        trio.drop_large("alpha", 1450 + 14)
        findings = examined(trio)
    (problem,) = problems(findings)
    assert problem.startswith("host alpha: packets of 1450 bytes do not arrive at 10.77.0.")
    assert "those of 1420 do" in problem
    assert "MTU on the way is smaller" in problem
    assert time.monotonic() - begun < 15


def test_interfaces_with_different_mtus_work(trio: Network) -> None:
    with trio.healed():
        trio.narrow("beta", 1400)
        findings = examined(trio)
    assert problems(findings) == []
    assert cluster_report.warnings(findings) == [
        "the interfaces have different MTUs: alpha 1500, beta 1400, gamma 1500"
    ]
    packets = {(link.source, link.target): link.packet for link in findings.links}
    assert {packet for pair, packet in packets.items() if "beta" in pair} == {1400}
    assert packets["alpha", "gamma"] == 1500


def test_lost_packets_are_no_sign_of_a_smaller_mtu(trio: Network) -> None:
    with trio.healed():
        trio.drop_some("beta", 0.01)
        findings = examined(trio)
    assert problems(findings) == []
    assert {link.packet for link in findings.links} == {1500}


def test_a_slow_link(trio: Network) -> None:
    with trio.healed():
        for name, rate in zip(NAMES, (RATE, RATE, "5mbit"), strict=True):
            trio.slow(name, rate, QUEUE)
        findings = examined(trio, rates=True)
    (problem,) = problems(findings)
    assert problem.startswith("host gamma: slow, ")


def test_versions_and_clocks(trio: Network) -> None:
    found = problems(examined(trio, versions={"beta": {"numpy": "1.0"}}, ahead={"gamma": -7.5}))
    assert len(found) == 2
    assert found[0].startswith("host beta: another numpy than the others (")
    assert found[0].endswith("beta has 1.0")
    assert found[1].startswith("host gamma: its clock is 7.5 s behind the others'")


def test_an_address_that_several_hosts_have(trio: Network) -> None:
    for host in trio.hosts.values():
        trio.plug(host, "trap0", "172.17.0.1/16", connected=False)
    found = problems(examined(trio, interface="trap0"))
    assert found
    assert all("172.17.0.1 leads to " in problem or "refused" in problem for problem in found), found
