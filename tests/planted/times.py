"""Errors of event time: which input holds it back, what a restore makes of it, and what is done before it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.decisions import restore
from snapshot.cut.frames import LATEST, Watermark
from snapshot.cut.watermarks import Watermarks
from snapshot.host.partition import source_times
from snapshot.host.partition.router import Router
from snapshot.host.partition.source_times import EventTimes, SourceTimes
from snapshot.host.partition.stage_time import StageTime
from tests.planted.error import planted, seldom


@planted("watermarks are left out of the cut", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    right = restore.plan_restore

    def plan(*args: Any) -> Any:
        return tuple(replace(part, watermark=None) for part in right(*args))

    patch.setattr("recovery.driver.tree.manifests.plan_restore", plan)


@planted("event time follows the fastest input", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    def combine(self: Watermarks) -> Watermark | None:
        known = [watermark.timestamp for watermark in self._inputs.values() if watermark is not None]
        if not known or (self._current is not None and max(known) <= self._current.timestamp):
            return None
        self._current = Watermark(max(known))
        return self._current

    patch.setattr(Watermarks, "_combine", combine)


@planted("an input that has said nothing of event time does not hold it back", shown_by=12)
def _(patch: MonkeyPatch) -> None:
    right = Watermarks._combine

    def combine(self: Watermarks) -> Watermark | None:
        inputs, self._inputs = self._inputs, {c: w for c, w in self._inputs.items() if w is not None}
        try:
            return right(self)
        finally:
            self._inputs = inputs

    patch.setattr(Watermarks, "_combine", combine)


@planted("two branches of a source that declare their event time alike share one watermark", shown_by=163)
def _(patch: MonkeyPatch) -> None:
    right = SourceTimes.__init__

    def made(self: SourceTimes, steps: Any, restored: Any) -> None:
        steps = list(steps)
        right(self, steps, restored)
        shared = {step.event_time: self._branches[step] for step in steps if step.event_time is not None}
        self._branches = {step: shared[step.event_time] for step in self._branches}

    patch.setattr(SourceTimes, "__init__", made)


@seldom("a split from which nothing has come yet does not hold event time back")
def _(patch: MonkeyPatch) -> None:
    right = EventTimes._timestamp

    def timestamp(self: EventTimes, active: Any) -> int | None:
        return right(self, [split for split in active if split.latest is not None])

    patch.setattr(EventTimes, "_timestamp", timestamp)


@planted("event time is announced before what it makes due is done", shown_by=40)
def _(patch: MonkeyPatch) -> None:
    right = StageTime.advance

    def advance(self: StageTime, watermark: Watermark) -> None:
        self.announce(watermark)
        right(self, watermark)

    patch.setattr(StageTime, "advance", advance)


@planted("a watermark leaves before rows that wait for others to fill a batch", shown_by=15)
def _(patch: MonkeyPatch) -> None:
    right = Router.put

    def put(self: Router, frame: Any) -> Any:
        if not isinstance(frame, Watermark):
            return right(self, frame)
        overtaken = {channel.id: channel.put(frame) for channel in self._channels}
        return {channel: frames for channel, frames in overtaken.items() if frames}

    patch.setattr(Router, "put", put)


@seldom("a partition that is made out of others goes on from the latest of their event times")
def _(patch: MonkeyPatch) -> None:
    right = restore.earliest

    def latest(marks: Any, keyed: bool) -> Any:
        found = right(marks, keyed=keyed)
        known = [mark.timestamp for mark in marks if mark is not None and mark.timestamp < LATEST]
        return found if found is None or not known else replace(found, timestamp=max(known))

    patch.setattr(restore, "earliest", latest)


@planted("a watermark leaves no time for rows that are out of order", shown_by=11)
def _(patch: MonkeyPatch) -> None:
    right = source_times.EventTimes.watermark

    def watermark(self: EventTimes, now: int) -> Watermark | None:
        said = right(self, now)
        if said is not None and said.timestamp < LATEST:
            self._current = said = replace(said, timestamp=said.timestamp + self._event_time.out_of_order)
        return said

    patch.setattr(source_times.EventTimes, "watermark", watermark)
