"""Charts of times against sizes, by matplotlib, for `--plot FILE` of the commands that measure or predict."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from transports.errors import ConfigError

Curves: TypeAlias = dict[str, list[tuple[int, float]]]
"""Name -> (bytes, seconds), by size."""


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add the option --plot."""
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw time and bandwidth to FILE.png, .svg or .pdf (ronde[plot])"
    )


def plot_sizes(path: Path, title: str, charts: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> None:
    """Draw time and bandwidth against size, a row of two charts for each entry.

    Raises ConfigError without matplotlib, and for a file that cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'ronde[plot]'") from error
    figure = Figure(figsize=(11, 4 * len(charts)), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(charts), 2, squeeze=False)
    for (left, right), (name, curves) in zip(axes, charts.items(), strict=True):
        for label, points in curves.items():
            sizes = [size for size, _ in points]
            left.loglog(sizes, [seconds * 1e6 for _, seconds in points], "o-", label=label)
            right.semilogx(sizes, [size / seconds / 1e9 for size, seconds in points], "o-", label=label)
        left.set(xlabel="bytes", ylabel="microseconds", title=f"{name}: time")
        right.set(xlabel="bytes", ylabel="GB/s (size / time)", title=f"{name}: bandwidth")
        for axis in (left, right):
            axis.grid(True, alpha=0.3)
            axis.legend()
    try:
        figure.savefig(path, dpi=100)
    except (OSError, ValueError) as error:  # ValueError: an ending that matplotlib does not know
        raise ConfigError(f"--plot {path}: cannot be written: {error}") from error
