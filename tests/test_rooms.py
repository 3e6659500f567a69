"""The picture of the rooms in docs/architecture.md is that of the declaration in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import rooms

ROOT = Path(__file__).resolve().parents[1]


def test_the_picture_is_up_to_date() -> None:
    page = (ROOT / rooms.PAGE).read_text("utf-8")
    assert page == rooms.updated(page, rooms.picture(ROOT)), "run: python -m benchmarks.rooms"


def test_each_room_is_in_the_picture_and_has_a_paragraph() -> None:
    page = (ROOT / rooms.PAGE).read_text("utf-8")
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
    graph = rooms.picture(tmp_path)
    assert all(node in graph for node in ('face("face.py")', 'upper["upper/"]', 'transports_wire["wire/"]'))
    assert graph.endswith("frontends --> L0 --> L1 --> transports")


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="begin rooms"):
        rooms.updated("# A page\n", "flowchart TD")
