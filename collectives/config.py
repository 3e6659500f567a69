"""Settings: one frozen object, put together from defaults, a file, the environment and arguments, in this order.

    ronde.toml (or [tool.ronde] in pyproject.toml)      environment                  argument
    transport = "tcp"                                   RONDE_TRANSPORT=tcp          init(transport="tcp")
    timeout = 60                                        RONDE_TIMEOUT=60             init(config={"timeout": 60})
    [tcp]
    interface = "eth0"                                  RONDE_TCP_INTERFACE=eth0     {"tcp": {"interface": "eth0"}}

The file is the one that RONDE_CONFIG names, else ronde.toml or pyproject.toml in the working directory.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from transports import registry
from transports.errors import ConfigError
from transports.settings import Values, build, did_you_mean
from transports.tls import Tls

PREFIX: Final = "RONDE_"
_LAUNCHER: Final = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "STORE", "SECRET", "JOB", "CONFIG", "JAX_PATH")
"""Environment variables with Ronde's prefix that are not settings."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set, besides the options of each transport.

    transport        name of the transport: auto, tcp, shm, local, ...
    timeout          seconds that a call may take before it gives up
    connect_timeout  seconds for the ranks to find and reach each other in `init`
    reproducible     the default of the `reproducible` argument
    rules            path of a rule table (TOML) that overrides the choice of algorithms
    stage_bytes      bytes of shared staging memory per rank and communicator (twice that is allocated); 0: 2 MiB, where
                     the communicator has more than 4 ranks 1 MiB
    fusion_bytes     the most bytes of small arrays that travel as one, in grouped and named allreduces; 0: none do. For
                     named ones rank 0's counts. Where ranks map each other's memory it is 1 MiB at most
    heartbeat        seconds without a sign of life after which the ranks of another host are lost; 0: never. A rank
                     whose code holds the interpreter's lock for so long, alone on its host, looks dead
    stall            seconds that a rank is stuck in a call before all ranks are asked what they are doing, and the
                     answers logged as a warning; 0: never
    timeline         path of a file for a timeline of all calls, from the beginning; see Communicator.start_timeline
    tls_certificate, tls_key, tls_ca   paths of PEM files, all three or none: this end's certificate, its key, and the
                     authority that signs every end's; then connections between hosts and to the store go by TLS
    """

    transport: str = "auto"
    timeout: float = 300.0
    connect_timeout: float = 60.0
    reproducible: bool = False
    rules: str = ""
    stage_bytes: int = 0
    fusion_bytes: int = 64 << 20
    heartbeat: float = 5.0
    stall: float = 30.0
    timeline: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name}={value!r}: must be a positive, finite number of seconds")
        if self.heartbeat != 0 and not (self.heartbeat >= 0.5 and math.isfinite(self.heartbeat)):
            raise ConfigError(
                f"heartbeat={self.heartbeat!r}: must be 0 (never) or a finite number of seconds, 0.5 or more"
            )
        if not (self.stall >= 0 and math.isfinite(self.stall)):
            raise ConfigError(f"stall={self.stall!r}: must be 0 (never) or a positive, finite number of seconds")
        files = {name: getattr(self, name) for name in ("tls_certificate", "tls_key", "tls_ca")}
        if any(files.values()) and not all(files.values()):
            absent = ", ".join(name for name, path in files.items() if not path)
            raise ConfigError(f"{absent}: is needed too; tls_certificate, tls_key and tls_ca are set together")
        if self.stage_bytes and (self.stage_bytes < 4096 or self.stage_bytes % 64):
            raise ConfigError(f"stage_bytes={self.stage_bytes}: must be a multiple of 64 and at least 4096, or 0")
        if self.fusion_bytes < 0:
            raise ConfigError(f"fusion_bytes={self.fusion_bytes}: must be 0 (nothing travels together) or more bytes")
        if self.transport not in registry.names():
            known = registry.names()
            raise ConfigError(
                f"transport={self.transport!r}: unknown{did_you_mean(self.transport, known)}; "
                f"must be one of {', '.join(known)}"
            )


@dataclass(frozen=True, slots=True)
class Config(Settings):
    """The settings, the options of transports, and where each value came from.

    options   transport name -> option -> (value, source); what is absent has its default
    sources   setting -> source, for those that are not defaults
    """

    options: Mapping[str, Values] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Config:
        """Put the settings together. Raises ConfigError naming setting, value, source and what is allowed."""
        env = os.environ if environment is None else environment
        layers = [
            _from_file(env, Path.cwd() if directory is None else directory),
            _from_environment(env),
            _sort(arguments or {}, "argument"),
        ]
        values: dict[str, tuple[object, str]] = {}
        options: dict[str, dict[str, tuple[object, str]]] = {}
        for settings, transports in layers:
            values.update(settings)
            for name, given in transports.items():
                options.setdefault(name, {}).update(given)
        chosen = build(Settings, "ronde", values)
        for name in options:
            registry.make_options(name, options[name])  # a bad value is an error even if that transport is not used
        return cls(
            **{item.name: getattr(chosen, item.name) for item in dataclasses.fields(Settings)},
            options=options,
            sources={name: source for name, (_, source) in values.items()},
        )

    def load_tls(self) -> Tls | None:
        """The certificates that the settings name, read now; None if they name none. Raises ConfigError."""
        if not self.tls_certificate:
            return None
        return Tls(self.tls_certificate, self.tls_key, self.tls_ca)

    def transport_options(self, name: str) -> Any:
        """The options object of transport `name`.

        A transport that is built on others names each by a setting, say `inner`, and takes its settings
        as `inner_options`; those begin with what was configured for the inner transport by its own name.
        """
        options = registry.make_options(name, self.options.get(name, {}))
        fields = {item.name for item in dataclasses.fields(options)}
        for setting in fields:
            if f"{setting}_options" in fields:
                own = self.options.get(getattr(options, setting), {})
                texts = tuple(f"{key}={_text(value)}" for key, (value, _) in own.items())
                given = getattr(options, f"{setting}_options")
                options = dataclasses.replace(options, **{f"{setting}_options": texts + given})
        return options


_Layer = tuple[dict[str, tuple[object, str]], dict[str, dict[str, tuple[object, str]]]]


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Environment variables with Ronde's prefix that mean nothing: misspelt, most likely."""
    settings, transports = _from_environment(environment)
    meant = {PREFIX + name.upper() for name in settings} | {PREFIX + name for name in _LAUNCHER}
    meant |= {PREFIX + f"{name}_{option}".upper() for name, options in transports.items() for option in options}
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in meant)


def _from_environment(environment: Mapping[str, str]) -> _Layer:
    settings: dict[str, tuple[object, str]] = {}
    transports: dict[str, dict[str, tuple[object, str]]] = {}
    for item in dataclasses.fields(Settings):
        variable = PREFIX + item.name.upper()
        if variable in environment:
            settings[item.name] = (environment[variable], f"environment {variable}")
    for name in registry.names():
        prefix = f"{PREFIX}{name.upper()}_"
        for variable in environment:
            if variable.startswith(prefix) and variable.removeprefix(PREFIX) not in _LAUNCHER:
                option = variable.removeprefix(prefix).lower()
                source = f"environment {variable}"
                transports.setdefault(name, {})[option] = (environment[variable], source)
    return settings, transports


def _from_file(environment: Mapping[str, str], directory: Path) -> _Layer:
    named = environment.get(f"{PREFIX}CONFIG")
    if named is not None:
        return _read(Path(named), required=True)
    for name in ("ronde.toml", "pyproject.toml"):
        if (directory / name).is_file():
            return _read(directory / name, required=False)
    return {}, {}


def _read(path: Path, required: bool) -> _Layer:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{PREFIX}CONFIG={str(path)!r}: there is no such file") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad TOML, a name with a NUL
        if path.name == "pyproject.toml" and not required:
            return {}, {}  # somebody else's file, and not ours to judge
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
    if path.name == "pyproject.toml":
        tools = table.get("tool", {})
        table = tools.get("ronde", {}) if isinstance(tools, dict) else {}
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [tool.ronde] must be a table of settings")
    return _sort(table, f"file {path}")


def _sort(table: Mapping[str, Any], source: str) -> _Layer:
    """Top-level values are settings, tables are the options of the transport that they are called by."""
    settings: dict[str, tuple[object, str]] = {}
    transports: dict[str, dict[str, tuple[object, str]]] = {}
    for name, value in table.items():
        if not isinstance(value, Mapping):
            settings[name] = (value, source)
        elif name in registry.names():
            transports[name] = {option: (given, f"{source}, [{name}]") for option, given in value.items()}
        else:
            known = registry.names()
            raise ConfigError(
                f"{source}: [{name}] is no transport{did_you_mean(name, known)}; must be one of {', '.join(known)}"
            )
    return settings, transports
