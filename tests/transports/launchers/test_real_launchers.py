"""Programs under the real mpiexec of Open MPI, MPICH and Intel MPI, and the real torchrun."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence

import pytest

from tests.transports.groups import free_port
from tests.transports.launchers.real import HELLO, RANK, Launched, hello, launch, left, mpi_command, run

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

MPI = [("mpich", []), ("mpich", ["-pmi-port"]), ("openmpi", []), ("intel", [])]


def mpi_id(value: object) -> str:
    return "".join(value) if isinstance(value, list) else str(value)


# MPI


@pytest.mark.parametrize(("kind", "options"), MPI, ids=mpi_id)
def test_world_of_mpi(kind: str, options: list[str]) -> None:
    """Twice in a process; and ranks that end early bring down nobody."""
    ended = run(mpi_command(kind, 3, *options), HELLO, "slow")
    assert (ended.code, set(ended.lines) >= hello(3) | {"rank 0 ended last"}) == (0, True), ended
    assert not left(ended.pids)


FAILING = (
    RANK
    + """
world = ronde.init()
ronde.allreduce(np.ones(3))
if world.rank == 1:
    raise SystemExit("rank 1 gives up") if "exit" in sys.argv else RuntimeError("rank 1 fails")
ronde.allreduce(np.ones(3))
"""
)


@pytest.mark.parametrize("how", ["exception", "exit"])
@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_rank_that_fails_ends_the_job(kind: str, how: str) -> None:
    ended = run(mpi_command(kind, 3), FAILING, how)
    assert ended.code != 0
    assert ("rank 1 gives up" if how == "exit" else "RuntimeError: rank 1 fails") in ended.errors
    assert not left(ended.pids)


WAITING = (
    RANK
    + """
world = ronde.init()
ronde.allreduce(np.ones(3))
say(f"rank {world.rank} is {os.getpid()}")
ronde.recv(np.empty(3), (world.rank + 1) % world.size)
"""
)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_rank_that_is_killed_ends_the_job(kind: str, victim: int) -> None:
    """Also rank 0, which serves the store."""
    with launch(mpi_command(kind, 3), WAITING) as launched:
        launched.wait_for(r"rank (\d)", 3)
        (pid,) = launched.wait_for(rf"rank {victim} is (\d+)", 1)
        launched.kill(int(pid))
        ended = launched.finish()
    assert ended.code != 0
    assert not left(ended.pids)


SURVIVING = (
    RANK
    + """
world = ronde.init()
ronde.allreduce(np.ones(3))
say(f"rank {world.rank} is {os.getpid()}")
try:
    ronde.recv(np.empty(3), (world.rank + 1) % world.size)
except ronde.PeerLost as error:
    say(f"lost {error.peer}")
ronde.shutdown()
say("closed")
"""
)


@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_miss_a_killed_one(victim: int) -> None:
    """Under torchrun's environment alone, so that no launcher ends the others: they raise, also without the store."""
    port = str(free_port())
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RONDE_SECRET": "5a" * 16}
    ranks = [launch([], SURVIVING, RANK=str(rank), **common) for rank in range(3)]
    try:
        for rank in ranks:
            rank.wait_for(r"rank (\d)", 1)
        (pid,) = ranks[victim].wait_for(rf"rank {victim} is (\d+)", 1)
        ranks[victim].kill(int(pid))
        begun = time.monotonic()
        others = [rank.finish() for number, rank in enumerate(ranks) if number != victim]
        assert time.monotonic() - begun < 60  # mostly 1
        assert [(ended.code, ended.lines[-2:]) for ended in others] == [(0, [f"lost {victim}", "closed"])] * 2, others
    finally:
        for rank in ranks:
            rank.__exit__()


ABSENT = (
    RANK
    + """
if int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))) == 1:
    time.sleep(3600)
try:
    ronde.init(config={"connect_timeout": 1.0})
except ronde.RondeError as error:
    say(f"{type(error).__name__}: {error}")
    os._exit(9)
"""
)


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_rank_that_never_comes(kind: str) -> None:
    """The launcher's own barriers have no deadline."""
    ended = run(mpi_command(kind, 2), ABSENT)
    assert ended.code != 0
    assert any("DeadlineExceeded: not all ranks came to the launcher's PMI" in line for line in ended.lines), ended
    assert not left(ended.pids)


WITH_MPI = """
import sys
if "first" in sys.argv:
    from mpi4py import MPI
%s
if "last" in sys.argv:
    from mpi4py import MPI
say(f"mpi {MPI.COMM_WORLD.allreduce(1)}")
"""


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_program_that_uses_mpi_too(kind: str, order: str) -> None:
    ended = run(mpi_command(kind, 2), WITH_MPI % HELLO, order)
    assert (ended.code, ended.lines.count("mpi 2")) == (0, 2), ended


CHILD = (
    RANK
    + """
import subprocess
if "child" in sys.argv:
    try:
        ronde.init()
    except ronde.ConfigError as error:
        say(f"child: {error}")
else:
    world = ronde.init()
    if world.rank == 0:
        subprocess.run([sys.executable, "-c", sys.argv[1], "child"], check=True)
    ronde.barrier()
"""
)


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_process_that_a_rank_starts_is_no_rank(kind: str) -> None:
    ended = run(mpi_command(kind, 2), CHILD, CHILD)
    (told,) = [line for line in ended.lines if line.startswith("child: ")]
    assert ended.code == 0
    assert "already, which has started this one" in told or "PMI_FD" in told


# torchrun


needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python"]


@needs_torch
def test_world_of_torchrun() -> None:
    ended = run([*TORCHRUN, "--nproc-per-node", "2"], HELLO, "slow")
    assert (ended.code, set(ended.lines) >= hello(2) | {"rank 0 ended last"}) == (0, True), ended


@needs_torch
def test_ranks_of_torchrun_end_when_it_is_killed() -> None:
    """It does not end them: they notice."""
    with launch([*TORCHRUN, "--nproc-per-node", "2"], WAITING) as launched:
        launched.wait_for(r"rank (\d)", 2)
        launched.kill(launched.pid)
        ended = launched.finish()
    assert not left(ended.pids)
    assert "AbortedError" in ended.errors
    assert f"process {launched.pid})" in ended.errors


def nodes(commands: Sequence[list[str]], program: str) -> list[Launched]:
    return [launch(command, program) for command in commands]


@needs_torch
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_two_nodes_of_torchrun(rendezvous: str) -> None:
    port = free_port()
    if rendezvous == "static":
        options = [["--master-addr", "127.0.0.1", f"--master-port={port}", f"--node-rank={node}"] for node in range(2)]
    else:
        options = [["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=7"]] * 2
    running = nodes([[*TORCHRUN, "--nnodes=2", "--nproc-per-node=2", *words] for words in options], HELLO)
    try:
        ended = [node.finish() for node in running]
    finally:
        for node in running:
            node.__exit__()
    assert [node.code for node in ended] == [0, 0], ended
    assert {line for node in ended for line in node.lines} >= hello(4)


RESTARTED = (
    RANK
    + """
world = ronde.init()
ronde.barrier()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(3)
say(f"restarted {world.rank} of {world.size}")
"""
)


@needs_torch
def test_restart_by_torchrun_is_a_job_of_its_own() -> None:
    """The store of torchrun lives on, with the address of the first attempt's rank 0."""
    ended = run([*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1"], RESTARTED)
    assert (ended.code, sorted(line for line in ended.lines if line.startswith("rest"))) == (
        0,
        ["restarted 0 of 2", "restarted 1 of 2"],
    ), ended


NOT_IMPORTED = RANK + "ronde.init(); assert 'torch' not in sys.modules"


@needs_torch
def test_torch_is_not_imported() -> None:
    ended = run([*TORCHRUN, "--nproc-per-node", "2"], NOT_IMPORTED)
    assert ended.code == 0, ended


# The frontends


FRONTEND = (
    RANK
    + """
import importlib
name = sys.argv[1]
hvd = importlib.import_module(f"frontends.{name}")
hvd.init()
x = np.full(4, hvd.rank() + 1.0, np.float32)
if name == "torch":
    import torch
    x = torch.from_numpy(x)
total = hvd.allreduce(x, op=hvd.Sum)
say(f"{name}: {hvd.rank()} of {hvd.size()} local {hvd.local_rank()} sum {np.asarray(total)[0]:g}")
hvd.shutdown()
"""
)


@pytest.mark.frameworks
@pytest.mark.parametrize("launcher", ["mpich", "openmpi", "torchrun"])
@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_frontend(name: str, launcher: str) -> None:
    for module in {name, "torch" if launcher == "torchrun" else name}:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    command = [*TORCHRUN, "--nproc-per-node", "2"] if launcher == "torchrun" else mpi_command(launcher, 2)
    ended = run(command, FRONTEND, name, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")
    said = {line for line in ended.lines if line.startswith(name)}
    assert (ended.code, said) == (0, {f"{name}: {rank} of 2 local {rank} sum 3" for rank in range(2)}), ended
