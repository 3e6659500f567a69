"""`ronde run`: start a program on several ranks of this machine and supervise it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import math
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from collectives.config import PREFIX, Config, Settings
from collectives.failure import are_left_out, culprit
from collectives.launch.processes import usable_cores
from collectives.launch.supervisor import Job, supervise
from transports import registry, rendezvous
from transports.auth import new_secret
from transports.errors import ConfigError
from transports.interfaces import choose_address
from transports.settings import did_you_mean
from transports.store import Store

DESCRIPTION: Final = """\
Start a program on several ranks of this machine.

Every rank is a process that runs the same command; collectives.init() connects it to the other ranks.
Each line of output is printed with its rank in front. Only rank 0 reads standard input.

If a rank fails, the other ranks get 1.5 seconds to print their errors and are then terminated. The report names the
rank that failed first, with the end of its stderr. The exit code is that of this rank (128 + N if signal N killed it).
With --keep-going the other ranks continue, and the exit code is 0 if any rank exits with 0.
Ctrl-C ends all ranks and their child processes. A second Ctrl-C kills them at once.
"""
EXAMPLES: Final = """\
examples:
  ronde run -np 4 train.py --lr 0.1            a file that ends in .py runs in this Python
  ronde run -np 4 python -m package.train      any other command runs unchanged
  ronde run -np 2 --transport tcp --set tcp.interface=lo train.py
  ronde run -np 2 --timeout 600 pytest tests   end the job after ten minutes, with exit code 124
  ronde run -np 2 --no-prefix train.py | tee log

Unless OMP_NUM_THREADS is set, it is set for the ranks to the number of cores divided by the number of ranks.
"""
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""OpenBLAS and MKL read the first by default, Apple's Accelerate the second."""


def add_parser(subparsers: Any) -> None:
    """Add the parser of `ronde run`."""
    parser = subparsers.add_parser(
        "run",
        help="start a program on several ranks of this machine",
        usage="ronde run [options] command [argument ...]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-np", "-n", "--np", dest="np", type=_count, metavar="N", help="number of ranks (default: one per usable core)"
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
        "--timeout", type=_seconds, metavar="S", help="end the job after S seconds, with exit code 124 (default: never)"
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
    parser.add_argument(
        "--no-prefix", dest="prefix", action="store_false", help="print lines without the rank in front"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    parser.set_defaults(main=main, usage_error=parser.error)


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
        raise ConfigError(
            "ronde run: requires a POSIX system; on this system start ranks with collectives.run(fn, np=...)"
        )
    np = args.np or usable_cores()
    settings = list(args.settings)
    if args.transport is not None:
        settings.append(("transport", args.transport))
    environment = {**os.environ, **as_variables(settings)}
    tls = Config.load(environment=environment).load_tls()
    for name in THREAD_VARIABLES:
        environment.setdefault(name, str(max(1, usable_cores() // np)))
    environment.setdefault("PYTHONUNBUFFERED", "1")
    secret = new_secret()
    with rendezvous.TcpStoreServer(choose_address("", None), secret=secret, tls=tls) as server:
        name = secrets.token_hex(4)
        jobs = [rendezvous.Job(rank, np, server.url, secret, rank, np, name) for rank in range(np)]
        torch = _for_torch(server.address[0])
        environments = [torch(job) | environment | rendezvous.job_to_environment(job) for job in jobs]

        def parent_store() -> contextlib.closing[Store]:
            return contextlib.closing(rendezvous.open_store(server.url, secret, time.monotonic(), tls=tls))

        def find_culprit(failed: Sequence[int]) -> int:
            with parent_store() as store:
                return culprit(store, failed)

        def left_out(ranks: Sequence[int]) -> bool:
            with parent_store() as store:
                return are_left_out(store, ranks)

        try:
            job = Job(
                command,
                environments,
                args.prefix,
                args.grace,
                args.timeout,
                find_culprit,
                keep_going=args.keep_going,
                left_out=left_out,
            )
            return supervise(job)
        except OSError as error:
            sys.stderr.write(f"ronde run: cannot start {command[0]!r}: {error.strerror}\n")
            return 127 if error.errno == errno.ENOENT else 126


def _for_torch(host: str) -> Callable[[rendezvous.Job], dict[str, str]]:
    """A function that returns the environment variables of torchrun for a rank, so that torch scripts run unchanged.

    Rank 0 of torch listens on the port. It is free now; another process could take it before, but that is unlikely.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as free:
        free.bind((host, 0))
        port = free.getsockname()[1]

    def variables(job: rendezvous.Job) -> dict[str, str]:
        return {
            "RANK": str(job.rank),
            "WORLD_SIZE": str(job.size),
            "LOCAL_RANK": str(job.rank),
            "LOCAL_WORLD_SIZE": str(job.size),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }

    return variables


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
