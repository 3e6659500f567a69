"""The programs and the commands in the README and the documentation work as shown.

A page is played from top to bottom in a folder of its own: a block of Python whose first line is `# NAME.py` is saved
there, one that says `start it with: COMMAND` is run, and so is every line of a block of bash. A block after
`<!-- not run: REASON -->` is only read. Pages of ELSEWHERE are run by the tests of their subject.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from collectives.algorithms import algorithms, registry
from collectives.proof.verify import prove
from frontends.command_line import cli
from tests.collectives.launch.launcher import RONDE

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if "decisions" not in path.parts
)
PLAYED: dict[str, tuple[str, ...]] = {
    "README.md": (),
    "docs/index.md": (),
    "docs/tutorial/one-process.md": (),
    "docs/tutorial/four-processes.md": ("docs/tutorial/one-process.md",),
    "docs/tutorial/two-hosts.md": (),
    "docs/compression.md": (),
    "docs/elastic.md": (),
    "docs/observing.md": (),
    "docs/saving.md": (),
    "docs/local-sgd.md": (),
    "docs/parameter-servers.md": (),
    "docs/model-parallel.md": (),
    "docs/simulate.md": (),
    "docs/troubleshooting.md": (),
    "docs/migrating-from-mpi4py.md": (),
    "docs/mpi.md": (),
    "docs/guides/tuning.md": ("docs/tutorial/one-process.md",),
    "docs/guides/pytorch.md": (),
    "docs/guides/tensorflow.md": (),
}
"""Page -> pages whose files it uses."""
FRAMEWORKS = {"docs/guides/pytorch.md": ("torch",), "docs/guides/tensorflow.md": ("tensorflow", "keras")}
ELSEWHERE = {
    "docs/architecture.md": "tests/test_snippets.py",
    "docs/reliability.md": "tests/test_snippets.py",
    "docs/messages.md": "tests/test_snippets.py",
    "docs/jax.md": "tests/frontends/test_jax_training.py",
    "docs/mxnet.md": "tests/frontends/test_mxnet.py",
    "docs/numpy.md": "tests/frontends/test_numpy_loops.py",
    "docs/tf-distribute.md": "tests/frontends/test_tf_distribute.py",
}
LEAST_RANKS = {"docs/parameter-servers.md": 2, "docs/model-parallel.md": 4}
"""Page -> the least number of ranks that its programs make sense on."""
FRAGMENTS = ("CONTRIBUTING.md",)
"""Pages with parts of programs: they must compile."""
INSTALLS = ("pip install", "python3 -m venv", ". .venv/bin/activate")
"""Commands that are not run: they would change the environment of the tests."""


@dataclass(frozen=True)
class Block:
    """A block of code of a page; `skipped` is the reason for which it is not run."""

    language: str
    text: str
    skipped: str

    @property
    def file(self) -> str:
        found = re.match(r"# ([\w.]+\.py)\b", self.text)
        return found[1] if found else ""

    @property
    def command(self) -> str:
        found = re.match(r"# [\w.]+\.py; start it with: ([^,\n]*)", self.text)
        return found[1] if found else ""


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text("utf-8")
    found = re.finditer(r"(?:<!-- not run: (.*?) -->\n)?^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [Block(match[2], match[3], match[1] or "") for match in found]


def snippets(page: str) -> list[str]:
    return [block.text for block in blocks(page) if block.language == "python"]


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shell(command: str, directory: Path) -> str:
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(folders), "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def briefly(command: str) -> str:
    """A command; one that measures takes less time than by default, in which it keeps every core busy."""
    return f"{command} --seconds 0.01" if command.startswith(("ronde bench ", "ronde tune ")) else command


def save(page: str, directory: Path) -> None:
    """Save the programs of a page."""
    for block in blocks(page):
        if block.file:
            (directory / block.file).write_text(block.text)


def play(page: str, directory: Path) -> dict[str, str]:
    """Run a page; returns the output of each command."""
    for other in PLAYED[page]:
        save(other, directory)
    said = {}
    for block in blocks(page):
        commands = []
        if block.language == "python":
            (directory / (block.file or "block.py")).write_text(block.text)
            commands = [block.command] if block.command else [] if block.file else ["python block.py"]
        elif block.language == "bash" and not block.skipped:
            commands = [line for line in block.text.splitlines() if not line.startswith(INSTALLS)]
        said.update({command: shell(briefly(command), directory) for command in commands})
    return said


def commands() -> Iterator[tuple[str, str]]:
    """Page and command, for all commands in blocks, in indented lines and between backticks of all pages."""
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        lines = [line for block in blocks(page) if block.language in ("bash", "sh") for line in block.text.splitlines()]
        lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
        lines += re.findall(r"`([^`\n]+)`", text)
        lines += [block.command for block in blocks(page)]
        for line in lines:
            command = re.sub(r"^([A-Z_]+=\S+ )+", "", re.sub(r"\s+#.*", "", line))
            if re.match(r"(ronde|make|pip install) (?!COMMAND)\S", command):
                yield page, command


@pytest.mark.frameworks
@pytest.mark.parametrize("page", FRAMEWORKS)
def test_a_page_about_a_framework(tmp_path: Path, page: str) -> None:
    absent = [name for name in FRAMEWORKS[page] if importlib.util.find_spec(name) is None]
    if absent:
        pytest.skip(f"{absent[0]} is not installed: pip install 'ronde[{absent[0]}]'")
    said = play(page, tmp_path)
    assert len(said) == 2


@pytest.mark.processes
@pytest.mark.parametrize("page", [page for page in PLAYED if page not in FRAMEWORKS])
def test_a_page(tmp_path: Path, page: str) -> None:
    said = play(page, tmp_path)
    if page == "README.md":
        lines = said["ronde run -np 4 python hello.py"].splitlines()
        assert sorted(lines) == [f"[rank {rank}] [6. 6. 6.] [0 0 1 0 1 2]" for rank in range(4)]
        assert all(f"    {line}\n" in (ROOT / page).read_text("utf-8") for line in lines)
        assert said["python from_python.py"] == "[30.0, 30.0, 30.0]\n"
    elif page == "docs/tutorial/one-process.md":
        assert said["python train.py"] == "1 ranks: [1. 2. 3. 4. 5. 6. 7. 8.]\n"
    elif page == "docs/tutorial/four-processes.md":
        assert said["ronde run -np 4 python train.py"] == "[rank 0] 4 ranks: [1. 2. 3. 4. 5. 6. 7. 8.]\n"
        table = said["ronde run -np 2 python mistake.py"]
        assert "rank 1: allreduce(float64, 5 elements, op=sum), its call 1, called from" in table
        assert "mistake.py:8" in table
    else:
        assert said or page == "docs/tutorial/two-hosts.md"


@pytest.mark.parametrize("page", [page for page in PLAYED if page not in FRAMEWORKS])
def test_programs_of_a_page_run_on_other_numbers_of_ranks(tmp_path: Path, page: str) -> None:
    started = [command for command in play(page, tmp_path) if re.match(r"ronde run -np \d+ python \w+\.py$", command)]
    for np in (np for np in (1, 2, 4) if np >= LEAST_RANKS.get(page, 1)):
        for command in started:
            shell(re.sub(r"-np \d+", f"-np {np}", command), tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_every_program_is_run(page: str) -> None:
    if page in FRAGMENTS:
        for text in snippets(page):
            compile(f"class Fragment:\n{indented(text)}", page, "exec")
    elif page in ELSEWHERE:
        assert page in (ROOT / ELSEWHERE[page]).read_text("utf-8")
    else:
        assert page in PLAYED or not snippets(page)


def indented(text: str) -> str:
    """The lines as the body of a class."""
    return text if text.startswith("    ") else "".join(f"    {line}\n" for line in text.splitlines())


@pytest.mark.long
def test_every_command_exists() -> None:
    """`ronde` accepts the options, make has the target, pip the extra, and files that Python is given exist."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    seen = {"ronde": 0, "make": 0, "pip": 0}
    for page, command in commands():
        words = shlex.split(re.sub(r"\[[^\]]*\]\.\.\.|\.\.\.", "x", command), posix=True) if "…" not in command else []
        kind = command.split()[0]
        seen[kind] += 1
        if kind == "make":
            target = words[1]
            if not target.startswith("PYTHON="):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: {command}"
        elif kind == "pip":
            for name in re.findall(r"ronde\[([\w,-]+)\]", command):
                assert set(name.split(",")) <= extras.keys(), f"{page}: {command}"
        elif words[1] in ("run", "bench", "tune", "doctor", "timeline", "why"):
            check_options(page, command, words)
    assert all(count > 3 for count in seen.values()), seen


def test_the_files_and_tests_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    quoted = re.findall(r"`([^`\n]+)`", text)
    paths = [
        path
        for path in quoted
        if re.fullmatch(r"(collectives|transports|frontends|tests|docs|benchmarks)/[\w/.]+", path)
    ]
    missing = [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    names = [name for name in quoted if re.fullmatch(r"test_\w+", name)]
    unknown = [name for name in names if f"def {name}(" not in sources]
    assert len(paths) > 15
    assert names
    assert not missing
    assert not unknown


def check_options(page: str, command: str, words: list[str]) -> None:
    """Every option of a command, up to the program that it starts, is known to its parser."""
    parsers = [action for action in cli.parser()._actions if action.dest == "==SUPPRESS==" or action.choices]
    choices = next(dict(action.choices) for action in parsers if isinstance(action.choices, dict))
    parser = choices[words[1]]
    if words[1] == "timeline" and len(words) > 2:
        inner = next(dict(a.choices) for a in parser._actions if isinstance(a.choices, dict))
        parser = inner.get(words[2], parser)
    for word in words[2:]:
        if word in ("python", "--") or word.endswith(".py"):
            break
        if word.startswith("-"):
            assert word.partition("=")[0] in parser._option_string_actions, f"{page}: {command}: {word}"


@pytest.mark.processes
def test_the_page_of_messages(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(snippets("docs/messages.md")[0])
    said = run([*RONDE, "run", "-np", "3", "--no-prefix", sys.executable, str(script)], tmp_path)
    assert sorted(said.splitlines()) == ["1 1 45.0", "2 2 190.0"]
    script.write_text(snippets("docs/messages.md")[1])
    assert run([*RONDE, "run", "-np", "3", "--no-prefix", sys.executable, str(script)], tmp_path) == "[3. 0.] [2 0]\n"


DEATH = """
import os
import numpy as np

if os.environ["RONDE_RANK"] == "1":
    ones, calls = np.ones, iter(range(500))
    np.ones = lambda count, *kind: os._exit(3) if not kind and next(calls, None) is None else ones(count, *kind)
"""
"""Put before the snippet, it kills rank 1 in the middle."""


@pytest.mark.processes
def test_ranks_go_on_as_the_reliability_page_says(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DEATH + snippets("docs/reliability.md")[0])
    said = run([*RONDE, "run", "-np", "3", "--keep-going", "--no-prefix", sys.executable, str(script)], tmp_path)
    lines = sorted(said.splitlines())
    assert [line for line in lines if line.endswith("is done")] == [f"rank {rank} of 2 is done" for rank in range(2)]
    assert all("rank 1" in line and "pid" in line for line in lines if " of 3: " in line)
    assert len([line for line in lines if " of 3: " in line]) == 2


def test_an_algorithm_is_added_as_the_architecture_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.REGISTERED, "broadcast", algorithms("broadcast"))
    exec(snippets("docs/architecture.md")[0], {})
    for size in (1, 2, 5):
        prove(algorithms("broadcast")["one_by_one"], size, root=size - 1)


@pytest.mark.long
def test_a_transport_is_judged_as_the_architecture_page_says() -> None:
    exec(snippets("docs/architecture.md")[1], {})
