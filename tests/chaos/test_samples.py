"""Growth is told from noise."""

from __future__ import annotations

import builtins
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.chaos.plot import draw
from tests.chaos.samples import MIB, Sample, grown, growth
from transports.testing import run_processes


def series(**rises: float) -> list[Sample]:
    """Half an hour of samples with a warm-up and some noise, and what rises by so much after the warm-up."""
    samples = []
    for second in range(0, 1800, 10):
        part = max(0.0, second / 1800 - 0.25) / 0.75
        noise = second % 30 / 30
        early = min(second, 300) / 300
        values = {"memory": (80 + 20 * early + noise) * MIB, "descriptors": 20 + noise, "threads": 4, "segments": 0}
        samples.append(
            Sample(float(second), **{name: value + part * rises.get(name, 0) for name, value in values.items()})
        )
    return samples


def test_a_warm_up_and_noise_are_no_growth() -> None:
    assert grown({"rank 0": series()}) == []


@pytest.mark.parametrize(("what", "rise"), [("memory", 12 * MIB), ("descriptors", 4), ("threads", 2), ("segments", 1)])
def test_growth_is_found_and_named(what: str, rise: float) -> None:
    samples = series(**{what: rise})
    assert growth(samples, what) == pytest.approx(rise, rel=0.3)
    (text,) = grown({"rank 0": samples, "rank 1": series()})
    assert text.startswith(f"rank 0: {what} rose by")


def plotted(rank: int, path: Path) -> str:
    return draw({"rank 0": series(), "harness": series(memory=MIB)}, "a soak", path)


@pytest.mark.processes
@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_plot(tmp_path: Path) -> None:
    path = tmp_path / "soak.svg"
    (said,) = run_processes(plotted, 1, path, timeout=60.0)  # matplotlib keeps font files open for as long as it lives
    assert said == f"plot: {path}"
    assert path.stat().st_size > 10_000


def test_without_matplotlib_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def without(name: str, *args: object, **more: object) -> object:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return genuine(name, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'ronde[plot]'" in draw({"rank 0": series()}, "a soak", tmp_path / "soak.png")
