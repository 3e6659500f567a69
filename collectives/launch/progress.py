"""A progress bar on the terminal, by rich (the extra `progress`)."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on stderr while the body runs. Lines that are printed meanwhile appear above it.

    title  the text before the bar
    total  number of steps

    Yields a function that counts one step as done; its argument, the name of the step, is shown behind the bar. It does
    nothing, and no bar is shown, without rich or where stderr is not a terminal.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield _nothing
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
    # Without a thread that refreshes the bar: it would disturb what is measured.
    with parts.Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task(title, total=total, step="")

        def done(step: str) -> None:
            bar.update(task, advance=1, step=step, refresh=True)

        bar.refresh()
        yield done


def _nothing(step: str) -> None:
    """Show nothing."""
