"""Parts of the site's pages that are made from the code: settings, commands, public names, error classes.

A page says `<!-- generated: NAME -->` where the part NAME of PARTS is to stand.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import ronde
from collectives.config import PREFIX, Settings
from docs._tools.docstrings import blocks, cell, entries
from frontends.command_line import cli
from transports import registry
from transports.errors import ConfigError, RondeError

ROOT: Final = Path(__file__).resolve().parents[2]
MARK: Final = re.compile(r"<!-- generated: ([\w-]+) -->")

HEAD: Final = ("setting, environment", "type, default", "meaning")

SECTIONS: Final = {
    "Start and end": "init shutdown is_initialized world connect world_scope run abort",
    "Ranks": "rank size local_rank local_size cross_rank cross_size",
    "Collectives": (
        "allreduce reduce reduce_scatter broadcast allgather gather scatter alltoall scan exscan barrier join"
    ),
    "Several arrays, Python objects, several exchanges": (
        "grouped_allreduce grouped_allgather broadcast_object allgather_object gather_object scatter_object compose"
    ),
    "Messages between two ranks": "send recv sendrecv probe iprobe send_object recv_object",
    "Shared arrays, planned calls, imported algorithms": "empty plan repeated import_msccl",
    "Groups of ranks": "split shrink ProcessSet add_process_set remove_process_set global_process_set",
    "Measurements": "metrics metrics_text reset_metrics save_flight_record serve_metrics start_timeline stop_timeline",
}
"""The functions on the site's page of functions. Asynchronous variants stand behind the function."""


# --- settings ---


def meanings(options: type) -> dict[str, str]:
    """Setting -> meaning, from the docstring of a dataclass."""
    found: dict[str, str] = {}
    for lines in blocks(inspect.getdoc(options) or ""):
        found.update(entries(lines) or {})
    return found


def option_classes() -> Iterator[tuple[str, type]]:
    """Transport and class of its options, for every transport that can be imported here."""
    for name in registry.names():
        try:
            yield name, registry.options_class(name)
        except ConfigError:
            continue


def rows_of(options: type, prefix: str = "") -> list[list[str]]:
    """The rows of the table of settings: name and variable, type and default, meaning."""
    known, rows = meanings(options), []
    for item in dataclasses.fields(options):
        name = f"{prefix}{item.name}"
        default = item.default if item.default is not dataclasses.MISSING else ()
        variable = PREFIX + name.upper().replace(".", "_")
        kind = item.type if isinstance(item.type, str) else item.type.__name__
        rows.append([f"`{name}`<br>`{variable}`", cell(f"`{kind}`<br>`{default!r}`"), cell(known.get(item.name, ""))])
    return rows


def settings_table() -> str:
    """All settings, and the options of every transport."""
    parts = [_table(HEAD, rows_of(Settings))]
    for name, options in option_classes():
        if dataclasses.fields(options):
            rows = rows_of(options, f"{name}.")
            parts.append(f"## Transport {name}\n\n" + _table(HEAD, rows))
    return "\n\n".join(parts)


# --- commands ---


def commands() -> dict[str, argparse.ArgumentParser]:
    """Words of a command -> its parser, for every command and sub-command."""
    found: dict[str, argparse.ArgumentParser] = {}

    def visit(words: str, parser: argparse.ArgumentParser) -> None:
        found[words] = parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, child in action.choices.items():
                    visit(f"{words} {name}", child)

    visit("ronde", cli.parser())
    return found


def command_line() -> str:
    """Every command with its options."""
    parts = []
    for words, parser in commands().items():
        text = [f"## {words}", (parser.description or "").strip()]
        text.append("```text\n" + parser.format_usage().removeprefix("usage: ").rstrip() + "\n```")
        for group in parser._action_groups:
            rows = [[_names(action), cell(_help(action, parser))] for action in group._group_actions if _shown(action)]
            if rows:
                text.append(f"**{(group.title or '').capitalize()}**\n\n" + _table(("name", "meaning"), rows))
        if parser.epilog:
            text.append("```text\n" + parser.epilog.strip() + "\n```")
        parts.append("\n\n".join(part for part in text if part))
    return "\n\n".join(parts)


def _shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)


def _names(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    value = " ".join(value) if isinstance(value, tuple) else value
    if not action.option_strings:
        return f"`{value or action.dest}`"
    return ", ".join(f"`{name}`" for name in action.option_strings) + (
        f" `{value}`" if value and action.nargs != 0 else ""
    )


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    values = {**vars(action), "prog": parser.prog}
    return (action.help or "") % {key: value for key, value in values.items() if value is not argparse.SUPPRESS}


# --- names ---


def functions() -> str:
    """The functions of `ronde`, in sections; those that no section names stand in the last."""
    listed = {name for names in SECTIONS.values() for name in names.split()}
    found = [name for name in ronde.__all__ if inspect.isfunction(getattr(ronde, name))]
    others = [name for name in found if name.removesuffix("_async") not in listed]
    sections = {**SECTIONS, "Others": " ".join(others)} if others else SECTIONS
    parts = []
    for title, names in sections.items():
        parts.append(f"## {title}")
        for name in names.split():
            both = (name, f"{name}_async") if name in listed else (name,)
            parts += [reference(f"ronde.{also}", 3) for also in both if also in ronde.__all__]
    return "\n\n".join(parts)


def classes() -> str:
    """The classes of `ronde` that are no errors, with all methods, and its other values."""
    first = ("Communicator", "Work", "Status", "Config")
    shown = " ".join(SECTIONS.values()).split()
    others = [name for name in ronde.__all__ if not _is_error(getattr(ronde, name)) and name not in (*first, *shown)]
    others = [name for name in others if not inspect.isfunction(getattr(ronde, name))]
    parts = [reference(f"ronde.{name}", 2, inherited=name == "Communicator") for name in (*first, *others)]
    return "\n\n".join(parts)


def errors() -> str:
    """The classes of errors, as a tree and one by one."""
    found = [getattr(ronde, name) for name in ronde.__all__ if _is_error(getattr(ronde, name))]
    lines: list[str] = []

    def visit(kind: type, depth: int) -> None:
        others = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins" and base is not Exception]
        lines.append("  " * depth + kind.__name__ + (f"  (also a {', '.join(others)})" if others else ""))
        for child in sorted((other for other in found if other.__bases__[0] is kind), key=lambda other: other.__name__):
            visit(child, depth + 1)

    for kind in found:
        if kind is RondeError or not issubclass(kind, RondeError):
            visit(kind, 0)
    tree = "\n".join(["```text", *lines, "```"])
    return "\n\n".join([tree, *(reference(f"ronde.{kind.__name__}", 2) for kind in found)])


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def exported(module: str) -> list[str]:
    """The names in `__all__` of a module of `ronde`, read from its source or from that of the module it re-exports."""
    path = module_file(module)
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            assert isinstance(node.value, ast.List)
            return [name for item in node.value.elts for name in _listed(item, tree)]
        if isinstance(node, ast.ImportFrom) and any(alias.name == "__all__" for alias in node.names):
            return exported(str(node.module))
    return []


def _listed(item: ast.expr, tree: ast.Module) -> list[str]:
    """The names that an item of `__all__` stands for: itself, or `*common.__all__` of another module."""
    if not isinstance(item, ast.Starred):
        return [ast.literal_eval(item)]
    name = ast.unparse(item.value).partition(".")[0]
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    package = next(node.module for node in imports if any(alias.name == name for alias in node.names))
    return exported(f"{package}.{name}")


def module_file(module: str) -> Path:
    """The file of a module of the repository."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def frontend(module: str) -> Callable[[], str]:
    """A part with the names of a frontend and of its public modules."""

    def part() -> str:
        file = module_file(f"ronde.{module}")
        inner = (
            sorted(path.stem for path in file.parent.glob("*.py") if path != file) if file.stem == "__init__" else []
        )
        parts = [reference(f"ronde.{module}.{name}", 2) for name in exported(f"ronde.{module}") if name not in inner]
        for name in inner:
            path = f"ronde.{module}.{name}"
            parts += [f"## {path}", *(reference(f"{path}.{member}", 3) for member in exported(path))]
        return "\n\n".join(parts)

    return part


def reference(path: str, level: int, *, inherited: bool = False) -> str:
    """The directive of mkdocstrings for one object; `inherited` also shows the members that a class inherits."""
    options = f"::: {path}\n    options:\n      heading_level: {level}"
    return f"{options}\n      inherited_members: true" if inherited else options


def examples() -> str:
    """The table of the examples: each file with the first line of its docstring."""
    rows = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        rows.append([f"[{path.name}](../../examples/{path.name})", cell(" ".join(blocks(doc)[0]))])
    return _table(("program", "what it shows"), rows)


def decisions() -> str:
    """The list of decisions, by the titles of their pages."""
    found = []
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        title = path.read_text("utf-8").split("\n", 1)[0].lstrip("# ")
        found.append(f"- [{path.stem.partition('-')[0]}: {title}]({path.name})")
    return "\n".join(found)


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


PARTS: Final[dict[str, Callable[[], str]]] = {
    "settings": settings_table,
    "command-line": command_line,
    "functions": functions,
    "classes": classes,
    "errors": errors,
    "decisions": decisions,
    "examples": examples,
    **{
        name: frontend(name)
        for name in (
            "torch",
            "tensorflow",
            "keras",
            "jax",
            "mxnet",
            "numpy",
            "compression",
            "elastic",
            "ray",
            "dask",
            "spark",
            "horovod",
            "local_sgd",
            "parameter_server",
        )
    },
}
"""The parts by name."""


def filled(markdown: str) -> str:
    """A page with its generated parts. KeyError for the name of a part that is unknown."""

    def part(match: re.Match[str]) -> str:
        return PARTS[match[1]]()

    return MARK.sub(part, markdown)
