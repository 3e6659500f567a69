"""The families of launchers: by which variables each says who a process is, and how its ranks can meet.

Rank and size come from one family only. Local ranks are not read at all: they follow from where the ranks are.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from transports import names
from transports.errors import ConfigError
from transports.launchers import hosts, pmi, pmix
from transports.launchers.address import AtAddress
from transports.launchers.given import GivenByHand, ServedByLauncher
from transports.launchers.horovod_store import HorovodStore
from transports.launchers.keyvalue import Published
from transports.launchers.launch import Launch
from transports.launchers.ronde import JOIN, NAME, RANK, SIZE, STORE, job_from_environment, started_by_ours
from transports.launchers.tf_config import VARIABLE as TF_CONFIG
from transports.launchers.tf_config import parse_task
from transports.launchers.torch_store import TorchStore
from transports.launchers.variables import Env, integer, number_of, shown
from transports.launchers.ways import Way

_HYDRA: Final = ("hydra_pmi_proxy", "hydra_bstrap_pr")
"""Hydra's programs, as far as the system keeps their names."""
KUBERNETES_PORT: Final = 29470
"""The port of the store where each rank has a network of its own (a pod)."""
_SPECIAL_STEPS: Final = {"batch", "extern", "interactive", *(str(0xFFFFFFFF - n) for n in range(6))}
"""Slurm's steps that are no srun of the user's: the batch script, the external step, salloc's shell, and others."""


@dataclass(frozen=True)
class Family:
    """A family of launchers.

    name     as RONDE_LAUNCHER takes it
    title    its name for people
    signs    the variables by which it is recognised
    says     True if it started the process that has these variables
    read     the launch. Raises ConfigError
    marks    the variables that tell its ranks apart: first those of rank and size, if it says both by numbers
    sets     a pattern of the variables that it sets for each rank; ranks of an inner launcher do not get them
    stays    True if its process on a host ends after the ranks there, unless it is killed. So a process of it is there
    alone    True if the ranks of one start are a whole job, so that two copies of the launcher make two jobs
    daemons  names of the programs that start its ranks on other hosts
    """

    name: str
    title: str
    signs: str
    says: Callable[[Env], bool]
    read: Callable[[Env, Family], Launch]
    marks: tuple[str, ...]
    sets: str = ""
    stays: Callable[[Env], bool] = lambda env: False
    alone: Callable[[Env], bool] = lambda env: False
    daemons: tuple[str, ...] = ()

    def place(self, env: Env) -> tuple[int, int] | None:
        """Rank and size; None if `env` does not say them by two numbers."""
        match [number_of(env.get(name, "")) for name in self.marks[:2]]:
            case [int(rank), int(size)]:
                return rank, size
        return None

    def differs(self, one: Env, other: Env) -> bool:
        """True if the launcher says something else in the other environment, or nothing."""
        return any(one.get(name) != other.get(name) for name in self.marks)


# ---- Launchers that say rank and size in one variable each


def _numbered(
    job: Callable[[Env], str],
    ways: Callable[[Env, int, str], tuple[Way, ...]],
    *,
    local_size: str = "",
    hosts: str = "",
    others: tuple[str, ...] = (),
    mark: Callable[[Env], str] | None = None,
) -> Callable[[Env, Family], Launch]:
    """A `Family.read`, for a family whose first two marks are rank and size.

    job               the job's id
    ways              the ways to meet, for an environment, the number of ranks and the job's id
    local_size,hosts  variables with the number of ranks on this host, and of hosts, where there are such
    others            more variables to show
    mark              the rank's mark, where it is not the job's id
    """

    def read(env: Env, family: Family) -> Launch:
        rank, size = family.marks[:2]
        count = integer(env, size, 1, None, f"is needed with {rank}")
        number = integer(env, rank, 0, count - 1, f"is needed with {size}")
        one_host = env.get(local_size) == str(count) or env.get(hosts) == "1"
        ident = f"{family.name} {job(env)}"
        seen = shown(env, (rank, size, *others))
        marked = ident if mark is None else f"{family.name} {mark(env)}"
        return Launch(family.name, family.title, number, count, seen, ident, one_host, ways(env, count, ident), marked)

    return read


def _has(*names: str) -> Callable[[Env], bool]:
    return lambda env: all(name in env for name in names)


def _always(env: Env) -> bool:
    return True


def _joined(*names: str) -> Callable[[Env], str]:
    return lambda env: "/".join(env.get(name, "") for name in names)


# ---- Ways


def _pmi(env: Env) -> Way:
    return Published("the launcher's PMI-1", functools.partial(pmi.Pmi, env), pmi.lacking(env))


def _pmi_of_slurm(env: Env) -> Way:
    connect = functools.partial(pmi.Pmi, env, introduce=True)
    return Published("the launcher's PMI-1", connect, pmi.lacking_of_slurm(env))


def _pmix(env: Env, namespaces: str) -> Way:
    return Published(
        "the launcher's PMIx",
        lambda deadline: pmix.Pmix(pmix.find_library(env) or pmix.LIBRARY, deadline),
        pmix.lacking(env, namespaces),
    )


def _by_hand(env: Env) -> tuple[Way, ...]:
    """The store that the user names; it goes before what a launcher offers. That of an outer job of ours is not it."""
    return (GivenByHand(env, env[STORE]),) if STORE in env and not started_by_ours(env) else ()


def _with_pmi(env: Env, size: int, job: str) -> tuple[Way, ...]:
    return (*_by_hand(env), _pmi(env))


def _with_pmix(env: Env, size: int, job: str) -> tuple[Way, ...]:
    return (*_by_hand(env), _pmix(env, f"(?!{pmix.OF_SLURM})"))


def _with_either(env: Env, size: int, job: str) -> tuple[Way, ...]:
    return (*_by_hand(env), _pmi(env), _pmix(env, pmix.OF_OTHERS))


def _with_torch(env: Env, size: int, job: str) -> tuple[Way, ...]:
    port = integer(env, "MASTER_PORT", 1, 65535, "is needed with MASTER_ADDR")
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        run = hashlib.sha256(os.fsencode(job)).hexdigest()[:16]
        connect = functools.partial(TorchStore, env["MASTER_ADDR"], port, f"ronde/{run}")
        return (*_by_hand(env), Published(f"torchrun's store at {env['MASTER_ADDR']}:{port}", connect))
    return (*_by_hand(env), AtAddress(env, env["MASTER_ADDR"]))


def _with_horovod(env: Env, size: int, job: str) -> tuple[Way, ...]:
    names = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
    if not _has(*names)(env):
        lacking = f"{', '.join(names)}: are not set, so no store of horovodrun's is known"
        return (*_by_hand(env), AtAddress(env, None, lacking))
    host, port = env[names[0]], integer(env, names[1], 1, 65535, "")
    return (*_by_hand(env), Published(f"horovodrun's store at {host}:{port}", lambda _: HorovodStore(host, port)))


def _with_slurm(env: Env, size: int, job: str) -> tuple[Way, ...]:
    name = "SLURM_STEP_NODELIST"
    first = hosts.expand(env[name], name)[0] if name in env else None
    return (*_by_hand(env), _pmix(env, pmix.OF_SLURM), AtAddress(env, first, f"{name}: is not set"), _pmi_of_slurm(env))


def _with_jsm(env: Env, size: int, job: str) -> tuple[Way, ...]:
    return (
        *_by_hand(env),
        _pmix(env, pmix.OF_OTHERS),
        AtAddress(env, *_second_of_rankfile(env)),
    )


def _second_of_rankfile(env: Env) -> tuple[str | None, str]:
    """The host of rank 0, by LSF's file of hosts, whose first line is the node that launches; or what is missing."""
    name = "LSB_DJOB_RANKFILE"
    if name not in env:
        return None, f"{name}: is not set"
    try:
        with open(env[name], encoding="utf-8", errors="replace") as file:
            lines = [line.split()[0] for line in file if line.strip()]
    except OSError as error:
        return None, f"{name}={env[name]!r}: cannot be read: {error.strerror}"
    return (lines[1], "") if len(lines) > 1 else (None, f"{name}={env[name]!r}: has no host after the launching one")


def _with_nothing(env: Env, size: int, job: str) -> tuple[Way, ...]:
    lacking = "MASTER_ADDR, MASTER_PORT: are not set, so nobody says where the ranks are"
    return (*_by_hand(env), AtAddress(env, None, lacking))


# ---- Launchers with a way of their own to say it


def _read_ronde(env: Env, family: Family) -> Launch:
    job = job_from_environment(env)
    assert job is not None
    way: Way = GivenByHand(env, job.store)
    if NAME in env or (job.size == 1 and not job.joins):
        way = ServedByLauncher(job.store, job.secret)
    seen = shown(env, (RANK, SIZE, JOIN))
    return Launch(family.name, family.title, job.rank, job.size, seen, job.store, False, (way,), job.store, job.joins)


def _read_pmi_port(env: Env, family: Family) -> Launch:
    own = pmi.of_port(env)
    rank, size = pmi.rank_and_size(own)
    seen, job, mark = shown(own, (pmi.PORT, pmi.ID)), f"{family.name} {own[pmi.PORT]}", pmi.connection_id(own)
    ways = (*_by_hand(env), _pmi(own))
    return Launch(family.name, family.title, rank, size, seen, job, False, ways, mark)


def _is_slurm_step(env: Env) -> bool:
    return _has("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")(env) and env.get("SLURM_STEP_ID", "batch") not in _SPECIAL_STEPS


def _read_kubernetes(env: Env, family: Family) -> Launch:
    index = "JOB_COMPLETION_INDEX"
    if SIZE not in env:
        raise ConfigError(
            f"{SIZE}: is needed with {index}={env[index]}, since an indexed Job tells its pods no size: set it to the "
            f"Job's `completions` (1, or RONDE_LAUNCHER=none, makes a world of one of each pod)"
        )
    size = integer(env, SIZE, 1, None, "")
    rank = integer(env, index, 0, size - 1, "")
    name = names.full_name()
    first = first_pod(name, rank)
    lacking = f"the pod's name {name!r} does not say its Job and subdomain: set `subdomain` to a headless Service"
    job = f"{family.name} {first} {env.get('RONDE_JOB', '')}"
    ways = (*_by_hand(env), AtAddress(env, first, lacking, port=KUBERNETES_PORT))
    return Launch(family.name, family.title, rank, size, shown(env, (index, SIZE)), job, False, ways, job)


def first_pod(name: str, index: int) -> str | None:
    """The full name of the pod with index 0, from that of the pod with index `index`: 'train-3.svc.ns' is
    'train-0.svc.ns'. None if the name is not such a one."""
    match = re.fullmatch(rf"(.+)-{index}(\..+)", name)
    return match and f"{match[1]}-0{match[2]}"


def _read_kubeflow(env: Env, family: Family) -> Launch:
    each = env.get("PET_NPROC_PER_NODE", "1")
    if each != "1":
        raise ConfigError(
            f"PET_NPROC_PER_NODE={each!r}: says that torchrun starts the processes of this node; start the program by "
            f"torchrun, or set PET_NPROC_PER_NODE to 1"
        )
    return _read_pet(env, family)


def _with_pet(env: Env, size: int, job: str) -> tuple[Way, ...]:
    return (*_by_hand(env), AtAddress(env, env.get("PET_MASTER_ADDR"), "PET_MASTER_ADDR: is not set"))


_read_pet: Final = _numbered(_joined("PET_RDZV_ID", "PET_MASTER_ADDR", "PET_MASTER_PORT"), _with_pet)


def _is_tf_config(env: Env) -> bool:
    try:
        return TF_CONFIG in env and parse_task(env[TF_CONFIG]) is not None
    except ConfigError:  # it matters only where no other launcher is the innermost; then `read` raises it
        return True


def _read_tf_config(env: Env, family: Family) -> Launch:
    task = parse_task(env[TF_CONFIG])
    assert task is not None
    job = f"{family.name} {','.join(task.tasks)}"
    ways = (*_by_hand(env), AtAddress(env, task.address[0], port=task.address[1]))
    return Launch(family.name, family.title, task.rank, task.size, TF_CONFIG, job, False, ways, job)


# ---- The table


FAMILIES: Final = (
    Family(
        "ronde",
        "ronde run",
        RANK,
        lambda env: RANK in env or JOIN in env or (SIZE in env and "JOB_COMPLETION_INDEX" not in env),
        _read_ronde,
        marks=(RANK, SIZE, JOIN, NAME),
        alone=started_by_ours,
    ),
    Family(
        "torchrun",
        "torchrun",
        "RANK, WORLD_SIZE, MASTER_ADDR",
        _has("RANK", "WORLD_SIZE", "MASTER_ADDR"),
        _numbered(
            _joined("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
            _with_torch,
            local_size="LOCAL_WORLD_SIZE",
            others=("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"),
        ),
        stays=_has("TORCHELASTIC_RUN_ID"),
        marks=("RANK", "WORLD_SIZE"),
        sets=r"RANK|WORLD_SIZE|LOCAL_(RANK|WORLD_SIZE)|GROUP_(RANK|WORLD_SIZE)|ROLE_(RANK|WORLD_SIZE|NAME)|MASTER_(ADDR|PORT)|"
        r"TORCHELASTIC_.*",
        alone=lambda env: "TORCHELASTIC_RUN_ID" in env and env.get("GROUP_WORLD_SIZE") == "1",
    ),
    Family(
        "openmpi",
        "Open MPI's mpirun",
        "OMPI_COMM_WORLD_RANK",
        _has("OMPI_COMM_WORLD_RANK"),
        _numbered(
            _joined("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
            _with_pmix,
            local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
            others=("PMIX_NAMESPACE", "PMIX_RANK"),
        ),
        stays=_always,
        marks=("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
        sets=r"OMPI_((COMM_)?WORLD_.*|UNIVERSE_SIZE|NUM_APP_CTX|APP_CTX_.*|FIRST_RANKS|ARGV|COMMAND|FILE_LOCATION|TOOL_NAME|"
        r"MCA_(initial_wdir|num_procs|PREFIXES|ess.*|orte_.*))|PRTE_LAUNCHED|PMIX_(?!MCA_).*",
        alone=_always,
        daemons=("prted", "orted"),
    ),
    Family(
        "mvapich",
        "MVAPICH's launcher",
        "MV2_COMM_WORLD_RANK",
        _has("MV2_COMM_WORLD_RANK"),
        _numbered(
            _joined(),
            _with_pmi,
            local_size="MV2_COMM_WORLD_LOCAL_SIZE",
            mark=pmi.connection_id,
            others=(pmi.FD, pmi.PORT, pmi.ID),
        ),
        stays=_always,
        marks=("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        sets="MV2_COMM_WORLD_.*",
        alone=_always,
        daemons=_HYDRA,
    ),
    Family(
        "pals",
        "PALS",
        "PALS_RANKID",
        _has("PALS_RANKID"),
        _numbered(
            _joined("PALS_APID"),
            _with_either,
            local_size="PALS_LOCAL_SIZE",
            others=("PALS_APID", pmi.FD),
        ),
        stays=_always,
        marks=("PALS_RANKID", "PMI_SIZE", "PALS_APID"),
        sets="PALS_.*",
        alone=_always,
    ),
    Family(
        "mpich",
        "mpiexec (MPICH, Intel MPI), or another launcher with PMI-1,",
        "PMI_RANK, PMI_SIZE",
        lambda env: _has("PMI_RANK", "PMI_SIZE")(env) and not pmi.is_slurms(env),
        _numbered(
            _joined(),
            _with_either,
            local_size="MPI_LOCALNRANKS",
            mark=pmi.connection_id,
            others=(pmi.FD, pmi.PORT, pmi.ID),
        ),
        stays=_always,
        marks=("PMI_RANK", "PMI_SIZE"),
        sets="PMI2?_.*|HYDI_CONTROL_FD|MPI_LOCAL(RANKID|NRANKS)",
        alone=_always,
        daemons=_HYDRA,
    ),
    Family(
        "flux",
        "Flux",
        "FLUX_TASK_RANK",
        _has("FLUX_TASK_RANK"),
        _numbered(
            _joined("FLUX_JOB_ID"),
            _with_either,
            hosts="FLUX_JOB_NNODES",
            others=("FLUX_JOB_ID", pmi.FD),
        ),
        stays=_always,
        marks=("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_ID"),
        sets="FLUX_TASK_.*",
        alone=_always,
        daemons=("flux-shell",),
    ),
    Family(
        "jsm",
        "LSF's jsrun",
        "JSM_NAMESPACE_RANK",
        _has("JSM_NAMESPACE_RANK"),
        _numbered(
            _joined("LSB_JOBID", "PMIX_NAMESPACE", "JSM_NAMESPACE_ID"),
            _with_jsm,
            local_size="JSM_NAMESPACE_LOCAL_SIZE",
            others=("LSB_JOBID", "PMIX_NAMESPACE"),
        ),
        stays=_always,
        marks=("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_ID"),
        sets="JSM_NAMESPACE_.*",
        alone=_always,
    ),
    Family(
        "mpich-port",
        "mpiexec -pmi-port (MPICH)",
        "PMI_PORT, PMI_ID",
        _has(pmi.PORT, pmi.ID),
        _read_pmi_port,
        stays=_always,
        marks=(pmi.ID, pmi.PORT),
        alone=_always,
        daemons=_HYDRA,
    ),
    Family(
        "horovod",
        "horovodrun",
        "HOROVOD_RANK, HOROVOD_SIZE",
        _has("HOROVOD_RANK", "HOROVOD_SIZE"),
        _numbered(
            _joined("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
            _with_horovod,
            local_size="HOROVOD_LOCAL_SIZE",
            others=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        ),
        stays=_always,
        marks=("HOROVOD_RANK", "HOROVOD_SIZE"),
        sets="HOROVOD_(RANK|SIZE|(LOCAL|CROSS)_(RANK|SIZE)|HOSTNAME|ELASTIC|GLOO_RENDEZVOUS_.*)",
        alone=_always,
    ),
    Family(
        "slurm",
        "Slurm's srun",
        "SLURM_PROCID, SLURM_STEP_ID, SLURM_STEP_NUM_TASKS",
        _is_slurm_step,
        _numbered(
            _joined("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
            _with_slurm,
            hosts="SLURM_STEP_NUM_NODES",
            others=("SLURM_STEP_ID", "SLURM_STEP_NODELIST"),
        ),
        stays=_always,
        marks=("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"),
        sets="SLURM_(PROCID|LOCALID|GTIDS|TASK_PID|STEP_NUM_TASKS|STEP_TASKS_PER_NODE)",
        alone=_always,
        daemons=("slurmstepd",),
    ),
    Family(
        "kubeflow",
        "Kubeflow",
        "PET_NNODES, PET_NODE_RANK",
        _has("PET_NNODES", "PET_NODE_RANK"),
        _read_kubeflow,
        marks=("PET_NODE_RANK", "PET_NNODES"),
    ),
    Family(
        "tf_config",
        "TensorFlow's TF_CONFIG",
        TF_CONFIG,
        _is_tf_config,
        _read_tf_config,
        marks=(TF_CONFIG,),
    ),
    Family(
        "kubernetes",
        "an indexed Job of Kubernetes",
        "JOB_COMPLETION_INDEX",
        _has("JOB_COMPLETION_INDEX"),
        _read_kubernetes,
        marks=("JOB_COMPLETION_INDEX",),
    ),
    Family(
        "env",
        "an unknown launcher",
        "RANK, WORLD_SIZE",
        _has("RANK", "WORLD_SIZE"),
        _numbered(_joined("MASTER_ADDR"), _with_nothing),
        marks=("RANK", "WORLD_SIZE"),
    ),
)
"""In the order of precedence. An MPI launcher inside a job of Slurm's or Flux's inherits their variables, so those come
later.
Where the ancestors of a process tell which launcher is the innermost, that comes first, see `nesting`."""
