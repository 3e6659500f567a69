"""Settings: one frozen object, merged from arguments, the environment, a file and the defaults.

Precedence: arguments, then environment, then file, then defaults.

    ronde.toml (or [tool.ronde] in pyproject.toml)      environment                  argument
    transport = "tcp"                                   RONDE_TRANSPORT=tcp          init(transport="tcp")
    timeout = 60                                        RONDE_TIMEOUT=60             init(config={"timeout": 60})
    [tcp]
    interface = "eth0"                                  RONDE_TCP_INTERFACE=eth0     {"tcp": {"interface": "eth0"}}

The file is named by RONDE_CONFIG; by default it is ronde.toml or pyproject.toml in the working directory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from collectives.logs import LEVELS
from collectives.version import __version__
from transports import registry
from transports.errors import ConfigError
from transports.settings import Values, build, did_you_mean
from transports.tls import Tls

PREFIX: Final = "RONDE_"
TIMELINE_STYLES: Final = ("ronde", "horovod", "horovod-cycles")
COMPILED: Final = ("auto", "on", "off")
"""The values of the setting `compiled`."""
_ALIKE: Final = ("standbys", "calibrate")
"""The settings that all ranks of a world must have alike, beside the transport."""
MOST_STANDBYS: Final = 16
MOST_SECONDS: Final = 1e9
"""The longest time that a setting can have, 31 years: threads cannot wait for ten times as long."""
MOST_BYTES: Final = 1 << 48
"""The most bytes that a setting can have: the memory that a process can address."""
NO_SETTINGS: Final = (
    "RANK",
    "RANK_PROCESS",
    "DISCOVERY",
    "JOIN",
    "SIZE",
    "LOCAL_RANK",
    "LOCAL_SIZE",
    "STORE",
    "SECRET",
    "SECRET_FILE",
    "JOB",
    "LAUNCHER",
    "PORT",
    "CONFIG",
    "JAX_PATH",
)
"""Environment variables with Ronde's prefix that are not settings."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings, without the options of each transport.

    transport        name of the transport: auto, tcp, shm, local, nccl, faulty or a registered one
    timeout          seconds that a call may take; more than one rank needs to evaluate or save while the others wait
    connect_timeout  seconds for the ranks to find each other and to connect in `init`
    join_timeout     seconds for a newcomer to be admitted to a world that runs (`init(join=True)`)
    reproducible     default of the argument `reproducible` of the reductions
    rules            path of a rule table (TOML), which precedes the cost model in the choice of algorithms
    calibrate        True measures in `init` by which kernel ranks that share memory copy data, and the links of several
                     hosts; False uses the usual figures. What the rule table tells is not measured. The same on all
                     ranks
    compiled         auto runs calls in shared memory, and small ones over TCP, as machine code if Numba is installed
                     (ronde[jit]), otherwise as functions of Python, as off always does. It is compiled once for a
                     machine, beside the job: auto waits for it for half of `connect_timeout`, at most 30 s, and goes on
                     without it; on waits for up to 600 s before the ranks meet, and raises an error in `init` where
                     there can be no machine code. Ranks may differ in it: then the sign and the payload of a NaN may
                     differ between them, in sums of halves and in averages
    share_arrays     True: `init` calls `share_arrays`, whose effect ends at `shutdown`
    stage_bytes      bytes of one staging buffer in shared memory, of which every rank has two in each communicator; a
                     multiple of 64 and at least 4096. 0 stands for 2 MiB, for more than 4 ranks 1 MiB
    fusion_bytes     the most bytes of small arrays that grouped and named allreduces send together; 0 sends each alone.
                     Named allreduces use the setting of rank 0. At most 1 MiB where ranks map each other's memory
    heartbeat        seconds without a heartbeat after which ranks of another host are lost, at least 0.5; 0 disables
                     heartbeats. A host looks lost too if its only rank holds the interpreter's lock for so long
    standbys         number of ranks that can serve the store if the process that serves it is lost, at most 16, on
                     different hosts where possible. Only a majority of the ranks goes on then in shrink and regroup. 0:
                     the ranks that reach the store go on, and without it none. The same on all ranks
    stall            seconds in one call after which the positions of all ranks are logged as a warning; 0 disables it
    log_level        debug, info, warning or error: prints Ronde's messages from this level on to stderr, with the rank.
                     Empty: the loggers `ronde.*` stay as the program has configured them
    flight_record    True notes the last calls of each rank in a file of this user's, for `ronde top` and `ronde why`;
                     it takes no thread, some 200 KiB of memory a rank, and per call some 20 ns in machine
                     code, 0.4 us in Python
    timeline         path of a file for the timeline of all calls; see Communicator.start_timeline. Empty: no timeline
    timeline_style   "ronde"; "horovod" or "horovod-cycles" for the file that Horovod writes
    tls_certificate  path of this process's certificate (PEM). The three paths are set together, or none is; then
                     connections between hosts and to the store use TLS
    tls_key          path of the certificate's private key (PEM)
    tls_ca           path of the certificate of the authority that signed the certificates of all ranks (PEM)
    """

    transport: str = "auto"
    timeout: float = 1800.0
    connect_timeout: float = 60.0
    join_timeout: float = 600.0
    reproducible: bool = False
    rules: str = ""
    calibrate: bool = True
    compiled: str = "auto"
    share_arrays: bool = False
    stage_bytes: int = 0
    fusion_bytes: int = 64 << 20
    heartbeat: float = 5.0
    standbys: int = 0
    stall: float = 30.0
    log_level: str = ""
    flight_record: bool = True
    timeline: str = ""
    timeline_style: str = TIMELINE_STYLES[0]
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout", "join_timeout"):
            value = getattr(self, name)
            if not 0 < value <= MOST_SECONDS:
                raise ConfigError(f"{name}={value!r}: must be a positive number of seconds, at most {MOST_SECONDS:g}")
        if self.heartbeat != 0 and not 0.5 <= self.heartbeat <= MOST_SECONDS:
            raise ConfigError(f"heartbeat={self.heartbeat!r}: must be 0 (never) or 0.5 to {MOST_SECONDS:g} seconds")
        if not 0 <= self.standbys <= MOST_STANDBYS:
            raise ConfigError(f"standbys={self.standbys!r}: must be 0 (none) to {MOST_STANDBYS}")
        if not 0 <= self.stall <= MOST_SECONDS:
            raise ConfigError(
                f"stall={self.stall!r}: must be 0 (never) or a positive number of seconds, at most {MOST_SECONDS:g}"
            )
        if self.log_level not in LEVELS:
            raise ConfigError(f"log_level={self.log_level!r}: must be one of {', '.join(LEVELS[1:])}, or empty")
        if self.timeline_style not in TIMELINE_STYLES:
            styles = ", ".join(TIMELINE_STYLES)
            raise ConfigError(f"timeline_style={self.timeline_style!r}: must be one of {styles}")
        files = {name: getattr(self, name) for name in ("tls_certificate", "tls_key", "tls_ca")}
        if any(files.values()) and not all(files.values()):
            absent = ", ".join(name for name, path in files.items() if not path)
            raise ConfigError(f"{absent}: is needed too; tls_certificate, tls_key and tls_ca are set together")
        if self.stage_bytes and (not 4096 <= self.stage_bytes <= MOST_BYTES or self.stage_bytes % 64):
            raise ConfigError(f"stage_bytes={self.stage_bytes}: must be a multiple of 64, 4096 to {MOST_BYTES}, or 0")
        if self.compiled not in COMPILED:
            raise ConfigError(f"compiled={self.compiled!r}: must be one of {', '.join(COMPILED)}")
        if not 0 <= self.fusion_bytes <= MOST_BYTES:
            raise ConfigError(
                f"fusion_bytes={self.fusion_bytes}: must be 0 (no arrays are sent together) to {MOST_BYTES} bytes"
            )
        if not registry.exists(self.transport):
            known = registry.names()
            raise ConfigError(
                f"transport={self.transport!r}: unknown{did_you_mean(self.transport, known)}; "
                f"must be one of {', '.join(known)}"
            )


@dataclass(frozen=True, slots=True)
class Config(Settings):
    """The settings, the options of the transports, and the source of each value.

    options   transport name -> option -> (value, source); options without a value keep their defaults
    sources   setting -> source; settings with their defaults are absent
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
        origins: Mapping[str, str] | None = None,
    ) -> Config:
        """Read and merge the settings.

        arguments    settings of `init`; they precede all others
        environment  variables to read in place of os.environ
        directory    directory of the file, in place of the working directory
        origins      where variables come from, for messages: variable -> text; others from the environment

        Raises ConfigError naming the setting, its value, its source and the allowed values.
        """
        env = os.environ if environment is None else environment
        layers = [
            _from_file(env, Path() if directory is None else directory),
            _from_environment(env, origins or {}),
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
            registry.make_options(name, options[name])  # raises for a bad value, also of an unused transport
        return cls(
            **{item.name: getattr(chosen, item.name) for item in dataclasses.fields(Settings)},
            options=options,
            sources={name: source for name, (_, source) in values.items()},
        )

    def value(self, name: str) -> Any:
        """A setting by its name, or the options of the transport of that name."""
        return getattr(self, name) if name in Settings.__dataclass_fields__ else self.transport_options(name)

    def load_tls(self) -> Tls | None:
        """Read the certificates; None if the settings name none. Raises ConfigError."""
        if not self.tls_certificate:
            return None
        return Tls(self.tls_certificate, self.tls_key, self.tls_ca)

    @property
    def terms(self) -> str:
        """The properties that the ranks of a world have in common, as text: the version, the transport with those that
        it is built on unless they are the usual ones, and the settings that all ranks must have alike, unless they have
        their defaults. 'Ronde 0.1.0 over auto, intra=tcp with standbys=2'."""
        given = registry.make_options(self.transport, self.options.get(self.transport, {}))
        inner = [(item, getattr(given, item.name)) for item in _built_on(given)]
        parts = [f"{item.name}={name}" for item, name in inner if name != item.default]
        over = ", ".join([self.transport, *parts])
        usual = Settings()
        more = [f"{name}={value}" for name in _ALIKE if (value := getattr(self, name)) != getattr(usual, name)]
        return f"Ronde {__version__} over {over}" + (f" with {', '.join(more)}" if more else "")

    def transport_options(self, name: str) -> Any:
        """The options object of transport `name`.

        A transport built on others has an option with the name of each, such as `inner`, and another for its options,
        `inner_options`. These begin with the options configured under the inner transport's own name.
        """
        options = registry.make_options(name, self.options.get(name, {}))
        for item in _built_on(options):
            own = self.options.get(getattr(options, item.name), {})
            texts = tuple(f"{key}={_text(value)}" for key, (value, _) in own.items())
            given = getattr(options, f"{item.name}_options")
            options = dataclasses.replace(options, **{f"{item.name}_options": texts + given})
        return options


def _built_on(options: Any) -> list[dataclasses.Field[Any]]:
    """The options of a transport that name the transports on which it is built."""
    return [item for item in dataclasses.fields(options) if hasattr(options, f"{item.name}_options")]


_Layer = tuple[dict[str, tuple[object, str]], dict[str, dict[str, tuple[object, str]]]]


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """The environment variables with Ronde's prefix that are neither settings nor options, probably misspelt: each with
    the one that may be meant."""
    known = {PREFIX + item.name.upper() for item in dataclasses.fields(Settings)} | {PREFIX + n for n in NO_SETTINGS}
    options = tuple(f"{PREFIX}{name.upper()}_" for name in registry.names())
    unknown = {name for name in environment if name.startswith(PREFIX) and not name.startswith(options)} - known
    return [f"{name}{did_you_mean(name, known)}" for name in sorted(unknown)]


def _from_environment(environment: Mapping[str, str], origins: Mapping[str, str]) -> _Layer:
    """The settings and options of variables; an empty one counts as not set."""
    environment = {name: value for name, value in environment.items() if name.startswith(PREFIX) and value}
    settings: dict[str, tuple[object, str]] = {}
    transports: dict[str, dict[str, tuple[object, str]]] = {}
    for item in dataclasses.fields(Settings):
        variable = PREFIX + item.name.upper()
        if variable in environment:
            settings[item.name] = (environment[variable], origins.get(variable, f"environment {variable}"))
    own = {item.name.upper() for item in dataclasses.fields(Settings)} | set(NO_SETTINGS)
    others = [name for name in environment if name.removeprefix(PREFIX) not in own]
    for name in registry.names() if others else ():
        prefix = f"{PREFIX}{name.upper()}_"
        for variable in others:
            if variable.startswith(prefix):
                option = variable.removeprefix(prefix).lower()
                source = origins.get(variable, f"environment {variable}")
                transports.setdefault(name, {})[option] = (environment[variable], source)
    return settings, transports


def _from_file(environment: Mapping[str, str], directory: Path) -> _Layer:
    named = environment.get(f"{PREFIX}CONFIG")
    if named:
        return _read(Path(named), required=True)
    for name in ("ronde.toml", "pyproject.toml"):
        if os.path.isfile(directory / name):  # False in a folder that was removed, or that this user may not enter
            return _read((directory / name).absolute(), required=False)
    return {}, {}


def _read(path: Path, required: bool) -> _Layer:
    import tomllib  # here, since few ranks read a file

    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{PREFIX}CONFIG={str(path)!r}: there is no such file") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad TOML, a name with a NUL
        if path.name == "pyproject.toml" and not required:
            return {}, {}  # errors in this file are for other tools to report
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
    if path.name == "pyproject.toml":
        tools = table.get("tool", {})
        table = tools.get("ronde", {}) if isinstance(tools, dict) else {}
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [tool.ronde] must be a table of settings")
    return _sort(table, f"file {path}")


def _sort(table: Mapping[str, Any], source: str) -> _Layer:
    """Separate settings, the top-level values, from options, the tables with the name of a transport."""
    settings: dict[str, tuple[object, str]] = {}
    transports: dict[str, dict[str, tuple[object, str]]] = {}
    for name, value in table.items():
        if not isinstance(value, Mapping):
            if name not in Settings.__dataclass_fields__ and registry.exists(name):
                raise ConfigError(f"{source}: {name}={value!r}: must be a table, the settings of this transport")
            settings[name] = (value, source)
        elif registry.exists(name):
            transports[name] = {option: (given, f"{source}, [{name}]") for option, given in value.items()}
        else:
            known = registry.names()
            raise ConfigError(
                f"{source}: [{name}] is not a transport{did_you_mean(name, known)}; must be one of {', '.join(known)}"
            )
    return settings, transports
