"""The rooms of docs/architecture.md and its picture are those of the declaration in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from docs._tools import pictures, rooms

ROOT = Path(__file__).resolve().parents[1]


def test_each_room_is_in_the_picture_and_has_a_paragraph() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    drawn = {name for names in rooms.layers(ROOT) for name in names}
    folders = {path.parent.name for path in (ROOT / "collectives").glob("*/__init__.py")}
    assert folders <= drawn
    assert [name for name in sorted(folders) if f"\n**{name}/**" not in page] == []


def test_layers_and_shapes(tmp_path: Path) -> None:
    contracts = (
        '[[tool.importlinter.contracts]]\nid = "rooms"\nlayers = ["(gone)", "face", "(upper) | lower"]\n'
        '[[tool.importlinter.contracts]]\nid = "backends"\nmodules = ["transports.wire"]\n'
    )
    for name in ("collectives/upper/__init__.py", "collectives/lower/__init__.py", "frontends/torch/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "collectives/face.py").touch()
    (tmp_path / "pyproject.toml").write_text(contracts)
    assert rooms.layers(tmp_path) == [["face"], ["upper", "lower"]]
    assert rooms.rows(tmp_path) == [
        ("frontends/", ["torch/"]),
        ("", ["face.py"]),
        ("", ["upper/", "lower/"]),
        ("transports/: the contract, and its backends", ["wire/"]),
    ]
    picture = pictures.rooms(tmp_path)
    places = [picture.index(f">{name}<") for name in ("torch/", "face.py", "upper/", "lower/", "wire/")]
    assert places == sorted(places)
