"""`ronde top` on jobs that run."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectives.flight import read
from frontends.command_line.top.sources import Here
from frontends.top import find, jobs
from tests.command_line.top.jobs import running, top
from transports.errors import ConfigError

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="records are locked and mapped as Linux does it"),
]


@pytest.mark.parametrize("size", [2, 16, 64])
def test_once_tells_the_ranks_and_the_rank_that_makes_the_others_wait(size: int, tmp_path: Path) -> None:
    with running("straggler", size, tmp_path / "job"):
        done = top("--once", "--json")
        source = Here(None)
        began = time.process_time()
        source.figures()
        spent = time.process_time() - began
        source.close()
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert [row["rank"] for row in figures["ranks"]] == list(range(size))
    assert (figures["size"], figures["over"], figures["missing"]["count"]) == (size, False, 0)
    assert figures["program"] == "job.py straggler"
    worst = max(figures["ranks"], key=lambda row: row["caused"])
    assert worst["rank"] == size - 1
    assert all(row["calls_per_second"] > 0 and row["pid"] > 0 for row in figures["ranks"])
    assert {kind["collective"] for kind in figures["slowest"]} == {"allreduce", "broadcast"}
    assert all(kind["line"].startswith("job.py:") for kind in figures["slowest"])
    if size <= 16:  # more ranks than that share the cores: the kernel makes them late, too
        assert [one["ranks"]["first"] for one in figures["culprits"]] == [[size - 1]]
    assert spent < 1.0


def test_the_table_fits_80_columns(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="rich is not installed: pip install 'ronde[progress]'")
    with running("steps", 3, tmp_path / "job"):
        done = top("--once")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "3 ranks on 1 host" in lines[0]
    assert sum(bool(re.match(r" +[012] ", line)) for line in lines) == 3


def test_a_rank_that_stays_away_ends_the_chain_and_its_stack_shows_where_it_is(tmp_path: Path) -> None:
    with running("hang", 3, tmp_path / "job"):
        deadline = time.monotonic() + 60
        while True:
            figures = json.loads(top("--once", "--json").stdout)
            if figures["chain"] is not None or time.monotonic() > deadline:
                break
        stack = top("--stack", "1").stdout
        refused = top("--stack", "7")
    assert figures["chain"]["ranks"][-1] == 1
    assert not figures["chain"]["circle"]
    assert [row["state"] for row in figures["ranks"]] == ["waiting", "computing", "waiting"]
    assert [row["waits_for"]["first"] for row in figures["ranks"]] == [[1], [], [1]]
    assert "in stay_away" in stack
    assert refused.returncode == 2
    assert "--stack 7: must be a rank of the job, 0 to 2" in refused.stderr


def test_jobs_are_listed_and_one_of_several_is_named(tmp_path: Path) -> None:
    none = top("--once", "--json")
    assert none.returncode == 2
    assert str(tmp_path / "run") in none.stderr
    with running("steps", 2, tmp_path / "one"), running("steps", 3, tmp_path / "two"):
        listed = top("--list")
        assert listed.returncode == 0
        assert len(listed.stdout.splitlines()) == 2
        names = [line.split()[0] for line in listed.stdout.splitlines()]
        several = top("--once", "--json")
        assert several.returncode == 2
        assert all(name in several.stderr for name in names)
        sizes = {json.loads(top("--once", "--json", "--job", name).stdout)["size"] for name in names}
        assert sizes == {2, 3}
        assert top("--once", "--json", "--job", "another").returncode == 2
    assert jobs() == []


def test_a_line_of_json_for_each_look_until_the_job_is_over(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ronde", "top", "--json", "--every", "0.2"]
    with running("steps", 2, tmp_path / "job"):
        viewer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert viewer.stdout is not None
        first = json.loads(viewer.stdout.readline())
    rest = [json.loads(line) for line in viewer.stdout]
    assert viewer.wait(60) == 0
    viewer.stdout.close()
    assert not first["over"]
    assert rest[-1]["over"]
    assert {row["state"] for row in rest[-1]["ranks"]} == {"closed"}


def test_saved_records_can_be_read_after_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with running("steps", 2, tmp_path / "job"):
        done = top("--save")
        name = find(None).name
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob(f"ronde-{name}-*")
    copies = [read(path, time.perf_counter_ns()) for path in sorted(folder.glob("rank-*.flight"))]
    assert [record.rank for record in copies] == [0, 1]
    for record in copies:
        entries = list(record.entries("0-0"))
        assert entries[0].text.collective in ("allreduce", "broadcast")
        assert [entry.number for entry in entries] == list(range(entries[0].number, entries[-1].number + 1))
        assert all(entry.ended is not None for entry in entries[:-1])


def test_a_failed_job_stays_in_view_by_its_name(tmp_path: Path) -> None:
    with contextlib.suppress(AssertionError), running("dies", 2, tmp_path / "job", code=None):
        pass
    (folder,) = (tmp_path / "run" / "ronde" / "flights").iterdir()
    figures = json.loads(top("--once", "--json", "--job", folder.name).stdout)
    assert figures["over"]
    assert [row["state"] for row in figures["ranks"]] == ["failed", "dead"]
    assert figures["failures"][0]["error"] == "PeerLost"
    assert figures["failures"][0]["peer"] == 1


def test_a_job_whose_records_were_removed_is_over(tmp_path: Path) -> None:
    with running("steps", 2, tmp_path / "job"):
        job = find(None)
        source = Here(None)
        assert not source.figures()["over"]
    shutil.rmtree(job.folder)
    figures = source.figures()
    source.close()
    assert figures["over"]
    assert [row["rank"] for row in figures["ranks"]] == [0, 1]
    with pytest.raises(ConfigError):
        find(job.name)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, so it needs root")
def test_another_user_sees_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    script = "import os\nfrom frontends.top import jobs\nos.setgid(65534); os.setuid(65534)\nprint(jobs())"
    with running("steps", 2, tmp_path / "job"):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        (folder,) = (tmp_path / "run" / "ronde" / "flights").iterdir()
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert done.stdout.strip() == "[]"
    assert modes["door"] == 0o600
    assert set(modes.values()) == {0o600}
    assert folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_viewer_that_stops_or_dies_does_nothing_to_the_job(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ronde", "top", "--json", "--every", "0.05"]
    with running("steps", 2, tmp_path / "job"):
        viewer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert viewer.stdout is not None
        viewer.stdout.readline()
        viewer.send_signal(number)
        try:
            source = Here(None)
            before, deadline = calls_made(source), time.monotonic() + 60
            while calls_made(source) < before + 30 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert calls_made(source) >= before + 30
            source.close()
        finally:
            viewer.kill()
            viewer.wait()
            viewer.stdout.close()


def calls_made(source: Here) -> int:
    """The newest number of a call in the job."""
    (folder,) = {job.folder for job in jobs()}
    return read(folder / "rank-0.flight", 0).calls["0-0"].newest


def test_the_terminal_shows_the_job_and_obeys_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="rich is not installed: pip install 'ronde[progress]'")
    import fcntl
    import termios

    monkeypatch.chdir(tmp_path)
    with running("hang", 3, tmp_path / "job"):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        viewer = subprocess.Popen(
            [sys.executable, "-m", "ronde", "top", "--every", "0.2"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
        )
        os.close(theirs)
        try:
            terminal = Terminal(ours)
            terminal.until(r"3 ranks on 1 host")
            terminal.until(r"computing")
            terminal.press("s", r"by waits")
            terminal.press("h", r"host ")
            terminal.press("h", r"all hosts")
            terminal.press("s", r"by calls")
            terminal.press("s", r"by bytes")
            terminal.press("s", r"by rank")
            terminal.press("\x1b[B", r"")
            terminal.press("t", r"stay_away")
            terminal.press("x", r"slowest")
            terminal.press("w", r"3 records in")
            terminal.press("q", r"")
            assert viewer.wait(60) == 0
        finally:
            viewer.kill()
            viewer.wait()
            os.close(ours)
    assert len(list(tmp_path.glob("ronde-*/rank-*.flight"))) == 3


class Terminal:
    """The other side of a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._said = ""

    def press(self, key: str, pattern: str) -> None:
        """Press a key, and wait until the terminal shows what it brings."""
        self._said = ""
        os.write(self._descriptor, key.encode())
        if pattern:
            self.until(pattern)

    def until(self, pattern: str) -> None:
        deadline = time.monotonic() + 60
        while not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._said)):
            assert time.monotonic() < deadline, self._said[-3000:]
            if select.select([self._descriptor], [], [], 1.0)[0]:
                self._said += os.read(self._descriptor, 1 << 16).decode("utf-8", "replace")
