"""Draws the rooms that the import-linter contracts in pyproject.toml declare, into docs/architecture.md.

    python -m benchmarks.rooms          # replace the picture; a test fails while it is out of date

The picture is a Mermaid graph. A layer may import the layers below it, and none above.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = "docs/architecture.md"
BEGIN: Final = "<!-- begin rooms: written by python -m benchmarks.rooms -->\n"
END: Final = "<!-- end rooms -->\n"


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


def picture(folder: Path) -> str:
    """The Mermaid graph."""
    frontends = sorted(path.parent.name for path in (folder / "frontends").glob("*/__init__.py"))
    backends = [name.removeprefix("transports.") for name in contract(folder, "backends")["modules"]]
    lines = ["flowchart TD", *group("frontends", "frontends/", frontends)]
    numbered = list(enumerate(layers(folder)))
    for number, names in numbered:
        lines += [f'    subgraph L{number}[" "]', "        direction LR"]
        for name in names:
            shape = f'["{name}/"]' if is_room(folder, name) else f'("{name}.py")'
            lines.append(f"        {name}{shape}")
        lines.append("    end")
    lines += group("transports", "transports/: the contract, and its backends", backends)
    path = ["frontends", *(f"L{number}" for number, _ in numbered), "transports"]
    return "\n".join([*lines, "    " + " --> ".join(path)])


def group(name: str, title: str, rooms: Sequence[str]) -> list[str]:
    """A package as one box with its rooms."""
    nodes = [f'        {name}_{room}["{room}/"]' for room in rooms]
    return [f'    subgraph {name}["{title}"]', "        direction LR", *nodes, "    end"]


def updated(page: str, graph: str) -> str:
    """The page with this picture between its markers. ValueError if a marker is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE}: lacks {(end if begin else BEGIN) or END!r}")
    return f"{before}{BEGIN}```mermaid\n{graph}\n```\n{END}{after}"


def main() -> int:
    """The command. Its exit status: 0."""
    page = ROOT / PAGE
    page.write_text(updated(page.read_text("utf-8"), picture(ROOT)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
