"""Hooks of MkDocs: generated parts of pages, and pages made of files outside docs/ that pages link to."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs._tools.generated import ROOT, filled

_LINK: Final = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
_LANGUAGES: Final = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", ".sh": "bash"}
_PAGES: Final = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "reporting.md"}
"""Files of the repository's root that are pages of the site."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the pages that mkdocs.yml does not place to the last section of the navigation."""
    assert config.nav is not None
    config.nav[-1] = add_pages(config.nav, sorted((ROOT / "docs").rglob("*.md")))
    return config


def add_pages(nav: list[Any], paths: list[Path]) -> dict[str, list[Any]]:
    """The last section of the navigation, with the pages that no section has, those of decisions/ apart."""
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in paths]
    placed = re.findall(r"[\w./-]+\.md", str(nav))
    ((title, last),) = nav[-1].items()
    return {title: [*last, *(page for page in pages if page not in placed and not page.startswith("decisions/"))]}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that a page links to."""
    for source, target in _PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text("utf-8")))
    wanted = set()
    for page in [file for file in files if file.src_uri.endswith(".md")]:
        for match in _LINK.finditer(filled(page.content_string)):
            wanted |= {path for path in [_outside(origin_of(page.src_uri), match["path"])] if path is not None}
    for path in sorted(wanted - _PAGES.keys()):
        files.append(File.generated(config, _page_of(path), content=_shown(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill the generated parts in, and let links to files outside docs/ lead to the pages made of them."""
    origin = origin_of(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        path = _outside(origin, match["path"])
        if path is None and origin == page.file.src_uri:
            return match[0]
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(f"docs/{origin}"), match["path"]))
        target = inside.removeprefix("docs/") if path is None else _PAGES.get(path, _page_of(path))
        here = posixpath.dirname(page.file.src_uri) or "."
        return posixpath.relpath(target, here) + (match["anchor"] or "")

    return _LINK.sub(link, filled(markdown))


def origin_of(uri: str) -> str:
    """The path of a page's source, relative to docs/."""
    return next((f"../{source}" for source, target in _PAGES.items() if target == uri), uri)


def _outside(origin: str, link: str) -> str | None:
    """The path, relative to the repository, of a linked file that is not in docs/; None for others."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(f"docs/{origin}"), link))
    inside = path.startswith(("docs/", "..")) or path == "docs"
    return None if inside or not (ROOT / path).exists() else path


def _page_of(path: str) -> str:
    return f"files/{path}.md" if not (ROOT / path).is_dir() else f"files/{path}/index.md"


def _shown(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        listed = "\n".join(
            f"- `{child.name}`" for child in sorted(path.iterdir()) if not child.name.startswith(("_", "."))
        )
        return f"# {name}/\n\n{listed}\n"
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return text
    return f"# {name}\n\n```{_LANGUAGES.get(path.suffix, 'text')}\n{text}```\n"
