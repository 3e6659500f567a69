"""Metrics as text for Prometheus."""

from __future__ import annotations

import sys
import urllib.request

import numpy as np
import pytest

from collectives import Communicator
from collectives.metering import Meter, Trace, prometheus_text
from tests.worlds import world_of

MISSING = "prometheus_client is not installed: pip install 'ronde[metrics]'"


def test_label_values_with_special_characters_are_escaped() -> None:
    meter = Meter(Trace(""))
    meter.count('a "quoted" name\\with\nall')
    text = prometheus_text(meter, 3, 0)
    assert r'ronde_events_total{rank="3",communicator="0",event="a \"quoted\" name\\with\nall"} 1' in text.splitlines()


def test_counters_without_calls_are_zero_or_absent() -> None:
    text = prometheus_text(Meter(Trace("")), 0, 7)
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'ronde_plans_made_total{rank="0",communicator="7"} 0',
        'ronde_plans_reused_total{rank="0",communicator="7"} 0',
    ]


@pytest.mark.long
def test_metrics_are_served_until_the_world_is_closed() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason=MISSING)

    def samples(text: str) -> list[tuple[str, list[tuple[str, str]], float]]:
        found = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
        return sorted((sample.name, sorted(sample.labels.items()), sample.value) for sample in found)

    def fetched(port: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return str(answer.read(), "utf-8")

    def run(comm: Communicator) -> int:
        port = comm.serve_metrics()
        half = comm.split(0)
        assert half is not None
        half.allreduce(np.ones(3))
        comm.meter.count('a "quoted"\nname')
        written = samples(comm.metrics_text()) + samples(half.metrics_text())
        assert samples(fetched(port)) == sorted(written)
        with pytest.raises(ValueError, match=rf"port=0: .*port {port} "):
            comm.serve_metrics()
        with pytest.raises(ValueError, match=r"serve_metrics: .*world communicator"):
            half.serve_metrics()
        return port

    with world_of("local", 2) as world:
        ports = world.run(run)
    assert len(set(ports)) == 2
    for port in ports:
        with pytest.raises(OSError, match="refused"):
            fetched(port)


def test_bad_arguments_of_serve_metrics_leave_the_communicator_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(comm: Communicator) -> None:
        with pytest.raises(ValueError, match=r"port=70000: .*0 to 65535"):
            comm.serve_metrics(70000)
        with pytest.raises(TypeError, match="port='9400'"):
            comm.serve_metrics("9400")  # type: ignore[arg-type]
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'ronde\[metrics\]'"):
            comm.serve_metrics()
        assert comm.allreduce(np.ones(1))[0] == comm.size

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with world_of("local", 1) as world:
        world.run(run)


def test_a_port_in_use_is_named() -> None:
    pytest.importorskip("prometheus_client", reason=MISSING)

    def run(comm: Communicator) -> None:
        ports = comm.allgather_object(comm.serve_metrics() if comm.rank == 0 else 0)
        if comm.rank == 1:
            with pytest.raises(OSError, match=rf"127.0.0.1 port {ports[0]}: .*in use"):
                comm.serve_metrics(ports[0])

    with world_of("local", 2) as world:
        world.run(run)
