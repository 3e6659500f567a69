"""The benchmarks can start: the names that they import exist."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
CHECKED = ("collectives", "transports", "frontends.command_line", "frontends.mpi", "benchmarks")


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name of each import of Ronde's own. A benchmark imports another one as `benchmarks.x`, or as `x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            beside = (FOLDER / f"{node.module}.py").exists()
            module = f"benchmarks.{node.module}" if beside else node.module
            if module.startswith(CHECKED):
                yield from ((module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_imported_names_exist(path: Path) -> None:
    for module, name in imported(ast.parse(path.read_text())):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")  # raises ModuleNotFoundError
