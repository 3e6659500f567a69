"""Charts by matplotlib: times against sizes, for `--plot FILE` of the commands that measure or predict, and the
timelines of ranks, for `ronde timeline draw`."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from frontends.command_line.arguments import output_file, writing

_SUFFIXES: Final = (".png", ".svg", ".pdf")

Curves: TypeAlias = dict[str, list[tuple[int, float]]]
"""Name -> (bytes, seconds), by size."""


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add the option --plot."""
    parser.add_argument(
        "--plot",
        type=picture_file,
        metavar="FILE",
        help="also draw time and bandwidth to FILE.png, .svg or .pdf (ronde[plot])",
    )


def picture_file(text: str) -> Path:
    """The path of a picture that the command will write, for argparse: a mistake is found before the work."""
    path = output_file(text)
    if path.suffix not in _SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r}: must end with one of {', '.join(_SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(f"{text!r}: needs matplotlib: pip install 'ronde[plot]'")
    return path


def plot_sizes(path: Path, title: str, charts: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> None:
    """Draw time and bandwidth against size, a row of two charts for each entry.

    Raises ConfigError for a file that cannot be written.
    """
    figure = _figure(title, len(charts))
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
    _save(figure, path)


def plot_scaling(path: Path, title: str, curves: Mapping[str, Sequence[tuple[int, float, float]]]) -> None:
    """Draw scaling efficiency and seconds of exposed communication against ranks: (ranks, efficiency, seconds).

    Raises ConfigError as `plot_sizes`.
    """
    figure = _figure(title, 1)
    left, right = figure.subplots(1, 2)
    for label, points in curves.items():
        ranks = [point[0] for point in points]
        left.semilogx(ranks, [100 * point[1] for point in points], "o-", base=2, label=label)
        right.semilogx(ranks, [1e3 * point[2] for point in points], "o-", base=2, label=label)
    left.set(xlabel="ranks", ylabel="%", title="scaling efficiency", ylim=(0, 105))
    right.set(xlabel="ranks", ylabel="milliseconds", title="exposed communication of a step")
    for axis in (left, right):
        axis.grid(True, alpha=0.3)
        axis.legend()
    _save(figure, path)


def plot_lanes(path: Path, title: str, lanes: Mapping[str, Sequence[tuple[str, float, float]]]) -> None:
    """Draw activities by time: a lane for each entry, from the top down, with boxes (kind, begin, duration) in
    milliseconds. Each kind has a colour.

    Raises ConfigError for a file that cannot be written.
    """
    figure = _figure(title, 0.4 + 0.1 * len(lanes))
    axis = figure.subplots()
    kinds = list(dict.fromkeys(kind for boxes in lanes.values() for kind, _, _ in boxes))
    for number, kind in enumerate(kinds):
        for lane, boxes in enumerate(lanes.values()):
            spans = [(begin, duration) for its, begin, duration in boxes if its == kind]
            axis.broken_barh(spans, (lane - 0.4, 0.8), facecolors=f"C{number}")
        axis.broken_barh([], (0, 0), facecolors=f"C{number}", label=kind)
    figure.legend(loc="outside lower center", ncols=6)
    axis.set_yticks(range(len(lanes)), list(lanes))
    axis.invert_yaxis()
    axis.set(xlabel="milliseconds")
    axis.grid(True, axis="x", alpha=0.3)
    _save(figure, path)


def _figure(title: str, rows: float) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4 * rows), layout="constrained")
    figure.suptitle(title)
    return figure


def _save(figure: Any, path: Path) -> None:
    with writing(path):
        figure.savefig(path, dpi=100)
