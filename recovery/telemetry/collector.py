"""The way of traces to a collector: in batches, in a thread of their own, over OTLP by HTTP.

Invariant: the driver's thread waits for no collector while the job runs, and at the job's end for at most two seconds.
"""

from __future__ import annotations

import threading
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from recovery.telemetry.problems import CannotTell
from recovery.telemetry.traces import Traces

_PATH: Final = "/v1/traces"
_FAREWELL: Final = 2.0
_EVERY: Final = 1000
"""Milliseconds after which spans are sent, if there are not enough for a batch before."""


class Collector:
    """A collector at this address, to which the traces of one job go."""

    def __init__(self, address: str, job: str) -> None:
        """Read the address, such as `http://127.0.0.1:4318`; `CannotTell` if it is none."""
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CannotTell(f"traces is {address!r}; give a collector's address, such as 'http://127.0.0.1:4318'")
        if parts.username is not None or parts.password is not None:
            raise CannotTell("traces has a password in it; give it as OTEL_EXPORTER_OTLP_HEADERS")
        url = address if parts.path.strip("/") else address.rstrip("/") + _PATH
        of_job = Resource.create({"service.name": "epochcut", "epochcut.job": job})
        self._provider = TracerProvider(resource=of_job, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=url, timeout=_FAREWELL)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_EVERY))
        self.traces: Final = Traces(job, self._provider.get_tracer("epochcut", version("epochcut")))

    def close(self) -> None:
        """Send what waits, for so long, and give up the rest."""
        sending = threading.Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        sending.start()
        sending.join(_FAREWELL)
