"""Compare a program with an epoch that it is to go on from: operators that were removed, added or changed.

Invariant: operators are matched by their uid alone. What an epoch holds is dropped only if that is asked for,
and output that is still to be committed never is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from snapshot.program.plan import Plan
from snapshot.tree.frozen_json import NULL
from snapshot.tree.manifest import Manifest, OperatorSnapshot
from statebackend.errors import ProgramError
from statebackend.ids import Epoch, Uid


class Kind(Enum):
    """The kind of content that an operator keeps in an epoch."""

    SOURCE = "source"
    KEYED = "keyed operator"
    SINK = "sink"
    PASSING = "operator without state"


class ProgramDoesNotFit(ProgramError, ValueError):
    """The program cannot go on from the epoch; the message lists all that is in the way."""


@dataclass(frozen=True, slots=True)
class ProgramFit:
    """The differences between a program and the one that made an epoch: sentences, each about one uid.

    `lost` is what of the removed must not be dropped, whatever was asked for.
    """

    epoch: Epoch
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def check(self, *, allow_non_restored_state: bool) -> None:
        """Raise `ProgramDoesNotFit`, which lists everything, unless the program can go on from the epoch."""
        blocking = self.changed or self.lost or (self.removed and not allow_non_restored_state)
        if not blocking:
            return
        lines = [
            *(f"  changed: {one}" for one in self.changed),
            *(f"  removed: {one}" for one in self.removed),
            *(f"  removed, and cannot be dropped: {one}" for one in self.lost),
            *(f"  added: {one}" for one in self.added),
        ]
        advice = "give the operators the uids that they had"
        if self.removed and not self.changed and not self.lost:
            advice += ", or drop what they kept with allow_non_restored_state=True"
        if self.lost:
            advice += "; start the job once more with the sinks that it had, and take a savepoint"
        text = "\n".join(lines)
        raise ProgramDoesNotFit(f"the program does not fit epoch {self.epoch}; {advice}:\n{text}")


def compare(plan: Plan, manifest: Manifest, *, unsettled: bool) -> ProgramFit:
    """Compare a program with an epoch; `unsettled` if the epoch's output is still to be committed."""
    now, then = kinds_of(plan), {operator.uid: operator for operator in manifest.operators}
    added = tuple(f"{uid} ({now[uid].value})" for uid in sorted(now.keys() - then.keys()))
    gone = [then[uid] for uid in sorted(then.keys() - now.keys())]
    removed = tuple(f"{one.uid}, with {held}" for one in gone if (held := ", ".join(held_by(one))))
    lost = tuple(f"{one.uid}, with output that is not committed yet" for one in gone if _has_output(one, unsettled))
    return ProgramFit(manifest.epoch, added, removed, tuple(_changes(plan, manifest, now)), lost)


def check_ignored(manifest: Manifest, ignored: Collection[Uid], *, unsettled: bool) -> None:
    """Raise `ProgramDoesNotFit` if the state of these operators cannot be ignored; `unsettled` as for `compare`."""
    known = {operator.uid: operator for operator in manifest.operators}
    for uid in sorted(ignored):
        operator = known.get(uid)
        if operator is None:
            raise ProgramDoesNotFit(
                f"the state of {uid} cannot be ignored: epoch {manifest.epoch} has no such operator, but "
                f"{', '.join(sorted(known))}"
            )
        if _has_output(operator, unsettled):
            raise ProgramDoesNotFit(
                f"the state of {uid} cannot be ignored: epoch {manifest.epoch} has its output that is not committed yet"
            )


def _has_output(operator: OperatorSnapshot, unsettled: bool) -> bool:
    """True if rows would be lost with the operator: uncommitted ones, or ones that its sink holds back."""
    return any(unsettled or one.payload.held for subtask in operator.subtasks for one in subtask.committables)


def kinds_of(plan: Plan) -> dict[Uid, Kind]:
    """Return what each operator of a plan keeps."""
    kinds: dict[Uid, Kind] = {}
    for stage in plan.stages:
        if stage.source is not None:
            kinds[stage.uid] = Kind.SOURCE
        else:
            kinds[stage.uid] = Kind.PASSING if stage.operator is None else Kind.KEYED
    for stage in plan.stages:
        for sink in stage.sinks:
            if kinds.get(sink.uid, Kind.PASSING) is Kind.PASSING:
                kinds[sink.uid] = Kind.SINK
    return kinds


def _changes(plan: Plan, manifest: Manifest, now: dict[Uid, Kind]) -> Iterator[str]:
    if plan.max_parallelism != manifest.max_parallelism:
        yield (
            f"the maximum parallelism is {plan.max_parallelism} and was {manifest.max_parallelism}, which is fixed "
            "when a job is born"
        )
    edges = {(edge.source, edge.target, edge.port) for stage in plan.stages for edge in stage.inputs}
    for operator in manifest.operators:
        kind, was = now.get(operator.uid), _kind_of(operator)
        if kind is None:
            continue
        if was is not None and was is not kind:
            yield f"{operator.uid} is a {kind.value} and was a {was.value}"
        lost = sorted(
            {
                f"{state.channel.source} -> {operator.uid}"
                for subtask in operator.subtasks
                for state in subtask.channels
                if state.parts and (state.channel.source, operator.uid, state.channel.port) not in edges
            }
        )
        if lost:
            yield f"{operator.uid} has rows in flight on an input that is gone: {', '.join(lost)}; use a savepoint"


def _kind_of(operator: OperatorSnapshot) -> Kind | None:
    """Return the kind that the operator was, or None if what it kept does not show it."""
    if operator.subtasks[0].state is not None:
        return Kind.KEYED
    if operator.enumerator != NULL or any(subtask.positions for subtask in operator.subtasks):
        return Kind.SOURCE
    if any(subtask.committables for subtask in operator.subtasks):
        return Kind.SINK
    return None


def held_by(operator: OperatorSnapshot) -> Iterator[str]:
    """Yield, in words, what an operator keeps in an epoch."""
    if operator.subtasks[0].state is not None:
        yield "keyed state"
    if _kind_of(operator) is Kind.SOURCE:
        yield "the positions of a source"
    if operator.broadcast is not None:
        yield "broadcast state"
    if any(state.parts for subtask in operator.subtasks for state in subtask.channels):
        yield "rows in flight"
