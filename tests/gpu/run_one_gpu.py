"""Tries everything that Ronde does with GPUs on a machine with one of them, and prints a table and JSON.

    python tests/gpu/run_one_gpu.py                      from a checkout, with the packages of ronde[cuda12] or [cuda13]
    python tests/gpu/run_one_gpu.py --json one_gpu.json --only "nccl, 1 rank"
    python tests/gpu/run_one_gpu.py --fake               without a GPU: tries the script itself, and nothing else

Every check runs in processes of its own with a time limit, so that one that hangs or crashes costs no other. Without
nccl4py the checks of NCCL are left out, and the table says so. Exit status 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from collectives import Config, connect
from tests.gpu.one_gpu_checks import SECRET, Check, RealRig, Rig, checks, explain
from transports.errors import ConfigError
from transports.rendezvous.bootstrap import join
from transports.rendezvous.file import FileStore
from transports.testing import run_processes


@dataclass(frozen=True)
class Row:
    """The outcome of a check: ok, FAILED or skipped."""

    name: str
    status: str
    seconds: float
    detail: str


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name contains TEXT")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no check after so long (default: 540)")
    parser.add_argument("--fake", action="store_true", help="with GPUs that are not there, ranks as threads")
    parser.add_argument("--list", action="store_true", help="only print the names of the checks")
    arguments = parser.parse_args(argv)
    if arguments.fake:
        from tests.gpu.fake_rig import FakeRunner

        runner: Any = FakeRunner()
    else:
        runner = Runner()
    try:
        about = runner.about()
    except Exception as error:
        print(f"nothing can be tried here: {explain(error)}", file=sys.stderr)
        return 2
    chosen = [check for check in checks(about["nccl_version"]) if arguments.only in check.name]
    if arguments.list:
        print("\n".join(check.name for check in chosen))
        return 0
    print("\n".join(f"# {name}: {value}" for name, value in about.items()), flush=True)
    rows: list[Row] = []
    end = time.monotonic() + arguments.seconds
    for check in chosen:
        rows.append(attempt(runner, check, end))
        print(line(rows[-1]), flush=True)
    failed = [row for row in rows if row.status == "FAILED"]
    print(f"# {len(rows)} checks, {len(failed)} failed, {sum(row.status == 'skipped' for row in rows)} skipped")
    if arguments.json is not None:
        report = {"about": about, "checks": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed or not rows else 0


def attempt(runner: Any, check: Check, end: float) -> Row:
    """Run one check."""
    began = time.monotonic()
    if began >= end:
        return Row(check.name, "skipped", 0.0, "no time is left")
    try:
        details = [detail for detail in runner.run(check) if detail]
    except Exception as error:
        traceback.print_exception(error)
        return Row(check.name, "FAILED", time.monotonic() - began, explain(error))
    detail = details[0] if details else ""
    status = "skipped" if detail.startswith("skipped") else "ok"
    return Row(check.name, status, time.monotonic() - began, detail.removeprefix("skipped: "))


def line(row: Row) -> str:
    return f"{row.status:8}{row.seconds:7.1f} s  {row.name:45} {row.detail}"


class Runner:
    """Runs checks on the GPU, ranks as processes."""

    def __init__(self) -> None:
        self._nccl_version: int | None = None

    def about(self) -> dict[str, Any]:
        """Facts about the machine that the results depend on. In a process of its own, since this one must not
        initialize CUDA."""
        (found,) = run_processes(facts, 1, timeout=120)
        about: dict[str, Any] = found
        self._nccl_version = about["nccl_version"]
        return about

    def run(self, check: Check) -> list[str | None]:
        with tempfile.TemporaryDirectory(prefix="ronde-one-gpu-") as directory:
            arguments = check.name, directory, self._nccl_version
            return run_processes(on_rank, check.size, *arguments, timeout=check.seconds, dying=check.dying)


def facts(rank: int) -> dict[str, Any]:
    """Versions and names."""
    import cupy

    from transports.nccl import load, missing
    from transports.nccl.api import dotted

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    about: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": properties["name"].decode(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "driver": _driver(),
        "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
        "runtime_cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        "nccl_version": None,
        "nccl": missing(),
        "nccl4py": None,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
    }
    if missing() is None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            about["nccl_version"] = load().version()
            about["nccl"] = dotted(about["nccl_version"])
        except ConfigError as error:
            about["nccl"] = str(error)
        try:
            about["nccl4py"] = version("nccl4py")
        except PackageNotFoundError:
            about["nccl4py"] = "not a wheel"
    return about


def _driver() -> str:
    """The version of the driver, as it tells where there is /proc."""
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        return "unknown"


def on_rank(rank: int, name: str, directory: str, nccl_version: int | None) -> str | None:
    """One rank of a check, in a process of its own."""
    check = next(found for found in checks(nccl_version) if found.name == name)
    os.environ.update({key: value.format(rank=rank) for key, value in check.environment.items()})
    import cupy

    store = FileStore(directory)
    deadline = time.monotonic() + 60
    group = join(rank, check.size, store, secret=SECRET, deadline=deadline)
    comm = connect(group, Config.load(check.settings, environment={}), deadline)
    rig: Rig = RealRig()
    try:
        detail = check.body(comm, cupy, rig)
    except BaseException as error:
        comm.abort(f"the check failed: {error!r}")
        raise
    finally:
        comm.close(20)
        store.close()
    return detail


if __name__ == "__main__":
    sys.exit(main())
