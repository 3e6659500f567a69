"""The view of a running job: its figures, and the page and the notebook that show them.

`watching` finds jobs and reads what their ranks have noted, `figures` makes plain data of it, `history` keeps the last
minute. `server` has the page, `notebook` the view in a notebook, `metrics` the figures for Prometheus. The comparison
of ranks is that of `collectives.observing`. Nothing here runs in a job.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from frontends.top.figures import NOTABLE, Figures, figures_of, snapshot_of
from frontends.top.watching import Look, Watched, default_folder, find, jobs

if TYPE_CHECKING:
    from frontends.top.metrics import GAUGES, Metrics
    from frontends.top.notebook import JobView, top
    from frontends.top.server import Observer, Page, address_text

__all__ = [
    "GAUGES",
    "NOTABLE",
    "Figures",
    "JobView",
    "Look",
    "Metrics",
    "Observer",
    "Page",
    "Watched",
    "address_text",
    "default_folder",
    "figures_of",
    "find",
    "jobs",
    "snapshot_of",
    "top",
]

_LATER: Final = {
    "GAUGES": "metrics",
    "JobView": "notebook",
    "Metrics": "metrics",
    "Observer": "server",
    "Page": "server",
    "address_text": "server",
    "top": "notebook",
}
"""Names that are imported at their first use, and their modules: the command needs most of them seldom."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
