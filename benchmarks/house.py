"""Measures the structure of the source tree: its rooms, its imports, and the functions that a small allreduce passes.

    python -m benchmarks.house                      # this tree
    python -m benchmarks.house 2dbfcf3 .            # a revision beside this tree: before and after

Each argument is a folder that holds the packages, or a git revision of this repository. The result is a table in
Markdown with a column for each tree, then the functions of one `world.allreduce(x)` of 4 bytes on 2 ranks. All imports
count, also those inside functions, those for type checkers only, and `import_module` of a name that is written out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.walks import Setting, walk

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("collectives", "transports", "frontends")
CALLS: Final = 200
"""Number of profiled allreduces. The one with the fewest calls counts, since waits for the other rank add calls."""


@dataclass(frozen=True)
class Tree:
    """The modules of a source tree, by dotted name."""

    modules: Mapping[str, ast.Module]
    packages: frozenset[str]
    lines: int

    @classmethod
    def read(cls, folder: Path) -> Tree:
        """Parse the packages in a folder. ValueError if one is missing."""
        modules, packages, lines = {}, set(), 0
        for package in PACKAGES:
            if not (folder / package / "__init__.py").exists():
                raise ValueError(f"{folder}: has no package {package!r}")
            for path in sorted((folder / package).rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                if parts[-1] == "__init__":
                    packages.add(name)
                text = path.read_text("utf-8")
                modules[name], lines = ast.parse(text), lines + len(text.splitlines())
        return cls(modules, frozenset(packages), lines)

    @functools.cached_property
    def imported_names(self) -> dict[str, set[tuple[str, str]]]:
        """The imports of each module from the tree, as (module, name in it or "")."""
        return {name: set(self._imported_names(name)) for name in self.modules}

    def _imported_names(self, importer: str) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self.modules[importer]):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names if alias.name in self.modules)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    package = importer.split(".") if importer in self.packages else importer.split(".")[:-1]
                    above = package[: len(package) - node.level + 1]
                    base = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names if base in self.modules else ():
                    module = f"{base}.{alias.name}"
                    yield (module, "") if module in self.modules else (base, alias.name)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                yield from ((name, "") for name in texts(node) if name in self.modules)

    def imports(self) -> dict[str, set[str]]:
        """The modules of the tree that each module's import statements name."""
        return {
            importer: {module for module, _ in found} - {importer} for importer, found in self.imported_names.items()
        }

    def uses(self) -> dict[str, set[str]]:
        """The modules that define the names which each module imports; re-exports by packages are followed."""
        return {
            importer: {self._defining_module(*pair) for pair in found} - {importer}
            for importer, found in self.imported_names.items()
        }

    def _defining_module(self, module: str, name: str) -> str:
        """The module that defines a name which is imported from `module`."""
        if name and module in self.packages:
            for node in self.modules[module].body:
                if isinstance(node, ast.ImportFrom) and not node.level and node.module in self.modules:
                    for alias in node.names:
                        if alias.name == "*" and name in (exported(self, node.module) or ()):
                            return self._defining_module(node.module, name)
                        if (alias.asname or alias.name) == name and f"{node.module}.{alias.name}" not in self.modules:
                            return self._defining_module(node.module, alias.name)
        return module

    def used_from(self, room: str) -> set[str]:
        """The names that modules outside a room import from it."""
        found = (pair for name, pairs in self.imported_names.items() if not inside(name, room) for pair in pairs)
        return {f"{module}.{name}" for module, name in found if inside(module, room)}

    def top_level(self, package: str) -> list[str]:
        """The modules directly in a package, sub-packages not counted."""
        return [name for name in self.modules if name.rpartition(".")[0] == package and name not in self.packages]

    def rooms(self) -> list[str]:
        """The sub-packages directly in one of the packages."""
        return sorted(name for name in self.packages if name.count(".") == 1)


def texts(node: ast.AST) -> Iterator[str]:
    """The constant texts in a part of a program."""
    return (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def components(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Strongly connected components, each after its imports (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        path.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in path:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            start = path.index(node)
            found.append(set(path[start:]))
            del path[start:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def depth(graph: Mapping[str, set[str]]) -> int:
    """The number of modules on the longest chain of imports; the modules of a circle count as one."""
    height: dict[str, int] = {}
    for members in components(graph):
        below = {other for node in members for other in graph[node]} - members
        height |= dict.fromkeys(members, 1 + max((height[other] for other in below), default=0))
    return max(height.values(), default=0)


def between_rooms(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The imports between rooms; a module beside the rooms is a room of its own."""
    found: dict[str, set[str]] = {}
    for name, imported in graph.items():
        found.setdefault(room_of(name), set()).update(room_of(other) for other in imported)
    return {room: others - {room} for room, others in found.items()}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def exported(tree: Tree, module: str) -> list[str] | None:
    """The names in `__all__`, those of `*other.__all__` as well; None if the module has none."""
    for node in tree.modules[module].body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                assert isinstance(node.value, ast.List | ast.Tuple)
                modules = {name.rpartition(".")[2]: name for name, part in tree.imported_names[module] if not part}
                lists = [
                    exported(tree, modules[ast.unparse(item.value).partition(".")[0]]) or []
                    if isinstance(item, ast.Starred)
                    else [ast.literal_eval(item)]
                    for item in node.value.elts
                ]
                return [name for names in lists for name in names]
    return None


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes of an object: those that its methods set on `self`, and the fields declared in the class body."""
    found = {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for part in ast.walk(node):
        stored = isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        if stored and isinstance(part.value, ast.Name) and part.value.id == "self":
            found.add(part.attr)
    return found


def definitions(tree: Tree, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """All functions or classes, with `module: name`."""
    for name, module in tree.modules.items():
        for node in ast.walk(module):
            if isinstance(node, kinds):
                yield f"{name}: {node.name}", node


def measured(tree: Tree) -> dict[str, str]:
    """The rows of a tree's column, as texts."""
    graph, uses = tree.imports(), tree.uses()
    core = {name: {other for other in found if inside(other, "collectives")} for name, found in uses.items()}
    core = {name: found for name, found in core.items() if inside(name, "collectives") and name != "collectives"}
    core = {name: found - {"collectives"} for name, found in core.items()}
    circles = [found for found in components(graph) if len(found) > 1]
    functions = definitions(tree, (ast.FunctionDef, ast.AsyncFunctionDef))
    lengths = [(node.end_lineno - node.lineno + 1, name) for name, node in functions]
    sizes = [(len(attributes(node)), name) for name, node in definitions(tree, (ast.ClassDef,))]
    return {
        **{f"modules directly in {package}/": str(len(tree.top_level(package))) for package in PACKAGES},
        **{f"rooms of {package}/": str(sum(inside(room, package) for room in tree.rooms())) for package in PACKAGES},
        "floors of modules in collectives/": str(depth(core)),
        "floors of rooms in collectives/": str(depth(between_rooms(core))),
        "floors of modules": str(depth(uses)),
        "circles of modules": str(len(circles)),
        "modules in circles": str(sum(map(len, circles))),
        "circles of rooms": str(sum(len(found) > 1 for found in components(between_rooms(graph)))),
        "lines": f"{tree.lines:,}",
        "longest function (lines)": "{} {}".format(*max(lengths, default=(0, "-"))),
        "most attributes of a class": "{} {}".format(*max(sizes, default=(0, "-"))),
    }


def public_names(tree: Tree) -> dict[str, str]:
    """A row for each room: the number of names in its `__all__`, or without `__all__`, of names that others import."""
    rows = {}
    for room in tree.rooms():
        names = exported(tree, room)
        rows[f"public names of {room}"] = str(len(tree.used_from(room) if names is None else names))
    return rows


def passed(folder: Path, transport: str) -> list[str]:
    """The Python functions that one small allreduce calls on rank 0 of 2, in order, as `file: function`.

    Raises RuntimeError if the allreduce fails.
    """
    setting = Setting("", transport, "auto")
    return [f"{step.path}: {step.name}" for step in walk(folder, setting, CALLS)]


@contextlib.contextmanager
def tree_of(argument: str) -> Iterator[Path]:
    """The folder that an argument names, or a temporary folder with the files of that git revision."""
    if Path(argument).is_dir():
        yield Path(argument).resolve()
        return
    command = ["git", "archive", argument, *PACKAGES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=100, check=False)
    if done.returncode:
        raise ValueError(f"{argument!r}: neither a folder nor a git revision: {done.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(scratch, filter="data")
        yield Path(scratch).resolve()


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """A table in Markdown: a row for each key, in the order of the last column; `-` where a column lacks the key."""
    rows = list(dict.fromkeys(row for column in reversed(list(columns.values())) for row in column))
    cells = [["", *columns], *([row, *(column.get(row, "-") for column in columns.values())] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(cells[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def report(arguments: Sequence[str], transport: str | None, say: Callable[[str], None] = print) -> None:
    """Print the table of these trees, and the functions of a small allreduce over a transport (None: without them)."""
    columns: dict[str, dict[str, str]] = {}
    calls: dict[str, list[str]] = {}
    for argument in arguments:
        with tree_of(argument) as folder:
            tree = Tree.read(folder)
            columns[argument] = measured(tree)
            if transport is not None:
                calls[argument] = passed(folder, transport)
                columns[argument][f"functions of an allreduce ({transport})"] = str(len(calls[argument]))
            columns[argument] |= public_names(tree)
    say(table(columns))
    for argument, names in calls.items():
        say(f"\n{argument}: the functions of one allreduce of 4 bytes on 2 ranks over {transport}\n")
        for number, name in enumerate(names, 1):
            say(f"{number:3d}. {name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status: 0, or 2 if an argument is neither a folder nor a revision."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="*", default=["."], metavar="TREE", help="a folder or a git revision")
    parser.add_argument(
        "--transport", default="shm", help="the transport of the allreduce: shm (default), local, tcp, none"
    )
    options = parser.parse_args(arguments)
    try:
        report(options.trees, None if options.transport == "none" else options.transport)
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
