"""The extension of griffe, which mkdocstrings uses, for docstrings and for the table of functions."""

from __future__ import annotations

from typing import Any

import griffe

from docs._tools.docstrings import to_markdown


class Tables(griffe.Extension):
    """Turns the docstring of every object into Markdown when it is loaded, and the rows of collectives/functions.py,
    `allreduce = of_world(Communicator.allreduce)`, into functions."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called when a package has been loaded."""
        if pkg.name == "collectives":
            table, methods = pkg["functions"], pkg["communicator.Communicator"].all_members
            for name, row in list(table.attributes.items()):
                if isinstance(row.value, griffe.ExprCall) and str(row.value.function) == "of_world":
                    table.set_member(name, _of_world(methods[name], row))


def _of_world(method: Any, row: griffe.Attribute) -> griffe.Function:
    """The function that `of_world` makes of a method in the row of a table."""
    function = griffe.Function(
        row.name, lineno=row.lineno, parameters=griffe.Parameters(*list(method.parameters)[1:]), returns=method.returns
    )
    doc = method.docstring.value.partition("\n\n")[0]
    function.docstring = griffe.Docstring(f"{doc} See Communicator.{row.name}.", parent=function)
    function.labels |= row.labels
    return function
