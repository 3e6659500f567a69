"""The command that measures the structure of the source tree, on a tiny tree and on this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import house

ROOT = Path(__file__).resolve().parents[1]

FILES = {
    "transports/__init__.py": "",
    "transports/base.py": "class Base:\n    a: int\n    def __init__(self):\n        self.b = self.c = 1\n",
    "collectives/__init__.py": "from collectives.upper import Upper\n",
    "collectives/upper.py": "from collectives.room import helper\nclass Upper: ...\n",
    "collectives/other.py": "import typing\nif typing.TYPE_CHECKING:\n    from collectives.upper import Upper\n",
    "collectives/room/__init__.py": "from collectives.room.deep import helper\n__all__ = ['helper']\n",
    "collectives/room/deep.py": "from transports.base import Base\ndef helper():\n    pass\n    return 1\n",
    "frontends/__init__.py": "",
    "frontends/numpy/__init__.py": "",
    "frontends/numpy/ops.py": "def later():\n    from ..numpy.trees import leaf, LEAF\n",
    "frontends/numpy/trees.py": "from frontends.numpy import ops\n",
    "frontends/torch.py": "from frontends.numpy.trees import leaf\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_structure_of_a_tree(folder: Path) -> None:
    rows = house.measured(house.Tree.read(folder))
    assert rows["modules directly in collectives/"] == "2"
    assert rows["rooms of collectives/"] == "1"
    assert rows["floors of modules in collectives/"] == "3"  # deep, upper, other
    assert rows["floors of rooms in collectives/"] == "3"
    assert rows["floors of modules"] == "4"  # base below them
    assert rows["circles of modules"] == "1"
    assert rows["modules in circles"] == "2"
    assert rows["circles of rooms"] == "0"
    assert rows["lines"] == str(sum(text.count("\n") for text in FILES.values()))
    assert rows["longest function (lines)"] == "3 collectives.room.deep: helper"
    assert rows["most attributes of a class"] == "3 transports.base: Base"


def test_public_names_are_those_of_the_door_or_those_that_others_import(folder: Path) -> None:
    assert house.public_names(house.Tree.read(folder)) == {
        "public names of collectives.room": "1",
        "public names of frontends.numpy": "1",
    }


def test_an_import_by_its_name_closes_a_circle(folder: Path) -> None:
    later = "from importlib import import_module\ndef later():\n    return import_module('collectives.upper').Upper\n"
    (folder / "collectives/room/deep.py").write_text(later)
    rows = house.measured(house.Tree.read(folder))
    assert rows["circles of modules"] == "2"
    assert rows["modules in circles"] == "5"  # upper, room and deep, beside the two of frontends.numpy


def test_public_names_count_those_of_other_lists(folder: Path) -> None:
    (folder / "frontends/common.py").write_text("__all__ = ['rank', 'size']\n")
    (folder / "frontends/numpy/__init__.py").write_text(
        "from frontends import common\n__all__ = [*common.__all__, 'leaf']\n"
    )
    assert house.public_names(house.Tree.read(folder))["public names of frontends.numpy"] == "3"


def test_components_and_depth() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert house.components(graph) == [{"d"}, {"b", "c"}, {"a"}, {"e"}]
    assert house.depth(graph) == 4


def test_table_of_two_trees() -> None:
    assert house.table({"old": {"x": "1", "gone": "2"}, "new": {"x": "10"}}).splitlines() == [
        "|      | old | new |",
        "|------|-----|-----|",
        "| x    | 1   | 10  |",
        "| gone | 2   | -   |",
    ]


@pytest.mark.processes
def test_functions_of_an_allreduce() -> None:
    names = house.passed(ROOT, "local")
    assert names[0] == "collectives/communicator.py: Communicator.allreduce"
    assert any(name.startswith("transports/local/") for name in names)
    assert not [name for name in names if name.startswith("collectives/gpu/")]


def test_a_folder_without_the_packages_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        house.main([str(tmp_path)])
    assert "has no package 'collectives'" in capsys.readouterr().err


@pytest.mark.processes
def test_an_argument_that_is_neither_folder_nor_revision_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        house.main(["no-such-revision", "--transport", "none"])
    assert "'no-such-revision': neither a folder nor a git revision" in capsys.readouterr().err


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main([str(folder), str(folder), "--transport", "none"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in lines[0].split("|")] == ["", "", str(folder), ""]
    assert any(line.startswith("| public names of collectives.room") for line in lines)
