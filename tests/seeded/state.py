"""Errors of state: what is frozen, when it counts as durable, and how it is put together after a rescale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.decisions import restore
from recovery.testing import manifests, windows
from recovery.testing.attempt import PartitionAttempt
from recovery.testing.store import Write
from recovery.testing.windows import WindowOperator
from statebackend import files
from statebackend.files import Clear, FileKind, Take
from statebackend.snapshots.uploads import Persisted, Uploads
from tests.seeded.error import in_the_job


@in_the_job("the snapshot reads state that has moved on")
def _(patch: MonkeyPatch) -> None:
    right = WindowOperator.freeze

    def freeze(self: WindowOperator, *, consolidate: bool) -> Any:
        live = self._dirty
        files = right(self, consolidate=consolidate)
        self._dirty = live
        return files

    patch.setattr(WindowOperator, "freeze", freeze)


@in_the_job("deletions are left out of the delta")
def _(patch: MonkeyPatch) -> None:
    def delete(self: WindowOperator, key: Any) -> None:
        self._state.pop(key, None)
        self._dirty.pop(key, None)

    patch.setattr(WindowOperator, "_delete", delete)


@in_the_job("an epoch is acknowledged before its files are persisted")
def _(patch: MonkeyPatch) -> None:
    def write_next(self: PartitionAttempt, epoch: Any, left: Any, written: Any) -> None:
        refs = [*written]
        for file in left:
            refs.append(self._refer_to(file, epoch))
            request = self._environment.store.ask(Write(refs[-1].path, file), lambda answer: None)
            self._environment.effects.append(request)
        self._frozen.pop(epoch)
        self._uploaded(self._uploads.persisted(epoch, Persisted(tuple(refs))))

    patch.setattr(PartitionAttempt, "_write_next", write_next)


@in_the_job("an epoch is durable while an earlier one's files are not")
def _(patch: MonkeyPatch) -> None:
    right = Uploads._report

    def report(self: Uploads) -> Any:
        unfinished = {epoch: frozen for epoch, frozen in self._frozen.items() if frozen.changes is None}
        self._frozen = {epoch: frozen for epoch, frozen in self._frozen.items() if frozen.changes is not None}
        durable = right(self)
        self._frozen |= unfinished
        return durable

    patch.setattr(Uploads, "_report", report)


@in_the_job("the delta of a failed epoch is dropped while the job runs on")
def _(patch: MonkeyPatch) -> None:
    right = Uploads.failed

    def failed(self: Uploads, epoch: Any, reason: Any) -> Any:
        declined = right(self, epoch, reason)
        self._frozen[epoch].failed = False
        self._frozen[epoch].changes = Persisted()
        return declined

    patch.setattr(Uploads, "failed", failed)


@in_the_job("a base is taken without clearing what it replaces: deleted keys and fired timers come back", seed=1)
def _(patch: MonkeyPatch) -> None:
    right = files.restore_plan
    patch.setattr(windows, "restore_plan", lambda of: [step for step in right(of) if not isinstance(step, Clear)])
    patch.setattr(windows, "_is_in", lambda key, ranges: True)


@in_the_job("bases are taken before deltas, of whatever epoch", seed=1)
def _(patch: MonkeyPatch) -> None:
    def plan(of: Any) -> Any:
        ordered = sorted(of.files, key=lambda file: file.kind is FileKind.DELTA)
        return [Take(file) for file in ordered]

    patch.setattr(windows, "restore_plan", plan)


@in_the_job("after a rescale a partition takes only its first parent's state", seed=1)
def _(patch: MonkeyPatch) -> None:
    right = files.rescaled

    def rescaled(states: Any, groups: Any) -> Any:
        whole = right(states, groups)
        own = {file.path for file in states[0].files}
        return type(whole)(whole.range, tuple(file for file in whole.files if file.path in own))

    patch.setattr(restore, "rescaled", rescaled)


@in_the_job("after a rescale everybody processes all in-flight data")
def _(patch: MonkeyPatch) -> None:
    class Everything:
        def __contains__(self, group: object) -> bool:
            return True

    right = manifests._role

    def role(source: Any, operator: Any, stream: Any) -> Any:
        made = right(source, operator, stream)
        return type(made)(
            made.partition,
            made.files,
            made.positions,
            made.source_watermark,
            made.window_watermark,
            tuple(manifests._items(operator.channels, stream)),
            made.committables,
        )

    patch.setattr(manifests, "_role", role)


@in_the_job("after a rescale in-flight data is dropped")
def _(patch: MonkeyPatch) -> None:
    right = restore._dealt

    def dealt(*args: Any) -> Any:
        return replace(right(*args), channels=())

    patch.setattr(restore, "_dealt", dealt)
