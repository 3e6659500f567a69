"""Rules for the structure of the packages. Those for imports are contracts in pyproject.toml: see `make lint`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from transports import registry

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("transports", "collectives", "frontends")
PACKAGES = (*ROOMS, "ronde")

NOT_EVERYWHERE = {"fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty", "winreg"}
"""Modules of the standard library that some systems lack."""

MAX_NAMES = 45
"""Maximum number of public names of a room."""

MIN_DOC_LINES = 3
"""Minimum number of lines of the docstring of a room."""

USER_FACES = {f"frontends/{name}" for name in ("jax", "keras", "mxnet", "numpy", "tensorflow", "torch")}
"""Rooms whose names are Horovod's API, which has more than MAX_NAMES."""

_DECLARING = {"ABC", "Enum", "NamedTuple", "Protocol", "Structure", "TypedDict"}
"""Bases of classes that may declare an attribute without setting it."""


def sources(*folders: str) -> list[Path]:
    """The Python files in these folders, which are relative to the root of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def with_text(pattern: str, *folders: str) -> Iterator[tuple[str, ast.Module]]:
    """The name and the tree of each source that has this text: to parse all takes seconds."""
    for path in sources(*folders):
        if re.search(pattern, path.read_text("utf-8"), re.MULTILINE):
            yield shown(path), parsed(path)


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def unguarded(tree: ast.Module) -> Iterator[str]:
    """Modules that some systems lack and that are imported outside of any function, try or if."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in NOT_EVERYWHERE)
        elif isinstance(node, ast.ImportFrom) and node.module in NOT_EVERYWHERE:
            yield node.module


def backends_named(tree: ast.Module) -> Iterator[str]:
    """Texts that are the names of modules of transports' backends."""
    modules = [module for module in registry.BUILT_IN.values() if module.startswith("transports.")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if any(text == module or text.startswith(module + ".") for module in modules):
                yield text


def imports_by_name(tree: ast.Module) -> Iterator[str]:
    """Texts in calls of `import_module` that begin like the names of the project's modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and str(part.value).split(".")[0] in PACKAGES:
                    yield str(part.value)


def public_names(tree: ast.Module) -> list[str]:
    """The items of `__all__`, if there is one; otherwise all names without an underscore that the module binds."""
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += [alias.asname or alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = [target.id for target in targets if isinstance(target, ast.Name)]
            if "__all__" in bound:
                assert node.value is not None
                assert isinstance(node.value, ast.List)
                return [ast.unparse(item).strip("'") for item in node.value.elts]
            names += bound
    return [name for name in names if not name.startswith("_") and name != "annotations"]


def foreign_attributes(tree: ast.Module) -> Iterator[str]:
    """Attributes that a class declares in its body and never sets, as a mixin does with attributes of another class."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = {name.id for base in node.bases for name in ast.walk(base) if isinstance(name, ast.Name)}
        bases |= {name.attr for base in node.bases for name in ast.walk(base) if isinstance(name, ast.Attribute)}
        decorated = "dataclass" in "".join(ast.unparse(decorator) for decorator in node.decorator_list)
        if decorated or bases & _DECLARING:
            continue
        stored = (
            part for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        )
        own = {part.attr for part in stored}
        for part in node.body:
            declares = isinstance(part, ast.AnnAssign) and part.value is None and isinstance(part.target, ast.Name)
            if declares and part.target.id not in own:
                yield f"{node.name}.{part.target.id}"


def test_modules_import_only_modules_of_every_system() -> None:
    found = with_text(rf"^(import|from) .*\b({'|'.join(NOT_EVERYWHERE)})\b", *PACKAGES)
    offenders = [f"{name}: {module}" for name, tree in found for module in unguarded(tree)]
    assert not offenders


def test_collectives_name_no_backend_to_import_later() -> None:
    found = with_text("[\"']transports\\.", "collectives")
    offenders = [f"{name}: {text}" for name, tree in found for text in backends_named(tree)]
    assert not offenders


def test_frontends_import_by_statements_which_the_contracts_see() -> None:
    found = with_text("import_module", "frontends")
    offenders = [f"{name}: {text}" for name, tree in found for text in imports_by_name(tree)]
    assert not offenders


def test_rooms_have_a_docstring_and_few_public_names() -> None:
    offenders = []
    for door in (path for path in sources(*ROOMS) if path.name == "__init__.py"):
        tree, room = parsed(door), shown(door.parent)
        if room in ROOMS:
            continue
        if len((ast.get_docstring(tree) or "").splitlines()) < MIN_DOC_LINES:
            offenders.append(f"{room}: its docstring is shorter than {MIN_DOC_LINES} lines")
        if room not in USER_FACES and len(public_names(tree)) > MAX_NAMES:
            offenders.append(f"{room}: {len(public_names(tree))} public names, more than {MAX_NAMES}")
    known = {"frontends/horovod"}
    assert not [offender for offender in offenders if offender.split(":")[0] not in known]


@pytest.mark.long
def test_no_class_declares_attributes_of_another() -> None:
    found = with_text(r"^ +\w+: ", *PACKAGES)
    offenders = [f"{name}: {attribute}" for name, tree in found for attribute in foreign_attributes(tree)]
    assert not offenders


def test_a_guard_is_seen() -> None:
    source = "import fcntl\ntry:\n    import pwd\nexcept ImportError:\n    pwd = None\nfrom termios import ECHO\n"
    assert list(unguarded(ast.parse(source))) == ["fcntl", "termios"]


def test_a_backend_in_a_text_is_seen() -> None:
    assert list(backends_named(ast.parse("f('transports.tcp', 'transports.shm.ring', 'transports.base')"))) == [
        "transports.tcp",
        "transports.shm.ring",
    ]


def test_an_import_by_name_is_seen() -> None:
    source = "import_module('mxnet')\nimportlib.import_module(f'frontends.keras.backends.{name}')\n"
    assert list(imports_by_name(ast.parse(source))) == ["frontends.keras.backends."]


def test_public_names_are_found() -> None:
    assert public_names(ast.parse("from a import b, c\n__all__ = ['c']")) == ["c"]
    source = "from __future__ import annotations\nimport a.b\nfrom c import d as e, _f\nX: int = 1\ndef g(): ...\n"
    assert public_names(ast.parse(source)) == ["a", "e", "X", "g"]


def test_foreign_attributes_are_found() -> None:
    source = """
class Mixin:
    foreign: int
    own: int
    both, other = 1, 2
    def __init__(self): self.own, self.else_ = 1, 2
class Contract(Protocol[T]):
    promised: int
@dataclasses.dataclass(frozen=True)
class Record:
    field: int
"""
    assert list(foreign_attributes(ast.parse(source))) == ["Mixin.foreign"]
