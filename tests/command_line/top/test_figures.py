"""The screen, the drawings and the notebook, of figures that are made up."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from frontends.top import Figures, find
from frontends.top.drawings import chain_svg, waiting_svg
from frontends.top.history import Column
from frontends.top.notebook import notebook_html
from tests.command_line.top.jobs import running

pytest.importorskip("rich", reason="rich is not installed: pip install 'ronde[progress]'")

from rich.console import Console

from frontends.command_line.top.screen import View, count_text, ranks_text, render, rows_of, seconds_text


def several(*ranks: int) -> Figures:
    return {"count": len(ranks), "first": list(ranks[:8])}


def rank(number: int, host: int, caused: float = 0.0) -> Figures:
    call = {"text": "allreduce(float32, 1000 elements, op=sum)", "collective": "allreduce", "line": "train.py:3"}
    return {
        "rank": number, "host": f"node{host}", "host_id": f"id{host}", "pid": 4000 + number, "state": "waiting",
        "call": call, "last": None, "seconds": 1.5, "waits_for": several(*range(20)), "waits": 1.5,
        "calls_per_second": 1234.5, "bytes_per_second": 1.2e9, "communicating": 0.5, "waited": 1.0, "caused": caused,
        "share": caused, "run_delay": 0.1,
    }  # fmt: skip


def job(hosts: int, each: int) -> Figures:
    ranks = [rank(host * each + local, host) for host in range(hosts) for local in range(each)]
    ranks[-1] |= {"caused": 0.9, "share": 0.9}
    found = [
        {
            "host": f"node{host}",
            "host_id": f"id{host}",
            "ranks": several(*range(host * each, (host + 1) * each)),
            "alive": each,
            "waiting": each,
            "calls_per_second": 1.0,
            "bytes_per_second": 1.0,
            "communicating": 0.5,
            "waited": 1.0,
            "caused": 0.9 if host == hosts - 1 else 0.0,
            "share": 0.9 if host == hosts - 1 else 0.0,
        }
        for host in range(hosts)
    ]
    links = [
        {"rank": number, "host": "node<1>", "state": "waiting", "call": "allreduce(x)", "number": 7, "line": "a.py:1",
         "seconds": 3.0}
        for number in range(8)
    ]  # fmt: skip
    return {
        "world": "node0-1-00", "program": "train.py " + "x" * 200, "transport": "auto", "size": hosts * each,
        "over": False, "time": 1.8e9, "window": 30.0, "ranks": ranks, "hosts": found, "missing": several(),
        "silent": several(3, 4), "trouble": "the store does not answer", "slowest": [],
        "chain": {"ranks": list(range(8)), "length": 30, "circle": False, "seconds": 3.0, "links": links},
        "culprits": [{"kind": "late", "ranks": several(hosts * each - 1), "host": "node<9>", "share": 0.9,
                      "seconds": 3.0, "reason": "it is <b>late</b>" * 20, "calls": []}],
        "failures": [{"rank": 3, "error": "PeerLost", "text": "lost " * 100, "peer": 4}],
    }  # fmt: skip


def shown(figures: Figures, view: View, lines: int = 24) -> list[str]:
    console = Console(width=80, height=lines, color_system=None)
    with console.capture() as captured:
        console.print(render(figures, view, lines))
    return captured.get().splitlines()


def test_a_thousand_ranks_are_shown_by_host_the_worst_first() -> None:
    figures = job(125, 8)
    text = shown(figures, View())
    assert len(text) <= 24
    assert max(map(len, text)) <= 80
    hosts = [line.split()[0] for line in text if line.startswith("node")]
    assert hosts[0] == "node124"
    assert len(hosts) >= 5
    assert rows_of(figures, View(), 24)[0]["host"] == "node124"


def test_views_choose_hosts_ranks_and_orders() -> None:
    figures = job(125, 8)
    assert [row["rank"] for row in rows_of(figures, View(host="id3", sort="rank"), 24)] == list(range(24, 32))
    assert rows_of(figures, View(grouped=False), 24)[0]["rank"] == 999
    assert len(rows_of(figures, View(grouped=False, sort="rank"), 24)) == 1000
    far = shown(figures, View(grouped=False, sort="rank", chosen=500))
    assert any(line.strip().startswith("500 ") for line in far)
    assert "\n".join(shown(figures, View(text="stack\nof rank"))).count("stack") == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0us"), (2.5e-5, "25us"), (0.0123, "12ms"), (3.25, "3.2s"), (600, "10min"), (9e4, "25h")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_numbers_and_ranks_are_short() -> None:
    assert [count_text(number) for number in (0, 3.4, 1234, 2.5e6, 9.99e11, 5e15)] == [
        "0", "3", "1.2K", "2.5M", "999G", "5000T",
    ]  # fmt: skip
    assert [ranks_text(several(*ranks)) for ranks in ((), (3,), (1, 2, 3, 4), (0, 2, 9, 11))] == [
        "",
        "3",
        "1-4",
        "0 +3",
    ]


def test_drawings_are_whole_and_have_no_text_as_markup() -> None:
    figures = job(2, 2)
    columns = [Column(i, i + 1.0, [i / 10, 0.0, 1.0, 0.5], {}) for i in range(10)]
    for svg in (chain_svg(figures), waiting_svg(columns)):
        xml.etree.ElementTree.fromstring(svg)
    assert "node&lt;1&gt;" in chain_svg(figures)
    assert chain_svg(figures | {"chain": None}) == ""
    assert waiting_svg([]) == ""
    html = notebook_html(figures, columns)
    assert "<b>late</b>" not in html
    assert "4 ranks on 2 hosts" in html
    many = waiting_svg([Column(0.0, 1.0, [0.5] * 1000, {})])
    assert many.count("<rect") <= 66


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="records are locked and mapped as Linux does it")
def test_a_notebook_shows_the_job_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display", reason="IPython is not installed")
    import ronde

    shown_texts: list[str] = []

    class Handle:
        def update(self, html: Any) -> None:
            shown_texts.append(html.data)

    def show(html: Any, display_id: bool) -> Handle:
        assert display_id
        shown_texts.append(html.data)
        return Handle()

    monkeypatch.setattr(display, "display", show)
    with running("hang", 3, tmp_path / "job"):
        name = find(None).name
        view = ronde.top(every=0.1)
        assert not view.wait(0.5)
        assert view.figures["world"] == name
        json.dumps(view.figures)
    assert view.wait(60.0)
    assert "3 ranks on 1 host, running" in shown_texts[0]
    assert "over" in shown_texts[-1]
    view.close()
