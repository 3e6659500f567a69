"""An import-linter contract: each room has one door."""

from __future__ import annotations

import grimp
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application import contract_utils
from importlinter.application.contract_utils import AlertLevel


class DoorContract(Contract):
    """A sub-package is a room, its `__init__` is the door: other rooms import from the door, never from behind it.

    packages        packages whose direct sub-packages are rooms. A room in a room has a door of its own, for all; the
                    door of the outer room may re-export what is behind it
    face            package that re-exports rooms for users: its modules below `face.room` may import all of `room`
    ignore_imports  exceptions, as `importer -> imported`
    """

    type_name = "door"

    packages = fields.ListField(subfield=fields.StringField())
    face = fields.StringField(required=False, default="")
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)
    unmatched_ignore_imports_alerting = fields.EnumField(AlertLevel, default=AlertLevel.ERROR)

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        removal = contract_utils.remove_ignored_imports_and_report(
            graph=graph,
            ignore_imports=self.ignore_imports,
            unmatched_alerting=self.unmatched_ignore_imports_alerting,
        )
        rooms = [child for package in self.packages for child in sorted(graph.find_children(package))]
        rooms = [room for room in rooms if graph.find_children(room)]  # the others are modules
        offenders = [
            (importer, imported)
            for room in rooms
            for imported in sorted(graph.find_descendants(room))
            if not any(inside(imported, inner) for inner in rooms if inner != room and inside(inner, room))
            for importer in sorted(graph.find_modules_that_directly_import(imported))
            if not any(inside(importer, owner) for owner in (room, f"{self.face}.{room.rpartition('.')[2]}"))
            and not (importer in rooms and importer == room.rpartition(".")[0])
        ]
        return ContractCheck(
            kept=not offenders,
            warnings=list(removal.warnings),
            ignored_import_count=removal.ignored_import_count,
            metadata={"offenders": offenders, "graph": graph},
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, imported in check.metadata["offenders"]:
            lines = check.metadata["graph"].get_import_details(importer=importer, imported=imported)
            numbers = ", ".join(str(line["line_number"]) for line in lines)
            output.print_error(
                f"{importer} imports {imported} (l.{numbers}) instead of the door of its room", bold=False
            )
        output.new_line()


def inside(module: str, package: str) -> bool:
    """True if the module is this package or in it."""
    return module == package or module.startswith(f"{package}.")
