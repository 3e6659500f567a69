"""Every transport of the registry keeps the contract, its ranks as threads and as processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import run_processes
from tests.transports.groups import backend_of, group_of_processes, soon
from transports import registry
from transports.errors import AbortedError
from transports.rendezvous.file import FileStore
from transports.testing import check_transport, exercise

SECONDS = 60.0


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, 2, 3, 5)], ids=lambda sizes: str(sizes[-1]))
def test_threads(name: str, sizes: tuple[int, ...]) -> None:
    reason = registry.backend(name).usable()
    if reason is not None:
        pytest.skip(f"transport {name!r} cannot be used here: {reason}")
    report = check_transport(backend_of(name), sizes=sizes, deadline=SECONDS)
    assert report.transport == name
    assert len(report.outcomes) > 60


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["tcp", "shm", "auto"])
def test_processes(name: str, size: int, tmp_path: Path) -> None:
    run_processes(run_rank, size, name, size, str(tmp_path / "store"), timeout=SECONDS)


@pytest.mark.processes
def test_auto_in_processes_on_two_hosts(tmp_path: Path) -> None:
    hosts = ["east", "west", "east", "west"]
    run_processes(run_rank, 4, "auto", 4, str(tmp_path / "store"), hosts, timeout=SECONDS)


def run_rank(rank: int, name: str, size: int, directory: str, hosts: tuple[str, ...] = ()) -> None:
    store = FileStore(directory)
    transport = backend_of(name)(group_of_processes(rank, size, store, hosts))
    try:
        transport.open(soon())
        exercise(transport, soon())
    except BaseException as error:
        transport.abort(AbortedError(f"rank {rank} failed: {error!r}"))
        raise
    finally:
        transport.close(soon())
        store.close()
