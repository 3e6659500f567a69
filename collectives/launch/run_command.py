"""`ronde run`: start a program on several ranks, on this machine or on several hosts, and supervise it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from collectives.config import PREFIX, Config, Settings
from collectives.launch import elastic_options, horovod_settings
from collectives.launch.agent import OwnJob, attend
from collectives.launch.agent_commands import Srun, Ssh
from collectives.launch.allocation import allocated
from collectives.launch.environment import check_free, exported, passed_on
from collectives.launch.host_list import Host, parse_file, parse_list, share_out
from collectives.launch.job import Elastic, Job, Place, StartError
from collectives.launch.meeting import Meeting, come, given_secret, lead, parse_address
from collectives.launch.processes import exit_code, fill_standard_descriptors, usable_cores
from collectives.launch.store_keeper import StoreKeeper
from collectives.launch.supervisor import supervise
from transports import launchers, registry
from transports.auth import new_secret
from transports.errors import ConfigError
from transports.interfaces import choose_address
from transports.settings import did_you_mean

DESCRIPTION: Final = """\
Start a program on several ranks, of this machine or of the hosts that -H or --hostfile names.

Every rank is a process that runs the same command; ronde.init() connects it to the other ranks.
Each line of output is printed with its rank in front. Only rank 0 reads standard input.

Other hosts are reached by ssh, which must ask for nothing (keys, known hosts). They need the same Python, the same
Ronde and the same folder as this one. Their ranks get the variables PATH, PYTHONPATH, LD_LIBRARY_PATH, VIRTUAL_ENV,
CONDA_* and RONDE_* of this process and those of -x; all other variables are those of a login there. In an allocation of
Slurm (sbatch, salloc) the ranks run on its nodes, one per task, and srun takes the place of ssh.

If a rank fails, the other ranks get 1.5 seconds to print their errors and are then terminated. The report names the
rank that failed first, with the end of its stderr. The exit code is that of this rank (128 + N if signal N killed it).
A host that cannot be reached any more counts as a failure of its ranks, with exit code 255.
With --keep-going the other ranks continue, and the exit code is 0 if any rank exits with 0.
Ctrl-C ends all ranks and their child processes. A second Ctrl-C kills them at once.
"""
EXAMPLES: Final = """\
examples:
  ronde run -np 4 train.py --lr 0.1            a file that ends in .py runs in this Python
  ronde run -np 4 python -m package.train      any other command runs unchanged
  ronde run -np 2 --transport tcp --set tcp.interface=lo train.py
  ronde run -np 2 --time-limit 600 pytest tests  end the job after ten minutes, with exit code 124
  ronde run -np 2 --no-prefix train.py | tee log
  ronde run --nodes 2 --node-rank 1 --meet h1:29400 -np 4 train.py    on h2; on h1 with --node-rank 0
  ronde run -H h1:4,h2:4 -x OMP_NUM_THREADS=2 train.py     eight ranks on two hosts

Unless OMP_NUM_THREADS is set, it is set for the ranks to the number of cores divided by the number of ranks.
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of `ronde run`."""
    parser = subparsers.add_parser(
        "run",
        help="start a program on several ranks, of this machine or of several hosts",
        usage="ronde run [options] command [argument ...]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-np",
        "-n",
        "--np",
        "--num-proc",
        dest="np",
        type=_count,
        metavar="N",
        help="number of ranks (default: one per usable core, or per slot of the hosts)",
    )
    parser.add_argument("--transport", metavar="NAME", help="transport between the ranks (ronde doctor lists them)")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="setting for the ranks, such as timeout=30 or tcp.interface=lo; repeat it for several settings",
    )
    parser.add_argument(
        "-x",
        dest="exported",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="environment variable for all ranks, with the given value or its value here; repeat it for several",
    )
    parser.add_argument(
        "--time-limit",
        "--timeout",
        dest="time_limit",
        type=_seconds,
        metavar="S",
        help="end the job after S seconds, with exit code 124 (default: never)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="seconds between SIGTERM and SIGKILL when ranks are ended (default: 5)",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="let the other ranks continue when a rank fails; for programs that call shrink()",
    )
    _add_output(parser.add_argument_group("output of the ranks"))
    _add_horovod(parser.add_argument_group("settings under the names of horovodrun"))
    group = parser.add_argument_group("several hosts")
    add_hosts(group)
    _add_nodes(group)
    elastic_options.add_options(parser.add_argument_group("elastic jobs, whose ranks come and go"), _count, positive)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    parser.set_defaults(main=main, usage_error=parser.error)


def _add_output(group: Any) -> None:
    """Add the options on the lines that ranks print."""
    group.add_argument("--no-prefix", dest="prefix", action="store_false", help="do not begin lines with the rank")
    group.add_argument(
        "--prefix-output-with-timestamp",
        dest="stamped",
        action="store_true",
        help="begin each line with the local time at which the launcher received it",
    )
    group.add_argument(
        "--output-filename",
        dest="output_folder",
        type=Path,
        metavar="DIR",
        help="write the output of each rank also to DIR/rank.N/stdout and DIR/rank.N/stderr",
    )


def _add_horovod(group: Any) -> None:
    """Add options of horovodrun that are settings here."""
    for name, key, convert, metavar in (
        ("--timeline-filename", "timeline", str, "FILE"),
        ("--fusion-threshold-mb", "fusion_bytes", lambda text: str(_count(text) << 20), "MB"),
        ("--stall-check-warning-time-seconds", "stall", lambda text: f"{_seconds(text):g}", "S"),
        ("--stall-check-shutdown-time-seconds", "timeout", lambda text: f"{positive(text):g}", "S"),
        ("--gloo-timeout-seconds", "connect_timeout", lambda text: f"{positive(text):g}", "S"),
    ):
        group.add_argument(
            name,
            dest="horovod",
            action="append",
            default=[],
            type=_converted(key, convert),
            metavar=metavar,
            help=f"--set {key}=...",
        )
    group.add_argument(
        "--no-stall-check", dest="horovod", action="append_const", const=("stall", "0"), help="--set stall=0"
    )
    group.add_argument(
        "--timeline-mark-cycles",
        dest="horovod",
        action="append_const",
        const=("timeline_style", "horovod-cycles"),
        help="--set timeline_style=horovod-cycles",
    )


def _converted(key: str, convert: Callable[[str], str]) -> Callable[[str], tuple[str, str]]:
    """The setting that an argument is."""
    return lambda text: (key, convert(text))


def add_hosts(group: Any) -> None:
    """Add the options that name hosts and how to reach them."""
    hosts = group.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H", "--hosts", metavar="LIST", help="hosts and numbers of their ranks: h1:4,user@h2:4,[fd00::1]:2"
    )
    hosts.add_argument(
        "--hostfile", "-hostfile", metavar="FILE", help="file with one host per line: 'h1 slots=4', 'h1:4' or 'h1'"
    )
    group.add_argument("-p", "--ssh-port", type=_port, metavar="PORT", help="port of the hosts' ssh servers")
    group.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    group.add_argument(
        "--network-interface",
        "--network-interfaces",
        metavar="NAME",
        help="network interface that the ranks connect by, on every host (default: the one that leads to the others)",
    )


def _add_nodes(group: Any) -> None:
    """Add the options for nodes that are started by hand, and the limits for hosts."""
    group.add_argument(
        "--nodes",
        type=_count,
        metavar="N",
        help="number of nodes on which `ronde run` is started by hand; -np is the number of ranks on this node",
    )
    group.add_argument("--node-rank", type=_rank, metavar="I", help="number of this node, 0 to N - 1")
    group.add_argument(
        "--meet", metavar="HOST:PORT", help="address at which node 0 listens and to which the other nodes connect"
    )
    group.add_argument(
        "--start-timeout",
        type=positive,
        metavar="S",
        help="seconds until all hosts must have started their ranks (default: 30)",
    )
    group.add_argument(
        "--host-timeout",
        type=positive,
        default=10.0,
        metavar="S",
        help="seconds without a sign of life after which a host counts as lost (default: 10)",
    )


def _rank(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer, 0 or more")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a port, 1 to 65535")
    return int(text)


def positive(text: str) -> float:
    """A number of seconds above 0, for argparse."""
    value = _seconds(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of seconds, more than 0")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65536:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer, 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of seconds, 0 or more")
    return value


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r}: must be KEY=VALUE")
    return key, value


def main(args: argparse.Namespace) -> int:
    """Start the ranks and wait for them; the exit code. Raises ConfigError for a bad setting, with nothing started."""
    command = as_command(args.command)
    if not command:
        args.usage_error("no program given; put a command after the options, for example: ronde run -np 4 train.py")
    if not hasattr(os, "posix_spawnp"):
        raise ConfigError("ronde run: requires a POSIX system; on this system start ranks with ronde.run(fn, np=...)")
    settings = [*args.settings, *args.horovod]
    if any(key == "timeline" for key, _ in args.horovod):
        settings.insert(0, ("timeline_style", "horovod"))
    if args.transport is not None:
        settings.append(("transport", args.transport))
    if args.network_interface is not None:
        settings.append(("tcp.interface", args.network_interface))
    if args.start_timeout is None:
        args.start_timeout = start_timeout(os.environ)
    warn_of_horovod(os.environ)
    extra = {**horovod_settings.translated(os.environ), **exported(args.exported, os.environ), **as_variables(settings)}
    check_free(extra)
    variables = {**os.environ, **extra}
    Config.load(environment=variables).load_tls()
    if args.nodes is None:  # that is started on each node
        launchers.check_started_once(os.environ, "ronde run")
    if elastic_options.is_elastic(args):
        return run_job(args, command, variables, extra, elastic=elastic_options.elastic(args, os.environ))
    if args.nodes is not None:
        return run_node(args, command, variables, extra)
    return run_job(args, command, variables, extra, places=places_of(args))


def start_timeout(environment: Mapping[str, str]) -> float:
    """The default of --start-timeout. Raises ConfigError."""
    text = environment.get(horovod_settings.START_TIMEOUT, "30")
    try:
        return positive(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{horovod_settings.START_TIMEOUT}={error}") from error


def warn_of_horovod(environment: Mapping[str, str]) -> None:
    """Name the variables of Horovod that are ignored, if there are any."""
    names = horovod_settings.ignored(environment)
    if names:
        sys.stderr.write(f"ronde: warning: no setting of Ronde is like {', '.join(names)}; see docs/launch-flags.md\n")


def interface_of(variables: Mapping[str, str]) -> str:
    """The setting tcp.interface, by which other hosts must reach the store too; '' if it is not set."""
    value, _ = Config.load(environment=variables).options.get("tcp", {}).get("interface", ("", ""))
    return str(value)


def run_job(
    args: argparse.Namespace,
    command: Sequence[str],
    variables: Mapping[str, str],
    extra: Mapping[str, str],
    *,
    places: Sequence[Place] = (),
    elastic: Elastic | None = None,
    secret: bytes | None = None,
    keeper: StoreKeeper | None = None,
) -> int:
    """Run the ranks at these places, or an elastic job; the exit code."""
    job = Job(
        command,
        places,
        secret=secret or new_secret(),
        variables=variables,
        passed_on=passed_on(os.environ, extra),
        name=secrets.token_hex(4),
        interface=interface_of(variables) if elastic is not None or len(places) > 1 else "",
        prefix=args.prefix,
        stamped=args.stamped,
        output_folder=args.output_folder,
        grace=args.grace,
        time_limit=args.time_limit,
        start_timeout=args.start_timeout,
        host_timeout=args.host_timeout,
        keep_going=args.keep_going,
        keeper=keeper,
        elastic=elastic,
    )
    try:
        return supervise(job)
    except StartError as error:
        sys.stderr.write(f"ronde run: {error}\n")
        return error.code


def run_node(
    args: argparse.Namespace, command: Sequence[str], variables: Mapping[str, str], extra: Mapping[str, str]
) -> int:
    """Run the ranks of one of several nodes that were started by hand; the exit code of the job. Raises RondeError."""
    if args.hosts is not None or args.hostfile is not None:
        args.usage_error("--nodes starts this node alone: give it without -H and --hostfile")
    if args.meet is None or args.node_rank is None or not 0 <= args.node_rank < args.nodes:
        args.usage_error(f"--nodes {args.nodes} needs --meet HOST:PORT and --node-rank, 0 to {args.nodes - 1}")
    host, port = parse_address(args.meet)
    secret = given_secret(os.environ)
    until = time.monotonic() + args.start_timeout
    tls = Config.load(environment=variables).load_tls()
    meeting = Meeting(args.nodes, args.node_rank, host, port, until, secret, tls)
    count, name = args.np or usable_cores(), socket.gethostname()
    keeper = StoreKeeper(variables)
    fill_standard_descriptors()
    try:
        if args.node_rank > 0:
            pipes = come(meeting, count)
        else:
            interface = args.network_interface or ""
            nodes = lead(meeting, keeper, choose_address(interface, None) if interface else "")
    except KeyboardInterrupt:
        return exit_code(-signal.SIGINT)
    if args.node_rank > 0:
        job = OwnJob(command, variables, meeting.url, secret, name, args.prefix, args.stamped, args.output_folder)
        return attend(job, pipes)
    places, first = [Place(name, range(count))], count
    for node in nodes:
        places.append(Place(node.name, range(first, first + node.count), connected=node.pipes))
        first += node.count
    with contextlib.closing(keeper):
        return run_job(args, command, variables, extra, places=places, secret=secret, keeper=keeper)


def places_of(args: argparse.Namespace) -> list[Place]:
    """The hosts of the job with their ranks: those that the user names, or that Slurm has allocated, or this one.

    Raises ConfigError.
    """
    hosts = hosts_of(args)
    if hosts is not None:
        return as_places(hosts, args.np, Ssh(args.ssh_port, args.ssh_identity_file))
    hosts = allocated(os.environ)
    if hosts is not None:
        return as_places(hosts, args.np, Srun())
    return [Place(socket.gethostname(), range(args.np or usable_cores()))]


def hosts_of(args: argparse.Namespace) -> list[Host] | None:
    """The hosts of `-H` or `--hostfile`; None if neither was given. Raises ConfigError."""
    if args.hosts is not None:
        return parse_list(args.hosts)
    if args.hostfile is not None:
        try:
            text = Path(args.hostfile).read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--hostfile {args.hostfile}: cannot be read: {error}") from error
        return parse_file(text, args.hostfile)
    return None


def as_places(hosts: Sequence[Host], np: int | None, way: Ssh | Srun) -> list[Place]:
    """The hosts with their ranks, and the commands that start agents."""
    return [
        Place(share.host.name, share.ranks, None if share.host.is_here else way.command(share.host.address))
        for share in share_out(hosts, np)
    ]


def as_command(words: Sequence[str]) -> list[str]:
    """The command to execute for the words on the command line: a .py file runs in this Python."""
    command = list(words[1:] if words[:1] == ["--"] else words)
    return [sys.executable, *command] if command and command[0].endswith(".py") else command


def as_variables(settings: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    """The environment variables for settings with keys such as 'timeout' and 'tcp.interface'.

    Raises ConfigError for an unknown key. Config.load checks the values.
    """
    known = [field.name for field in dataclasses.fields(Settings)]
    variables = {}
    for key, value in settings:
        transport, dot, option = key.partition(".")
        if dot and transport in registry.names():
            registry.make_options(transport, {option: (value, f"--set {key}")})
        elif key not in known:
            known += [f"{name}.OPTION" for name in registry.names()]
            raise ConfigError(
                f"--set {key}={value}: unknown setting{did_you_mean(key, known)}; known: {', '.join(known)}"
            )
        variables[PREFIX + key.replace(".", "_").upper()] = value
    return variables
