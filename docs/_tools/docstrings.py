"""Ronde's docstrings for the site: their aligned lists become tables, their indented lines become code.

A docstring lists arguments, settings or fields in this form, which is easy to read in an editor:

    timeout     seconds that the call may take, waiting for
                late ranks included
    algorithm   name of an algorithm

`entries` reads such a list, `to_markdown` turns a whole docstring into Markdown.
"""

from __future__ import annotations

import inspect
import re
from itertools import pairwise

_ENTRY = re.compile(r"^(?P<indent> *)(?P<name>[*\w.\-/\[\], ]*?[*\w.\-/\]])  +(?P<text>\S.*)$")


def blocks(doc: str) -> list[list[str]]:
    """The paragraphs of a docstring, as lists of lines."""
    return [block.split("\n") for block in re.split(r"\n\s*\n", inspect.cleandoc(doc)) if block.strip()]


def entries(lines: list[str]) -> dict[str, str] | None:
    """Name -> text of an aligned list; None if the lines are none.

    All names begin in the same column, and so do all texts, those of the lines that continue an entry included.
    """
    first = _ENTRY.match(lines[0])
    if first is None:
        return None
    start, column = len(first["indent"]), first.start("text")
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        match = _ENTRY.match(line)
        if match and len(match["indent"]) == start and match.start("text") == column:
            name = match["name"]
            found[name] = match["text"]
        elif line.startswith(" " * (start + 1)):
            found[name] = f"{found[name]} {line.strip()}".strip()
        elif line.startswith(" " * start) and len(line) > column - 2 and re.fullmatch(r"[\w.*, ]+", line):
            name = line.strip()  # too long to stand beside its text, which follows
            found[name] = ""
        else:
            return None
    return found


def table(rows: dict[str, str]) -> str:
    """A Markdown table of names and texts."""
    lines = ["| | |", "|---|---|"]
    lines += [
        f"| {', '.join(f'`{part}`' for part in name.split(', '))} | {cell(plain(text))} |"
        for name, text in rows.items()
    ]
    return "\n".join(lines)


def cell(text: str) -> str:
    """A text as the cell of a Markdown table."""
    return re.sub(r"(?<!\\)\|", r"\\|", text.replace("\n", " ").replace("<", "&lt;").replace("&lt;br>", "<br>"))


def to_markdown(doc: str) -> str:
    """A docstring as Markdown."""
    return "\n\n".join(joined([part for lines in blocks(doc) for part in parts_of(lines)]))


def parts_of(lines: list[str]) -> list[str]:
    """A paragraph as Markdown: a table, code, a title with what is indented below it, or text, maybe with a table."""
    rows = entries(lines)
    if rows is not None and (len(rows) > 1 or not lines[0].startswith("    ")):
        return [table(rows)]
    if all(line.startswith("    ") for line in lines):
        kind = "python" if any(sign in "\n".join(lines) for sign in ("=", "import", "(")) else "text"
        return ["\n".join([f"```{kind}", *(line[4:] for line in lines), "```"])]
    if len(lines) > 1 and all(line.startswith("    ") for line in lines[1:]):
        return [f"**{lines[0]}**", *parts_of([line[4:] for line in lines[1:]])]
    for number in range(1, len(lines)):
        rows = entries(lines[number:])
        if rows is not None and (len(rows) > 1 or number > 1):
            return [plain("\n".join(lines[:number])), table(rows)]
    return [plain("\n".join(lines))]


def plain(text: str) -> str:
    """Prose as Markdown: brackets and stars outside of code are themselves, not links and emphasis."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\[\]*])", r"\\\1", part) for part in parts)


def joined(parts: list[str]) -> list[str]:
    """The parts, with code blocks that stand next to each other as one."""
    found = parts[:1]
    for before, part in pairwise(parts):
        head = part.split("\n", 1)[0]
        if head.startswith("```") and before.split("\n", 1)[0] == head:
            found[-1] = found[-1].removesuffix("```") + "\n" + part.split("\n", 1)[1]
        else:
            found.append(part)
    return found
