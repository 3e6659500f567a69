"""Makes collectives/asynchronous.py: the asynchronous twins of the methods in collectives/communicator.py.

python -m docs._tools.twins    # after a change of a method that has a twin
"""

from __future__ import annotations

import ast
import copy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "collectives" / "asynchronous.py"

_RUN: Final = "self._run."
"""The methods that have a twin do what they do by an attribute of this; the twin does it by `self._begin(name)`."""
_HEAD: Final = '''\
"""The asynchronous twins of the Communicator's methods. Made by `python -m docs._tools.twins`: do not edit it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from collectives.annotations import A, Number, OpName, Options, ReduceOptions, Scalar, ScaledOptions, SupportsArray, T
from collectives.arrays import Array, Op
from collectives.execution import Peers
from collectives.operations import Pickler, PointToPoint, ReceiveOptions, Starter, Status, Work


class AsynchronousCalls:
    """The methods that begin a call and return its Work. The calls themselves are those of Communicator."""

    def __init__(self, begin: Callable[[str | None], Starter[Work[Any]]]) -> None:
        """`begin` gives the starter of the calls with a name; with None that of the calls without one."""
        self._begin = begin

'''


def twins() -> str:
    """The text of collectives/asynchronous.py."""
    tree = ast.parse((ROOT / "collectives" / "communicator.py").read_text("utf-8"))
    (communicator,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    methods: list[str] = []
    overloads: list[ast.FunctionDef] = []
    for node in communicator.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        if _is_overload(node):
            overloads.append(node)
            continue
        call = next((part for part in ast.walk(node) if _does_it(part)), None)
        if call is not None:
            methods += [_twin(each, ast.unparse(call)) for each in (*overloads, node)]
        overloads = []
    text = _HEAD + textwrap.indent("\n\n".join(methods), "    ") + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", TARGET.name, "-"]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True, timeout=60).stdout


def _is_overload(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)


def _does_it(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(_RUN)


def _twin(method: ast.FunctionDef, call: str) -> str:
    """The twin of a method, or of one of its overloads, that does what `call` does. Messages have no name."""
    node, name, named = copy.deepcopy(method), method.name, ".message(" not in call
    node.name = f"{name}_async"
    assert node.returns is not None
    node.returns = ast.parse(f"Work[{ast.unparse(node.returns)}]", mode="eval").body
    if named:
        node.args.kwonlyargs.append(ast.arg("name", ast.parse("str | None", mode="eval").body))
        node.args.kw_defaults.append(ast.Constant(... if _is_overload(node) else None))
    if not _is_overload(node):
        doc = f"Begin `{name}`, with the same arguments, and return its Work."
        if named:
            others = f"name  see Names in Communicator; other arguments as for `{name}`"
            doc = f"Begin `{name}` and return its Work.\n\n    {others}\n    "
        begun = call.replace(_RUN, f"self._begin({'name' if named else None}).", 1)
        node.body = ast.parse(f'"""{doc}"""\nreturn {begun}').body
    return ast.unparse(node)


if __name__ == "__main__":
    TARGET.write_text(twins(), "utf-8")
