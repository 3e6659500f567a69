"""The families of launchers, each by its environment: rank, size, job, precedence, stale variables, errors."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from transports.errors import ConfigError
from transports.launchers import Launch, check_not_taken, check_rank_is_told, describe, find, mark_as_rank
from transports.launchers.families import FAMILIES, first_pod

SECRET = {"RONDE_SECRET": "5a" * 16}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-n1-77@1",
    "PMIX_RANK": "2",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "0", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "5", "MV2_COMM_WORLD_SIZE": "8", "PMI_PORT": "n0:7", "PMI_ID": "5"}
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_JOB_ID": "f2", "FLUX_JOB_NNODES": "1"}
PALS = {"PALS_RANKID": "3", "PMI_SIZE": "4", "PALS_APID": "a-b", "PALS_LOCAL_RANKID": "1"}
JSM = {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_RANK": "1", "LSB_JOBID": "9"}
HOROVOD = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4321",
}
PRTERUN = {"PMIX_NAMESPACE": "prterun-n1-77@1", "PMIX_RANK": "0"}
STEP = {"PMIX_NAMESPACE": "slurm.pmix.1234.0", "PMIX_RANK": "0"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_NTASKS": "99",
}
PMI2 = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "0", "PMI_JOBID": "1234.0"}
"""The variables that srun --mpi=pmi2 adds, which hydra's proxies inherit where they are started by srun."""
INSIDE = {"RONDE_LAUNCHER": "slurm"}
"""For a rank of srun that has the variables of an outer launcher, as its ancestors would tell."""
KUBEFLOW = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-0.svc", "PET_MASTER_PORT": "29500"}
CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "[::1]:3"], "ps": ["c:4"]}
TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}})}
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "RONDE_SIZE": "3"}
UNKNOWN = {"RANK": "1", "WORLD_SIZE": "2"}
RONDE = {"RONDE_RANK": "1", "RONDE_SIZE": "2", "RONDE_STORE": "tcp://10.0.0.1:5000", "RONDE_JOB": "x", **SECRET}

EACH = {
    "ronde": (RONDE, 1, 2),
    "torchrun": (TORCHRUN, 3, 4),
    "openmpi": (OPENMPI, 2, 6),
    "mvapich": (MVAPICH, 5, 8),
    "pals": (PALS, 3, 4),
    "mpich": (MPICH, 1, 2),
    "flux": (FLUX, 1, 4),
    "jsm": (JSM, 1, 4),
    "horovod": (HOROVOD, 1, 2),
    "slurm": (SLURM, 5, 8),
    "kubeflow": (KUBEFLOW, 1, 2),
    "tf_config": (TF_CONFIG, 2, 4),
    "kubernetes": (KUBERNETES, 2, 3),
    "env": (UNKNOWN, 1, 2),
}


def found(env: dict[str, str]) -> Launch:
    launch = find(env)
    assert launch is not None
    return launch


def meeting(env: dict[str, str]) -> str:
    """The way in which the ranks would meet."""
    return found(env).way().describe()


def why_not(env: dict[str, str]) -> str:
    """The error where the ranks cannot meet."""
    with pytest.raises(ConfigError) as caught:
        found(env).way()
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.parametrize("name", EACH)
def test_rank_and_size(name: str) -> None:
    env, rank, size = EACH[name]
    launch = found(env | {"PATH": "/bin"})
    assert (launch.family, launch.rank, launch.size) == (name, rank, size)
    for named in (name, "auto"):
        assert found({**env, "RONDE_LAUNCHER": named}).seen == launch.seen
    assert find({**env, "RONDE_LAUNCHER": "none"}) is None


def test_every_family_is_tested() -> None:
    assert {family.name for family in FAMILIES} == {*EACH, "mpich-port"}  # that is told its rank over a connection


def test_no_launcher() -> None:
    assert find({}) is None
    assert find({"RANK": "1", "PATH": "/bin", "RONDE_STORE": "tcp://h:1", "RONDE_TRANSPORT": "tcp"}) is None
    assert describe({}) == {"launcher": None, "meeting": "no launcher: a world of one", "problem": None}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("inner", "outer", "family"),
    [
        (OPENMPI, SLURM, "openmpi"),
        (MPICH, SLURM, "mpich"),
        (MPICH, SLURM | PMI2, "mpich"),
        (SLURM, PMI2, "slurm"),
        (MPICH, FLUX, "mpich"),
        (OPENMPI, FLUX, "openmpi"),
        (TORCHRUN, SLURM, "torchrun"),
        (TORCHRUN, OPENMPI, "torchrun"),
        (TORCHRUN, KUBERNETES, "torchrun"),
        (TORCHRUN, KUBEFLOW, "torchrun"),
        (HOROVOD, SLURM, "horovod"),
        (RONDE, TORCHRUN | OPENMPI | SLURM, "ronde"),
        (SLURM, KUBERNETES, "slurm"),
        (OPENMPI, UNKNOWN, "openmpi"),
        (TF_CONFIG, KUBERNETES, "tf_config"),
        (MPICH, {"TF_CONFIG": "{bad"}, "mpich"),
        (RONDE, {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}})}, "ronde"),
    ],
)
def test_precedence(inner: dict[str, str], outer: dict[str, str], family: str) -> None:
    """Rank and size come from one family, whatever an outer launcher has left in the environment."""
    launch = found(outer | inner)
    alone = found(inner)
    assert (launch.family, launch.rank, launch.size) == (family, alone.rank, alone.size)


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967292", "batch", None])
def test_batch_script_is_no_rank_of_slurm(step: str | None) -> None:
    """The script itself has SLURM_PROCID=0 and SLURM_NTASKS, too."""
    env = SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_ID": step or ""}
    if step is None:
        del env["SLURM_STEP_ID"]
    assert find(env) is None
    assert find({name: value for name, value in SLURM.items() if name != "SLURM_STEP_NUM_TASKS"}) is None


# How the ranks meet


@pytest.mark.processes
@pytest.mark.parametrize(
    ("env", "text"),
    [
        (TORCHRUN, "publishes its address through torchrun's store at node0:29500"),
        (
            TORCHRUN | SECRET | {"TORCHELASTIC_USE_AGENT_STORE": "False"},
            "serves the store on node0, a port that follows",
        ),
        (MPICH, "publishes its address through the launcher's PMI-1"),
        (MVAPICH, "publishes its address through the launcher's PMI-1"),
        (FLUX | {"PMI_FD": "0"}, "publishes its address through the launcher's PMI-1"),
        (HOROVOD, "publishes its address through horovodrun's store at 10.0.0.1:4321"),
        (SLURM | SECRET, "serves the store on node07, a port that follows from the job's id"),
        (SLURM | PMI2, "publishes its address through the launcher's PMI-1"),
        (SLURM | PMI2 | INSIDE | {"MPI_LOCALRANKID": "0"}, "publishes its address through the launcher's PMI-1"),
        (SLURM | PMI2 | {"SLURM_JOB_ID": "1235", "SLURM_HET_JOB_ID": "1234"}, "through the launcher's PMI-1"),
        (SLURM | PMI2 | SECRET, "serves the store on node07"),
        (SLURM | SECRET | {"RONDE_PORT": "7000"}, "serves the store on node07, port 7000"),
        (KUBEFLOW | SECRET, "serves the store on job-0.svc, a port that follows"),
        (TF_CONFIG | SECRET, "serves the store on a, port 1"),
        (SLURM | {"RONDE_STORE": "file:///shared/x"}, "in the store file:///shared/x"),
        (
            OPENMPI | SECRET | {"RONDE_STORE": "tcp://node0:7000"},
            "in the store at tcp://node0:7000, which rank 0 serves",
        ),
        (RONDE, "in the launcher's store, tcp://10.0.0.1:5000"),
    ],
)
def test_meeting(env: dict[str, str], text: str) -> None:
    assert text in meeting(env)
    assert SECRET["RONDE_SECRET"] not in str(describe(env))


@pytest.mark.parametrize(
    ("env", "texts"),
    [
        (SLURM, ["SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=8", "RONDE_SECRET or RONDE_SECRET_FILE: is needed"]),
        (OPENMPI | {"PATH": "/nowhere"}, ["OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=6", "libpmix"]),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ["PMIX_NAMESPACE, PMIX_RANK: are not set"]),
        (MPICH | {"PMI_FD": "987"}, ["PMI_FD=987 is not open", "closed it"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ["PMI_FD or PMI_PORT: is not set"]),
        (UNKNOWN, ["RANK=1, WORLD_SIZE=2", "MASTER_ADDR, MASTER_PORT: are not set"]),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]),
        (TF_CONFIG, ["rank 2 of 4 (TF_CONFIG)", "RONDE_SECRET or RONDE_SECRET_FILE: is needed"]),
        (JSM | SECRET, ["LSB_DJOB_RANKFILE: is not set"]),
        (JSM | PRTERUN, ["PMIX_NAMESPACE=prterun-n1-77@1 is not of this launcher"]),
        (SLURM | PRTERUN, ["PMIX_NAMESPACE=prterun-n1-77@1 is not of this launcher"]),
        (SLURM | MPICH | INSIDE, ["PMI_FD, PMI_JOBID: are not set for this step"]),
        (SLURM | INSIDE | {"PMI_PORT": "n0:7", "PMI_ID": "0"}, ["PMI_FD, PMI_JOBID: are not set for this step"]),
        (SLURM | PMI2 | {"SLURM_STEP_ID": "1"}, ["PMI_FD, PMI_JOBID: are not set for this step"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"} | PRTERUN, ["PMIX_NAMESPACE=prterun-n1-77@1 is not of this launcher"]),
        (OPENMPI | STEP, ["PMIX_NAMESPACE=slurm.pmix.1234.0 is not of this launcher"]),
        (PALS | STEP, ["PMIX_NAMESPACE=slurm.pmix.1234.0 is not of this launcher"]),
    ],
)
def test_ranks_that_cannot_meet_are_an_error_and_no_worlds_of_one(
    env: dict[str, str], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    error = why_not(env)
    assert all(text in error for text in [*texts, "RONDE_LAUNCHER=none"])
    told = describe(env)
    assert told["meeting"] == "not possible"
    assert told["problem"] == error


@pytest.mark.long
def test_one_rank_needs_no_way() -> None:
    launch = found({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    assert (launch.rank, launch.size) == (0, 1)
    assert describe({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"})["problem"] is None


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE: .*OMPI_COMM_WORLD_RANK"),
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "6"}, "OMPI_COMM_WORLD_RANK='6': .* 0 to 5"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS='x': .* 1 or more"),
        (SLURM | {"SLURM_STEP_NODELIST": "n["}, r"SLURM_STEP_NODELIST='n\[': .*hosts"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT='0': .* 1 to 65535"),
        (SLURM | {"RONDE_PORT": "x"}, "RONDE_PORT='x': .* 1 to 65535"),
        ({"JOB_COMPLETION_INDEX": "0"}, "RONDE_SIZE: .*JOB_COMPLETION_INDEX=0"),
        (KUBEFLOW | {"PET_NPROC_PER_NODE": "4"}, "PET_NPROC_PER_NODE='4': .*torchrun"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG: .*JSON"),
        ({"TF_CONFIG": "[" * 100_000}, "TF_CONFIG: .*JSON"),
        ({"TF_CONFIG": "0"}, "TF_CONFIG='0': .*cluster"),
        (
            TORCHRUN | {"RONDE_LAUNCHER": "slurm"},
            "RONDE_LAUNCHER='slurm': .*variables",
        ),
        ({"RONDE_LAUNCHER": "mpi"}, "RONDE_LAUNCHER='mpi': .*auto, none, ronde, torchrun, openmpi"),
    ],
)
def test_bad_variables(env: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{text}") as caught:
        find(env)
    assert str(caught.value) in describe(env)["problem"]


@pytest.mark.parametrize("name", sorted(EACH.keys() - {"ronde", "tf_config", "kubernetes"}))
def test_several_ranks_of_which_none_is_told_are_an_error_and_no_worlds_of_one(name: str) -> None:
    rank, size, *_ = next(family for family in FAMILIES if family.name == name).marks
    env, _, count = EACH[name]
    half = {size: env[size], "PATH": "/bin"}
    assert find(half) is None
    with pytest.raises(ConfigError) as caught:
        check_rank_is_told(half)
    assert str(caught.value).startswith(f"{size}={count}: ")
    assert describe(half)["problem"] == str(caught.value)
    for single in ({size: "1"}, {size: "x"}, {rank: env[rank]}, {**half, "RONDE_LAUNCHER": "none"}):
        check_rank_is_told(single)


@pytest.mark.processes
def test_init_makes_no_world_of_a_rank_that_is_not_told() -> None:
    program = "import ronde\ntry: ronde.init()\nexcept ronde.ConfigError as error: print(error)"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.startswith("WORLD_SIZE=2: says that there are several ranks, and RANK is not set")


def test_an_empty_variable_is_not_a_setting() -> None:
    assert find({"RONDE_LAUNCHER": ""}) is None
    assert found(TORCHRUN | {"RONDE_LAUNCHER": ""}).rank == 3
    assert found(SLURM | SECRET | {"RONDE_PORT": ""}).way().describe() == found(SLURM | SECRET).way().describe()


@pytest.mark.processes
def test_launcher_can_be_named() -> None:
    both = TORCHRUN | OPENMPI
    assert found(both | {"RONDE_LAUNCHER": "openmpi"}).rank == 2
    assert found(both).rank == 3


@pytest.mark.processes
def test_all_ranks_on_one_host() -> None:
    assert found(MPICH).one_host
    assert found(FLUX).one_host
    assert found(SLURM | {"SLURM_STEP_NUM_NODES": "1"}).one_host
    assert not found(OPENMPI).one_host
    assert not found(SLURM).one_host
    assert not found({"PMI_RANK": "0", "PMI_SIZE": "2"}).one_host


@pytest.mark.processes
@pytest.mark.parametrize(
    ("env", "name"),
    [
        (TORCHRUN, "TORCHELASTIC_RUN_ID"),
        (TORCHRUN, "TORCHELASTIC_RESTART_COUNT"),
        (OPENMPI, "PMIX_NAMESPACE"),
        (FLUX, "FLUX_JOB_ID"),
        (PALS, "PALS_APID"),
        (JSM, "LSB_JOBID"),
        (SLURM, "SLURM_JOB_ID"),
        (SLURM, "SLURM_STEP_ID"),
        (SLURM, "SLURM_RESTART_COUNT"),
        (HOROVOD, "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ],
)
def test_jobs_differ(env: dict[str, str], name: str) -> None:
    assert found(env).job == found(env).mark != found(env | {name: "7777"}).job


def test_ranks_of_pmi_have_one_job_and_different_marks() -> None:
    """Their connections are their own. Nothing in the environment tells the job."""
    pipes = [os.pipe() for _ in range(2)]
    one, two = (found(MPICH | {"PMI_RANK": str(rank), "PMI_FD": str(pipes[rank][0])}) for rank in range(2))
    for end in (*pipes[0], *pipes[1]):
        os.close(end)
    assert one.job == two.job
    assert one.mark != two.mark
    assert found(MVAPICH).mark != found(MVAPICH | {"PMI_PORT": "n0:8"}).mark


# Kubernetes, LSF, TF_CONFIG


@pytest.mark.parametrize(
    ("name", "index", "first"),
    [
        ("train-3.ring.ns.svc.cluster.local", 3, "train-0.ring.ns.svc.cluster.local"),
        ("train-3-12.ring", 12, "train-3-0.ring"),
        ("train-0.ring", 0, "train-0.ring"),
        ("train-3", 3, None),
        ("train-3.ring", 13, None),
        ("localhost", 0, None),
    ],
)
def test_first_pod(name: str, index: int, first: str | None) -> None:
    assert first_pod(name, index) == first


def test_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-2.ring.ns.svc.cluster.local")
    assert "serves the store on train-0.ring.ns.svc.cluster.local, port 29470" in meeting(KUBERNETES | SECRET)
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-2")
    assert "'train-2' does not say its Job and subdomain: set `subdomain`" in why_not(KUBERNETES | SECRET)


def test_rankfile(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_text("launch\nc01\nc01\nc02\n")
    assert "serves the store on c01" in meeting(JSM | SECRET | {"LSB_DJOB_RANKFILE": str(path)})
    path.write_text("launch\n")
    assert "has no host after the launching one" in why_not(JSM | SECRET | {"LSB_DJOB_RANKFILE": str(path)})
    assert "cannot be read" in why_not(JSM | SECRET | {"LSB_DJOB_RANKFILE": str(tmp_path)})


@pytest.mark.parametrize(
    ("kind", "index", "rank"), [("chief", 0, 0), ("worker", 0, 1), ("worker", "1", 2), ("ps", 0, 3)]
)
def test_tasks_of_a_cluster(kind: str, index: int | str, rank: int) -> None:
    launch = found({"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}})})
    assert (launch.rank, launch.size) == (rank, 4)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"cluster": CLUSTER}, r"^TF_CONFIG=.*\"task\""),
        ({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}, "'evaluator'.* chief, worker or ps"),
        ({"cluster": {"ps": ["c:4"]}, "task": {"type": "ps", "index": 0}}, "chief or workers"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 2}}, "index is 2\\b.* 2 of type worker"),
        ({"cluster": {"worker": "b:2"}, "task": {"type": "worker", "index": 0}}, r"cluster\.worker .*'b:2'"),
        (
            {"cluster": {"worker": ["b"]}, "task": {"type": "worker", "index": 0}},
            r"^TF_CONFIG: cluster\.worker .*'b'.* host:port",
        ),
        ({"cluster": {"chief": ["a:1", "b:2"]}, "task": {"type": "chief", "index": 0}}, "2 chiefs"),
    ],
)
def test_bad_clusters(config: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find({"TF_CONFIG": json.dumps(config)})


def test_no_cluster() -> None:
    assert find({"TF_CONFIG": "{}"}) is None


# A rank's own children


def test_rank_is_taken_by_one_process() -> None:
    env = dict(SLURM)
    launch = found(env)
    release = mark_as_rank(launch, env)
    check_not_taken(launch, env)
    inherited = env | {"RONDE_RANK_PROCESS": env["RONDE_RANK_PROCESS"].replace(str(os.getpid()), "1")}
    with pytest.raises(ConfigError, match=r"SLURM_PROCID=5, .*: rank 5 .*process 1\b.*__main__.*RONDE_LAUNCHER=none"):
        check_not_taken(launch, inherited)
    check_not_taken(found(inherited | {"SLURM_STEP_ID": "1"}), inherited)  # a step that the rank has started
    release()
    assert env == SLURM
