"""Metrics of a communicator: counters, events, the timeline file, their text formats, and an HTTP server of them.

Counting costs nanoseconds; timing is sampled. The executor and the negotiation report here. No module here
influences a call.
"""

from __future__ import annotations

from collectives.metering.endpoint import (
    Endpoint,
)
from collectives.metering.events import (
    Trace,
    now,
)
from collectives.metering.horovod_timeline import (
    HorovodTimeline,
)
from collectives.metering.meter import (
    Meter,
)
from collectives.metering.prometheus import (
    prometheus_text,
)
from collectives.metering.recorder import (
    Recorder,
    rank_path,
)
from collectives.metering.timeline import (
    HEADER,
    Header,
    Timeline,
)
from collectives.metering.trace_file import (
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
