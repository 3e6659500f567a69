"""Run the tests and scripts of others in processes of their own, each with a limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.compatibility.results import Bed

ROOT: Final = Path(__file__).parents[2]
SUITE_LIMIT: Final = 3600.0
"""Seconds that all tests of torch may take on one bed."""
TEST_LIMIT: Final = 60
"""Seconds that one of them may take."""
SCRIPT_LIMIT: Final = 150.0
"""Seconds that one script may take."""

SCRIPTS: Final = {
    "accelerate": {
        name: ["-m", f"accelerate.test_utils.scripts.{name}"]
        for name in ("test_ops", "test_sync", "test_script", "test_distributed_data_loop")
    },
    "transformers": {"the Trainer": [str(ROOT / "examples/torch_transformers_digits.py")]},
    "lightning": {"BoringModel": [str(ROOT / "tests/compatibility/boring.py")]},
}
"""Words that start the scripts under torchrun, by project and name."""


def torch_suite(bed: Bed, names: Sequence[str], log: Path) -> dict[str, str]:
    """Outcomes of torch's own tests: all of them, or those with these names. What fails is run once more."""
    outcomes = _torch_suite(bed, names, log)
    failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
    return outcomes | (_torch_suite(bed, failed, log) if failed else {})


def _torch_suite(bed: Bed, names: Sequence[str], log: Path) -> dict[str, str]:
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", suffix=".jsonl") as lines:
        words = ["-m", "tests.compatibility.torch_suite", bed.backend, str(bed.size), lines.name, *names]
        run_python(words, bed, log, SUITE_LIMIT, DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(TEST_LIMIT))
        rows = [json.loads(line) for line in lines]
    with log.open("a", encoding="utf-8") as target:
        target.writelines(f"{row['name']}: {row['outcome']}: {row['reason']}\n" for row in rows)
    return {row["name"]: row["outcome"] for row in rows}


def script(bed: Bed, name: str, log: Path) -> str:
    """The outcome of a script."""
    first = [] if bed.backend == "gloo" else ["-m", "ronde.torch.with_group"]
    words = ["-m", "torch.distributed.run", "--nproc-per-node", str(bed.size), *first, *SCRIPTS[bed.project][name]]
    code = run_python(words, bed, log, SCRIPT_LIMIT, ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1")
    return {0: "passed", None: "late"}.get(code, "failed")


def run_python(words: Sequence[str], bed: Bed, log: Path, limit: float, **environment: str) -> int | None:
    """Run Python; its exit code, None if it is late. No process of it is left, also if this one is interrupted."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | environment
    if bed.transport:
        settings["RONDE_TRANSPORT"] = bed.transport
    with log.open("a", encoding="utf-8") as target:
        process = subprocess.Popen(
            [sys.executable, *words],
            env=os.environ | settings,
            stdout=target,
            stderr=target,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.terminate()  # torchrun and the tests end their ranks
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20.0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
