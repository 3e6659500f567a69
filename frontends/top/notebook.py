"""The view of a job in a notebook: drawings without scripts, which come through Jupyter's own connection."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Final

from frontends.needs import needs
from frontends.top.drawings import chain_svg, waiting_svg
from frontends.top.figures import Figures
from frontends.top.history import Column
from frontends.top.server import Observer
from frontends.top.watching import Watched, find

_NEEDS_IPYTHON: Final = "ronde.top() needs IPython: call it in a notebook, or use `ronde top` in a terminal"
_ROWS: Final = 16


class JobView:
    """A view of a job in the output of a cell. `close` ends its updates; those of a job that is over end by
    themselves."""

    def __init__(self, observer: Observer, display: Any, html_of: Any) -> None:
        self._observer = observer
        self._html = html_of
        observer.start(self._seen)
        self._handle = display(html_of(self._text()), display_id=True)

    @property
    def figures(self) -> Figures:
        """The figures of the newest look, as `ronde top --once --json` prints them."""
        return self._observer.figures

    def wait(self, seconds: float) -> bool:
        """Wait until the job is over, or the view is closed; False if it was not in time."""
        return self._observer.wait(seconds)

    def close(self) -> None:
        """End the updates. Idempotent."""
        self._observer.close()

    def _seen(self) -> None:
        self._handle.update(self._html(self._text()))
        if self._observer.figures["over"]:
            self._observer.close()

    def _text(self) -> str:
        return notebook_html(self._observer.figures, self._observer.history.columns)


def top(job: str | None = None, *, every: float = 1.0) -> JobView:
    """Show a running job of this user with ranks on this host in the output of a notebook's cell: who waits for whom,
    and who makes the others wait. It is updated until the job is over or the view is closed.

    job    name of the job, or its beginning, as `ronde top --list` prints it; by default the only one here
    every  seconds between two looks

    Raises ConfigError if there is no such job, or several; ModuleNotFoundError outside of IPython.
    """
    with needs(IPython=_NEEDS_IPYTHON):
        from IPython.display import HTML, display
    return JobView(Observer(Watched(find(job).folder), every), display, HTML)


def notebook_html(figures: Figures, columns: Sequence[Column]) -> str:
    """The view as HTML that needs no script. Its colours are those of the notebook."""
    said = html.escape
    lines = [f"{one['kind']}: {one['reason']}" for one in figures["culprits"][:3]]
    lines += [f"rank {one['rank']} has failed: {one['error']}: {one['text']}" for one in figures["failures"][:1]]
    state = "over" if figures["over"] else "running"
    hosts = len(figures["hosts"])
    worst = sorted(figures["ranks"], key=lambda row: -row["caused"])[:_ROWS]
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{said(str(cell))}</td>"
            for cell in (
                row["rank"],
                row["host"],
                row["call"]["text"] if row["state"] in ("waiting", "in a call") and row["call"] else row["state"],
                f"{row['seconds']:.3f} s",
                ", ".join(map(str, row["waits_for"]["first"])),
                f"{row['calls_per_second']:.0f}",
                f"{row['communicating']:.0%}",
                f"{row['share']:.0%}",
            )
        )
        + "</tr>"
        for row in worst
    )
    head = "".join(
        f"<th>{name}</th>"
        for name in ("rank", "host", "in", "for", "waits for", "calls/s", "in calls", "causes of the waiting")
    )
    findings = "".join(f"<div>{said(line)}</div>" for line in lines)
    more = len(figures["ranks"]) - len(worst)
    note = f"<div>the worst {len(worst)} of {len(figures['ranks'])} ranks</div>" if more > 0 else ""
    return (
        '<div style="font:13px/1.5 system-ui,sans-serif">'
        f"<b>{figures['size']} ranks on {hosts} host{'s' * (hosts != 1)}, {state}</b> {said(figures['program'])}"
        f"{findings}<div>{chain_svg(figures)}</div><div>{waiting_svg(columns)}</div>"
        f"<table><tr>{head}</tr>{rows}</table>{note}</div>"
    )
