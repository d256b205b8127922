"""A job's epochs and recoveries as traces of OpenTelemetry: each is one trace, with spans for its parts.

Invariant: a trace is made when all of it has happened, from the times that its events tell, so it costs nothing before;
a collector that is slow, away or wrong costs spans and never the job. Times are by the driver's clock; parts in other
processes are placed by how long they took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from recovery import events as log
from snapshot.host.protocol.messages import PartitionCost
from statebackend.ids import Epoch

_SLOWEST: Final = 100
"""Partitions that an epoch's trace has, if it has more."""
_UNCOMMITTED: Final = 100
"""Epochs whose commits are awaited; of older ones none is traced any more."""
_ROLL_BACK: Final = ("decided", "restarted", "downloaded", "opened")
"""The phases of a recovery that follow one another."""

Value = str | int | float | bool


@dataclass(slots=True)
class _UnderWay:
    at: float
    mode: str
    savepoint: bool


@dataclass(slots=True)
class _Failure:
    """The first failure that no recovery has made up for yet, and how many came."""

    first: log.AttemptFailed
    count: int = 1


@dataclass(slots=True)
class Traces:
    """Makes traces of the events of one job, in the driver's thread, and gives them to a tracer."""

    job: str
    tracer: Tracer
    _under_way: dict[Epoch, _UnderWay] = field(default_factory=dict)
    _complete: dict[Epoch, tuple[Context, float]] = field(default_factory=dict)
    _failure: _Failure | None = None

    def heard(self, event: log.AnyEvent) -> None:
        """Take an event."""
        match event:
            case log.EpochTriggered(at=at, epoch=epoch, mode=mode, savepoint=savepoint):
                self._under_way[epoch] = _UnderWay(at, mode, savepoint)
            case log.EpochCompleted():
                self._completed(event)
            case log.EpochCommitted():
                self._committed(event)
            case log.EpochAbandoned():
                self._abandoned(event)
            case log.AttemptFailed():
                if self._failure is None:
                    self._failure = _Failure(event)
                else:
                    self._failure.count += 1
            case log.Recovered():
                self._recovered(event)
            case log.GaveUp(at=at, reason=reason):
                self._gave_up(at, reason)
            case _:
                pass

    # --- epochs -------------------------------------------------------------------------------------------------------

    def _completed(self, event: log.EpochCompleted) -> None:
        triggered = self._under_way.pop(event.epoch, None)
        began = event.at - event.since_trigger_ms / 1000
        more: dict[str, Value] = {} if triggered is None else {"epoch.mode": triggered.mode}
        root, within = self._begin(
            "epoch",
            began,
            {
                "epoch.id": str(event.epoch),
                "epoch.savepoint": event.savepoint,
                "epoch.state_bytes": event.state_bytes,
                "epoch.channel_bytes": event.channel_bytes,
                "epoch.partitions": len(event.partitions),
                **more,
            },
        )
        slowest = sorted(event.partitions, key=lambda cost: -cost.since_trigger_ms)[:_SLOWEST]
        for cost in slowest:
            self._partition(within, cost, began)
        durable = began + max((cost.since_trigger_ms for cost in event.partitions), default=0.0) / 1000
        self._span(within, "journal", durable, event.at, {})
        root.end(_ns(event.at))
        self._complete[event.epoch] = within, event.at
        while len(self._complete) > _UNCOMMITTED:
            del self._complete[next(iter(self._complete))]

    def _partition(self, within: Context, cost: PartitionCost, began: float) -> None:
        """Trace a partition's part: its phases end one after the other when all is durable."""
        ended = began + cost.since_trigger_ms / 1000
        attributes: dict[str, Value] = {
            "partition": cost.partition,
            "epoch.state_bytes": cost.state_bytes,
            "epoch.channel_bytes": cost.channel_bytes,
        }
        part, inside = self._begin(f"partition {cost.partition}", began, attributes, within)
        at = ended
        for name, took in (("store", cost.async_ms), ("cut", cost.sync_ms), ("align", cost.alignment_ms)):
            since = max(began, at - took / 1000)
            self._span(inside, name, since, at, {})
            at = since
        part.end(_ns(ended))

    def _committed(self, event: log.EpochCommitted) -> None:
        """Trace the commit of each epoch that is committed now."""
        for epoch in [epoch for epoch in self._complete if epoch <= event.epoch]:
            within, completed = self._complete.pop(epoch)
            self._span(within, "commit", completed, max(completed, event.at), {"epoch.id": str(epoch)})

    def _abandoned(self, event: log.EpochAbandoned) -> None:
        triggered = self._under_way.pop(event.epoch, None)
        attributes: dict[str, Value] = {"epoch.id": str(event.epoch), "epoch.reason": event.reason}
        root, _ = self._begin("epoch", event.at if triggered is None else triggered.at, attributes)
        root.set_status(Status(StatusCode.ERROR, f"{event.reason}: {event.detail}" if event.detail else event.reason))
        root.end(_ns(event.at))

    # --- recoveries ---------------------------------------------------------------------------------------------------

    def _recovered(self, event: log.Recovered) -> None:
        failure, self._failure = self._failure, None
        marks = event.marks
        reached = {name: getattr(marks, name) for name in (*_ROLL_BACK, "first_output", "caught_up")}
        after: dict[str, float] = {name: value for name, value in reached.items() if value is not None}
        last = max(after.values(), default=0.0) / 1000
        began = event.at - last if failure is None else failure.first.at
        attributes: dict[str, Value] = {"attempt": str(event.incarnation), "epoch.id": str(event.epoch or "")}
        if event.epoch_age_ms is not None:
            attributes["epoch.age_ms"] = event.epoch_age_ms
        if failure is not None:
            attributes |= _told(failure)
        root, within = self._begin("recovery", began, attributes)
        at = began
        for name in _ROLL_BACK:
            if name in after:
                until = max(at, began + after[name] / 1000)
                self._span(within, name, at, until, {})
                at = until
        if "caught_up" in after:
            self._span(within, "caught_up", at, max(at, began + after["caught_up"] / 1000), {})
        if "first_output" in after:
            root.add_event("first_output", timestamp=_ns(began + after["first_output"] / 1000))
        root.end(_ns(began + last))

    def _gave_up(self, at: float, reason: str) -> None:
        """Trace a failure that nothing makes up for."""
        failure, self._failure = self._failure, None
        began = at if failure is None else failure.first.at
        root, _ = self._begin("recovery", began, {} if failure is None else _told(failure))
        root.set_status(Status(StatusCode.ERROR, reason))
        root.end(_ns(at))

    # --- spans --------------------------------------------------------------------------------------------------------

    def _begin(
        self, name: str, at: float, attributes: Mapping[str, Value], within: Context | None = None
    ) -> tuple[Span, Context]:
        """Begin a span, of a trace of its own if it is within none."""
        span = self.tracer.start_span(
            name, within or Context(), attributes={"epochcut.job": self.job, **attributes}, start_time=_ns(at)
        )
        return span, set_span_in_context(span, Context())

    def _span(self, within: Context, name: str, since: float, until: float, attributes: Mapping[str, Value]) -> None:
        span, _ = self._begin(name, since, attributes, within)
        span.end(_ns(until))


def _told(failure: _Failure) -> dict[str, Value]:
    first = failure.first
    told: dict[str, Value] = {"failure.cause": first.cause, "failure.reason": first.reason, "failures": failure.count}
    if first.partition is not None:
        told["partition"] = first.partition
    if first.uid is not None:
        told["uid"] = first.uid
    return told


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
