"""The setting `log_level` and the loggers below `ronde`."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import collectives
from collectives.logs import LEVELS, shown
from transports.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def test_messages_are_printed_with_the_name_until_the_context_ends(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("ronde")
    before = logger.level, logger.propagate, list(logger.handlers)
    with shown("info", "pid 7") as rename:
        logging.getLogger("ronde.tcp").info("one")
        logging.getLogger("ronde.tcp").debug("not this")
        rename("rank 2")
        logging.getLogger("ronde.startup").warning("two")
    logging.getLogger("ronde.tcp").info("nor this")
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["pid 7 INFO ronde.tcp: one", "rank 2 WARNING ronde.startup: two"]
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_without_a_level_logging_is_left_alone() -> None:
    logger = logging.getLogger("ronde")
    before = logger.level, logger.propagate, list(logger.handlers)
    with shown("", "rank 0"):
        assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_a_world_logs_its_start_and_its_plans(capsys: pytest.CaptureFixture[str]) -> None:
    collectives.init(rank=0, size=1, store="memory:", config={"log_level": "debug", "stall": 12.0})
    try:
        collectives.allreduce(np.ones(3))
    finally:
        collectives.shutdown()
    text = capsys.readouterr().err
    assert "rank 0 INFO ronde.startup: rank 0 of 1 on host" in text
    assert "DEBUG ronde.startup: setting stall=12.0 from argument" in text
    assert "DEBUG ronde.planning: allreduce of 24 bytes on 1 ranks" in text
    collectives.init(rank=0, size=1, store="memory:")
    collectives.shutdown()
    assert capsys.readouterr().err == ""


def test_a_bad_level_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"log_level='loud': .*debug, info, warning, error"):
        collectives.Config.load({"log_level": "loud"})
    assert all(collectives.Config.load({"log_level": level}) for level in LEVELS)


@pytest.mark.processes
def test_ranks_say_who_they_are() -> None:
    script = "import numpy, ronde; ronde.init(); ronde.allreduce(numpy.ones(1)); ronde.shutdown()"
    command = [sys.executable, "-m", "ronde", "run", "-np", "2", "--set", "log_level=info"]
    done = subprocess.run(
        [*command, sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"rank {rank} INFO ronde.startup: rank {rank} of 2 on host" in done.stderr


def test_every_logger_is_below_ronde() -> None:
    """Other names would not be shown by the setting; that of numba is only silenced."""
    found = set()
    for package in ("collectives", "transports", "frontends"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            for node in ast.walk(ast.parse(text)) if "getLogger" in text else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger"):
                    found.add(ast.unparse(node.args[0]))
    assert all(name.startswith("'ronde.") for name in found - {"'numba'", "'ronde'"}), found
    assert len(found) > 10
