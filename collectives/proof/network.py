"""The network that a job runs on: hosts with their NICs, the switches between them, and what disturbs them.

The cost model, and so the choice of algorithms, takes its terms from it (`Network.model`); the simulators share its
links among messages. People write it by hand, as a TOML file:

    [[hosts]]                   # in the order of ranks
    count = 4                   # hosts of this kind; without it the last kind is repeated as often as ranks need
    ranks = 2                   # ranks on each
    nic = "25Gbit"              # rate of one NIC in each direction; all ranks of the host share it
    nics = 1                    # NICs of a host; one message uses one of them
    slow = 1.0                  # local work takes so many times as long: a straggler
    late = "0us"                # the ranks begin so much later

    [far]                       # messages between hosts
    latency = "50us"            # from one rank to another
    overhead = "20us"           # the part of it that keeps the ranks busy
    efficiency = 0.95           # share of a NIC's rate that is left for data

    [near]                      # messages inside a host
    latency = "20us"
    rate = "10Gbit"             # of one message

    [switch]                    # hosts behind one switch; without it all are behind one
    hosts = 16
    uplink = "100Gbit"          # rate from a switch to the others, in each direction
    latency = "2us"             # more for a message that leaves its switch

    [local]                     # seconds for each byte
    combine = 0.04e-9
    copy = 0.06e-9

    [noise]                     # random delays
    mean = "5us"                # of each message between hosts: exponentially distributed
    seed = 0

All keys are optional; rates are numbers with kbit, Mbit, Gbit, kB, MB or GB (for a second), times with ns, us, ms or s.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from collectives.planning import Model, told_apart
from transports.errors import ConfigError
from transports.settings import did_you_mean

T = TypeVar("T")

_RATES: Final = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_TIMES: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_MOST: Final = 1 << 20
"""Ranks of a network at most, so that a mistyped number gives an error."""
_QUANTITY: Final = re.compile(r"\s*([0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([A-Za-z]+)\s*", re.IGNORECASE)


def parse_rate(text: object) -> float:
    """Return bytes per second: '25Gbit' gives 3.125e9. Raises ValueError."""
    return _quantity(text, _RATES, "a rate such as '25Gbit' or '3GB' (kbit, Mbit, Gbit, kB, MB, GB)", positive=True)


def parse_time(text: object) -> float:
    """Return seconds: '20us' gives 2e-5. Raises ValueError."""
    return _quantity(text, _TIMES, "a time such as '20us' (ns, us, ms, s)", positive=False)


def _quantity(text: object, units: Mapping[str, float], allowed: str, *, positive: bool) -> float:
    found = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[2].lower() not in units:
        raise ValueError(f"must be {allowed}")
    value = float(found[1]) * units[found[2].lower()]
    if not math.isfinite(value) or (positive and not value):
        raise ValueError(f"must be {allowed}, greater than zero")
    return value


def _number(low: float, high: float, *, whole: bool) -> Any:
    def read(value: object) -> float:
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            allowed = f"a whole number, {low:.0f} to {high:.0f}" if whole else f"a number, {low:g} to {high:g}"
            raise ValueError(f"must be {allowed}")
        return value

    return read


def _key(read: Any, default: Any) -> Any:
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts of one kind: a [[hosts]] table. Rates in bytes per second, times in seconds."""

    count: int = _key(_number(1, _MOST, whole=True), 0)
    ranks: int = _key(_number(1, _MOST, whole=True), 1)
    nic: float = _key(parse_rate, 3.125e9)
    nics: int = _key(_number(1, 64, whole=True), 1)
    slow: float = _key(_number(1e-3, 1e3, whole=False), 1.0)
    late: float = _key(parse_time, 0.0)


@dataclass(frozen=True, slots=True)
class Far:
    """Messages between hosts: [far]."""

    latency: float = _key(parse_time, 50e-6)
    overhead: float = _key(parse_time, 20e-6)
    efficiency: float = _key(_number(0.01, 1, whole=False), 1.0)


@dataclass(frozen=True, slots=True)
class Near:
    """Messages inside a host: [near]."""

    latency: float = _key(parse_time, 20e-6)
    rate: float = _key(parse_rate, 1.25e9)


@dataclass(frozen=True, slots=True)
class Switch:
    """Switches: [switch]. `hosts` = 0: all hosts are behind one."""

    hosts: int = _key(_number(1, _MOST, whole=True), 0)
    uplink: float = _key(parse_rate, math.inf)
    latency: float = _key(parse_time, 0.0)


@dataclass(frozen=True, slots=True)
class Local:
    """Seconds for each byte of local work: [local]."""

    combine: float = _key(_number(0, 1, whole=False), Model().gamma)
    copy: float = _key(_number(0, 1, whole=False), Model().copy)


@dataclass(frozen=True, slots=True)
class Noise:
    """Random delays: [noise]."""

    mean: float = _key(parse_time, 0.0)
    seed: int = _key(_number(0, 1 << 32, whole=True), 0)


_SECTIONS: Final[dict[str, Any]] = {"far": Far, "near": Near, "switch": Switch, "local": Local, "noise": Noise}


@dataclass(frozen=True, slots=True)
class Topology:
    """The content of a topology file: a network for any number of ranks."""

    hosts: tuple[Hosts, ...] = (Hosts(),)
    far: Far = Far()
    near: Near = Near()
    switch: Switch = Switch()
    local: Local = Local()
    noise: Noise = Noise()

    @classmethod
    def read(cls, path: str | Path) -> Topology:
        """Read a file. Raises ConfigError naming the file, the key, its value and the allowed ones."""
        import tomllib  # here, since ranks read no such file

        try:
            table = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"topology {str(path)!r}: cannot be read as TOML: {error}") from error
        unknown = set(table) - {"hosts", *_SECTIONS}
        if unknown:
            name = min(unknown)
            known = ["hosts", *_SECTIONS]
            raise ConfigError(
                f"topology {str(path)!r}: has no table {name!r}{did_you_mean(name, known)}; its tables are: "
                f"[[hosts]], {', '.join(f'[{section}]' for section in _SECTIONS)}"
            )
        rows = table.get("hosts", [{}])
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"topology {str(path)!r}: hosts={rows!r}: must be one or more tables [[hosts]]")
        hosts = tuple(_read(Hosts, row, f"[[hosts]] {number} of {path}") for number, row in enumerate(rows, 1))
        for number, kind in enumerate(hosts[:-1], 1):
            if not kind.count:
                raise ConfigError(f"[[hosts]] {number} of {path}: count is missing: only the last kind can do without")
        sections = {}
        for name, kind in _SECTIONS.items():
            row = table.get(name, {})
            if not isinstance(row, dict):
                raise ConfigError(f"topology {str(path)!r}: {name}={row!r}: must be a table [{name}]")
            sections[name] = _read(kind, row, f"[{name}] of {path}")
        made = cls(hosts, **sections)
        if made.far.overhead > made.far.latency:
            raise ConfigError(
                f"[far] of {path}: overhead={made.far.overhead:g} s: must be at most latency, {made.far.latency:g} s"
            )
        return made

    def change(self, texts: Iterable[str]) -> Topology:
        """Return the topology with other values: 'nic=100Gbit' for all hosts, 'far.latency=5us' for a table.

        Raises ConfigError naming the key, the value and the allowed ones.
        """
        made = self
        for text in texts:
            key, equals, value = text.partition("=")
            section, _, name = key.strip().rpartition(".")
            if not equals or section not in ("", "hosts", *_SECTIONS):
                allowed = ", ".join(f"{section}.KEY" for section in _SECTIONS)
                raise ConfigError(f"{text!r}: must be KEY=VALUE, where KEY is a key of [[hosts]], or {allowed}")
            row = {name: _literal(value.strip())}
            if section in ("", "hosts"):
                hosts = tuple(_read(Hosts, row, "a change", kind) for kind in made.hosts)
                made = dataclasses.replace(made, hosts=hosts)
            else:
                changed = _read(_SECTIONS[section], row, f"a change of [{section}]", getattr(made, section))
                made = dataclasses.replace(made, **{section: changed})
        return made

    def network(self, ranks: int) -> Network:
        """Return the network of so many ranks. Raises ConfigError if the hosts have fewer."""
        kinds: list[Hosts] = []
        of: list[int] = []
        for kind in self.hosts:
            for _ in range(kind.count or -(-(ranks - len(of)) // kind.ranks)):
                if len(of) < ranks:
                    of += [len(kinds)] * min(kind.ranks, ranks - len(of))
                    kinds.append(kind)
        if len(of) < ranks or ranks < 1:
            raise ConfigError(f"ranks={ranks}: must be 1 to {len(of)}, as many as the hosts of the topology have")
        near, far = 1 / self.near.rate, 1 / self.far.efficiency
        return Network(
            hosts=tuple(of),
            costs=Model(
                alpha=self.near.latency,
                beta=near,
                gamma=self.local.combine,
                copy=self.local.copy,
                inter_alpha=self.far.latency,
                inter_beta=far / min(kind.nic * kind.nics for kind in kinds),
                overhead=self.far.overhead,
            ),
            overhead=self.far.overhead,
            flow=tuple(far / kind.nic for kind in kinds),
            nic=tuple(far / kind.nic / kind.nics for kind in kinds),
            switches=tuple(host // self.switch.hosts for host in range(len(kinds))) if self.switch.hosts else (),
            uplink=far / self.switch.uplink,
            detour=self.switch.latency,
            slow=tuple(kind.slow for kind in kinds),
            late=tuple(kind.late for kind in kinds),
            noise=self.noise.mean,
            seed=self.noise.seed,
        )


def _literal(text: str) -> object:
    """A value as TOML has it: a number, or a text where it is none."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _read(kind: type[T], row: Mapping[str, object], subject: str, base: T | None = None) -> T:
    """Make a `kind` of the keys in a table. Raises ConfigError."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in row.items():
        if key not in fields:
            known = ", ".join(fields)
            raise ConfigError(f"{subject}: has no key {key!r}{did_you_mean(key, fields)}; its keys are: {known}")
        try:
            values[key] = fields[key].metadata["read"](value)
        except ValueError as error:
            raise ConfigError(f"{subject}: {key}={value!r}: {error}") from error
    return kind(**values) if base is None else dataclasses.replace(base, **values)  # type: ignore[type-var]


@dataclass(frozen=True)
class Network:
    """The network of one job. Times in seconds, rates as seconds per byte, 0 for no limit.

    hosts      the host of every rank, numbered by first appearance
    costs      terms of messages inside a host, of local work, and the latency between hosts
    overhead   the part of that latency that occupies both ranks
    flow, nic  of one message, and of all messages of a host together, in each direction, by host
    switches   the switch of every host; empty: all are behind one
    uplink     of all messages that leave a switch, or enter it
    detour     more latency of a message that leaves its switch
    slow       local work takes so many times as long, by host; empty: 1
    late       the time at which ranks begin, by host; empty: 0
    noise      mean of the random delay of a message between hosts
    """

    hosts: tuple[int, ...]
    costs: Model
    overhead: float
    flow: tuple[float, ...]
    nic: tuple[float, ...]
    switches: tuple[int, ...] = ()
    uplink: float = 0.0
    detour: float = 0.0
    slow: tuple[float, ...] = ()
    late: tuple[float, ...] = ()
    noise: float = 0.0
    seed: int = 0

    @classmethod
    def of(cls, model: Model, hosts: tuple[int, ...], size: int) -> Network:
        """Return the network of a cost model: messages between hosts do not share anything."""
        hosts = tuple(hosts) or (0,) * size
        number = max(hosts) + 1
        return cls(hosts, model, min(model.alpha, model.inter_alpha), (model.inter_beta,) * number, (0.0,) * number)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.hosts)

    @property
    def model(self) -> Model:
        """The terms for the cost model. A host has the rate of its NICs, or its share of an uplink if the hosts of a
        switch may need more than the uplink's rate."""
        shared = 0.0
        if self.uplink and len(set(self.switches)) > 1:
            shared = self.uplink * max(Counter(self.switches).values())
        betas = [max(beta, shared) for beta in self.nic]
        return dataclasses.replace(
            self.costs,
            inter_alpha=self.costs.inter_alpha + self.detour,
            inter_beta=max(betas),
            inter_betas=told_apart(betas),
        )

    @property
    def geometry_hosts(self) -> tuple[int, ...]:
        """The hosts as algorithms see them: empty if there is one."""
        return self.hosts if len(set(self.hosts)) > 1 else ()

    def route(self, source: int, target: int) -> tuple[tuple[str, int], ...]:
        """Return the shared links that a message between two hosts passes, as keys of `capacity`."""
        links = [("out", source), ("in", target)]
        if self.switches and self.switches[source] != self.switches[target]:
            links += [("up", self.switches[source]), ("down", self.switches[target])]
        return tuple(links)

    def capacity(self, link: tuple[str, int]) -> float:
        """Return the seconds per byte of a shared link."""
        kind, number = link
        return self.nic[number] if kind in ("out", "in") else self.uplink

    def latency(self, source: int, target: int) -> float:
        """Return the latency between two hosts."""
        away = bool(self.switches) and self.switches[source] != self.switches[target]
        return self.costs.inter_alpha + self.detour * away

    @property
    def turn(self) -> int:
        """The number of ranks on each host if all hosts are alike and nothing disturbs them; 0 if they are not."""
        ranks = Counter(self.hosts)
        each = ranks[0]
        alike = set(ranks.values()) == {each} and self.hosts == tuple(rank // each for rank in range(self.size))
        same = all(len(set(values)) <= 1 for values in (self.flow, self.nic, self.slow, self.late))
        return each if alike and same and not self.noise and len(set(self.switches)) <= 1 else 0
