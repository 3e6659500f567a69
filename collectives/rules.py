"""Rule tables: what algorithm to use for which calls, and what things cost on a machine. `ronde tune` writes them.

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

    [[costs]]                       # for the cost model (model.py), in seconds; what is left out stays as it is
    transport = "tcp"
    alpha = 1.5e-5
    beta = 8e-10
    gamma = 1e-10
    copy = 8e-11
    signal = 2e-6

A rule whose algorithm cannot run a call (it needs windows and there are none, say) does not fit it.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from collectives.algorithms import algorithms
from collectives.model import Model
from collectives.specs import SPECS
from transports.errors import ConfigError
from transports.settings import build

R = TypeVar("R", "Rule", "Costs")

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


@dataclass(frozen=True, slots=True)
class Costs:
    """Terms of the cost model, for one transport or for all; 0 for those that are not told."""

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
        """Those that are told."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "transport" and value}


@dataclass(frozen=True, slots=True)
class Rules:
    """A rule table."""

    rules: tuple[Rule, ...] = ()
    costs: tuple[Costs, ...] = ()

    @classmethod
    def read(cls, path: str) -> Rules:
        """The table in a file, an empty one for an empty path. Raises ConfigError naming file, row, key and what is
        allowed."""
        if not path:
            return cls()
        try:
            table = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad TOML, a name with a NUL
            raise ConfigError(f"rules={path!r}: cannot be read as TOML: {error}") from error
        rows = {name: table.pop(name, []) for name in ("rule", "costs")}
        if table or not all(isinstance(row, list) and all(isinstance(r, dict) for r in row) for row in rows.values()):
            raise ConfigError(f"rules={path!r}: must hold [[rule]] and [[costs]] tables and nothing else")
        return cls(tuple(_build(Rule, "rule", rows["rule"], path)), tuple(_build(Costs, "costs", rows["costs"], path)))

    def write(self, path: Path, comment: str) -> None:
        """Put the table into a file, below a comment. Raises OSError."""
        lines = [f"# {line}".rstrip() for line in comment.splitlines()]
        for name, rows in (("costs", self.costs), ("rule", self.rules)):
            for row in rows:
                lines += ["", f"[[{name}]]"]
                for field in dataclasses.fields(row):
                    value = getattr(row, field.name)
                    if value != field.default:
                        lines.append(f"{field.name} = {value!r}".replace("'", '"'))
        path.write_text("\n".join(lines) + "\n", "utf-8")

    def of(self, transport: str) -> tuple[Rule, ...]:
        """The rules for a transport."""
        return tuple(rule for rule in self.rules if rule.transport in ("", transport))

    def model(self, model: Model, transport: str) -> Model:
        """A cost model, with what the table tells of a transport."""
        for row in self.costs:
            if row.transport in ("", transport):
                model = dataclasses.replace(model, **row.terms())
        return model


def _build(kind: type[R], name: str, rows: Iterable[dict[str, Any]], path: str) -> Iterable[R]:
    for number, row in enumerate(rows, 1):
        yield build(kind, f"{name} {number} of {path}", {key: (value, path) for key, value in row.items()})
