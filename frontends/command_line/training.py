"""Training steps for `ronde simulate`: recorded in a timeline (--trace), or a table of layers (--layers)."""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from collectives.operations import Signature, array_sizes
from collectives.proof import parse_time
from collectives.simulation import Gradient, TrainingStep
from frontends.command_line.arguments import MOST_BYTES, byte_count
from frontends.command_line.timeline import is_merged, merge
from transports.errors import ConfigError

_KINDS: Final = ("allreduce", "grouped_allreduce")
_KEYS: Final = ("name", "bytes", "backward", "forward")
_COLUMNS: Final = "name, bytes, backward and, optionally, forward"


class Training(NamedTuple):
    """A step to replay, with a description of its origin."""

    step: TrainingStep
    about: str


class _Submitted(NamedTuple):
    """An operation of one rank: when it was submitted and had ended, in microseconds."""

    name: str
    submitted: float
    ended: float
    signature: Signature


def read_trace(directory: Path) -> Training:
    """Read the timelines that ranks have written into a directory, one file each.

    A step ends where a name returns. The first one begins at an unknown moment and is left out. In the others a
    gradient is ready some time after the last operation of the step before has ended: the median of all steps, on the
    slowest rank. Raises ConfigError naming the file or directory and the error.
    """
    if not directory.is_dir():
        raise ConfigError(f"--trace {directory}: must be a directory with the timelines of ranks (setting timeline)")
    paths = [path for path in sorted(directory.glob("*.json")) if not is_merged(path)]
    if not paths:
        raise ConfigError(f"--trace {directory}: has no file *.json; ranks write them with the setting timeline")
    headers, events = merge(paths)
    size = headers[0]["size"]
    missing = sorted(set(range(size)) - {header["rank"] for header in headers})
    if missing:
        raise ConfigError(f"--trace {directory}: the timelines of ranks {missing} of {size} are missing")
    ready: dict[str, list[float]] = {}
    signatures: dict[str, Signature] = {}
    lasted: list[float] = []
    repeated = 0
    for rank in range(size):
        steps = list(_steps(_operations(directory, [event for event in events if event["pid"] == rank])))
        names = Counter(frozenset(operation.name for operation in step) for step in steps[1:])
        if not names:
            raise ConfigError(
                f"--trace {directory}: rank {rank} has no complete second step: allreduces must have names that return "
                f"in each step, and at least two steps"
            )
        usual = names.most_common(1)[0][0]
        repeated = names[usual]
        mine: dict[str, list[float]] = {name: [] for name in usual}
        for before, step in pairwise(steps):
            if {operation.name for operation in step} != usual:
                continue
            began = max(operation.ended for operation in before)
            for operation in step:
                mine[operation.name].append(max(0.0, operation.submitted - began) / 1e6)
                signatures[operation.name] = operation.signature
            lasted.append((max(operation.ended for operation in step) - began) / 1e6)
        for name, moments in mine.items():
            ready.setdefault(name, []).append(statistics.median(moments))
    gradients = sorted(
        (Gradient(name, max(moments), signatures[name]) for name, moments in ready.items()),
        key=lambda gradient: gradient.ready,
    )
    about = f"{directory}: {repeated} steps of {size} ranks, {statistics.median(lasted) * 1e3:.3f} ms each"
    return Training(TrainingStep(tuple(gradients), gradients[-1].ready), about)


def _operations(directory: Path, events: Iterable[Mapping[str, Any]]) -> list[_Submitted]:
    """The named allreduces of one rank, in order of submission."""
    begun: dict[str, list[tuple[float, Signature]]] = {}
    running: dict[object, str] = {}
    done: list[_Submitted] = []
    for event in events:
        track, phase = event.get("cat"), event.get("ph")
        if track == "negotiation" and phase == "b":
            call = event["args"].get("signature")
            if not isinstance(call, dict):
                raise ConfigError(
                    f"--trace {directory}: operation {event['name']!r} has no signature: an older version of Ronde "
                    f"has written the timeline; record it again"
                )
            begun.setdefault(event["name"], []).append((event["ts"], _signature(directory, event["name"], call)))
        elif track == "operations" and phase == "b":
            running[event["id"]] = event["name"]
        elif track == "operations" and phase == "e" and event["id"] in running:
            name = running.pop(event["id"])
            if not begun.get(name):
                raise ConfigError(f"--trace {directory}: operation {name!r} ends without a beginning")
            submitted, signature = begun[name].pop(0)
            if signature.kind in _KINDS:
                done.append(_Submitted(name, submitted, event["ts"], signature))
    return sorted(done, key=lambda operation: operation.submitted)


def _signature(directory: Path, name: str, call: Mapping[str, Any]) -> Signature:
    """A signature as the timeline has it. Windows do not matter on another network."""
    try:
        made = Signature(**{key: _tuples(value) for key, value in call.items()})._replace(windows=())
        array_sizes(made)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"--trace {directory}: operation {name!r}: has no readable signature: {error}") from error
    return made


def _tuples(value: Any) -> Any:
    """JSON has lists where a signature has tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _steps(operations: Iterable[_Submitted]) -> Iterator[list[_Submitted]]:
    """Operations by step: one begins where a name returns."""
    step: list[_Submitted] = []
    seen: set[str] = set()
    for operation in operations:
        if operation.name in seen:
            yield step
            step, seen = [], set()
        step.append(operation)
        seen.add(operation.name)
    if step:
        yield step


def read_layers(path: Path) -> Training:
    """Read a table of layers, in the order of the forward pass; the backward pass goes from the last to the first.

    A CSV file has a header with the columns name, bytes, backward and, optionally, forward; a TOML file tables
    [[layers]] with these keys. bytes is a number or a size such as 64K, times are seconds or a text such as 5ms.
    Raises ConfigError naming the file, the line or the table, the value and what is allowed.
    """
    try:
        text = path.read_text("utf-8-sig")  # spreadsheets write a mark before the text
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--layers {path}: cannot be read: {error}") from error
    if path.suffix not in (".csv", ".toml"):
        raise ConfigError(f"--layers {path}: must be a file .csv or .toml")
    rows = list(_toml_rows(path, text) if path.suffix == ".toml" else _csv_rows(path, text))
    if not rows:
        raise ConfigError(f"--layers {path}: has no layers; a layer has {_COLUMNS}")
    names: set[str] = set()
    layers: list[tuple[str, int, float, float]] = []
    for place, row in rows:
        name = str(row["name"])
        if not name or name in names:
            raise ConfigError(f"{place}: name={name!r}: must be a name that no other layer has")
        names.add(name)
        nbytes = _value(place, "bytes", row["bytes"], _read_size, "a number of bytes such as 4096 or 64K, 0 to 1024T")
        times = [
            _value(place, key, row.get(key, 0), _read_time, "seconds such as 0.005, or a time such as '5ms'")
            for key in ("backward", "forward")
        ]
        layers.append((name, nbytes, times[0], times[1]))
    now = sum(forward for _, _, _, forward in layers)
    gradients = []
    for name, nbytes, backward, _ in reversed(layers):
        now += backward
        if nbytes:
            gradients.append(Gradient(name, now, Signature("allreduce", ("uint8",), ((nbytes,),), "sum")))
    if not gradients:
        raise ConfigError(f"--layers {path}: no layer has bytes to reduce")
    return Training(TrainingStep(tuple(gradients), now), f"{path}: {len(layers)} layers")


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, dict[str, object]]]:
    reader = csv.reader(text.splitlines(), skipinitialspace=True)
    header: list[str] = []
    for row in _rows(path, reader):
        if not row or row[0].startswith("#"):
            continue
        place = f"--layers {path}, line {reader.line_num}"
        cells = [cell.strip() for cell in row]
        if not header:
            header = cells
            _check_keys(place, header)
            if len(set(header)) < len(header):
                raise ConfigError(f"{place}: header {', '.join(header)}: each column must be there once")
        elif len(cells) != len(header):
            raise ConfigError(f"{place}: has {len(cells)} values, must have {len(header)}: {', '.join(header)}")
        else:
            yield place, dict(zip(header, cells, strict=True))


def _rows(path: Path, reader: Iterator[list[str]]) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:  # a cell of 128 KiB
        raise ConfigError(f"--layers {path}: cannot be read as CSV: {error}") from error


def _toml_rows(path: Path, text: str) -> Iterator[tuple[str, dict[str, object]]]:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:  # its text has the line
        raise ConfigError(f"--layers {path}: cannot be read as TOML: {error}") from error
    rows = table.pop("layers", [])
    if table:
        raise ConfigError(f"--layers {path}: has {min(table)!r}; it must have tables [[layers]] only")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"--layers {path}: layers must be tables [[layers]]")
    for number, row in enumerate(rows, 1):
        place = f"--layers {path}, [[layers]] {number}"
        _check_keys(place, row)
        yield place, row


def _check_keys(place: str, keys: Iterable[str]) -> None:
    found = list(keys)
    unknown = sorted(set(found) - set(_KEYS))
    if unknown:
        raise ConfigError(f"{place}: has {unknown[0]!r}; allowed are {_COLUMNS}")
    missing = [key for key in _KEYS[:3] if key not in found]
    if missing:
        raise ConfigError(f"{place}: {missing[0]!r} is missing; a layer has {_COLUMNS}")


def _value(place: str, key: str, value: object, read: Callable[[object], Any], allowed: str) -> Any:
    try:
        return read(value)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"{place}: {key}={value!r}: must be {allowed}") from error


def _read_size(value: object) -> int:
    if isinstance(value, str):
        return 0 if value == "0" else byte_count(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_BYTES:
        raise ValueError(value)
    return value


def _read_time(value: object) -> float:
    if isinstance(value, str):
        try:
            value = float(value or 0)
        except ValueError:
            return parse_time(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(value)
    return float(value)
