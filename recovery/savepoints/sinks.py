"""Prepared output that a dead job left: listed, committed or aborted without starting the job.

Invariant: what a complete epoch carries is aborted only if its loss was accepted, and then the journal says
first that the job goes on without it; what was committed is journalled as such only when all of the epoch is. Both can
be done again after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from recovery.decisions.start import given_up_for
from recovery.driver.settings.program_fit import ProgramDoesNotFit
from recovery.driver.tree.manifests import sinks_of, transactions_in, without_output
from recovery.offline.epoch_choice import Chosen, choose, go_back
from recovery.offline.job_tree import JobTree
from recovery.offline.stopped_job import StoppedJob, refuse_if_it_runs, take_over
from snapshot.connectors.staging.batched_rows import open_showing
from snapshot.connectors.staging.payloads import places_in
from snapshot.epochs.transaction_events import CommitOutcome, Committable
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.ids import JobId, TransactionId
from snapshot.journal.entries import Committed
from snapshot.program.plan import ToSink
from snapshot.program.problems import InvalidProgram, Problem
from snapshot.program.program import Program
from snapshot.program.sink import CommitAnswer, SinkContext, SinkWriter
from snapshot.tree.manifest import CommitPayload
from statebackend.errors import SavepointError
from statebackend.ids import Attempt, Epoch, Incarnation, Partition, Uid

_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

PATIENCE: Final = 60.0
"""Seconds for which a target that puts a commit off is asked again."""


class NotCommitted(SavepointError):
    """A target does not commit, or says nothing; the message names the transaction. Doing it again goes on."""


@dataclass(frozen=True, slots=True)
class PreparedOutput:
    """A transaction that the newest epoch carries; `committed` if it is known to be."""

    uid: Uid
    partition: Partition
    transaction: TransactionId
    sealed_in: Epoch
    staged_bytes: int
    committed: bool
    held: bool = False
    """Rows that the sink holds back: the job goes on with them, and they are not committed before."""
    places: tuple[str, ...] = ()
    """The places where the rows go; empty if the program names them."""


@dataclass(frozen=True, slots=True)
class ListedOutput:
    """All that the newest epoch carries."""

    job: JobId
    epoch: Epoch
    output: tuple[PreparedOutput, ...]
    passed_over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommittedNow:
    """The answer of a target about one transaction."""

    uid: Uid
    transaction: TransactionId
    before: bool
    """True if it was committed already."""


@dataclass(frozen=True, slots=True)
class CommittedOutput:
    """The committed output, up to the epoch; `done` is False for a dry run, and where there was nothing to do."""

    job: JobId
    epoch: Epoch
    output: tuple[PreparedOutput, ...]
    committed: tuple[CommittedNow, ...]
    done: bool


@dataclass(frozen=True, slots=True)
class AbortedOutput:
    """The sinks whose leftovers were aborted, and what of the newest epoch was given up.

    `made` is the epoch without it, from which the job goes on; None if nothing had to be given up.
    """

    job: JobId
    epoch: Epoch
    sinks: tuple[Uid, ...]
    given_up: tuple[PreparedOutput, ...]
    kept: tuple[PreparedOutput, ...]
    made: Epoch | None


def list_output(tree: JobTree) -> ListedOutput:
    """List the committables of the newest epoch that can be read; the job may run."""
    found = tree.find(fall_back=True)
    output = output_of(
        Chosen(tree, found, given_up_for(tree.state, found.record)), known=not found.record.awaits_commit
    )
    return ListedOutput(tree.birth.job, found.record.epoch, output, tuple(map(str, found.passed_over)))


def commit_output(
    tree: JobTree,
    program: Program,
    *,
    accept_places: Collection[str] = (),
    dry_run: bool = False,
    job_folder: Path | None = None,
    patience: float = PATIENCE,
    told: Callable[[CommittedNow], object] = lambda _: None,
    sleep: Callable[[float], object] = time.sleep,
) -> CommittedOutput:
    """Commit what the newest epoch carries, by the sinks of the program, and journal that.

    Output that was prepared for one of `accept_places` is committed there, although the sinks write to other places.
    Raises `JobRuns`, what `epoch_choice.choose` raises, `ProgramDoesNotFit` if the program lacks a sink,
    `InvalidProgram` for a target that cannot be reached, and `NotCommitted`: then some may be
    committed, and it can be done again.
    """
    refuse_if_it_runs(tree, job_folder)
    chosen = choose(tree)
    job, epoch = tree.birth.job, chosen.found.record.epoch
    pending = tuple(one for one in output_of(chosen) if not one.held)
    sinks = _sinks_for(program, tree, pending)
    if dry_run or not pending:
        return CommittedOutput(job, epoch, pending, (), False)
    _examine(job, sinks)
    taken = take_over(tree, "sinks commit", job_folder=job_folder)
    chosen = go_back(taken)
    committed = []
    for uid, partition, some in _committables(chosen):
        incarnation = Incarnation(taken.generation, Attempt(1))
        staging = TreeFiles(tree.store, incarnation, partition)
        schema, places = sinks[uid].schema, frozenset(accept_places)
        context = SinkContext(job, uid, schema, incarnation, partition, staging, _nobody_takes(uid), places)
        writer = open_showing(sinks[uid].sink, context, some)
        try:
            for committable in some:
                outcome = _commit(writer, committable, patience, sleep)
                committed.append(CommittedNow(uid, committable.transaction, outcome is CommitOutcome.ALREADY_COMMITTED))
                told(committed[-1])
        finally:
            writer.close()
    taken.propose(Committed(taken.generation, chosen.found.record.epoch))
    return CommittedOutput(job, chosen.found.record.epoch, pending, tuple(committed), True)


def abort_output(
    tree: JobTree,
    program: Program,
    *,
    accept_loss: bool = False,
    dry_run: bool = False,
    job_folder: Path | None = None,
) -> AbortedOutput:
    """Abort what the job left in the targets of the program's sinks and no complete epoch names.

    With `accept_loss` also what the newest epoch carries: first an epoch without it becomes the newest. Raises as
    `commit_output` does, and what a sink raises that cannot abort; doing it again goes on.
    """
    refuse_if_it_runs(tree, job_folder)
    chosen = choose(tree)
    job, epoch, pending = tree.birth.job, chosen.found.record.epoch, output_of(chosen)
    sinks = _sinks_for(program, tree, pending if accept_loss else ())
    given_up, kept = (pending, ()) if accept_loss else ((), pending)
    if dry_run:
        return AbortedOutput(job, epoch, tuple(sinks), given_up, kept, None)
    _examine(job, sinks)
    taken = take_over(tree, "sinks abort", job_folder=job_folder)
    chosen = go_back(taken)
    made = _without_output(taken, chosen) if given_up else None
    if made is None:
        _settle(taken, chosen)
    named = {} if made is not None else transactions_in(chosen.manifest)
    for uid, sink in sinks.items():
        sink.sink.recover(job, uid, Incarnation(taken.generation, Attempt(1)), named.get(uid, frozenset()))
    return AbortedOutput(job, epoch, tuple(sinks), given_up, kept, made)


def _without_output(taken: StoppedJob, chosen: Chosen) -> Epoch:
    """Make an epoch from which the job goes on without its output.

    A crash before the last entry leaves that entry to `_settle`.
    """
    made = taken.publish(taken.remade(without_output(chosen.manifest), "sinks abort"))
    taken.propose(Committed(taken.generation, made))  # nothing up to it is committed any more
    return made


def _settle(taken: StoppedJob, chosen: Chosen) -> None:
    """Journal that nothing before the newest epoch is to be committed, if that epoch carries nothing."""
    if any(not one.held for one in output_of(chosen)):
        return
    if any(record.awaits_commit for record in taken.tree.state.usable):
        taken.propose(Committed(taken.generation, chosen.found.record.epoch))


def output_of(chosen: Chosen, *, known: bool = False) -> tuple[PreparedOutput, ...]:
    """Return the output that the epoch carries: all if that is `known` to be committed, otherwise what is pending."""
    manifest = chosen.found.manifest if known else chosen.manifest
    return tuple(
        PreparedOutput(
            operator.uid,
            part.partition,
            one.transaction,
            one.sealed_in,
            sum(file.size for file in one.payload.staged),
            known and not one.payload.held,
            one.payload.held,
            places_in(one.payload),
        )
        for operator in manifest.operators
        for part in operator.subtasks
        for one in part.committables
    )


def _committables(chosen: Chosen) -> list[tuple[Uid, Partition, tuple[Committable[CommitPayload], ...]]]:
    return [
        (operator.uid, part.partition, pending)
        for operator in chosen.manifest.operators
        for part in operator.subtasks
        if (pending := tuple(one for one in part.committables if not one.payload.held))
    ]


def _sinks_for(program: Program, tree: JobTree, needed: tuple[PreparedOutput, ...]) -> Mapping[Uid, ToSink]:
    sinks = sinks_of(program.plan(tree.birth.max_parallelism))
    lacking = sorted({one.uid for one in needed} - sinks.keys())
    if lacking:
        raise ProgramDoesNotFit(
            f"the epoch has output of {', '.join(lacking)}, and the program has no such sink, but "
            f"{', '.join(sorted(sinks))}; use the program that made it"
        )
    return sinks


def _examine(job: JobId, sinks: Mapping[Uid, ToSink]) -> None:
    problems = [
        Problem(uid, sentence) for uid, sink in sinks.items() for sentence in sink.sink.examine(job, uid, sink.schema)
    ]
    if problems:
        raise InvalidProgram(problems)


def _commit(
    writer: SinkWriter, committable: Committable[CommitPayload], patience: float, sleep: Callable[[float], object]
) -> CommitOutcome:
    waited, tries = 0.0, 0
    while True:
        answer = _answer(writer, committable)
        match answer.outcome:
            case CommitOutcome.COMMITTED | CommitOutcome.ALREADY_COMMITTED:
                return answer.outcome
            case CommitOutcome.FAILED:
                raise NotCommitted(f"{committable.transaction} is refused for good: {answer.reason}")
            case CommitOutcome.RETRY_LATER:
                pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
                if waited + pause > patience:
                    raise NotCommitted(
                        f"{committable.transaction} was put off for {waited:.0f} s: {answer.reason}; try again later"
                    )
                sleep(pause)
                waited, tries = waited + pause, tries + 1


def _answer(writer: SinkWriter, committable: Committable[CommitPayload]) -> CommitAnswer:
    """Try to commit; an exception does not say whether it was committed, so the answer is to try again later."""
    try:
        return writer.commit(committable.transaction, committable.payload)
    except NotCommitted:
        raise
    except Exception as error:
        return CommitAnswer(CommitOutcome.RETRY_LATER, f"{type(error).__name__}: {error}")


def _nobody_takes(uid: Uid) -> Callable[[TransactionId | None, pa.RecordBatch], None]:
    def deliver(transaction: TransactionId | None, rows: pa.RecordBatch) -> None:
        raise NotCommitted(
            f"{transaction}: {rows.num_rows} rows of sink {uid} are for the program that runs the job, and no "
            "program takes them here; start the job, or give them up (sinks abort --accept-loss)"
        )

    return deliver
