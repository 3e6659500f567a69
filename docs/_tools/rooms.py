"""The rooms that the import-linter contracts in pyproject.toml declare. pictures.py draws them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any


def contract(folder: Path, name: str) -> dict[str, Any]:
    """The import-linter contract with this id. KeyError if there is none."""
    declared = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    return {str(found["id"]): found for found in declared}[name]


def layers(folder: Path) -> list[list[str]]:
    """The layers of collectives/, from the top down. Optional ones, in brackets, count if they exist."""
    found = []
    for text in contract(folder, "rooms")["layers"]:
        names = [name.strip(" ()") for name in re.split(r"[|:]", text)]
        found.append([name for name in names if is_room(folder, name) or (folder / f"collectives/{name}.py").exists()])
    return [names for names in found if names]


def is_room(folder: Path, name: str) -> bool:
    """True for a sub-package of collectives/, False for a module beside the rooms."""
    return (folder / "collectives" / name / "__init__.py").exists()


def rows(folder: Path) -> list[tuple[str, list[str]]]:
    """The picture's rows from the top down: a title, empty for the layers of collectives/, and names of folders and
    modules."""
    frontends = sorted(path.parent.name for path in (folder / "frontends").glob("*/__init__.py"))
    backends = [name.removeprefix("transports.") for name in contract(folder, "backends")["modules"]]
    return [
        ("frontends/", [f"{name}/" for name in frontends]),
        *(("", [f"{name}/" if is_room(folder, name) else f"{name}.py" for name in names]) for names in layers(folder)),
        ("transports/: the contract, and its backends", [f"{name}/" for name in backends]),
    ]
