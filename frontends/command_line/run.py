"""`ronde run`: start a program on several ranks, on this machine or on several hosts, and supervise it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, cast

from collectives.config import PREFIX, Config, Settings
from collectives.launch.hosts import Srun, Ssh, StoreKeeper, folder_here
from collectives.launch.job import (
    Discovery,
    Elastic,
    Job,
    NamedHost,
    Place,
    StartError,
    allocated,
    check_slots,
    dns,
    fixed,
    host_file,
    parse_list,
    script,
    slurm_job,
)
from collectives.launch.processes import (
    check_free,
    exit_code,
    exported,
    fill_standard_descriptors,
    passed_on,
)
from collectives.launch.supervision import (
    Meeting,
    OwnJob,
    given_secret,
    join_nodes,
    lead_nodes,
    parse_address,
    run_for_node_0,
    supervise,
)
from collectives.scaling import Cooldown, Terms
from frontends.command_line import horovod_settings
from frontends.command_line.arguments import check_ssh, count, output_folder, positive, seconds, whole
from frontends.command_line.host_arguments import add_host_names, add_ways, places_of
from frontends.command_line.settings_here import problems_here
from transports import launchers, registry
from transports.auth import new_secret
from transports.core_count import usable_cores
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
  ronde run -np 4 -m package.train             so does a module; any other command runs unchanged
  ronde run -np 2 --transport tcp --set tcp.interface=lo train.py
  ronde run -np 2 --time-limit 600 pytest tests  end the job after ten minutes, with exit code 124
  ronde run -np 2 --no-prefix train.py | tee log
  ronde run --nodes 2 --node-rank 1 --meet h1:29400 -np 4 train.py    on h2; on h1 with --node-rank 0
  ronde run -H h1:4,h2:4 -x OMP_NUM_THREADS=2 train.py     eight ranks on two hosts

horovodrun's other options are understood too; docs/launch-flags.md lists them.
Unless OMP_NUM_THREADS is set, it is set for the ranks to the number of cores divided by the number of ranks.
"""
_SWITCHES: Final = ("min_np", "max_np", "host_discovery_script", "discover_dns")
_MORE: Final = (
    *("slots_per_host", "elastic_timeout", "reset_limit", "blacklist_cooldown_range", "spares", "leave_timeout"),
    "preemption_file",
)
_OPTION: Final = re.compile("(--.*|-[^-cmWX]*)([cmWX]?)(.*)", re.DOTALL)
"""An option of Python: letters, at last one with a value, and the value; or a long one."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    parser.usage = "ronde run [options] command [argument ...]"
    parser.add_argument(
        "-np",
        "-n",
        "--np",
        "--num-proc",
        dest="np",
        type=count,
        metavar="N",
        help="number of ranks (default: one per usable core, or per slot of the hosts)",
    )
    add_host_names(parser)
    _add_limits(parser)
    parser.add_argument(
        "--mpi4py", action="store_true", help="let a program of Python that imports mpi4py find ronde.mpi in its place"
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="the program is a module of Python, as with torchrun -m"
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
        type=seconds,
        metavar="S",
        help="end the job after S seconds, with exit code 124 (default: never)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
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
    _add_horovod(parser)
    group = parser.add_argument_group("several hosts")
    add_ways(group)
    _add_nodes(group)
    _add_elastic(parser.add_argument_group("elastic jobs, whose ranks come and go"))
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")


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
        type=output_folder,
        metavar="DIR",
        help="write the output of each rank also to DIR/rank.N/stdout and DIR/rank.N/stderr",
    )


def _add_horovod(group: Any) -> None:
    """Add options of horovodrun that are settings here. The page docs/launch-flags.md lists them, not the help."""
    for name, key, convert, metavar in (
        ("--timeline-filename", "timeline", str, "FILE"),
        ("--fusion-threshold-mb", "fusion_bytes", lambda text: str(whole(text) << 20), "MB"),
        ("--stall-check-warning-time-seconds", "stall", lambda text: f"{seconds(text):g}", "S"),
        ("--stall-check-shutdown-time-seconds", "timeout", lambda text: f"{seconds(text):g}", "S"),
        ("--gloo-timeout-seconds", "connect_timeout", lambda text: f"{positive(text):g}", "S"),
    ):
        group.add_argument(
            name,
            dest="horovod",
            action="append",
            default=[],
            type=_converted(key, convert),
            metavar=metavar,
            help=argparse.SUPPRESS,
        )
    group.add_argument(
        "--no-stall-check", dest="horovod", action="append_const", const=("stall", "0"), help=argparse.SUPPRESS
    )
    group.add_argument(
        "--timeline-mark-cycles",
        dest="horovod",
        action="append_const",
        const=("timeline_style", "horovod-cycles"),
        help=argparse.SUPPRESS,
    )


def _converted(key: str, convert: Callable[[str], str]) -> Callable[[str], tuple[str, str]]:
    """The setting that an argument is."""
    return lambda text: (key, convert(text))


def _add_nodes(group: Any) -> None:
    """Add the options for nodes that are started by hand, and the limits for hosts."""
    group.add_argument(
        "--nodes",
        type=count,
        metavar="N",
        help="number of nodes on which `ronde run` is started by hand; -np is the number of ranks on this node",
    )
    group.add_argument("--node-rank", type=whole, metavar="I", help="number of this node, 0 to N - 1")
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


def _add_limits(group: Any) -> None:
    """Add the limits of a job whose ranks come and go."""
    group.add_argument(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=count,
        metavar="N",
        help="least number of ranks of an elastic job; with fewer slots it waits (default: -np, or 1)",
    )
    group.add_argument(
        "--max-np",
        "--max-num-proc",
        dest="max_np",
        type=count,
        metavar="N",
        help="greatest number of ranks of an elastic job (default: the slots of the hosts)",
    )


def _add_elastic(group: Any) -> None:
    """Add the options for elastic jobs."""
    group.add_argument(
        "--host-discovery-script",
        metavar="PATH",
        help="program that prints the current hosts, one per line, as NAME or NAME:SLOTS; run every second",
    )
    group.add_argument(
        "--discover-dns",
        metavar="NAME",
        help="DNS name that resolves to the addresses of the hosts, such as a headless service of Kubernetes",
    )
    group.add_argument(
        "--slots-per-host",
        type=count,
        metavar="N",
        help="slots of a host for which no number is given (default: 1)",
    )
    group.add_argument(
        "--elastic-timeout",
        type=positive,
        metavar="S",
        help="seconds to wait for --min-np slots, at the start and later, before the job fails (default: 600)",
    )
    group.add_argument(
        "--reset-limit",
        type=whole,
        metavar="N",
        help="the job fails after N changes of its ranks (default: no limit)",
    )
    group.add_argument(
        "--blacklist-cooldown-range",
        type=positive,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="seconds that a slot rests after its first fault, and at most; each rest is twice the one before. A fault "
        "after a rest of MAX is the slot's last (default: 1 64)",
    )
    group.add_argument(
        "--spares",
        type=whole,
        metavar="K",
        help="processes beyond --max-np that wait, started and connected, to replace a rank (default: 0)",
    )
    group.add_argument(
        "--leave-timeout",
        type=positive,
        metavar="S",
        help="seconds that ranks get to leave a host that is drained, preempted or no longer listed (default: 60)",
    )
    group.add_argument(
        "--preemption-file",
        metavar="PATH",
        help="path of a file; the ranks of a host leave when the file appears on that host",
    )


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise argparse.ArgumentTypeError(f"{text!r}: must be KEY=VALUE")
    return key, value


def main(args: argparse.Namespace) -> int:
    """Start the ranks and wait for them; the exit code. Raises ConfigError for a bad setting, with nothing started."""
    command = as_command(args.command, mpi4py=args.mpi4py, module=args.module)
    if not command or not command[0]:  # `"$PROGRAM"` may be empty
        args.parser.error("no program given; put a command after the options, for example: ronde run -np 4 train.py")
    never = ("timeout", "0")  # as Horovod has it
    settings = [*args.settings, *(given for given in args.horovod if given != never)]
    if any(key == "timeline" for key, _ in args.horovod):
        settings.insert(0, ("timeline_style", "horovod"))
    if args.transport is not None:
        settings.append(("transport", args.transport))
    if args.network_interface is not None:
        settings.append(("tcp.interface", args.network_interface))
    extra = variables_of(settings, args.exported)
    if args.nodes is None:  # that is started on each node
        alone = next((name for name in ("meet", "node_rank") if getattr(args, name) is not None), None)
        if alone is not None:
            args.parser.error(f"{_option(alone)}: is for nodes that are started by hand; give --nodes as well")
        launchers.check_started_once(os.environ, "ronde run")
    options = {
        "prefix": args.prefix,
        "stamped": args.stamped,
        "output_folder": args.output_folder,
        "grace": args.grace,
        "time_limit": args.time_limit,
        "start_timeout": args.start_timeout or start_timeout(os.environ),
        "host_timeout": args.host_timeout,
        "keep_going": args.keep_going,
    }
    if is_elastic(args):
        return run_job(command, extra, places=(), elastic=elastic(args, os.environ), **options)
    if args.nodes is not None:
        return run_node(args, command, extra, options)
    places = places_of(args)
    if all(place.is_here for place in places) and not args.module:
        check_file(args.command)
    return run_job(command, extra, places=places, **options)


def variables_of(settings: Sequence[tuple[str, str]], words: Sequence[str] = ()) -> dict[str, str]:
    """The variables that ranks get beside those of this process: for settings, from options -x, and for Horovod's
    variables. Raises ConfigError."""
    names = horovod_settings.ignored(os.environ)
    if names:
        sys.stderr.write(f"ronde: warning: no setting of Ronde is like {', '.join(names)}; see docs/launch-flags.md\n")
    translated = horovod_settings.translated(os.environ)
    given = {**exported(words, os.environ), **as_variables(settings)}
    extra = {**translated, **given}
    check_free(extra)
    origins = horovod_settings.origins(translated) | dict.fromkeys(given, "the command line")
    Config.load(environment={**os.environ, **extra}, origins=origins).load_tls()
    return extra


def start_timeout(environment: Mapping[str, str]) -> float:
    """The default of --start-timeout. Raises ConfigError."""
    return _seconds_in(environment, horovod_settings.START_TIMEOUT, "30")


def _seconds_in(environment: Mapping[str, str], name: str, default: str) -> float:
    try:
        return positive(environment.get(name) or default)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name}={error}") from error


def interface_of(variables: Mapping[str, str]) -> str:
    """The setting tcp.interface, by which other hosts must reach the store too; '' if it is not set."""
    value, _ = Config.load(environment=variables).options.get("tcp", {}).get("interface", ("", ""))
    return str(value)


def check_system() -> None:
    """Raise ConfigError on a system whose processes have no groups and signals, such as Windows."""
    if not hasattr(os, "posix_spawnp"):
        raise ConfigError("the launcher needs a POSIX system; here start the ranks from Python: ronde.run(fn, np=2)")


def run_job(command: Sequence[str], extra: Mapping[str, str], **options: Any) -> int:
    """Run a job; the exit code. `extra`: see `variables_of`; `options`: other fields of `Job`. Raises RondeError."""
    check_system()
    variables = {**os.environ, **extra}
    options = {"secret": new_secret(), **options}
    if len(options["places"]) != 1:
        options["interface"] = interface_of(variables)
    if any(place.is_here for place in options["places"]):
        for problem in problems_here(Config.load(environment=variables)):
            raise problem  # one error now, instead of one of each rank
    job = Job(command, variables=variables, passed_on=passed_on(os.environ, extra), name=token_hex(4), **options)
    try:
        return supervise(job)
    except StartError as error:
        sys.stderr.write(f"ronde run: {error}\n")
        return error.code


def run_node(args: argparse.Namespace, command: Sequence[str], extra: Mapping[str, str], options: Any) -> int:
    """Run the ranks of one of several nodes that were started by hand; the exit code of the job. Raises RondeError."""
    check_system()
    if any(value is not None for value in (args.hosts, args.hostfile, args.ssh_port, args.ssh_identity_file)):
        args.parser.error("--nodes starts this node alone: give it without -H, --hostfile, --ssh-port and -i")
    if args.meet is None or args.node_rank is None or not 0 <= args.node_rank < args.nodes:
        args.parser.error(f"--nodes {args.nodes} needs --meet HOST:PORT and --node-rank, 0 to {args.nodes - 1}")
    host, port = parse_address(args.meet)
    secret = given_secret(os.environ)
    variables, until = {**os.environ, **extra}, time.monotonic() + options["start_timeout"]
    tls = Config.load(environment=variables).load_tls()
    meeting = Meeting(args.nodes, args.node_rank, host, port, until, secret, tls)
    count, name = args.np or usable_cores(), socket.gethostname()
    keeper = StoreKeeper(variables)
    fill_standard_descriptors()
    try:
        if args.node_rank > 0:
            pipes = join_nodes(meeting, count)
        else:
            interface = args.network_interface or ""
            nodes = lead_nodes(meeting, keeper, choose_address(interface, None) if interface else "")
    except KeyboardInterrupt:
        return exit_code(-signal.SIGINT)
    if args.node_rank > 0:
        job = OwnJob(command, variables, meeting.url, secret, name, args.prefix, args.stamped, args.output_folder)
        return run_for_node_0(job, pipes)
    places, first = [Place(name, range(count))], count
    for node in nodes:
        places.append(Place(node.name, range(first, first + node.count), connected=node.pipes))
        first += node.count
    with contextlib.closing(keeper):
        return run_job(command, extra, places=places, secret=secret, keeper=keeper, **options)


def is_elastic(args: argparse.Namespace) -> bool:
    """True if the options ask for an elastic job. Ends by a usage error for options that need one."""
    given = [name for name in _MORE if getattr(args, name) is not None]
    elastic = any(getattr(args, name) is not None for name in _SWITCHES)
    if given and not elastic:
        args.parser.error(
            f"{_option(given[0])}: is for elastic jobs; give --min-np, --max-np, --host-discovery-script or "
            "--discover-dns as well"
        )
    if elastic:
        for name in ("nodes", "keep_going"):
            if getattr(args, name):
                args.parser.error(f"{_option(name)}: an elastic job cannot have it")
    return elastic


def elastic(args: argparse.Namespace, environment: Mapping[str, str]) -> Elastic:
    """The terms of the job, and the ways to find and reach its hosts. Raises ConfigError."""
    terms = terms_of(args, environment)
    way, discovery = way_and_discovery(args, terms)
    if args.preemption_file == "":
        args.parser.error("--preemption-file '': must be the path of a file")
    return Elastic(terms, discovery, way, notice=args.preemption_file or "")


def terms_of(args: argparse.Namespace, environment: Mapping[str, str]) -> Terms:
    """The terms of the job. Raises ConfigError that names the option."""
    minimum = args.min_np or args.np or 1
    if args.np is not None and args.np < minimum:
        raise ConfigError(f"-np {args.np}: must be at least --min-np {minimum}")
    if args.max_np is not None and args.max_np < max(minimum, args.np or 1):
        smaller = f"-np {args.np}" if args.np is not None and args.np > minimum else f"--min-np {minimum}"
        raise ConfigError(f"--max-np {args.max_np}: must be at least {smaller}")
    if args.spares and args.max_np is None:
        raise ConfigError(f"--spares {args.spares}: needs --max-np; without it there is a rank in every slot")
    shortest, longest = args.blacklist_cooldown_range or (Cooldown().shortest, Cooldown().longest)
    if shortest > longest:
        raise ConfigError(
            f"--blacklist-cooldown-range {shortest:g} {longest:g}: the first number must not exceed the second"
        )
    return Terms(
        minimum,
        args.max_np,
        args.np,
        args.spares or 0,
        args.elastic_timeout or _seconds_in(environment, horovod_settings.ELASTIC_TIMEOUT, "600"),
        args.reset_limit,
        Cooldown(shortest, longest),
        args.leave_timeout or Terms(1).leave_timeout,
        args.grace,
    )


def way_and_discovery(args: argparse.Namespace, terms: Terms) -> tuple[Ssh | Srun, Discovery]:
    """The ways to reach the hosts and to find them. Raises ConfigError."""
    slots = args.slots_per_host or 1
    ssh = Ssh(args.ssh_port, args.ssh_identity_file)
    named = [name for name in ("hosts", "hostfile", "host_discovery_script", "discover_dns") if getattr(args, name)]
    if len(named) > 1:
        args.parser.error(f"{_option(named[1])}: not allowed with {_option(named[0])}")
    check_ssh(args, "hosts that are named or found, such as -H", named)
    if args.host_discovery_script is not None:
        return ssh, script(args.host_discovery_script, slots)
    if args.discover_dns is not None:
        return ssh, dns(args.discover_dns, slots)
    if args.hostfile is not None:
        return ssh, host_file(Path(args.hostfile), slots)
    if args.hosts is not None:
        return ssh, _fixed(parse_list(args.hosts, slots), args, terms)
    nodes = allocated(os.environ)
    if nodes is not None:
        return Srun(), slurm_job(os.environ, nodes, args.slots_per_host)
    own = socket.gethostname()
    most = terms.maximum or terms.first or max(usable_cores(), terms.minimum)
    return ssh, _fixed([NamedHost(own, own, args.slots_per_host or most + terms.spares)], args, terms)


def _fixed(hosts: Sequence[NamedHost], args: argparse.Namespace, terms: Terms) -> Discovery:
    """Always these hosts. Raises ConfigError if they have not enough slots, since no wait brings more."""
    check_slots(hosts, terms.minimum, "-np" if args.min_np is None else "--min-np")
    return fixed(hosts)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def as_command(words: Sequence[str], *, mpi4py: bool = False, module: bool = False) -> list[str]:
    """The command to execute for the words on the command line: a .py file runs in this Python, and so does a `module`.
    With `mpi4py` the program finds ronde.mpi under that name. Raises ConfigError if that is no program of Python."""
    command = list(words[1:] if words[:1] == ["--"] else words)
    if command and module:
        command = [sys.executable, "-m", *command]
    elif command and command[0].endswith(".py"):
        command.insert(0, sys.executable)
    if not mpi4py or not command:
        return command
    if not Path(command[0]).name.startswith("python"):
        raise ConfigError(f"--mpi4py: {command[0]}: must be a file that ends in .py, or python with a program")
    options, program = _options_and_program(command[1:])
    if program[:1] in ([], ["-"]):
        raise ConfigError(f"--mpi4py: {' '.join(command)}: names no program: a file, or one by -m or -c")
    return [command[0], *options, "-m", "ronde.mpi", *program]


def _options_and_program(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of Python as its options, and the program: a file, or -m or -c with what follows. See python(1):
    letters may stand together, and the value of -W and -X in a word of its own."""
    options, at = list[str](), 0
    while at < len(words) and words[at][:1] == "-" and words[at] != "-":
        letters, last, value = cast(re.Match[str], _OPTION.fullmatch(words[at])).groups()
        if last in ("c", "m"):
            given = [value] if value else []
            return [*options, *([letters] if letters != "-" else [])], [f"-{last}", *given, *words[at + 1 :]]
        used = 2 if (last and not value) or words[at] == "--check-hash-based-pycs" else 1
        options += words[at : at + used]
        at += used
    return options, list(words[at:])


def check_file(words: Sequence[str]) -> None:
    """Raise ConfigError if the program is a file of Python that is not there, before all ranks say so."""
    name = next((word for word in words if word != "--"), "")
    if name.endswith(".py") and not Path(name).is_file():
        place = "" if Path(name).is_absolute() else f" in {folder_here()}"
        raise ConfigError(f"{name}: there is no such file{place}")


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
            hint = did_you_mean(key, known)
            raise ConfigError(f"--set {key}={value}: unknown setting{hint}; ronde doctor --all shows all settings")
        variables[PREFIX + key.replace(".", "_").upper()] = value
    return variables
