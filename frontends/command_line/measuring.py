"""The ranks on which `ronde bench` and `ronde tune` measure: new ones here, or on hosts that the user names, or those
that a launcher has started, each of which runs the same command; and a bar that shows the progress."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from collectives.config import Config
from collectives.launch import run
from collectives.startup import init
from collectives.world_communicator import shutdown, world
from frontends.command_line.arguments import check_use, count
from frontends.command_line.host_arguments import HOSTS, add_hosts, names_hosts, places_of
from frontends.command_line.run import run_job, start_timeout, variables_of
from transports import launchers
from transports.core_count import usable_cores
from transports.errors import ConfigError, RondeError, described

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_RANKS: Final = 2


@dataclass(frozen=True)
class Measured(Generic[R]):
    """The result of a measurement.

    value  of rank 0, or of this rank
    size   number of ranks
    first  True in the process that reports
    """

    value: R
    size: int
    first: bool


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where to measure."""
    parser.add_argument(
        "-np",
        type=count,
        metavar="N",
        help=f"number of ranks (default: {DEFAULT_RANKS}, or all slots of the hosts, or all ranks of the launcher)",
    )
    parser.add_argument("--transport", help="transport to use (default: as configured)")
    add_hosts(parser.add_argument_group("several hosts"))


def size_of(args: argparse.Namespace) -> int:
    """The number of ranks on which `measure_on_ranks` measures. Raises ConfigError as it."""
    launch = _launch(args)
    if launch is not None:
        return launch.size
    if _names_hosts(args):
        return sum(len(place.ranks) for place in places_of(args))
    return DEFAULT_RANKS if args.np is None else args.np


def _names_hosts(args: argparse.Namespace) -> bool:
    """True if hosts are named. Ends by a usage error for options on hosts without any."""
    named = names_hosts(args)
    check_use(args, "--network-interface", args.network_interface, HOSTS, named)
    return named


def _launch(args: argparse.Namespace) -> launchers.Launch | None:
    """The launcher whose ranks run this command, if one does."""
    launch = launchers.find(os.environ)
    if launch is None or (launch.size == 1 and launch.family != "ronde"):
        return None
    if args.np not in (None, launch.size):
        raise ConfigError(f"-np {args.np}: {launch}; start the command with RONDE_LAUNCHER=none for ranks of its own")
    return launch


def measure_on_ranks(
    fn: Callable[[T], R], task: T, args: argparse.Namespace, *, timeout: float | None = None
) -> Measured[R] | int:
    """Call `fn(task)` on all ranks, in their world. With -H or --hostfile they run the command line of this process
    themselves, and this returns the exit code of `ronde run`.

    args     has the options of `add_ranks`, and the words of the command line
    timeout  seconds for ranks that are started here; None for no limit

    Raises the error of the rank that failed first, or of this rank; ConfigError if -np is not the launcher's number.
    """
    Config.load({} if args.transport is None else {"transport": args.transport})
    launch, named = _launch(args), _names_hosts(args)
    if launch is None and named:
        return _on_hosts(args)
    if launch is None or launch.rank == 0:
        _warn_of_load(args.parser.prog)
    if launch is not None:
        return Measured(_in_this_rank(fn, task, args.transport), launch.size, launch.rank == 0)
    size = size_of(args)
    return Measured(run(fn, size, (task,), transport=args.transport, timeout=timeout)[0], size, True)


def _warn_of_load(command: str) -> None:
    """Warn if other programs use the cores on which times are to be measured."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, usable_cores()
    if load > cores / 2:
        text = f"{command}: warning: the load is {load:.1f} on {cores} cores; other work makes the times useless"
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def _in_this_rank(fn: Callable[[T], R], task: T, transport: str | None) -> R:
    init(transport=transport)
    try:
        value = fn(task)
    except BaseException as error:
        world().abort(described(error))
        with contextlib.suppress(RondeError):  # the failure itself is raised
            shutdown()
        raise
    shutdown()
    return value


def _on_hosts(args: argparse.Namespace) -> int:
    """Let ranks on the hosts run this command; the exit code."""
    settings = [] if args.network_interface is None else [("tcp.interface", args.network_interface)]
    command = [sys.executable, "-m", "ronde", *args.words]
    extra, timeout = variables_of(settings), start_timeout(os.environ)
    return run_job(command, extra, places=places_of(args), prefix=False, start_timeout=timeout)


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on stderr while the body runs, by rich (the extra `progress`). Lines that are printed meanwhile appear
    above it.

    title  the text before the bar
    total  number of steps

    Yields a function that counts one step as done; its argument, the name of the step, is shown behind the bar. It does
    nothing, and no bar is shown, without rich or where stderr is not a terminal.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield no_progress
        return
    from rich import progress as parts
    from rich.console import Console

    columns = (
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.MofNCompleteColumn(),
        parts.TimeRemainingColumn(),
        parts.TextColumn("{task.fields[step]}"),
    )
    # Without a thread that refreshes the bar: it would disturb what is measured. Lines for a file or a pipe go there.
    with parts.Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        task = bar.add_task(title, total=total, step="")

        def done(step: str) -> None:
            bar.update(task, advance=1, step=step, refresh=True)

        bar.refresh()
        yield done


def no_progress(step: str) -> None:
    """Show nothing: the function of ranks that have no bar."""
