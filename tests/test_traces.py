"""Epochs and recoveries as traces: their spans, and their way to a collector that is there, silent, wrong or away."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import recovery
from recovery import events as log
from recovery.events import Marks
from recovery.telemetry.collector import Collector
from recovery.telemetry.problems import CannotTell
from recovery.telemetry.traces import Traces
from snapshot.host.protocol.messages import PartitionCost
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition
from tests import endless_job

FIRST = Incarnation(Generation(1), Attempt(1))
EPOCH = Epoch(Generation(1), 7)
PATIENCE = 30.0


class Told:
    """What a job's traces are."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.traces = Traces("clicks-1", provider.get_tracer("test"))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return sorted(
            self._exporter.get_finished_spans(), key=lambda span: (span.start_time or 0, -(span.end_time or 0))
        )

    def tree(self) -> list[tuple[str, int, int]]:
        """Return the spans as paths, with the milliseconds from the first one's begin."""
        spans = self.spans
        by_id = {span.context.span_id: span for span in spans if span.context is not None}
        began = spans[0].start_time or 0

        def path(span: ReadableSpan) -> str:
            return span.name if span.parent is None else f"{path(by_id[span.parent.span_id])}/{span.name}"

        return [(path(span), _ms(span.start_time, began), _ms(span.end_time, began)) for span in spans]


def _ms(at: int | None, began: int | None) -> int:
    return round(((at or 0) - (began or 0)) / 1e6)


def completed(epoch: Epoch = EPOCH, partitions: int = 1) -> log.EpochCompleted:
    costs = tuple(PartitionCost(Partition(each), 40.0 + each, 10.0, 5.0, 20.0, 100, 0) for each in range(partitions))
    return log.EpochCompleted(
        at=100.05, epoch=epoch, savepoint=False, since_trigger_ms=50.0, alignment_ms=10.0, sync_ms=5.0, async_ms=20.0,
        state_bytes=100, channel_bytes=0, partitions=costs,
    )  # fmt: skip


def failed(at: float, cause: str = "a process is lost") -> log.AttemptFailed:
    return log.AttemptFailed(
        at=at, incarnation=FIRST, partition=Partition(1), uid=None, cause=cause, reason="it was killed", traceback="",
        then="restart",
    )  # fmt: skip


def test_an_epoch_is_one_trace_with_a_span_for_each_part_of_each_partition() -> None:
    told = Told()
    told.traces.heard(log.EpochTriggered(at=100.0, epoch=EPOCH, mode="aligned", savepoint=False))
    told.traces.heard(completed())
    told.traces.heard(log.EpochCommitted(at=100.08, epoch=EPOCH))
    assert told.tree() == [
        ("epoch", 0, 50),
        ("epoch/partition 0", 0, 40),
        ("epoch/partition 0/align", 5, 15),
        ("epoch/partition 0/cut", 15, 20),
        ("epoch/partition 0/store", 20, 40),
        ("epoch/journal", 40, 50),
        ("epoch/commit", 50, 80),
    ]
    assert len({span.context.trace_id for span in told.spans if span.context is not None}) == 1
    root = told.spans[0].attributes or {}
    assert (root["epoch.id"], root["epoch.mode"], root["epochcut.job"]) == ("7-1", "aligned", "clicks-1")


def test_an_epoch_of_very_many_partitions_has_the_slowest_hundred() -> None:
    told = Told()
    told.traces.heard(completed(partitions=300))
    names = {span.name for span in told.spans if span.name.startswith("partition")}
    assert names == {f"partition {number}" for number in range(200, 300)}


def test_an_epoch_that_is_abandoned_is_a_trace_that_failed() -> None:
    told = Told()
    told.traces.heard(log.EpochTriggered(at=100.0, epoch=EPOCH, mode="aligned", savepoint=False))
    told.traces.heard(log.EpochAbandoned(at=160.0, epoch=EPOCH, reason="timed out", detail="no word of partition 1"))
    (root,) = told.spans
    assert root.status.description == "timed out: no word of partition 1"
    assert told.tree() == [("epoch", 0, 60_000)]


def test_a_recovery_is_one_trace_with_its_phases_from_the_first_failure_on() -> None:
    told = Told()
    told.traces.heard(failed(100.0))
    told.traces.heard(failed(100.5, "a channel between two partitions broke"))
    marks = Marks(decided=1.0, restarted=11.0, downloaded=12.0, opened=31.0, first_output=21.0, caught_up=131.0)
    told.traces.heard(log.Recovered(at=101.0, incarnation=FIRST, epoch=EPOCH, epoch_age_ms=400.0, marks=marks))
    assert told.tree() == [
        ("recovery", 0, 131),
        ("recovery/decided", 0, 1),
        ("recovery/restarted", 1, 11),
        ("recovery/downloaded", 11, 12),
        ("recovery/opened", 12, 31),
        ("recovery/caught_up", 31, 131),
    ]
    root = told.spans[0]
    attributes = dict(root.attributes or {})
    assert (attributes["failures"], attributes["failure.cause"], attributes["partition"]) == (2, "a process is lost", 1)
    assert [(event.name, _ms(event.timestamp, root.start_time)) for event in root.events] == [("first_output", 21)]


def test_a_failure_that_ends_the_job_is_a_trace_that_failed() -> None:
    told = Told()
    told.traces.heard(failed(100.0))
    told.traces.heard(log.GaveUp(at=100.2, reason="it failed ten times"))
    assert told.tree() == [("recovery", 0, 200)]
    assert told.spans[0].status.description == "it failed ten times"


def test_epochs_that_no_commit_follows_are_not_kept_for_ever() -> None:
    told = Told()
    for number in range(1, 1000):
        told.traces.heard(completed(Epoch(Generation(1), number)))
    assert len(told.traces._complete) == 100


@contextmanager
def collecting() -> Iterator[tuple[str, SimpleQueue[ExportTraceServiceRequest]]]:
    """Run a collector; give its address and what it gets."""
    got: SimpleQueue[ExportTraceServiceRequest] = SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            got.put(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            serving.join()


def test_a_collector_gets_the_epochs_and_the_recovery_of_a_job_whose_process_is_killed(tmp_path: Path) -> None:
    with collecting() as (address, got):
        run = recovery.run(
            endless_job.program(tmp_path / "output"),
            checkpoints=tmp_path / "tree",
            job="endless",
            every="100ms",
            launcher=(launcher := recovery.LocalProcesses()),
            local=tmp_path / "local",
            traces=address,
            progress=False,
        )
        with run, recovery.attach(job_folder=tmp_path / "local") as attached:
            endless_job.wait_for(attached, log.EpochCompleted)
            os.kill(next(iter(launcher.pids.values())), signal.SIGKILL)
            endless_job.wait_for(attached, log.Recovered)
        spans = [
            span
            for request in everything(got)
            for of_resource in request.resource_spans
            for scope in of_resource.scope_spans
            for span in scope.spans
        ]
    complete = sum(isinstance(event, log.EpochCompleted) for event in run.events)
    abandoned = sum(isinstance(event, log.EpochAbandoned) for event in run.events)
    names = [span.name for span in spans]
    assert names.count("epoch") == complete + abandoned
    assert names.count("journal") == complete
    assert names.count("recovery") == 1
    parents = {span.span_id for span in spans}
    assert all(span.parent_span_id in parents for span in spans if span.parent_span_id)


def everything(got: SimpleQueue[ExportTraceServiceRequest]) -> Iterator[ExportTraceServiceRequest]:
    try:
        while True:
            yield got.get_nowait()
    except Empty:
        return


def test_a_collector_that_takes_calls_and_never_answers_holds_the_end_up_for_two_seconds_at_most() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        collector = Collector(f"http://127.0.0.1:{silent.getsockname()[1]}", "clicks-1")
        began = time.monotonic()
        for number in range(5_000):  # more than may wait
            collector.traces.heard(log.EpochAbandoned(at=1.0, epoch=Epoch(Generation(1), number), reason="", detail=""))
        assert time.monotonic() - began < PATIENCE
        began = time.monotonic()
        collector.close()
        assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("address", ["collector", "127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", ""])
def test_an_address_that_makes_no_sense_is_refused(address: str) -> None:
    with pytest.raises(CannotTell, match="give a collector's address"):
        Collector(address, "clicks-1")


def test_a_password_is_no_part_of_an_address() -> None:
    with pytest.raises(CannotTell, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        Collector("http://me:secret@127.0.0.1:4318", "clicks-1")
    assert "secret" not in str(caught.value)
