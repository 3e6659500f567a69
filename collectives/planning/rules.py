"""Rule tables: which algorithm to use for which calls, and figures of a machine. `ronde tune` writes them.

A rule table is a TOML file named by the setting `rules`; the first rule that fits decides:

    [[rule]]
    collective = "allreduce"        # required
    algorithm = "ring"              # required
    min_bytes = 65536               # these are optional, and inclusive
    max_bytes = 1000000
    min_ranks = 3
    max_ranks = 8
    transport = "tcp"
    segments = 4

    [[costs]]                       # terms of the cost model (cost_model.py) in seconds; all but transport are optional
    transport = "tcp"
    alpha = 1.5e-5
    beta = 8e-10
    gamma = 1e-10
    copy = 8e-11
    signal = 2e-6

    [[single_copy]]                 # in place of the usual sizes: see single_copy.py
    collective = "allgather"        # required
    from_bytes = 1048576            # single copy from this size on; 0: never
    min_ranks = 2                   # these are optional, and inclusive
    max_ranks = 2
    transport = "shm"

    [[copy_kernel]]                 # in place of the calibration of copies: see transports/copying.py
    kernel = "vector"               # required: vector or memcpy; memcpy where no row fits
    bytes = 65536                   # one of the sizes that are measured; 0: all
    fetched = true                  # memory that another process has written
    large = false                   # a piece of an array that is too large for a core's own cache

A rule whose algorithm cannot run a call (it needs windows and there are none, say) does not fit it.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from collectives.algorithms import algorithms
from collectives.planning.cost_model import Model
from collectives.planning.single_copy import NEVER
from collectives.schedule import SPECS
from transports.copying import MEASURED_BYTES, Circumstance, KernelTable
from transports.errors import ConfigError
from transports.settings import build

R = TypeVar("R", "Rule", "Costs", "SingleCopy", "CopyKernel")

MAX_SEGMENTS: Final = 256
NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a rule table."""

    collective: str = ""
    algorithm: str = ""
    min_bytes: int = 0
    max_bytes: int = NO_LIMIT
    min_ranks: int = 1
    max_ranks: int = 1 << 30
    transport: str = ""
    segments: int = 0

    def __post_init__(self) -> None:
        if self.collective not in SPECS:
            raise ConfigError(f"collective={self.collective!r}: must be one of {', '.join(SPECS)}")
        if self.algorithm not in algorithms(self.collective, native=True):
            known = ", ".join(algorithms(self.collective, native=True))
            raise ConfigError(f"algorithm={self.algorithm!r}: must be one of {known} for {self.collective}")
        if not 0 <= self.segments <= MAX_SEGMENTS:
            raise ConfigError(f"segments={self.segments}: must be 0 (chosen by cost) to {MAX_SEGMENTS}")
        _check_range("bytes", self.min_bytes, self.max_bytes)
        _check_range("ranks", self.min_ranks, self.max_ranks)


@dataclass(frozen=True, slots=True)
class Costs:
    """Terms of the cost model, for one transport or for all; 0: not given."""

    transport: str = ""
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    copy: float = 0.0
    signal: float = 0.0
    inter_alpha: float = 0.0
    inter_beta: float = 0.0

    def __post_init__(self) -> None:
        for name, value in self.terms().items():
            if not 0 < value < math.inf:
                raise ConfigError(f"{name}={value!r}: must be a positive number of seconds")

    def terms(self) -> dict[str, float]:
        """Return the terms that are given."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "transport" and value}


@dataclass(frozen=True, slots=True)
class SingleCopy:
    """The size from which a collective uses single copy; 0: never."""

    collective: str = ""
    from_bytes: int = NEVER
    min_ranks: int = 1
    max_ranks: int = 1 << 30
    transport: str = ""

    def __post_init__(self) -> None:
        known = [name for name in SPECS if any(found.single_copy for found in algorithms(name).values())]
        if self.collective not in known:
            raise ConfigError(f"collective={self.collective!r}: must be one of {', '.join(known)}")
        if self.from_bytes < 0:
            raise ConfigError(f"from_bytes={self.from_bytes}: must be 0 (never) or a positive number of bytes")
        _check_range("ranks", self.min_ranks, self.max_ranks)


@dataclass(frozen=True, slots=True)
class CopyKernel:
    """The kernel for some copies to and from memory that several processes map."""

    kernel: str = ""
    bytes: int = 0
    fetched: bool = False
    large: bool = False

    def __post_init__(self) -> None:
        if self.kernel not in ("vector", "memcpy"):
            raise ConfigError(f"kernel={self.kernel!r}: must be vector or memcpy")
        if self.bytes and self.bytes not in MEASURED_BYTES:
            raise ConfigError(f"bytes={self.bytes}: must be 0 (all) or one of {sorted(MEASURED_BYTES)}")


@dataclass(frozen=True, slots=True)
class Rules:
    """A rule table."""

    rules: tuple[Rule, ...] = ()
    costs: tuple[Costs, ...] = ()
    single_copy: tuple[SingleCopy, ...] = ()
    copy_kernels: tuple[CopyKernel, ...] = ()

    @classmethod
    def read(cls, path: str) -> Rules:
        """Read the table from a file; an empty path gives an empty table. Raises ConfigError naming file, row, key and
        allowed values."""
        if not path:
            return cls()
        import tomllib  # here, since few ranks read a file

        try:
            table = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad TOML, a name with a NUL
            raise ConfigError(f"rules={path!r}: cannot be read as TOML: {error}") from error
        rows = {name: table.pop(name, []) for name in ("rule", "costs", "single_copy", "copy_kernel")}
        if table or not all(isinstance(row, list) and all(isinstance(r, dict) for r in row) for row in rows.values()):
            names = ", ".join(f"[[{name}]]" for name in rows)
            raise ConfigError(f"rules={path!r}: must hold tables {names} and nothing else")
        return cls(
            tuple(_build(Rule, "rule", rows["rule"], path)),
            tuple(_build(Costs, "costs", rows["costs"], path)),
            tuple(_build(SingleCopy, "single_copy", rows["single_copy"], path)),
            tuple(_build(CopyKernel, "copy_kernel", rows["copy_kernel"], path)),
        )

    def write(self, path: Path, comment: str) -> None:
        """Write the table into a file, below a comment. Raises OSError."""
        lines = [f"# {line}".rstrip() for line in comment.splitlines()]
        tables: dict[str, tuple[Rule | Costs | SingleCopy | CopyKernel, ...]] = {
            "costs": self.costs,
            "single_copy": self.single_copy,
            "copy_kernel": self.copy_kernels,
            "rule": self.rules,
        }
        for name, rows in tables.items():
            for row in rows:
                lines += ["", f"[[{name}]]"]
                for field in dataclasses.fields(row):
                    value = getattr(row, field.name)
                    if value != field.default:
                        text = str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
                        lines.append(f"{field.name} = {text}")
        path.write_text("\n".join(lines) + "\n", "utf-8")

    def digest(self) -> int:
        """Return 32 bits that are equal on ranks with equal tables, and hardly on others."""
        return zlib.crc32(repr(self).encode())

    def of(self, transport: str) -> tuple[Rule, ...]:
        """Return the rules for a transport."""
        return tuple(rule for rule in self.rules if rule.transport in ("", transport))

    def single_copy_of(self, transport: str) -> tuple[SingleCopy, ...]:
        """Return the [[single_copy]] rows for a transport."""
        return tuple(row for row in self.single_copy if row.transport in ("", transport))

    def kernel_table(self) -> KernelTable | None:
        """Return the kernels from the table; None if it has no [[copy_kernel]] row."""
        if not self.copy_kernels:
            return None
        vector = [
            Circumstance(row.fetched, row.large, nbytes)
            for row in self.copy_kernels
            for nbytes in MEASURED_BYTES
            if row.kernel == "vector" and row.bytes in (0, nbytes)
        ]
        return KernelTable(frozenset(vector))

    def tells_link(self, transport: str) -> bool:
        """Return True if the table has the terms of messages between hosts for a transport."""
        rows = [row for row in self.costs if row.transport in ("", transport)]
        return any(row.inter_alpha for row in rows) and any(row.inter_beta for row in rows)

    def model(self, model: Model, transport: str) -> Model:
        """Return a cost model with the terms from the table for a transport."""
        for row in self.costs:
            if row.transport in ("", transport):
                model = dataclasses.replace(model, **row.terms())  # type: ignore[arg-type] # none of them is inter_betas
        return model


def _build(kind: type[R], name: str, rows: Iterable[dict[str, Any]], path: str) -> Iterable[R]:
    for number, row in enumerate(rows, 1):
        yield build(kind, f"{name} {number} of {path}", {key: (value, path) for key, value in row.items()})


def _check_range(name: str, least: int, most: int) -> None:
    """Raise ConfigError for a row that would never be used."""
    if not 0 <= least <= most:
        raise ConfigError(f"min_{name}={least}: must be 0 to max_{name}, which is {most}")
