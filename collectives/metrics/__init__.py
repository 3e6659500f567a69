"""Metrics of a communicator: counters, events, the timeline file, their text formats, and an HTTP server of them.

Counting costs nanoseconds; timing is sampled. The executor and the negotiation report here. No module here
influences a call.
"""

from __future__ import annotations

from collectives.metrics.endpoint import (
    Endpoint,
)
from collectives.metrics.events import (
    Trace,
    now,
)
from collectives.metrics.horovod_timeline import (
    HorovodTimeline,
)
from collectives.metrics.meter import (
    Meter,
)
from collectives.metrics.prometheus import (
    prometheus_text,
)
from collectives.metrics.recorder import (
    Recorder,
    rank_path,
)
from collectives.metrics.timeline import (
    HEADER,
    Header,
    Timeline,
)
from collectives.metrics.trace_file import (
    Finished,
)

__all__ = [
    "HEADER",
    "Endpoint",
    "Finished",
    "Header",
    "HorovodTimeline",
    "Meter",
    "Recorder",
    "Timeline",
    "Trace",
    "now",
    "prometheus_text",
    "rank_path",
]
