"""Reads the imports of the packages and holds them to the rules in docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from transports import registry

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("transports", "collectives", "frontends")
"""From the bottom up: a package may import those before it."""

FOR_COLLECTIVES = (
    "auth",
    "base",
    "copying",
    "errors",
    "interfaces",
    "liveness",
    "native",
    "onesided",
    "packed",
    "registry",
    "rendezvous",
    "settings",
    "tls",
)
"""What collectives may import of transports: everything but the backends and what is theirs alone."""

MAX_LINES = 400
NOT_EVERYWHERE = {"fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty", "winreg"}
"""Modules of the standard library that some systems lack."""

FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, importer: str, is_package: bool) -> Iterator[str]:
    """The dotted names that a module imports, wherever in it; `from a import b` gives 'a.b'."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = importer.split(".") if is_package else importer.split(".")[:-1]
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def complaint(importer: str, imported: str) -> str | None:
    """Why `importer` must not import `imported`; None if it may."""
    package, target = importer.split(".")[0], imported.split(".")[0]
    if target not in PACKAGES:
        return None
    if PACKAGES.index(target) > PACKAGES.index(package):
        return "imports go frontends -> collectives -> transports"
    rooms = imported.split(".")[1:]
    if package == "collectives" and target == "transports" and rooms and rooms[0] not in FOR_COLLECTIVES:
        return f"of transports, collectives may only import {', '.join(FOR_COLLECTIVES)}"
    for own in registry.BUILT_IN.values():
        for other in registry.BUILT_IN.values():
            if own != other and within(importer, own) and within(imported, other):
                return "backends do not import each other"
    if importer in ("collectives.schedule", "collectives.patterns"):
        return "it imports nothing of Ronde"
    if within(importer, "collectives.algorithms") and not any(
        within(imported, room) for room in ("collectives.schedule", "collectives.patterns", "collectives.algorithms")
    ):
        return "algorithms see only schedule, patterns and each other"
    return None


def unguarded(tree: ast.Module) -> Iterator[str]:
    """Modules that some systems lack and that are imported outside of any function, try or if."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in NOT_EVERYWHERE)
        elif isinstance(node, ast.ImportFrom) and node.module in NOT_EVERYWHERE:
            yield node.module


def test_there_is_something_to_check() -> None:
    assert {module_name(path).split(".")[0] for path in FILES} == set(PACKAGES)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_module_keeps_the_rules(path: Path) -> None:
    text, name = path.read_text("utf-8"), module_name(path)
    tree = ast.parse(text)
    found = imports(tree, name, path.name == "__init__.py")
    bad = [f"{imported}: {reason}" for imported in found if (reason := complaint(name, imported))]
    assert not bad, f"{name} imports {bad}"
    assert not list(unguarded(tree)), f"{name} imports at its top what not every system has"
    assert len(text.splitlines()) <= MAX_LINES, f"{name} is too long; it probably holds two rooms"


@pytest.mark.parametrize("path", [path for path in FILES if path.is_relative_to(ROOT / "collectives")], ids=module_name)
def test_collectives_name_no_backend_to_import_later(path: Path) -> None:
    modules = [module for module in registry.BUILT_IN.values() if module.startswith("transports.")]
    texts = [node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant)]
    named = [text for text in texts if isinstance(text, str) and any(within(text, module) for module in modules)]
    assert not named


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("transports.base", "collectives.schedule"),
        ("transports.base", "frontends.torch"),
        ("collectives.plan", "frontends"),
        ("collectives.plan", "transports.tcp"),
        ("collectives.plan", "transports.shm.windows.Window"),
        ("collectives.plan", "transports.testing"),
        ("transports.tcp.loop", "transports.shm.ring"),
        ("transports.auto", "transports.tcp"),
        ("collectives.schedule", "collectives.patterns"),
        ("collectives.patterns", "transports.errors"),
        ("collectives.algorithms.ring", "collectives.plan"),
        ("collectives.algorithms.ring", "transports.base"),
    ],
)
def test_the_rules_forbid(importer: str, imported: str) -> None:
    assert complaint(importer, imported)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("collectives.plan", "numpy"),
        ("collectives.plan", "transports.base.Transport"),
        ("collectives.world", "transports.registry"),
        ("frontends.torch", "collectives"),
        ("transports.tcp.loop", "transports.tcp.frames"),
        ("transports.tcp.loop", "transports.matching"),
        ("collectives.algorithms.ring", "collectives.schedule.Step"),
        ("collectives.algorithms.ring", "collectives.algorithms.registry"),
    ],
)
def test_the_rules_allow(importer: str, imported: str) -> None:
    assert complaint(importer, imported) is None


def test_every_form_of_import_is_seen() -> None:
    source = """
import a.b, c
from d import e as f
from . import g
from ..h import i
def later():
    from j import k
"""
    tree = ast.parse(source)
    assert list(imports(tree, "p.q.r", False)) == ["a.b", "c", "d.e", "p.q.g", "p.h.i", "j.k"]
    assert list(imports(tree, "p.q", True)) == ["a.b", "c", "d.e", "p.q.g", "p.h.i", "j.k"]


def test_a_guard_is_seen() -> None:
    source = "import fcntl\ntry:\n    import pwd\nexcept ImportError:\n    pwd = None\nfrom termios import ECHO\n"
    assert list(unguarded(ast.parse(source))) == ["fcntl", "termios"]
