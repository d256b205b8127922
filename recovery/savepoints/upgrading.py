"""Compare a changed program with an epoch, state by state; make a savepoint in which all values are new.

Invariant: looking changes nothing; what is made is an epoch of the job like any other, made by the codecs'
own `migrate`, and what does not fit is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from recovery.driver.settings.program_fit import ProgramDoesNotFit, ProgramFit, compare
from recovery.offline.epoch_choice import Chosen, choose, go_back
from recovery.offline.job_tree import JobTree
from recovery.offline.reading import EpochReading
from recovery.offline.stopped_job import StoppedJob, refuse_if_it_runs, take_over
from recovery.scratch import scratch_folder
from snapshot.ids import JobId
from snapshot.journal.state import OutputMade
from snapshot.program.program import Program
from snapshot.tree.manifest import Manifest, OperatorSnapshot, SubtaskSnapshot
from statebackend.canonical.rewriting import Rewritten, rewrite
from statebackend.ids import Epoch, Uid
from statebackend.keyed_state import KeyedState
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.states.schema import CodecSpec, Schema, StateMismatch, StateSpec
from statebackend.states.schema_fit import fitted

HOW: Final = "upgrade"


class Fit(Enum):
    """The meaning of a changed program for one state."""

    SAME = "fits"
    NEW = "new: it begins empty"
    OLDER = "fits: older values are migrated when they are read"
    GONE = "declared no longer"
    UNFIT = "does not fit"


@dataclass(frozen=True, slots=True)
class StateFit:
    """One state: how its values are stored, how they are declared, and why it does not fit, if so."""

    uid: Uid
    state: str
    fit: Fit
    stored: str
    declared: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The differences between a program and what made an epoch. `lost` is output that must not be dropped.

    `fits` if it can go on from the epoch as it is: with `removed`, only if that is allowed when it is started. The job
    would give up the epochs `gives_up`, and `repeats` is output that it would make once more.
    """

    job: JobId
    epoch: Epoch
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    lost: tuple[str, ...]
    states: tuple[StateFit, ...]
    fits: bool
    passed_over: tuple[str, ...]
    gives_up: tuple[Epoch, ...]
    repeats: OutputMade

    @property
    def to_migrate(self) -> tuple[Uid, ...]:
        """Return the operators that have values of older versions, or states that are no longer declared."""
        return tuple(dict.fromkeys(one.uid for one in self.states if one.fit in (Fit.OLDER, Fit.GONE)))


@dataclass(frozen=True, slots=True)
class MigratedState:
    """The migration of one state, in all partitions."""

    uid: Uid
    state: str
    rows: int
    migrated: int


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The result of an upgrade; `made` is None if nothing was made."""

    plan: UpgradePlan
    made: Epoch | None
    states: tuple[MigratedState, ...]


def plan_upgrade(tree: JobTree, epoch: str, program: Program, *, accept_duplicates: bool = True) -> UpgradePlan:
    """Compare the program with an epoch, and with the states in its files; the job may run.

    Without `accept_duplicates` it raises what `migrate` would, if output would be made once more.
    """
    return _plan(program, tree, choose(tree, epoch, accept_duplicates=accept_duplicates))


def migrate(
    tree: JobTree,
    program: Program,
    *,
    drop_states: bool = False,
    accept_duplicates: bool = False,
    job_folder: Path | None = None,
    rewritten: Callable[[Uid], object] = lambda _: None,
) -> Upgraded:
    """Make a savepoint of the newest epoch in which every value is in the version that the program declares.

    States that are declared no longer are dropped with `drop_states`, else refused. Raises `ProgramDoesNotFit`,
    `StateMismatch`, `JobRuns`, what `epoch_choice.choose` raises, and `UnreadableValue` for a value that is not
    migrated: then, and after a crash, there is no new epoch, and it can be done again. `rewritten` is told of each
    operator.
    """
    refuse_if_it_runs(tree, job_folder)
    plan = _plan(program, tree, choose(tree, accept_duplicates=accept_duplicates))
    _check(plan, drop_states=drop_states)
    if not plan.to_migrate:
        return Upgraded(plan, None, ())
    job = take_over(tree, HOW, job_folder=job_folder)
    chosen = go_back(job, accept_duplicates=accept_duplicates)
    manifest, work = job.remade(chosen.manifest, HOW), _Work(program, job, plan)
    operators = []
    for operator in manifest.operators:
        if operator.uid in plan.to_migrate:
            operators.append(work.migrated(operator, manifest))
            rewritten(operator.uid)
        else:
            operators.append(operator)
    made = job.publish(replace(manifest, operators=tuple(operators)))
    return Upgraded(plan, made, work.states)


class _Work:
    """Operators on their way into the new epoch."""

    def __init__(self, program: Program, job: StoppedJob, plan: UpgradePlan) -> None:
        self._declared = _declared(program, job.tree.birth.max_parallelism)
        self._job = job
        self._gone = {
            uid: frozenset(one.state for one in plan.states if one.uid == uid and one.fit is Fit.GONE)
            for uid in plan.to_migrate
        }
        self._names: dict[int, Callable[[], str]] = {}
        self._done: dict[tuple[Uid, str], tuple[int, int]] = {}

    @property
    def states(self) -> tuple[MigratedState, ...]:
        """Return the states migrated so far, with their numbers of rows."""
        return tuple(MigratedState(uid, state, *counts) for (uid, state), counts in self._done.items())

    def migrated(self, operator: OperatorSnapshot, manifest: Manifest) -> OperatorSnapshot:
        """Write all partitions of an operator anew."""
        subtasks = (self._part(operator.uid, subtask, manifest.epoch) for subtask in operator.subtasks)
        return replace(operator, subtasks=tuple(subtasks))

    def _part(self, uid: Uid, subtask: SubtaskSnapshot, epoch: Epoch) -> SubtaskSnapshot:
        if subtask.state is None or not subtask.state.files:
            return subtask
        if subtask.partition not in self._names:
            self._names[subtask.partition] = self._job.names(subtask.partition)
        names, declared, store = self._names[subtask.partition], self._declared[uid], self._job.tree.store
        with scratch_folder("upgrade") as scratch:
            before_in, after_in = scratch / "before", scratch / "after"
            options = Options(allow_dropped=self._gone[uid])
            with (
                KeyedState(declared, before_in, store, names, subtask.state, options) as before,
                KeyedState(declared, after_in, store, names, groups=subtask.state.range) as after,
            ):
                self._count(uid, rewrite(before, after))
                state = after.snapshot(epoch)
        return replace(subtask, state=state)

    def _count(self, uid: Uid, done: tuple[Rewritten, ...]) -> None:
        for one in done:
            rows, migrated = self._done.get((uid, one.state), (0, 0))
            self._done[uid, one.state] = rows + one.rows, migrated + one.migrated


def _plan(program: Program, tree: JobTree, chosen: Chosen) -> UpgradePlan:
    unsettled = chosen.found.record.awaits_commit
    fit = compare(program.plan(tree.birth.max_parallelism), chosen.manifest, unsettled=unsettled)
    declared = _declared(program, tree.birth.max_parallelism)
    with scratch_folder("upgrade") as scratch:
        reading = EpochReading(tree, chosen.found, scratch)
        states = tuple(
            one
            for operator in reading.operators
            if operator.uid in declared and operator.schema is not None
            for one in _states(operator.schema, declared[operator.uid].schema())
        )
    fits = not fit.changed and not fit.lost and not any(one.fit in (Fit.UNFIT, Fit.GONE) for one in states)
    return UpgradePlan(
        tree.birth.job,
        chosen.found.record.epoch,
        fit.added,
        fit.removed,
        fit.changed,
        fit.lost,
        states,
        fits,
        tuple(map(str, chosen.found.passed_over)),
        chosen.gives_up,
        chosen.repeats,
    )


def _check(plan: UpgradePlan, *, drop_states: bool) -> None:
    ProgramFit(plan.epoch, plan.added, plan.removed, plan.changed, plan.lost).check(allow_non_restored_state=True)
    unfit = [one for one in plan.states if one.fit is Fit.UNFIT]
    if unfit:
        listed = "\n".join(f"  {one.reason}" for one in unfit)
        raise ProgramDoesNotFit(f"the program does not fit the states of epoch {plan.epoch}:\n{listed}")
    gone = [f"{one.uid}: {one.state}" for one in plan.states if one.fit is Fit.GONE]
    if gone and not drop_states:
        raise ProgramDoesNotFit(
            f"epoch {plan.epoch} has states that are declared no longer: {', '.join(gone)}; declare them, or drop them "
            "(--drop-states)"
        )


def _declared(program: Program, max_parallelism: int) -> Mapping[Uid, Operator]:
    return {
        uid: Operator(uid, operator.inputs[0].key_type, operator.states, max_parallelism)
        for uid, operator in program.plan(max_parallelism).keyed.items()
    }


def _states(stored: Schema, declared: Schema) -> Iterator[StateFit]:
    now, before = {spec.name: spec for spec in declared.states}, {spec.name: spec for spec in stored.states}
    for name in sorted(now.keys() | before.keys()):
        was, is_now = before.get(name), now.get(name)
        if was is None or is_now is None:
            fit = Fit.NEW if was is None else Fit.GONE
            yield StateFit(declared.uid, name, fit, _stored_as(was), _declared_as(is_now))
            continue
        try:
            fitted(replace(stored, states=(was,), dropped=()), replace(declared, states=(is_now,)))
        except StateMismatch as error:
            yield StateFit(declared.uid, name, Fit.UNFIT, _stored_as(was), _declared_as(is_now), str(error))
            continue
        fit = Fit.OLDER if _is_older(was.codec, is_now.codec) else Fit.SAME
        yield StateFit(declared.uid, name, fit, _stored_as(was), _declared_as(is_now))


def _is_older(was: CodecSpec | None, is_now: CodecSpec | None) -> bool:
    if was is None or is_now is None:
        return False
    return was.name != is_now.name or was.oldest < is_now.version


def _stored_as(spec: StateSpec | None) -> str:
    """Describe the kind of state, and the versions of the codec that wrote its values."""
    if spec is None or spec.codec is None:
        return "" if spec is None else spec.kind.value
    codec = spec.codec
    versions = (
        f"version {codec.version}" if codec.oldest == codec.version else f"versions {codec.oldest} to {codec.version}"
    )
    return f"{spec.kind.value} of {codec.name}, {versions}"


def _declared_as(spec: StateSpec | None) -> str:
    """Describe the kind of state, and what its codec writes and reads."""
    if spec is None or spec.codec is None:
        return "" if spec is None else spec.kind.value
    codec = spec.codec
    reads = "" if codec.oldest == codec.version else f", which reads from {codec.oldest}"
    return f"{spec.kind.value} of {codec.name}, version {codec.version}{reads}"
