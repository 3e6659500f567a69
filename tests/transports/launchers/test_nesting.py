"""Launchers inside launchers: the innermost says who a process is, and copies of a launcher are an error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from tests.collectives.launch.launcher import RONDE
from tests.transports.launchers import nested
from tests.transports.launchers.real import ROOT, environment
from transports.errors import ConfigError
from transports.launchers import check_started_once, check_torch_is_told, find, nesting, without_launchers

RONDE_RANK = {"RONDE_RANK": "0", "RONDE_SIZE": "1", "RONDE_STORE": "tcp://h:1", "RONDE_JOB": "j", "RONDE_SECRET": ""}
OURS_FOR_TORCH = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "h",
    "MASTER_PORT": "2",
    "TORCHELASTIC_RUN_ID": "r",
    "GROUP_WORLD_SIZE": "1",
}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "2"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "n"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"}


def family_of(
    monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str], above: Sequence[tuple[str, Mapping[str, str]]]
) -> str:
    """The launcher that a process with these variables finds, below ancestors with names and variables."""
    processes = [nesting.Process(100 + number, name, variables) for number, (name, variables) in enumerate(above)]
    monkeypatch.setattr(nesting, "ancestors", lambda: iter(processes))
    launch = find(env)
    assert launch is not None
    return launch.family


@pytest.mark.parametrize(
    ("inner", "outer", "family"),
    [
        (TORCHRUN, RONDE_RANK | OURS_FOR_TORCH, "torchrun"),
        (OPENMPI, RONDE_RANK | OURS_FOR_TORCH, "openmpi"),
        (BY_HAND, RONDE_RANK | OURS_FOR_TORCH, "torchrun"),
        (OPENMPI, {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, "openmpi"),
        (SLURM, {"PMI_RANK": "0", "PMI_SIZE": "1"}, "slurm"),
        (MPICH, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, "mpich"),
        ({**RONDE_RANK, "RONDE_SIZE": "2", "RONDE_RANK": "1"}, TORCHRUN, "ronde"),
        (RONDE_RANK | OURS_FOR_TORCH, {"RONDE_RANK": "0", "RONDE_SIZE": "1"}, "ronde"),  # left in a shell
        (RONDE_RANK | OURS_FOR_TORCH, {**RONDE_RANK, "RONDE_JOB": "i"}, "ronde"),
    ],
)
def test_l4_innermost_by_theancestors(
    monkeypatch: pytest.MonkeyPatch, inner: dict[str, str], outer: dict[str, str], family: str
) -> None:
    """A shell, the inner launcher, which has the variables of the outer one, and that."""
    above = [("sh", outer | inner), ("inner", outer), ("outer", {})]
    assert family_of(monkeypatch, outer | inner, above) == family


@pytest.mark.parametrize(
    ("daemon", "inner", "outer", "family"),
    [
        ("slurmstepd", SLURM, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, "slurm"),
        ("hydra_pmi_proxy", MPICH, RONDE_RANK, "mpich"),
        ("prted", OPENMPI, {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, "openmpi"),
    ],
)
def test_l4_innermost_by_the_daemon_that_hands_on_all_variables(
    monkeypatch: pytest.MonkeyPatch, daemon: str, inner: dict[str, str], outer: dict[str, str], family: str
) -> None:
    assert family_of(monkeypatch, outer | inner, [(daemon, {}), ("init", {})]) == family


def test_l4_a_script_that_sets_the_address_for_torch_is_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    env = RONDE_RANK | OURS_FOR_TORCH
    assert family_of(monkeypatch, {**env, "MASTER_ADDR": "127.0.0.1"}, [("sh", env), ("ronde", {})]) == "ronde"


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        (TORCHRUN, {**RONDE_RANK, "RONDE_SIZE": "2"}),
        (BY_HAND, {**RONDE_RANK, "RONDE_SIZE": "3"}),
        (OPENMPI, {**RONDE_RANK, "RONDE_SIZE": "2"}),
        (TORCHRUN, {"PMI_RANK": "0", "PMI_SIZE": "2"}),
        (MPICH, {**SLURM, "SLURM_PROCID": "0"}),
        ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "4"}, OPENMPI),
    ],
)
def test_l4_copies_of_a_launcher_are_an_error(
    monkeypatch: pytest.MonkeyPatch, inner: dict[str, str], outer: dict[str, str]
) -> None:
    env, above = outer | inner, [("inner", outer), ("outer", {})]
    with pytest.raises(ConfigError, match="several copies"):
        family_of(monkeypatch, env, above)
    assert family_of(monkeypatch, {**env, "RONDE_RANK_PROCESS": "7 0 j"}, above)  # a rank has started it
    name = {"RANK": "torchrun", "OMPI_COMM_WORLD_RANK": "openmpi", "PMI_RANK": "mpich"}[next(iter(inner))]
    assert family_of(monkeypatch, {**env, "RONDE_LAUNCHER": name}, above) == name


@pytest.mark.parametrize(
    ("inner", "outer", "task"),
    [
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "2"}, SLURM, "torchrun"),  # one torchrun on each node
        (BY_HAND, {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "sh"),  # a script's translation
        (OPENMPI, {**SLURM, "SLURM_STEP_NUM_TASKS": "3"}, "prted"),  # mpirun starts its daemons by srun
        (MPICH, {**SLURM, "SLURM_STEP_NUM_TASKS": "3"}, "hydra_pmi_proxy"),
    ],
)
def test_l4_what_looks_like_copies_and_is_one_world(
    monkeypatch: pytest.MonkeyPatch, inner: dict[str, str], outer: dict[str, str], task: str
) -> None:
    assert family_of(monkeypatch, outer | inner, [(task, outer), ("outer", {})]) != "slurm"


def test_l4_a_copy_whose_number_is_that_of_the_rank_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 of 2 in the second of two copies: both launchers say the same two numbers."""
    daemon = ("hydra_pmi_proxy", SLURM)
    with pytest.raises(ConfigError, match="several copies"):
        family_of(monkeypatch, SLURM | MPICH, [daemon, ("mpiexec", SLURM), ("slurmstepd", {})])
    with pytest.raises(ConfigError, match="several copies"):
        family_of(monkeypatch, SLURM | OPENMPI, [("prterun", SLURM), ("slurmstepd", {})])
    script = ("sh", SLURM)  # it says the same by the names of another launcher
    by_hand = {name: OPENMPI[name] for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")}
    assert family_of(monkeypatch, SLURM | MPICH, [script, ("slurmstepd", {})]) == "mpich"
    assert family_of(monkeypatch, SLURM | by_hand, [script, ("slurmstepd", {})]) == "openmpi"


def test_l4_an_outer_launcher_may_end_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """An srun that is being killed is seen by some looks at the ancestors, and no more by the next."""
    outer = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    seen = [nesting.Process(7, "slurmstepd", outer)]
    looks = iter([seen, seen, []])
    monkeypatch.setattr(nesting, "ancestors", lambda: iter(next(looks)))
    launch = find(outer | SLURM)
    assert launch is not None
    assert launch.family == "slurm"


def test_l4_a_launcher_that_was_started_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nesting, "ancestors", lambda: iter([nesting.Process(100, "outer", {})]))
    for env in (OPENMPI, TORCHRUN, SLURM, {**RONDE_RANK, "RONDE_SIZE": "2"}):
        with pytest.raises(ConfigError, match=r"several copies .*`mine`.*`env RONDE_LAUNCHER=none mine"):
            check_started_once(env, "mine")
        check_started_once({**env, "RONDE_LAUNCHER": "none"}, "mine")
    for env in ({}, BY_HAND, {**OPENMPI, "OMPI_COMM_WORLD_SIZE": "1"}, RONDE_RANK):
        check_started_once(env, "mine")


@pytest.mark.parametrize("outer", [RONDE_RANK | OURS_FOR_TORCH, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_l4_variables_of_torch_that_an_inner_launcher_does_not_set(
    monkeypatch: pytest.MonkeyPatch, outer: dict[str, str]
) -> None:
    def above(*variables: Mapping[str, str]) -> None:
        processes = [nesting.Process(100 + number, "x", each) for number, each in enumerate(variables)]
        monkeypatch.setattr(nesting, "ancestors", lambda: iter(processes))

    above(outer, {})
    with pytest.raises(ConfigError, match=r"RANK=0, WORLD_SIZE=1: .*PMI_RANK=1, PMI_SIZE=2\) has started 2 ranks"):
        check_torch_is_told(outer | MPICH)
    check_torch_is_told({**outer, **MPICH, "RONDE_LAUNCHER": "none"})
    check_torch_is_told({**outer, **MPICH, "PMI_RANK": "0", "PMI_SIZE": "1"})
    check_torch_is_told(outer)
    for parent in ({}, MPICH):  # a script, or the program itself below a shell, has set them for this rank
        above(parent, {})
        check_torch_is_told(outer | MPICH)


def test_settings_of_launchers_stay() -> None:
    kept = {
        "OMPI_MCA_btl": "tcp",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "PMIX_MCA_gds": "hash",
        "HOROVOD_FUSION_THRESHOLD": "1",
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_ID": "0",
        "RONDE_TRANSPORT": "tcp",
        "TORCH_LOGS": "all",
    }
    assert without_launchers({**kept, **TORCHRUN, **OPENMPI, **MPICH, **RONDE_RANK}) == kept


# Real launchers


WORLD = """
import collectives as ronde
world = ronde.init()
print(f"rank {world.rank} of {world.size} {ronde.local_rank()}", flush=True)
ronde.shutdown()
"""


@pytest.mark.processes
def test_l4_inherited_variables_do_not_win() -> None:
    stale = {
        **BY_HAND,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "WORLD_SIZE": "1",
        "RANK": "0",
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "PMI_RANK": "0",
        "PMI_SIZE": "1",
        "PMI_FD": "77",
        "SLURM_PROCID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "RONDE_JOIN": "4",
        "RONDE_RANK_PROCESS": "1 0 x",
    }
    said = "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE ${OMPI_COMM_WORLD_RANK-}${PMI_RANK-}"
    script = f"echo {said}; exec {sys.executable} -c '{WORLD}'"
    command = [*RONDE, "run", "--no-prefix", "-np", "2", "sh", "-c", script]
    done = subprocess.run(
        command, env=environment(**stale), capture_output=True, text=True, timeout=nested.BOUND, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line.strip() for line in done.stdout.splitlines()) == [
        *("0 2 0 2", "1 2 1 2"),
        *("rank 0 of 2 0", "rank 1 of 2 1"),
    ]


HERE = [kind for kind in nested.KINDS.values() if kind.name != "srun"]


@pytest.mark.long
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="ancestors are found by /proc")
@pytest.mark.parametrize("inner", HERE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("outer", HERE, ids=lambda kind: kind.name)
def test_l4_launcher_in_launcher(outer: nested.Kind, inner: nested.Kind) -> None:
    for kind in (outer, inner):
        if kind.obstacle() is not None:
            pytest.skip(str(kind.obstacle()))
    sizes = ((1, 2), (2, 1))
    found = [nested.verdict(outer, inner, size, nested.run_here) for size in sizes]
    assert found in (["one world of 2", "error that names both"], [nested.REFUSED] * 2)
