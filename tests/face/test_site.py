"""The documentation site: it builds without warnings, its links lead somewhere, and it has every name and setting."""

from __future__ import annotations

import dataclasses
import html
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ronde
from collectives import config
from collectives.config import Settings
from docs._tools import docstrings, generated, links, pictures
from transports import registry

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "mxnet",
    "numpy",
    "compression",
    "elastic",
    "local_sgd",
    "parameter_server",
    "ray",
    "dask",
    "spark",
    "horovod",
)


def settings() -> list[str]:
    """The names of all settings, with the options of all built-in transports."""
    names = [item.name for item in dataclasses.fields(Settings)]
    for transport in registry.BUILT_IN:
        names += [f"{transport}.{item.name}" for item in dataclasses.fields(registry.options_class(transport))]
    return names


def options() -> list[str]:
    """All options of all commands."""
    return [
        name
        for parser in generated.commands().values()
        for action in parser._actions
        if action.help != "==SUPPRESS=="
        for name in action.option_strings
    ]


def test_every_setting_has_type_default_variable_and_meaning() -> None:
    page = generated.settings_table()
    rows = {
        line.split("`")[1]: [cell.strip() for cell in line.split(" | ")] for line in page.splitlines() if "| `" in line
    }
    assert list(rows) == settings()
    for name, cells in rows.items():
        assert f"`RONDE_{name.upper().replace('.', '_')}`" in cells[0]
        assert re.fullmatch(r"`\S.*`<br>`.+`", cells[1]), name
        assert len(cells[2].rstrip(" |")) > 10, f"{name} has no meaning in the docstring of its dataclass"


def test_every_variable_that_is_no_setting_is_explained() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    assert [name for name in config.NO_SETTINGS if f"`RONDE_{name}`" not in page] == []


def test_every_option_of_every_command_is_listed() -> None:
    page = generated.command_line()
    assert len(options()) > 60
    assert [name for name in options() if f"`{name}`" not in page] == []
    assert "%(" not in page


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join([generated.functions(), generated.classes(), generated.errors()])
    documented = re.findall(r"^::: ronde\.(\w+)$", text, re.MULTILINE)
    assert sorted(documented) == sorted(ronde.__all__)
    for name in MODULES:
        text = generated.PARTS[name]()
        listed = {line.rpartition(".")[2] for line in text.splitlines() if line.startswith(("::: ", "## "))}
        assert set(generated.exported(f"ronde.{name}")) <= listed


def test_every_module_of_the_reference_is_public() -> None:
    page = (ROOT / "docs/reference/stability.md").read_text("utf-8").partition("Not public:")[0]
    assert [name for name in (*MODULES, "mpi") if f"`ronde.{name}`" not in page] == []


def test_every_extra_for_users_is_listed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    section = (ROOT / "docs/platforms.md").read_text("utf-8").partition("### Extras")[2].partition("\n## ")[0]
    of_developers = {"docs", "release", "check", "test", "compatibility"}
    assert [name for name in extras if name not in of_developers and f"`{name}`" not in section] == []


def test_pictures_are_up_to_date() -> None:
    for name, draw in pictures.PICTURES.items():
        assert (pictures.FOLDER / name).read_text("utf-8") == draw(), "run: python -m docs._tools.pictures"


def test_pages_without_a_place_come_last_in_the_navigation() -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'ronde[docs]'")
    from docs._tools import hooks

    nav = ["index.md", {"A": [{"B": ["x/y.md"]}]}, {"Z": ["z.md"]}]
    paths = [ROOT / "docs" / name for name in ("decisions/0001.md", "index.md", "new.md", "x/y.md", "z.md")]
    assert hooks.add_pages(nav, paths) == {"Z": ["z.md", "new.md"]}


@pytest.mark.parametrize(
    "words",
    [
        "missing; rank, size and store must be given together",
        "is needed when",
        "the other end does not know the job's secret",
        "is not an interface or address of this machine",
        "the ranks' calls do not fit together",
        "has made no progress for",
        "cannot be communicated",
        "arrays on GPUs need CuPy, which cannot be imported",
        "needs torch: pip install",
    ],
)
def test_troubleshooting_has_the_words_of_the_errors(words: str) -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    sources = [path for name in ("collectives", "transports", "frontends") for path in (ROOT / name).rglob("*.py")]
    assert words in page
    assert any(words in path.read_text("utf-8") for path in sources)


def test_docstrings_become_markdown() -> None:
    doc = """Do it.

        run(x)

    first        one of many, and a text
                 that goes on
    second, third  text
    """
    assert docstrings.entries(["a   one", "bc  two", "    more"]) == {"a": "one", "bc": "two more"}
    assert docstrings.entries(["plain text", "of two lines"]) is None
    shown = docstrings.to_markdown(
        doc.replace("first        ", "first          ").replace("                 that", "                   that")
    )
    assert "```python\nrun(x)\n```" in shown
    assert "| `first` | one of many, and a text that goes on |\n| `second`, `third` | text |" in shown
    assert docstrings.to_markdown("x[0][1] of `y[0]`") == r"x\[0\]\[1\] of `y[0]`"


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="x">X</h1><a href="a/#y"></a><a href="#x"></a><a href="https://h/"></a>'
    )
    (tmp_path / "a" / "index.html").write_text('<h1 id="z"></h1><img src="../gone.png"><a href="../#x"></a>')
    broken, foreign, count = links.check(tmp_path)
    assert broken == ["a/index.html: ../gone.png: no such page", "index.html: a/#y: no such heading"]
    assert (foreign, count) == ({"https://h/"}, 5)


@pytest.mark.long
def test_the_site_builds_and_has_everything(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs or mkdocstrings is not installed: pip install 'ronde[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    broken, _, count = links.check(tmp_path)
    assert broken == []
    assert count > 1000
    reference = {path.parent.name: path.read_text("utf-8") for path in (tmp_path / "reference").glob("*/index.html")}
    names = reference["functions"] + reference["classes"] + reference["errors"]
    assert [name for name in ronde.__all__ if f'id="ronde.{name}"' not in names] == []
    for module in MODULES:
        page = reference[module]
        assert [
            name for name in generated.exported(f"ronde.{module}") if f'id="ronde{"." + module}.{name}' not in page
        ] == []
    assert [name for name in settings() if f"<code>{name}</code>" not in reference["settings"]] == []
    del reference["stability"]  # it tells of the older names
    shown = {name: re.sub(r"<[^>]+>", "", page) for name, page in reference.items()}
    inner = re.compile(r"\b(?:collectives|frontends)\.\w+")
    assert [(name, found) for name, page in shown.items() for found in inner.findall(page)] == []
    assert [name for name in options() if f"<code>{html.escape(name)}</code>" not in reference["command-line"]] == []
