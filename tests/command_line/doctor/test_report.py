"""The meaning of the findings about a cluster: problems, warnings and the table; and which links are tried when."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import permutations
from typing import Any

import pytest

from frontends.command_line.doctor.check import (
    Findings,
    HostFinding,
    LinkFinding,
    needed_links,
    ring_links,
    turns,
    typical,
)
from frontends.command_line.doctor.report import problems, render, warnings

VERSIONS = {"python": "3.12.1", "ronde": "0.1.0", "numpy": "2.1.0", "torch": "2.9"}


def host(name: str, *, mtu: int = 1500, ahead: float = 0.0, **versions: str | None) -> HostFinding:
    """A host that answers. `versions`: those that differ; None for a package that it lacks."""
    have = {package: one for package, one in (VERSIONS | versions).items() if one is not None}
    facts: dict[str, Any] = {"versions": have, "mtu": {"eth0": mtu}, "addresses": {"eth0": [f"10.0.0.{name[-1]}"]}}
    return HostFinding(name, "", facts, f"10.0.0.{name[-1]}", 4000, "eth0", (ahead, 0.001))


def link(source: str, target: str, state: str = "ok", **more: Any) -> LinkFinding:
    sound: dict[str, Any] = (
        {"latency": 1e-4, "clock": [0.0, 1e-4], "packet": 1500, "rate": 1e9} if state == "ok" else {}
    )
    return LinkFinding(source, target, state, **(sound | more))


def cluster(count: int, bad: Collection[tuple[str, str]] = (), state: str = "silent", **more: Any) -> Findings:
    """Hosts h1, h2, ... with links between all of them, of which some are bad."""
    names = [f"h{number}" for number in range(1, count + 1)]
    links = [link(*pair, **({"state": state} | more if pair in bad else {})) for pair in permutations(names, 2)]
    return Findings([host(name) for name in names], links)


def test_nothing_is_wrong() -> None:
    findings = cluster(3)
    assert problems(findings) == warnings(findings) == []
    assert render(findings).splitlines() == [
        "hosts",
        "  host  address   interface  MTU   clock    versions",
        "  h1    10.0.0.1  eth0       1500  +0.0 ms  see below",
        "  h2    10.0.0.2  eth0       1500  +0.0 ms  see below",
        "  h3    10.0.0.3  eth0       1500  +0.0 ms  see below",
        "",
        "versions on all of them",
        "  python  3.12.1",
        "  ronde   0.1.0",
        "  numpy   2.1.0",
        "  torch   2.9",
        "",
        "links",
        "  from  to  latency  rate        packets  result",
        *(f"  {a}    {b}  0.10 ms  1.0 Gbit/s  1500 B   ok" for a, b in permutations(["h1", "h2", "h3"], 2)),
        "",
        "hosts h1, h2, h3: all right",
    ]


def test_one_host() -> None:
    findings = cluster(1)
    assert problems(findings) == []
    assert render(findings).endswith("\nhost h1: all right\n")


def test_hosts_that_do_not_answer() -> None:
    findings = Findings([HostFinding("h1", "ssh: no route"), HostFinding("h2", "ssh: refused")], [])
    assert problems(findings) == ["host h1: ssh: no route", "host h2: ssh: refused"]
    assert render(findings).splitlines()[2:4] == [
        "  h1    ?        ?          ?    ?      does not answer",
        "  h2    ?        ?          ?    ?      does not answer",
    ]


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([host("h1"), host("h2", numpy="1.9"), host("h3")], "host h2: another numpy than the others (2.1.0): h2 has"),
        ([host("h1"), host("h2", numpy="1.9")], "numpy differs: h1 has 2.1.0, h2 has 1.9"),
        ([host("h1"), host("h2"), host("h3", torch=None)], "host h3: another torch than the others (2.9): h3 has no"),
        (
            [host("h1", jax="1"), host("h2"), host("h3")],
            "host h1: another jax than the others (none): h1 has 1",
        ),
        (
            [host("h1"), host("h2", ronde="0.2"), host("h3"), host("h4", ronde="0.3"), host("h5")],
            "hosts h2, h4: another ronde than the others (0.1.0): h2 has 0.2, h4 has 0.3",
        ),
        ([host("h1"), host("h2", ahead=3.0), host("h3")], "host h2: its clock is 3.0 s ahead of the others'"),
        ([host("h1"), host("h2", ahead=-2.5)], "host h2: its clock is 2.5 s behind the others'"),
    ],
)  # fmt: skip
def test_hosts_that_differ(hosts: Sequence[HostFinding], text: str) -> None:
    (problem,) = problems(Findings(list(hosts), []))
    assert problem.startswith(text)


def test_clocks_that_may_be_alike_are_no_problem() -> None:
    unsure = host("h2")
    unsure.ahead = (1.4, 0.5)
    assert problems(Findings([host("h1"), unsure], [])) == []


def test_versions_that_differ_are_in_the_table() -> None:
    text = render(Findings([host("h1"), host("h2", numpy="1.9")], []))
    assert "eth0       1500  +0.0 ms  numpy 2.1.0\n" in text
    assert "eth0       1500  +0.0 ms  numpy 1.9\n" in text


@pytest.mark.parametrize("count", [3, 4])
def test_a_host_is_blamed_for_all_its_links(count: int) -> None:
    names = [f"h{number}" for number in range(1, count + 1)]
    to = {(name, "h2") for name in names if name != "h2"}
    (problem,) = problems(cluster(count, to))
    assert problem.startswith(
        "host h2: no connection to it works, those from it do: no answer from 10.0.0.2 (eth0) port"
    )
    back = {(b, a) for a, b in to}
    (problem,) = problems(cluster(count, back, "refused"))
    assert problem.startswith("host h2: no connection from it works, those to it do: refused")
    (problem,) = problems(cluster(count, to | back, "unreachable"))
    assert problem.startswith("host h2: nothing passes to it or from it: unreachable")


def test_a_pair_is_blamed_where_no_host_is() -> None:
    first, second = problems(cluster(3, {("h1", "h2"), ("h2", "h1")}))
    assert first.startswith("h1 to h2: no answer from 10.0.0.2 (eth0) port 4000")
    assert second.startswith("h2 to h1: no answer from 10.0.0.1")
    (problem,) = problems(cluster(2, {("h1", "h2")}))
    assert "; the other direction works: a firewall drops" in problem


def test_packets_that_are_lost() -> None:
    to_and_from = {pair for pair in permutations(["h1", "h2", "h3"], 2) if "h3" in pair}
    (problem,) = problems(cluster(3, to_and_from, "cut", packet=1420, lost=1450))
    assert problem.startswith(
        "host h3: packets of 1450 bytes do not arrive at 10.0.0.3 (eth0), those of 1420 do: the MTU"
    )


def test_slow_links() -> None:
    slow = {pair for pair in permutations(["h1", "h2", "h3"], 2) if "h1" in pair}
    (problem,) = problems(cluster(3, slow, "ok", rate=1e8))
    assert problem.startswith("host h1: slow, 100.0 Mbit/s to 10.0.0.2 (eth0), where other links have 1.0 Gbit/s")
    assert problems(cluster(3, slow, "ok", rate=3e8)) == []


def test_different_mtus_are_a_warning() -> None:
    findings = Findings([host("h1", mtu=9000), host("h2")], [])
    assert problems(findings) == []
    assert warnings(findings) == ["the interfaces have different MTUs: h1 9000, h2 1500"]


# Which links are tried


def test_every_pair_of_few_hosts() -> None:
    assert set(needed_links([0, 2, 3])) == set(permutations([0, 2, 3], 2))
    assert needed_links([4]) == needed_links([]) == []


@pytest.mark.parametrize("count", [6, 7, 50])
def test_the_ring_of_many_hosts_and_the_way_to_the_first(count: int) -> None:
    numbers = list(range(10, 10 + count))
    ring = {(a, b) for a, b in permutations(numbers, 2) if (b - a) % count in (1, count - 1)}
    assert set(ring_links(numbers)) == ring
    assert len(ring_links(numbers)) == 2 * count
    assert set(needed_links(numbers)) == ring | {(number, 10) for number in numbers[1:]}


@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 50])
def test_in_a_turn_no_host_has_two_links(count: int) -> None:
    links = ring_links(range(count))
    found = turns(links)
    assert sorted(pair for turn in found for pair in turn) == sorted(links)
    for turn in found:
        ends = [end for pair in turn for end in pair]
        assert len(ends) == len(set(ends))
    assert len(found) <= (20 if count <= 5 else 8)


def test_the_typical_rate() -> None:
    assert typical([]) == 0.0
    assert typical([5.0]) == 5.0
    assert typical([1.0, 1.0, 9.0, 1.0, 1.0, 9.0]) == 9.0  # one slow host of three
