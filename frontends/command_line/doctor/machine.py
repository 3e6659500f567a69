"""`ronde doctor`: show what works on this machine, and where settings come from."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import sys
from typing import Any, Final

from collectives.config import Config, Settings, unknown_variables
from collectives.jit import keeping_folder, obstacle
from collectives.launch import run
from collectives.launch.job import allocated
from collectives.version import __version__
from frontends.command_line.arguments import check_use, count, positive
from frontends.command_line.doctor import cluster
from frontends.command_line.doctor.facts import first_version, frameworks, gpu_software
from frontends.command_line.host_arguments import HOSTS, add_hosts, hosts_of
from frontends.command_line.settings_here import problems_here
from transports import copying, launchers, registry
from transports.core_count import usable_cores
from transports.errors import ConfigError
from transports.interfaces import interfaces

DESCRIPTION: Final = """\
Check this machine. The report shows the versions of Ronde, of the frameworks and of the software for GPUs, the launcher
that started this process and how its ranks would meet, the transports that work and why others do not, the machine as
Ronde sees it, and the settings that differ from their defaults. With --calibrate, -np ranks also run over the set
transport and show their calibration, which every job measures when it begins. The exit code is 1 if a setting is bad
or names what cannot be used here, if the ranks of a launcher cannot meet, or if no transport can be used.

With -H, --hostfile or --cluster, check several hosts. A probe starts on each host, by ssh as in `ronde run`. The probes
compare versions and clocks, connect to each other in both directions, and measure latency, rate and the largest packets
that pass. The report names the host, link, firewall or interface that is at fault. --cluster means the hosts of the
Slurm allocation, where it is the default, or the hosts of the ranks if every rank of a launcher runs this command; rank
0 prints. The exit code is 1 if anything is wrong.
"""
EXAMPLES: Final = """\
examples:
  ronde doctor
  ronde doctor --all                      every setting with its source
  ronde doctor --calibrate -np 4
  RONDE_TRANSPORT=tcp ronde doctor --json
  ronde doctor -H h1,h2,h3                is the cluster all right?
  mpirun -np 4 ronde doctor --cluster     the same for the hosts of an MPI launcher
"""
PACKAGES: Final = ("numpy", "msgpack", "ml_dtypes", "numba")
START_SECONDS: Final = 8.0
"""Time for a host to be reached by ssh and to start its probe. With the connections that follow, a host that does not
answer costs less than 15 s."""

SHARED_MEMORY: Final = "/dev/shm"


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    parser.add_argument("--calibrate", action="store_true", help="start ranks and show how they are calibrated")
    parser.add_argument("-np", type=count, metavar="N", help="ranks for --calibrate (default: 2)")
    parser.add_argument("--all", action="store_true", help="show the settings that have their defaults too")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    group = parser.add_argument_group("several hosts")
    group.add_argument("--cluster", action="store_true", help="check the hosts of the allocation or of the ranks")
    add_hosts(group)
    group.add_argument(
        "--start-timeout",
        type=positive,
        default=START_SECONDS,
        metavar="S",
        help=f"seconds until a host must have answered (default: {START_SECONDS:g})",
    )


def main(args: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit status."""
    hosts = hosts_of(args)
    check_use(args, "-np", args.np, "--calibrate", args.calibrate)
    if args.cluster or hosts is not None or (allocated(os.environ) is not None and not args.calibrate):
        return cluster.main(args, hosts)
    check_use(args, "--network-interface", args.network_interface, f"--cluster, {HOSTS}", given=False)
    findings = examine()
    if args.calibrate and not findings["problems"]:
        findings["calibration"] = run(calibration, args.np or 2)[0]
    sys.stdout.write(json.dumps(findings, indent=2) + "\n" if args.json else render(findings, everything=args.all))
    return 1 if findings["problems"] else 0


def examine() -> dict[str, Any]:
    """Return all findings but the calibration, in JSON's types."""
    problems: list[str] = []
    transports = {name: why_not(name) for name in registry.names()}
    if all(reason is not None for reason in transports.values()):
        problems.append("no transport can be used here")
    launcher = launchers.describe(os.environ)
    if launcher["problem"] is not None:
        problems.append(launcher["problem"])
    settings: list[dict[str, Any]] = []
    why_no_code = obstacle()
    try:
        config = Config.load()
        settings = _settings(config)
    except ConfigError as error:
        problems.append(str(error))
    else:
        problems += map(str, problems_here(config))
        reason = transports[config.transport]
        if reason is not None and None in transports.values():
            problems.append(f"transport={config.transport!r} cannot be used here: {reason}")
        if config.compiled == "on" and why_no_code is not None:
            problems.append(f"compiled='on', and there can be no machine code: {why_no_code}")
    kept = keeping_folder() if why_no_code is None else None
    return {
        "versions": _versions(),
        "frameworks": frameworks(),
        "gpu": gpu_software(),
        "launcher": launcher,
        "machine": _machine(),
        "interfaces": interfaces(),
        "transports": transports,
        "compiled": {"obstacle": why_no_code, "cache": None if kept is None else str(kept)},
        "settings": settings,
        "warnings": [f"no setting is called {name}" for name in unknown_variables(os.environ)],
        "problems": problems,
    }


def calibration() -> dict[str, Any]:
    """Return the calibration of this rank's world: the kernels of copies."""
    from collectives.world_communicator import world

    comm, table = world(), copying.kernel_table()
    return {
        "transport": comm.transport.name,
        "ranks": comm.size,
        "copies": "memcpy everywhere (not calibrated)" if table is None else table.describe(),
        "copies_seconds": None if table is None else table.seconds,
    }


def _versions() -> dict[str, str]:
    installed = {package: first_version([package]) or "not installed" for package in PACKAGES}
    return {"ronde": __version__, "python": platform.python_version()} | installed


def _machine() -> dict[str, Any]:
    machine: dict[str, Any] = {
        "platform": platform.platform(),
        "host": platform.node(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
    }
    try:
        usage = shutil.disk_usage(SHARED_MEMORY)
    except OSError:
        machine["shared_memory"] = None
    else:
        machine["shared_memory"] = {"path": SHARED_MEMORY, "bytes": usage.total, "free": usage.free}
    return machine


def why_not(name: str) -> str | None:
    """Return None if the transport is usable here, else the reason and what to install."""
    try:
        return registry.backend(name).usable()
    except ConfigError as error:
        return str(error)


def _settings(config: Config) -> list[dict[str, Any]]:
    rows = [
        (field.name, getattr(config, field.name), config.sources.get(field.name, "default"))
        for field in dataclasses.fields(Settings)
    ]
    for name in registry.names():
        if why_not(name) is None:
            given = config.options.get(name, {})
            options = registry.make_options(name, given)
            for field in dataclasses.fields(options):
                source = given[field.name][1] if field.name in given else "default"
                rows.append((f"{name}.{field.name}", getattr(options, field.name), source))
    return [{"name": name, "value": value, "source": source} for name, value, source in rows]


def render(findings: dict[str, Any], *, everything: bool = False) -> str:
    """Return the findings as text for people. `everything`: also the settings that have their defaults."""
    machine, memory = findings["machine"], findings["machine"]["shared_memory"]
    lines = ["versions"]
    lines += _table([(name, text) for name, text in findings["versions"].items()])
    lines += ["", "frameworks", *_table(_frameworks(findings["frameworks"]))]
    lines += ["", "software for GPUs", *_table(_gpu_software(findings["gpu"]))]
    lines += ["", "launcher", *_launcher(findings["launcher"])]
    lines += ["", "machine"]
    lines += _table(
        [
            ("platform", machine["platform"]),
            ("host", machine["host"]),
            ("cores", f"{machine['usable_cores']} usable of {machine['cores']}"),
            ("shared memory", f"{_size(memory['free'])} free of {_size(memory['bytes'])}" if memory else "none"),
        ]
    )
    lines += ["", "interfaces"]
    lines += _table([(name, ", ".join(found) or "no address") for name, found in findings["interfaces"].items()])
    lines += ["", "transports"]
    lines += _table([(name, "usable" if why is None else f"no: {why}") for name, why in findings["transports"].items()])
    lines += ["", "compiled interpreter"]
    why, cache = findings["compiled"]["obstacle"], findings["compiled"]["cache"]
    kept = "no: no folder for it can be written" if cache is None else f"kept in {cache}"
    lines += _table([("machine code", kept if why is None else f"no: {why}")])
    if "calibration" in findings:
        lines += ["", "calibration", *_calibration(findings["calibration"])]
    if findings["settings"]:
        shown = [row for row in findings["settings"] if everything or row["source"] != "default"]
        lines += ["", "settings"]
        lines += _table([(row["name"], _value(row["value"]), row["source"]) for row in shown])
        if len(shown) < len(findings["settings"]):
            lines += [f"  {'all' if not shown else 'the others'} have their defaults; --all shows them"]
    lines += ["", *(f"warning: {text}" for text in findings["warnings"])]
    lines += [f"problem: {text}" for text in findings["problems"]]
    return "\n".join([*lines, _verdict(findings)]) + "\n"


def _verdict(findings: dict[str, Any]) -> str:
    """The last line: the transports that can be used, and whether anything is wrong."""
    usable = ", ".join(name for name, why in findings["transports"].items() if why is None) or "nothing"
    problems = len(findings["problems"])
    found = "no problem" if not problems else "1 problem" if problems == 1 else f"{problems} problems"
    return f"usable here: {usable}; {found} found"


def _frameworks(found: dict[str, str | None]) -> list[tuple[str, ...]]:
    return [(f"ronde.{name}", text or f"not installed: pip install 'ronde[{name}]'") for name, text in found.items()]


def _gpu_software(found: dict[str, str | None]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(name, text) for name, text in found.items() if text is not None]
    return rows or [("none", "pip install 'ronde[cuda13]' or 'ronde[cuda12]'")]


def _launcher(found: dict[str, Any]) -> list[str]:
    if found["launcher"] is None:
        return _table([("ranks", found["meeting"])])
    return _table(
        [
            ("started by", found["title"]),
            ("rank", f"{found['rank']} of {found['size']}"),
            ("variables", found["variables"]),
            ("ranks", found["meeting"]),
        ]
    )


def _calibration(found: dict[str, Any]) -> list[str]:
    return _table(
        [
            ("ranks", f"{found['ranks']} over {found['transport']}"),
            ("copies", found["copies"]),
        ]
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(rows[0]) - 1 if rows else 0)]
    return ["  " + "  ".join([*(row[i].ljust(width) for i, width in enumerate(widths)), row[-1]]) for row in rows]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _size(count: int) -> str:
    if count < 2**20:
        return f"{count / 2**10:.0f} KiB"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
