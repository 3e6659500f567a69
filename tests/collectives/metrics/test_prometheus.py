"""Metrics as text for Prometheus."""

from __future__ import annotations

from collectives.metrics import Meter, Trace, prometheus_text


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
