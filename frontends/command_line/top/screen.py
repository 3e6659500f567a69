"""The screen of `ronde top`: figures as a table for a terminal, by rich (the extra `progress`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from frontends.top import NOTABLE, Figures

SORTS: Final = ("caused", "waits", "calls", "bytes", "rank")
"""The orders of ranks and hosts, the first by default."""
KEYS: Final = "s sort  h host  g hosts/ranks  ↑↓ choose  t stack  w save  q quit"
_HEAD_LINES: Final = 14
"""Lines around the rows of the table, at most."""
_FEWEST_ROWS: Final = 5
_KEY_OF: Final[dict[str, Callable[[Figures], Any]]] = {
    "caused": lambda row: -row["caused"],
    "waits": lambda row: -float(row["waits"] if "waits" in row else row["waited"]),
    "calls": lambda row: -row["calls_per_second"],
    "bytes": lambda row: -row["bytes_per_second"],
    "rank": lambda row: row.get("rank", row.get("host")),
}


@dataclass
class View:
    """The choices of the user.

    sort     one of SORTS
    host     the host whose ranks are shown, by its `host_id`; None for all
    grouped  True shows hosts, False ranks; None hosts if the ranks do not fit
    chosen   position of the chosen row
    note     a line for the user
    text     a text that is shown instead of the table
    """

    sort: str = SORTS[0]
    host: str | None = None
    grouped: bool | None = None
    chosen: int = 0
    note: str = ""
    text: str = ""


def shows_hosts(figures: Figures, view: View, lines: int) -> bool:
    """True if the rows are hosts."""
    if view.host is not None:
        return False
    if view.grouped is None:
        return len(figures["hosts"]) > 1 and len(figures["ranks"]) > room(lines)
    return view.grouped


def room(lines: int) -> int:
    """Rows of the table on a terminal of so many lines."""
    return max(_FEWEST_ROWS, lines - _HEAD_LINES)


def rows_of(figures: Figures, view: View, lines: int) -> list[Figures]:
    """The rows in the order in which they are shown, all of them."""
    if shows_hosts(figures, view, lines):
        rows = figures["hosts"]
    else:
        rows = [row for row in figures["ranks"] if view.host in (None, row["host_id"])]
    return sorted(rows, key=_KEY_OF[view.sort])


def render(figures: Figures, view: View, lines: int, *, live: bool = True) -> RenderableType:
    """The text that the terminal shows; with `live` not more than `lines` lines."""
    parts: list[RenderableType] = [_title(figures)]
    if view.text:
        shown = view.text.splitlines()[-max(1, lines - 3) :] if live else view.text.splitlines()
        return Group(*parts, *(Text(line, overflow="ellipsis", no_wrap=True) for line in shown), Text(view.note))
    parts += _findings(figures)
    rows = rows_of(figures, view, lines)
    count = room(lines) if live else len(rows)
    first = max(0, min(view.chosen - count + 1, len(rows) - count))
    shown_rows = rows[first : first + count]
    hosts = shows_hosts(figures, view, lines)
    chosen = view.chosen - first if live else -1
    parts.append(_host_table(shown_rows, chosen) if hosts else _rank_table(shown_rows, chosen, figures))
    if len(shown_rows) < len(rows):
        kind = "hosts" if hosts else "ranks"
        parts.append(Text(f"{first + 1}-{first + len(shown_rows)} of {len(rows)} {kind}, by {view.sort}", "dim"))
    parts.append(_calls(figures["slowest"][:3]))
    if live:
        parts.append(Text(view.note or KEYS, "dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _title(figures: Figures) -> Text:
    hosts, size = len(figures["hosts"]), figures["size"]
    state = "over" if figures["over"] else time.strftime("%H:%M:%S", time.localtime(figures["time"]))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"ronde top  {size} ranks on {hosts} host{'s' * (hosts != 1)}  {state}  ", "bold")
    return text.append(figures["program"], "dim")


def _findings(figures: Figures) -> list[Text]:
    """The lines on failures, culprits, the chain of waits and missing ranks."""
    lines = []
    for failure in figures["failures"][:1]:
        lines.append(Text(f"failed: rank {failure['rank']}: {failure['error']}: {failure['text']}", "bold red"))
    for culprit in figures["culprits"][:2]:
        place = ranks_text(culprit["ranks"], "rank ") if culprit["ranks"]["count"] else "a link"
        where = f" ({culprit['host']})" if culprit["host"] else ""
        lines.append(Text(f"{culprit['kind']}: {place}{where}: {culprit['reason']}", "yellow"))
    if figures["chain"] is not None and figures["chain"]["seconds"] >= NOTABLE:
        lines.append(Text(f"waits: {chain_text(figures['chain'])}", "cyan"))
    for name, why in (("missing", "without a record"), ("silent", "on hosts that do not answer")):
        if figures[name]["count"]:
            lines.append(Text(f"{why}: {ranks_text(figures[name], 'rank ')}  {figures['trouble']}".rstrip(), "magenta"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def chain_text(chain: Figures) -> str:
    """'rank 0 (allreduce, 3.2 s) -> rank 2 (computing, 3.1 s)'."""
    words = []
    for link in chain["links"]:
        doing = link["call"].partition("(")[0] or link["state"]
        words.append(f"rank {link['rank']} ({doing}, {seconds_text(link['seconds'])})")
    more = chain["length"] - len(words)
    if more > 0:
        words.insert(-2, f"... {more} more ...")
    return " -> ".join(words) + (" -> in a circle" if chain["circle"] else "")


def _rank_table(rows: Sequence[Figures], chosen: int, figures: Figures) -> Table:
    several = len(figures["hosts"]) > 1
    table = _table(
        ("rank", 5, True),
        ("host" if several else "pid", 8, not several),
        ("in", None, False),
        ("for", 6, True),
        ("waits for", 9, False),
        ("calls/s", 7, True),
        ("B/s", 6, True),
        ("comm", 4, True),
        ("causes", 6, True),
    )
    for position, row in enumerate(rows):
        doing = row["call"]["text"] if row["call"] is not None else row["state"]
        table.add_row(
            str(row["rank"]),
            row["host"] if several else str(row["pid"]),
            doing if row["state"] in ("waiting", "in a call", "computing") else row["state"],
            seconds_text(row["seconds"]),
            ranks_text(row["waits_for"]),
            count_text(row["calls_per_second"]),
            count_text(row["bytes_per_second"]),
            f"{row['communicating']:.0%}",
            f"{row['share']:.0%}",
            style=_style(row["state"], row["share"], position == chosen),
        )
    return table


def _host_table(rows: Sequence[Figures], chosen: int) -> Table:
    table = _table(
        ("host", None, False),
        ("ranks", 14, False),
        ("alive", 5, True),
        ("wait", 5, True),
        ("calls/s", 7, True),
        ("B/s", 6, True),
        ("comm", 4, True),
        ("causes", 6, True),
    )
    for position, row in enumerate(rows):
        table.add_row(
            row["host"],
            ranks_text(row["ranks"]),
            str(row["alive"]),
            str(row["waiting"]),
            count_text(row["calls_per_second"]),
            count_text(row["bytes_per_second"]),
            f"{row['communicating']:.0%}",
            f"{row['share']:.0%}",
            style=_style("" if row["alive"] else "dead", row["share"], position == chosen),
        )
    return table


def _calls(kinds: Sequence[Figures]) -> Table:
    numbers = [(name, 7, True) for name in ("count", "mean", "longest", "waiting")]
    table = _table(("slowest calls", None, False), *numbers)
    for kind in kinds:
        table.add_row(
            kind["text"] + (f"  {kind['line']}" if kind["line"] else ""),
            str(kind["count"]),
            seconds_text(kind["mean"]),
            seconds_text(kind["longest"]),
            f"{kind['waiting']:.0%}",
        )
    return table


def _table(*columns: tuple[str, int | None, bool]) -> Table:
    """A table with columns of a name, a width (None: all that is left), and True for numbers."""
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold underline")
    for name, width, right in columns:
        table.add_column(
            name,
            width=width,
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=None if width else 1,
        )
    return table


def _style(state: str, share: float, chosen: bool) -> str:
    style = "red" if state in ("failed", "dead") else "yellow" if share >= 0.5 else ""
    return f"{style} reverse".strip() if chosen else style


def ranks_text(several: Figures, before: str = "") -> str:
    """'3', '1-4', '0, 2 +17' for a list of ranks."""
    first, count = several["first"], several["count"]
    if not count:
        return ""
    if count > 2 and first == list(range(first[0], first[0] + len(first))) and count == len(first):
        return f"{before}{first[0]}-{first[-1]}"
    shown = first if count <= 3 else first[:1]
    return before + ",".join(map(str, shown)) + (f" +{count - len(shown)}" if count > len(shown) else "")


def seconds_text(seconds: float) -> str:
    """Six characters at most."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (100.0, 1.0, "s")):
        if seconds < limit:
            number = seconds * factor
            return f"{number:.1f}{unit}" if number < 10 else f"{number:.0f}{unit}"
    return f"{seconds / 60:.0f}min" if seconds < 6000 else f"{seconds / 3600:.0f}h"


def count_text(number: float) -> str:
    """Five characters at most."""
    for unit in ("", "K", "M", "G"):
        if number < 999.5:
            return f"{number:.0f}{unit}" if number >= 10 or not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.0f}T"


def plain(figures: Figures, width: int) -> str:
    """The whole table as text without colours, for a file or a pipe."""
    console = Console(width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(render(figures, View(grouped=False), 10**6, live=False))
    return captured.get()
