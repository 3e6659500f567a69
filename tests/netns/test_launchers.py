"""Programs on two hosts under other launchers than `ronde run`: by their environment, and under real ones over ssh."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.netns.cluster import Cluster
from tests.netns.network import Host, Network
from tests.transports.launchers.real import RANK, Ended, Launched, environment, mpi_command

pytestmark = pytest.mark.long

PROGRAM = (
    RANK
    + """
for meeting in range(2):
    world = ronde.init(config={"calibrate": False})
    total = ronde.allreduce(np.full(1000, world.rank + 1.0))
    place = f"{ronde.local_rank()} of {ronde.local_size()} on {ronde.cross_rank()} of {ronde.cross_size()}"
    say(f"meeting {meeting}: {world.rank} of {world.size}, {place}, sum {total[999]:g}")
    ronde.shutdown()
"""
)
SECRET = {"RONDE_SECRET": "5a" * 16}


def expected(hosts: int, each: int) -> list[str]:
    """The output of the ranks of PROGRAM."""
    size = hosts * each
    return sorted(
        f"meeting {meeting}: {rank} of {size}, {rank % each} of {each} on {rank // each} of {hosts}, sum "
        f"{size * (size + 1) // 2}"
        for meeting in range(2)
        for rank in range(size)
    )


@contextlib.contextmanager
def started(launched: Sequence[Launched]) -> Iterator[list[Ended]]:
    """The ends of all; what is left is killed."""
    with contextlib.ExitStack() as all_of_them:
        for each in launched:
            all_of_them.enter_context(each)
        yield [each.finish() for each in launched]


def check(launched: Sequence[Launched], hosts: int, each: int) -> None:
    with started(launched) as ended:
        assert [one.code for one in ended] == [0] * len(ended), ended
        said = [line for one in ended for line in one.lines if line.startswith("meeting")]
        assert sorted(said) == expected(hosts, each)


def start(host: Host, words: Sequence[str], extra: Mapping[str, str]) -> Launched:
    return Launched(host.command(*words), environment(**extra))


@pytest.fixture(scope="module")
def pair() -> Iterator[Network]:
    with Network(["alpha1", "alpha2"]) as network:
        yield network


@pytest.fixture(scope="module")
def pair6() -> Iterator[Network]:
    """Hosts that have no IPv4."""
    with Network(["alpha1", "alpha2"], ipv6=True) as network:
        yield network


def hosts_of(network: Network) -> list[Host]:
    return [network.hosts[name] for name in ("alpha1", "alpha2")]


# By the environment


def slurm(rank: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "alpha[1-2]",
        **SECRET,
    }


def by_hand(rank: int) -> dict[str, str]:
    return {"RONDE_RANK": str(rank), "RONDE_SIZE": "4", "RONDE_STORE": "tcp://alpha1:7077", **SECRET}


def master(rank: int, size: int = 4) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "alpha1", "MASTER_PORT": "29500", **SECRET}


@pytest.mark.parametrize("variables", [slurm, by_hand, master])
def test_two_hosts_with_two_ranks(pair: Network, variables: object) -> None:
    assert callable(variables)
    ranks = [start(hosts_of(pair)[rank // 2], [sys.executable, "-c", PROGRAM], variables(rank)) for rank in range(4)]
    check(ranks, 2, 2)


@pytest.mark.parametrize("variables", [slurm, by_hand, master])
def test_ipv6_alone(pair6: Network, variables: object) -> None:
    assert callable(variables)
    ranks = [start(hosts_of(pair6)[rank // 2], [sys.executable, "-c", PROGRAM], variables(rank)) for rank in range(4)]
    check(ranks, 2, 2)


def test_a_dead_interface_is_not_chosen(pair: Network) -> None:
    """All hosts have the address of a bridge that leads nowhere, as container engines make it."""
    with contextlib.ExitStack() as plugged:
        for host in hosts_of(pair):
            pair.plug(host, "bridge0", "172.17.0.1/16", connected=False)
            plugged.callback(pair.unplug, host, "bridge0")
        ranks = [start(hosts_of(pair)[rank], [sys.executable, "-c", PROGRAM], master(rank, 2)) for rank in range(2)]
        check(ranks, 2, 1)


def test_pods_of_an_indexed_job(pair: Network) -> None:
    """The name of pod 0 follows from the pod's own; the pods know no size but RONDE_SIZE."""
    one, two = hosts_of(pair)
    names = [f"train-{index}.ring.ns.svc.cluster.local" for index in range(2)]
    book = "".join(
        f"{host.address} {name} train-{index}\n"
        for index, (host, name) in enumerate(zip((one, two), names, strict=True))
    )
    with one.renamed("train-0", book), two.renamed("train-1", book):
        pods = [
            start(host, [sys.executable, "-c", PROGRAM], {"JOB_COMPLETION_INDEX": index, "RONDE_SIZE": "2"} | SECRET)
            for index, host in (("0", one), ("1", two))
        ]
        check(pods, 2, 1)


# The real launchers


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torchrun(pair: Network) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--no-python"]
    place = ["--rdzv-backend=c10d", "--rdzv-endpoint=alpha1:29511", "--rdzv-id=9"]
    nodes = [start(host, [*words, *place, sys.executable, "-c", PROGRAM], {}) for host in hosts_of(pair)]
    check(nodes, 2, 2)


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_mpiexec_over_ssh(ssh_trio: Cluster, kind: str) -> None:
    hosts = "alpha:2,beta:2"
    options = ["-hosts", hosts] if kind == "mpich" else ["--host", hosts, "-x", "PYTHONPATH"]
    command = mpi_command(kind, 4, *options)
    check([start(ssh_trio.hosts["alpha"], [*command, sys.executable, "-c", PROGRAM], {})], 2, 2)
