"""Pictures of algorithms: every message is in each form, and the documents can be read."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.algorithms import PAGE, page
from collectives.algorithms import Algorithm, algorithms
from collectives.drawing import draw_animation, draw_svg, draw_text, picture_of
from collectives.proof import lower_ranks
from collectives.schedule import SPECS, Kind
from frontends.command_line.cli import main

ALL = [found for collective in SPECS for found in algorithms(collective).values() if collective != "barrier"]
RING = """\
allreduce by ring: 3 ranks, 3 parts
'3 > 1': the rank sends part 3 to rank 1

round  rank 0  rank 1  rank 2
    1  0 > 1   1 > 2   2 > 0   ring reduce-scatter 1/2
    2  2 > 1   0 > 2   1 > 0   ring reduce-scatter 2/2
    3  1 > 1   2 > 2   0 > 0   ring allgather 1/2
    4  0 > 1   1 > 2   2 > 0   ring allgather 2/2"""


@pytest.mark.parametrize("tested", ALL, ids=lambda found: f"{found.collective}-{found.name}")
@pytest.mark.parametrize("size", [2, 5, 8])
def test_every_form_has_every_message(tested: Algorithm, size: int) -> None:
    hosts = tuple(rank % 2 for rank in range(size)) if tested.multihost else ()
    picture = picture_of(tested, size, hosts=hosts)
    programs = lower_ranks(tested, size, hosts=hosts).programs
    sent = sum(step.kind is Kind.SEND for program in programs for step in program.instructions)
    assert sum(event.kind == "send" for event in picture.events) == sent
    moving = [event for event in picture.events if event.kind != "combine"]
    assert moving
    document = ElementTree.fromstring(draw_svg(picture))
    assert sum("marker-end" in item.attrib for item in document.iter()) == len(moving)
    page = draw_animation(picture)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert data is not None
    assert len(json.loads(data[1])["events"]) == len(moving)
    assert "@" not in re.sub(r"@media", "", page)
    assert sum(len(re.findall(r"[0-9st] [<>] [0-9]", line)) for line in draw_text(picture).split("\n")[2:]) == len(
        moving
    )


def test_text() -> None:
    picture = picture_of(algorithms("allreduce")["ring"], 3)
    assert draw_text(picture) == RING
    narrow = draw_text(picture, 45)
    assert narrow.count("round  rank") == 3
    assert max(map(len, narrow.split("\n"))) <= 45


def test_reads_are_those_of_peers_memory() -> None:
    picture = picture_of(algorithms("allreduce")["direct"], 3)
    assert {(event.rank, event.peer) for event in picture.events if event.kind == "read"} == {
        (rank, peer) for rank in range(3) for peer in range(3) if rank != peer
    }


@pytest.mark.parametrize("form", ["svg", "html", "txt"])
def test_the_command_writes_files(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"picture.{form}"
    assert main(["draw", "broadcast", "--algorithm", "binomial", "-np", "6", "--root", "2", "-o", str(file)]) == 0
    assert "broadcast by binomial: 6 ranks" in file.read_text()


def test_the_command_prints_the_picture_or_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "allreduce", "--algorithm", "hierarchical", "-np", "4", "--hosts", "2"]) == 0
    assert "across hosts" in capsys.readouterr().out
    assert main(["draw", "allgather"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == set(algorithms("allgather"))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--algorithm", "rings"], "--algorithm rings: for allreduce it must be one of "),
        (["--algorithm", "ring", "-np", "1"], "-np 1: must be 2 to 64"),
        (["--algorithm", "ring", "--segments", "65536"], "segments=65536: the 4 ranks have more than 200000 steps"),
        (["--algorithm", "ring", "--hosts", "9"], "--hosts 9: must divide the number of ranks, 4"),
        (["--algorithm", "tree", "--segments", "2"], "segments=2: must be 1 for 'tree'"),
        (["-o", "ring.svg"], "--output ring.svg: is for a drawing; give --algorithm NAME as well"),
        (["--algorithm", "ring", "-o", "ring.png"], "--output ring.png: must end with one of .svg, .html, .txt"),
    ],
)
def test_bad_arguments(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["draw", "allreduce", *words])
    assert caught.value.code == 2
    assert error in capsys.readouterr().err


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "no" / "ring.svg"
    with pytest.raises(SystemExit) as caught:
        main(["draw", "allreduce", "--algorithm", "ring", "-o", str(file)])
    assert caught.value.code == 2
    assert f"there is no folder {str(file.parent)!r}" in capsys.readouterr().err


@pytest.mark.long
def test_the_page_is_up_to_date() -> None:
    assert page() == PAGE.read_text(encoding="utf-8"), "run python -m benchmarks.algorithms"
