"""Topology files, and the networks that they describe."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from collectives.algorithms import algorithms
from collectives.proof.network import Far, Hosts, Switch, Topology, parse_rate, parse_time
from collectives.proof.simulator import simulate_on
from transports.errors import ConfigError


def read(folder: Path, text: str) -> Topology:
    path = folder / "c.toml"
    path.write_text(text)
    return Topology.read(path)


def test_quantities() -> None:
    assert parse_rate("25Gbit") == 3.125e9
    assert parse_rate(" 1.5 GB ") == 1.5e9
    assert parse_time("20us") == pytest.approx(20e-6)
    assert parse_time("0s") == 0


def test_a_file(tmp_path: Path) -> None:
    topology = read(
        tmp_path,
        '[[hosts]]\ncount = 2\nranks = 2\nnic = "10Gbit"\n[[hosts]]\nranks = 3\nnics = 2\nslow = 2\nlate = "1ms"\n'
        '[far]\nlatency = "30us"\nefficiency = 0.5\n[switch]\nhosts = 2\nuplink = "40Gbit"\n',
    )
    network = topology.network(9)
    assert network.hosts == (0, 0, 1, 1, 2, 2, 2, 3, 3)
    assert network.nic == (1.6e-9, 1.6e-9, 0.32e-9, 0.32e-9)
    assert network.flow == (1.6e-9, 1.6e-9, 0.64e-9, 0.64e-9)
    assert network.slow == (1, 1, 2, 2)
    assert network.switches == (0, 0, 1, 1)
    assert network.route(0, 2) == (("out", 0), ("in", 2), ("up", 0), ("down", 1))
    assert network.model.inter_beta == 1.6e-9
    assert network.model.inter_betas == ()
    faster = dataclasses.replace(network, nic=(1.6e-9, 1.6e-9, 0.32e-9, 0.32e-9), switches=()).model
    assert faster.inter_betas == pytest.approx((1.6e-9, 1.6e-9, 1.6e-9 / 3, 1.6e-9 / 3))
    assert network.turn == 0
    assert topology.change(["nic=20Gbit", "far.latency=40us"]).network(2).costs.inter_alpha == pytest.approx(40e-6)
    assert read(tmp_path, "").network(3).turn == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[[hosts]]\nnic = 25\n", ("nic=25", "a rate such as '25Gbit'")),
        ('[[hosts]]\nnic = "0Gbit"\n', ("nic='0Gbit'", "greater than zero")),
        ("[[hosts]]\nranks = 0\n", ("ranks=0", "1 to")),
        ("[[hosts]]\nranks = true\n", ("ranks=True", "a whole number")),
        ("[[hosts]]\nrank = 1\n", ("'rank'", "did you mean 'ranks'", "its keys are")),
        ('[far]\nlatency = "5"\n', ("latency='5'", "a time such as")),
        ('[far]\nlatency = "5us"\n', ("overhead", "at most latency")),
        ("[swich]\n", ("'swich'", "did you mean 'switch'")),
        ("hosts = 3\n", ("hosts=3", "[[hosts]]")),
        ("far = 3\n", ("far=3", "[far]")),
        ("[[hosts]]\n[[hosts]]\n", ("count is missing",)),
        ("[[hosts]\n", ("cannot be read",)),
    ],
)
def test_errors_name_the_key_the_value_and_what_is_allowed(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert all(part in str(raised.value) for part in ("c.toml", *parts)), str(raised.value)


def test_other_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Topology.read(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=r"ranks=5: .*1 to 4"):
        Topology((Hosts(count=2, ranks=2),)).network(5)
    for change in ("nic", "nowhere.nic=1Gbit"):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            Topology().change([change])
    with pytest.raises(ConfigError, match="nic='fast'"):
        Topology().change(["nic=fast"])


def test_an_uplink_that_all_hosts_of_a_switch_need_sets_the_pace() -> None:
    wide = Topology((Hosts(nic=1e9),), switch=Switch(4, 4e9)).network(16)
    narrow = Topology((Hosts(nic=1e9),), switch=Switch(4, 1e9, 3e-6)).network(16)
    assert wide.model.inter_beta == pytest.approx(1e-9)
    assert narrow.model.inter_beta == pytest.approx(4e-9)
    assert narrow.model.inter_betas == ()
    assert narrow.model.inter_alpha == pytest.approx(53e-6)


def test_messages_of_a_host_share_its_nic() -> None:
    """Two hosts of two ranks, each with its peer on the other: twice the time; with two NICs none is lost."""
    for nics, units in ((1, 3), (2, 2)):
        network = Topology((Hosts(ranks=2, nic=1e9, nics=nics),), Far(0.0, 0.0)).network(4)
        inside = network.costs.alpha + 1e6 * network.costs.beta
        took = simulate_on(network, algorithms("allreduce")["recursive_doubling"], 1_000_000).seconds
        assert took == pytest.approx((units - 1) * 1e-3 + inside + 2e6 * network.costs.gamma, rel=1e-9)


def test_max_min_sharing_is_fair_to_what_remains() -> None:
    """The ranks of a host send to a fast and to a slow NIC: what the slow one cannot take goes to the fast one."""
    kinds = (Hosts(1, 2, 1e9), Hosts(1, 1, 1e9), Hosts(1, 1, 0.25e9))
    network = Topology(kinds, Far(0.0, 0.0)).network(4)
    run = simulate_on(network, algorithms("allreduce")["recursive_doubling"], 1_000_000)
    crossing = [entry for entry in run.activity if entry.rank in (0, 1) and entry.peer in (2, 3)]
    durations = {entry.rank: entry.end - entry.begin for entry in crossing}
    assert durations[0] == pytest.approx(1e6 / 0.75e9, rel=1e-9)
    assert durations[1] == pytest.approx(4e-3, rel=1e-9)


def test_noise_is_the_same_for_the_same_seed() -> None:
    quiet, noisy, again = (
        Topology().change(changes).network(8) for changes in ([], ["noise.mean=10us"], ["noise.mean=10us"])
    )
    ring = algorithms("allreduce")["ring"]
    times = [simulate_on(network, ring, 80_000).seconds for network in (quiet, noisy, again)]
    assert times[0] < times[1] == times[2]
