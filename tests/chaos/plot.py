"""Draws what the processes of a soak held over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.chaos.samples import MIB, Sample


def draw(samples: Mapping[str, Sequence[Sample]], title: str, path: Path) -> str:
    """Write the picture to `path`, in the format of its suffix; what to say of it."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return "no plot: matplotlib is not installed; python -m pip install 'ronde[plot]'"
    figure = Figure(figsize=(9, 6), layout="constrained")
    memory, descriptors = figure.subplots(2, 1, sharex=True)
    begin = min(series[0].at for series in samples.values())
    for name, series in samples.items():
        minutes = [(sample.at - begin) / 60 for sample in series]
        memory.plot(minutes, [sample.memory / MIB for sample in series], label=name, linewidth=1)
        descriptors.plot(minutes, [sample.descriptors for sample in series], label=name, linewidth=1)
    memory.set(title=title, ylabel="resident memory, MiB", ylim=(0, None))
    descriptors.set(xlabel="minutes", ylabel="open descriptors", ylim=(0, None))
    memory.legend(fontsize="small", ncols=3)
    figure.savefig(path)
    return f"plot: {path}"
