"""telemetry: what metrics, page and traces cost together: W1's throughput and W3's latency, with them and without.

Invariant: the runs with and without alternate, so that what else the machine does comes to both alike, and each run
with them is compared with the one before it. While they are on, the metrics and the data of the page are asked for each
second, as a scraper and a browser do, and a collector takes the traces.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.request import urlopen

import numpy as np

import recovery
from tests.bench import w1, w3
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.measured_sinks import Stopwatch
from tests.bench.running_job import EVERY_SECOND, Steady, Watched, running

WORKLOAD: Final = "telemetry"
_OFF, _ON = "off", "on"
_EACH: Final = 1.0
"""Seconds from one question to the next."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The keys of W1, the sizes of W3, how long W1 is measured, and how often all is run. Partitions are processes."""

    keys: int
    latency: w3.Sizes
    seconds: float
    runs: int


FULL: Final = Sizes(1_000_000, replace(w3.FULL, runs=1, spark=False), 4.0, 2 * RUNS)
SMALL: Final = Sizes(1_000, replace(w3.SMALL, seconds=0.2), 0.2, 1)


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """All figures of the workload."""
    rates: dict[str, list[Steady]] = {_OFF: [], _ON: []}
    latencies: dict[str, list[w3.Run]] = {_OFF: [], _ON: []}
    with _collector() as traces:
        on: Mapping[str, Any] = {"metrics": "127.0.0.1:0", "page": "127.0.0.1:0", "traces": traces}
        for number in range(sizes.runs):
            for name in (_OFF, _ON) if number % 2 == 0 else (_ON, _OFF):
                options = on if name == _ON else {}
                progress(f"{WORKLOAD}: W1, {name}")
                rates[name].append(_throughput(sizes, options))
                progress(f"{WORKLOAD}: W3, {name}")
                latencies[name].append(_latency(sizes.latency, options))
    cpu = sum(run.cpu_s for runs in rates.values() for run in runs)
    for name, runs in rates.items():
        yield figure(WORKLOAD, f"{name}_w1_rows_per_s", "rows/s", [run.rows_per_s for run in runs], cpu)
    pairs = list(zip(rates[_OFF], rates[_ON], strict=True))
    yield figure(
        WORKLOAD, "w1_cost_pct", "%", [100 * (1 - with_.rows_per_s / out.rows_per_s) for out, with_ in pairs], cpu
    )
    per_cpu = [100 * (1 - with_.rows_per_s / with_.cpu_s / (out.rows_per_s / out.cpu_s)) for out, with_ in pairs]
    yield figure(WORKLOAD, "w1_cost_cpu_pct", "%", per_cpu, cpu)
    cpu = sum(run.cpu_s for runs in latencies.values() for run in runs)
    for percentile in (50, 99):
        for name, found in latencies.items():
            taken = [float(np.percentile(run.latencies_ms, percentile)) for run in found]
            yield figure(WORKLOAD, f"{name}_w3_p{percentile}_ms", "ms", taken, cpu)


def _throughput(sizes: Sizes, options: Mapping[str, Any]) -> Steady:
    program = w1.Measure(w1.PER_RECORD, sizes.keys).program
    with running(program, None, EVERY_SECOND, **options) as job, _asking(job.run):
        job.until_rows(w1.STAGE, 2 * sizes.keys)
        return job.steady(w1.STAGE, sizes.seconds)


def _latency(sizes: w3.Sizes, options: Mapping[str, Any]) -> w3.Run:
    with TemporaryDirectory() as scratch, ExitStack() as asking:

        @contextmanager
        def collect(job: Watched) -> Iterator[Any]:
            asking.enter_context(_asking(job.run))
            with w3.by_stopwatch(Path(scratch), job) as collected:
                yield collected

        (run,) = w3.measured(sizes, Stopwatch(scratch), None, collect, **options)
        return run


@contextmanager
def _asking(run: recovery.Run) -> Iterator[None]:
    """Ask for the metrics and for the data of the page each second, if they are there."""
    urls = [run.metrics_url, None if run.page_url is None else f"{run.page_url}data.json"]
    over = threading.Event()

    def ask() -> None:
        while not over.wait(_EACH):
            for url in filter(None, urls):
                with suppress(OSError), urlopen(url, timeout=10) as answer:  # the job may be over
                    answer.read()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Taking(BaseHTTPRequestHandler):
    """Takes traces, and drops them."""

    def do_POST(self) -> None:
        """Take one batch."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def _collector() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taking) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
