"""`ronde top`: see into a running job."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from frontends.command_line.arguments import add_ssh, check_ssh, check_use, interval, new_folder, port
from frontends.command_line.top.keys import Keys, keys, usable
from frontends.command_line.top.sources import Here, Source
from frontends.needs import needs
from frontends.top import Figures, Watched, find, jobs
from transports.errors import ConfigError, RondeError

if TYPE_CHECKING:
    from frontends.command_line.top.screen import View

DESCRIPTION: Final = """\
Show a running job of this user with ranks on this host: the call that each rank is in, for whom it waits and since
when, calls and bytes a second, the share of its time in communication, and the share of all waiting that it causes.

The job may have been started by any launcher. Its ranks are not disturbed: they note their calls in memory that they
share with their viewers. Ranks of other hosts are asked through the store of the job. Without a terminal, or with
--once, the table is printed once. The table needs rich (ronde[progress]).

Keys: s changes the order; h shows the ranks of the chosen host, and all again; g shows hosts or ranks; t shows the
Python stack of the chosen rank; w saves the records for `ronde why`; q ends.
"""
EXAMPLES: Final = """\
examples:
  ronde top                         the only job of this user here
  ronde top --once --json           its figures, for scripts
  ronde top -H h2                   a job with ranks on host h2, by ssh
  ronde top --web                   a page for the browser, at an address of this host alone
  ronde top --stack 3               the Python stack of rank 3
  ronde top --list                  all jobs of this user here
"""
_EVERY: Final = 0.5
_FIRST_SECONDS: Final = 0.3
"""Time between the two looks of --once: shares of processor time need two."""
_NEEDS_RICH: Final = "the table of ronde top needs rich: pip install 'ronde[progress]' (or use --json or --web)"


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    parser.add_argument("--job", metavar="NAME", help="name of the job, or its beginning (default: the only one here)")
    parser.add_argument("--list", action="store_true", help="list the jobs of this user with ranks on this host")
    parser.add_argument("--once", action="store_true", help="print the figures once")
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each look, and no table")
    parser.add_argument("--stack", type=int, metavar="RANK", help="print the Python stack of a rank")
    parser.add_argument("--save", action="store_true", help="save the records of all ranks, for `ronde why`")
    parser.add_argument(
        "--into",
        type=new_folder,
        metavar="FOLDER",
        help="the new folder of --save (default: one in the current folder)",
    )
    parser.add_argument("--web", action="store_true", help="serve a page for the browser (ronde[web])")
    parser.add_argument(
        "--metrics", action="store_true", help="serve the figures for Prometheus (ronde[metrics]), instead of a table"
    )
    parser.add_argument("--listen", type=port, metavar="PORT", help="port of --web and --metrics (default: a free one)")
    parser.add_argument(
        "--address", help="address that --metrics listens at (default: 127.0.0.1, which this host alone reaches)"
    )
    parser.add_argument(
        "--every", type=interval, default=_EVERY, metavar="SECONDS", help=f"time between looks (default: {_EVERY:g})"
    )
    ways = parser.add_argument_group("another host")
    ways.add_argument("-H", "--host", metavar="HOST", help="host with ranks of the job, which ssh reaches")
    add_ssh(ways, "its ssh server")


def main(args: argparse.Namespace) -> int:
    """Show the job; the exit code. Raises RondeError, OSError."""
    check_use(args, "--into", args.into, "--save", args.save)
    check_use(args, "--address", args.address, "--metrics", args.metrics)
    check_use(args, "--listen", args.listen, "--web or --metrics", args.web or args.metrics)
    check_ssh(args, "-H", args.host is not None)
    given = {"once": args.once, "json": args.json, "save": args.save, "stack": args.stack is not None}
    for option, does, chosen in (
        ("--list", "prints text", args.list),
        ("--web", "serves until Ctrl-C", args.web),
        ("--metrics", "serves until Ctrl-C", args.metrics),
    ):
        for name in (name for name in given if chosen and given[name]):
            args.parser.error(f"{option}: {does}; give it without --{name}")
    if args.list:
        if args.host is not None:
            raise ConfigError(f"--list: lists the jobs of this host; give it without -H {args.host}")
        sys.stdout.write("".join(f"{job.describe()}\n" for job in jobs()))
        return 0
    if args.web or args.metrics:
        return _serve(args)
    live = not (args.once or args.json or args.save or args.stack is not None) and usable()
    if live or not (args.json or args.save or args.stack is not None):
        with needs(rich=_NEEDS_RICH):
            _import_screen()
    with _source(args) as source:
        if args.stack is not None:
            sys.stdout.write(source.stack(args.stack).rstrip("\n") + "\n")
        elif args.save:
            sys.stdout.write(source.save(args.into) + "\n")
        elif live:
            with keys() as pressed:
                _show(source, pressed, args.every)
        else:
            _print(source, args)
    return 0


def _import_screen() -> None:
    """Import it now: what it needs may be absent. Raises ModuleNotFoundError."""
    import frontends.command_line.top.screen  # noqa: F401


@contextlib.contextmanager
def _source(args: argparse.Namespace) -> Iterator[Source]:
    source: Source
    if args.host is not None:
        from collectives.launch.hosts import Ssh
        from frontends.command_line.top.far import There

        source = There(args.host, Ssh(args.ssh_port, args.ssh_identity_file), args.job, args.every)
    else:
        source = Here(args.job)
    with contextlib.closing(source):
        yield source


def _print(source: Source, args: argparse.Namespace) -> None:
    """Print the figures once, or a line for each look until the job is over."""
    source.begin()
    if args.host is None:
        time.sleep(_FIRST_SECONDS)  # the processor times of a moment
    while True:
        figures = source.figures()
        if args.json:
            sys.stdout.write(json.dumps(figures, separators=(",", ":")) + "\n")
        else:
            from frontends.command_line.top.screen import plain

            sys.stdout.write(plain(figures, max(80, shutil.get_terminal_size().columns)))
        sys.stdout.flush()
        if args.once or not args.json or figures["over"]:
            return
        time.sleep(args.every)


def _show(source: Source, pressed: Keys, every: float) -> None:
    """Show the screen until the user ends it."""
    from rich.console import Console
    from rich.live import Live

    from frontends.command_line.top.screen import View, render

    console, view = Console(), View()
    figures = source.figures()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        look_at = time.monotonic() + every
        while True:
            live.update(render(figures, view, console.size.height), refresh=True)
            key = pressed.wait(look_at - time.monotonic())
            if key == "q":
                return
            if key is not None:
                _obey(key, source, figures, view, console.size.height)
            if time.monotonic() >= look_at:
                try:
                    figures = source.figures()
                except RondeError as error:
                    view.note = str(error)
                look_at = time.monotonic() + every


def _obey(key: str, source: Source, figures: Figures, view: View, lines: int) -> None:
    """Do what a key asks for."""
    from frontends.command_line.top.screen import SORTS, rows_of, shows_hosts

    view.note = ""
    if view.text:  # any key ends it
        view.text = ""
        return
    rows = rows_of(figures, view, lines)
    view.chosen = min(view.chosen, max(0, len(rows) - 1))
    chosen = rows[view.chosen] if rows else None
    if key in ("up", "k"):
        view.chosen = max(0, view.chosen - 1)
    elif key in ("down", "j"):
        view.chosen = min(len(rows) - 1, view.chosen + 1)
    elif key == "s":
        view.sort = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
        view.note = f"by {view.sort}"
    elif key == "g":
        view.grouped = not shows_hosts(figures, view, lines)
        view.host, view.chosen = None, 0
    elif key == "h" and chosen is not None:
        view.host = chosen["host_id"] if view.host is None else None
        view.note = f"host {chosen['host']}" if view.host is not None else "all hosts"
        view.chosen = 0
    elif key == "t" and chosen is not None:
        if "rank" in chosen:
            head = f"rank {chosen['rank']} ({chosen['host']}, pid {chosen['pid']})\n"
            view.text = head + source.stack(chosen["rank"])
            view.note = "any key: back"
        else:
            view.note = "choose a rank: h shows those of the host"
    elif key == "w":
        try:
            view.note = source.save(None)
        except (OSError, RondeError) as error:
            view.note = f"not saved: {error}"


def _serve(args: argparse.Namespace) -> int:
    """Serve the page or the metrics until Ctrl-C."""
    from frontends.top import Metrics, Observer, Page, address_text

    if args.host is not None:
        raise ConfigError(f"-H {args.host}: start ronde top --web there, and open its address by ssh -L")
    with contextlib.ExitStack() as ending:
        observer = Observer(Watched(find(args.job).folder), args.every)
        ending.callback(observer.close)
        observer.look()
        if args.web:
            with _listening("127.0.0.1", args.listen):
                page = Page(observer, args.listen or 0)
            ending.callback(page.close)
            sys.stdout.write(address_text(page.url))
        if args.metrics:
            address, listen = args.address or "127.0.0.1", None if args.web else args.listen
            with _listening(address, listen):
                metrics = Metrics(observer, address, listen or 0)
            ending.callback(metrics.close)
            sys.stdout.write(f"http://{address}:{metrics.port}/metrics\n")
        observer.start()
        if args.web:
            page.start()
        sys.stdout.flush()
        while not observer.wait(3600.0):
            pass
    return 0


@contextlib.contextmanager
def _listening(address: str, port: int | None) -> Iterator[None]:
    """Around the start of a server: raise ConfigError, naming address and port, if it cannot listen there."""
    try:
        yield
    except OSError as error:
        where = address if port is None else f"{address}, port {port}"
        raise ConfigError(f"cannot listen at {where}: {error.strerror}") from error
