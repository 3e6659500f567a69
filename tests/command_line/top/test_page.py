"""The page of `ronde top`: its server, and the page in a browser."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frontends.command_line import cli
from frontends.top import GAUGES, Metrics, Observer, Page, Watched, find
from tests.command_line.top.jobs import running

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="records are locked and mapped as Linux does it"),
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def observed(every: float = 0.2) -> Iterator[Observer]:
    """The only job, looked at."""
    observer = Observer(Watched(find(None).folder), every)
    try:
        observer.start()
        yield observer
    finally:
        observer.close()


@contextlib.contextmanager
def page_of(observer: Observer) -> Iterator[Page]:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install 'ronde[web]'")
    page = Page(observer)
    try:
        page.start()
        yield page
    finally:
        page.close()


def await_looks(observer: Observer, hold: Callable[[], bool]) -> None:
    """Look at the job again until `hold`: in a single second the system may keep any rank from running."""
    for _ in range(100):
        with observer.lock:
            observer.await_look(observer.number + 1, 30.0)
        if hold():
            return
    raise AssertionError("it did not hold after any look")


def get(url: str, path: str, **headers: str) -> tuple[int, bytes]:
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_server_answers_those_who_know_its_address(tmp_path: Path) -> None:
    with running("straggler", 2, tmp_path / "job"), observed() as observer, page_of(observer) as page:
        own = urllib.parse.urlsplit(page.url).path
        assert get(page.url, own)[0] == 200
        assert get(page.url, own + "plotly.js")[0] == 200
        assert b"stay" not in get(page.url, own + "stack?rank=0")[1]
        almost = f"{own[:-2]}{'y' if own[-2] == 'x' else 'x'}/"
        for path in ("/", "/page.js", "/0000/", almost, own + "../server.py", own + "other"):
            assert get(page.url, path)[0] == 404
        assert get(page.url, own, Host="attacker.example")[0] == 404
        for query in ("stack?rank=-1", "stack?rank=x", "calls", "calls?from=a&to=b"):
            assert get(page.url, own + query)[0] == 400

        def waiting(rank: int) -> float:
            with observer.lock:
                return sum(column.waiting[rank] for column in observer.history.columns)

        await_looks(observer, lambda: waiting(0) > waiting(1))  # rank 1 sleeps, rank 0 waits for it
        with observer.lock:
            columns = observer.history.columns
        status, body = get(page.url, f"{own}calls?from={columns[0].began}&to={columns[-1].ended}")
        found = json.loads(body)
        assert status == 200
        assert {collective for collective, _ in found["kinds"]} <= {"allreduce", "broadcast"}
        assert found["calls"]
        assert all(began <= ended for _, began, ended, _ in found["calls"])
        assert columns[-1].throughput.keys() <= {"allreduce", "broadcast"}
        assert observer.stack(0)


def test_events_are_bounded_and_end_with_the_viewer(tmp_path: Path) -> None:
    with running("steps", 2, tmp_path / "job"), observed() as observer, page_of(observer) as page:
        place = urllib.parse.urlsplit(page.url)
        with contextlib.ExitStack() as readers:
            answers = []
            for _ in range(20):
                connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=30)
                readers.callback(connection.close)
                connection.request("GET", place.path + "events")
                answers.append(connection.getresponse())
            assert sorted({answer.status for answer in answers}) == [200, 503]
            first = next(answer for answer in answers if answer.status == 200)
            line = first.readline()
            assert line.startswith(b"data: ")
            message = json.loads(line[6:])
            assert [row["rank"] for row in message["figures"]["ranks"]] == [0, 1]
            assert message["columns"]
            observer.close()
            assert b"event: end" in first.read()
            for answer in answers:
                answer.close()


def test_prometheus_gets_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client", reason="it is not installed: pip install 'ronde[metrics]'")
    with running("straggler", 2, tmp_path / "job"), observed() as observer:
        metrics = Metrics(observer, "127.0.0.1", 0)

        def text() -> str:
            status, body = get(f"http://127.0.0.1:{metrics.port}", "/metrics")
            assert status == 200
            return body.decode()

        def names_rank_1() -> bool:
            lines = [line for line in text().splitlines() if "caused_share{" in line]
            shares = {line.split('rank="')[1][0]: float(line.split()[-1]) for line in lines}
            return shares["1"] > 0.5 > shares["0"]

        try:
            await_looks(observer, names_rank_1)
            for name in GAUGES:
                assert f"# TYPE ronde_rank_{name} gauge" in text()
            assert cli.main(["top", "--metrics", "--listen", str(metrics.port)]) == 2
            assert f"cannot listen at 127.0.0.1, port {metrics.port}: " in capsys.readouterr().err
        finally:
            metrics.close()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium")
@pytest.mark.skipif(
    importlib.util.find_spec("playwright") is None, reason="it is not installed: pip install playwright"
)
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    pictures = Path(os.environ.get("RONDE_TEST_PICTURES", tmp_path))
    with contextlib.ExitStack() as viewer:
        with running("straggler", 3, tmp_path / "job"):
            observer = viewer.enter_context(observed(0.5))
            page = viewer.enter_context(page_of(observer))
            browser = Browser(page.url, pictures, CHROMIUM)
            viewer.callback(browser.close)
            loaded = browser.hear()
            assert (loaded["ranks"], loaded["foreign"], loaded["errors"]) == (3, [], [])
            assert "rank 2" in loaded["findings"]
            assert loaded["plots"]
            assert loaded["heat"] == 1
            zoom = browser.hear()
            assert width(zoom["zoomed"]) < 0.5 * width(zoom["before"])
            assert zoom["later"] == pytest.approx(zoom["zoomed"], abs=1e-3)
            assert "main" in browser.hear()["stack"]
            looks = browser.hear()
            assert looks["dark"] != "rgb(246, 247, 249)"
            assert looks["width"] <= 400
        browser.go_on()
        over = browser.hear()
        assert over["over"] > 0
        assert over["ranks"] == 3
        observer.close()
        browser.go_on()
        assert browser.hear()["lost"] == 1


def width(pair: list[float]) -> float:
    return pair[1] - pair[0]


class Browser:
    """browse.py in a process of its own."""

    def __init__(self, url: str, pictures: Path, chromium: str) -> None:
        script = Path(__file__).parent / "browse.py"
        self._process = subprocess.Popen(
            [sys.executable, str(script), url, str(pictures), chromium],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": "/tmp"},  # Chromium has a socket there, whose path must be short
            start_new_session=True,
        )

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise AssertionError(self._process.stderr.read())
        found: dict[str, Any] = json.loads(line)
        return found

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
