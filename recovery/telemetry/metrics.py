"""A job's metrics, made of its status and its counts, under the names that Flink has for them where it has any.

Invariant: a metric has one type, one help and the same labels in every job. What is not known has no sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from recovery.driver.report.status import RunState, RunStatus, StageWork
from recovery.telemetry.counts import Counts
from recovery.telemetry.exposition import Family, histogram, labelled
from snapshot.cut.frames import LATEST
from snapshot.host.protocol.messages import Figures, Followed, PartitionCost, SinkFigures, StageFigures
from statebackend.ids import NO_EPOCH, Epoch, Partition
from statebackend.stores.store_calls import StoreCalls

_JOB: Final = "epochcut_job_"
_TASK: Final = "epochcut_task_"
_PARTITION: Final = "epochcut_partition_"
_STANDBY: Final = "epochcut_standby_"
_SINK: Final = "epochcut_sink_"
_STORE: Final = "epochcut_store_"


def families(status: RunStatus, counts: Counts, store: Mapping[str, StoreCalls], now: float) -> Iterator[Family]:
    """Give all metrics of a job; `store` is what its driver has asked the store, `now` the time of day in seconds."""
    yield from _of_the_job(status, now)
    yield from _counted(status.job, counts)
    yield from _of_partitions(status)
    yield from _of_tasks(status, now)
    yield from _of_sinks(status)
    yield from _of_the_store(status, store)
    yield from _of_standbys(status)


def _gauge(name: str, text: str, *samples: tuple[str, float | None]) -> Family:
    return Family(name, "gauge", text, [("", labels, value) for labels, value in samples if value is not None])


def _counter(name: str, text: str, *samples: tuple[str, float]) -> Family:
    return Family(name, "counter", text, [("", labels, value) for labels, value in samples])


# --- the job ---------------------------------------------------------------------------------------------------------


def _of_the_job(status: RunStatus, now: float) -> Iterator[Family]:
    job = labelled(job_id=status.job)
    info = labelled(job_id=status.job, scheme=status.scheme)
    yield _gauge(_JOB + "info", "1, for the labels.", (info, 1))
    states = [(labelled(job_id=status.job, state=one.value), float(one is status.state)) for one in RunState]
    yield _gauge(_JOB + "state", "1 for the state that the job is in.", *states)
    placed = sum(role is not None for role in status.roles.values())
    roles = {"partition": placed, "standby": len(status.roles) - placed}
    there = [(labelled(job_id=status.job, role=role), count) for role, count in roles.items()]
    yield _gauge(_JOB + "processes", "Processes that are there, with a partition or standing by.", *there)
    attempt = None if status.incarnation is None else status.incarnation.attempt
    age = None if status.completed_at is None else max(0.0, now - status.completed_at) * 1000
    newest = status.epochs[-1] if status.epochs else None
    for name, text, value in (
        ("parallelism", "Partitions of the job.", status.parallelism),
        ("redundancy", "Processes of the partition that has the fewest.", status.redundancy),
        ("generation", "The number of drivers that have claimed the job so far.", status.generation),
        ("attempt", "The attempt of this driver that runs, or ran last.", attempt),
        ("lastCompletedCheckpointId", "The last complete epoch.", _number(status.complete)),
        ("lastCommittedCheckpointId", "The last epoch that all sinks have committed.", _number(status.committed)),
        ("numberOfInProgressCheckpoints", "Epochs that are triggered and not complete.", len(status.in_flight)),
        ("failedCheckpointsInARow", "Epochs abandoned since the last complete one.", status.abandoned_in_a_row),
        ("lastCheckpointAgeMs", "Time since an epoch was completed.", age),
    ):
        yield _gauge(_JOB + name, text, (job, value))
    if newest is not None:
        whole = sum(size for state in newest.states.values() for size in state.values())
        for name, text, value in (
            ("lastCheckpointDuration", "From the last complete epoch's trigger to the journal, in ms.",
             newest.since_trigger_ms),
            ("lastCheckpointSize", "Bytes stored for the last complete epoch.",
             newest.state_bytes + newest.channel_bytes),
            ("lastCheckpointFullSize", "Bytes of state that the last complete epoch names.", whole),
        ):  # fmt: skip
            yield _gauge(_JOB + name, text, (job, value))


# --- what has been counted -------------------------------------------------------------------------------------------


_EVENTS: Final = (
    ("numberOfTriggeredCheckpoints", "EpochTriggered", "Epochs that were triggered."),
    ("numberOfCompletedCheckpoints", "EpochCompleted", "Epochs that were completed."),
    ("numberOfCommittedCheckpoints", "EpochCommitted", "Times that sinks had committed all up to an epoch."),
    ("numberOfSkippedCheckpoints", "EpochSkipped", "Epochs that were due and were not triggered."),
    ("numRestarts", "AttemptFailed", "Attempts that failed: all partitions went back to the last complete epoch."),
    ("numRecoveries", "Recovered", "Failures that are made up for."),
    ("numMoves", "Moved", "Partitions that were moved to another executor."),
    ("numReplicasLost", "ReplicaLost", "Members of partitions that are gone while others of theirs went on."),
    ("numReplicasJoined", "RedundancyRestored", "Members that came to partitions which had lost one."),
    ("numPrimariesMoved", "PrimaryMoved", "Times that another member came to stand for its partition."),
    ("numCollapses", "Collapsed", "Times that no member of a partition was left."),
    ("numPartitionsLost", "PartitionLost", "Partitions that lost their process while all others went on."),
    ("numPartitionsReplaced", "PartitionReplaced", "Partitions that restarted alone and have their state again."),
    ("numProcessesJoined", "WorkerJoined", "Processes that came."),
    ("numProcessesLost", "WorkerLost", "Processes that are gone."),
    ("numPeersRefused", "PeerRefused", "Times that callers were turned away at a port; of very many, not each."),
    ("numStalls", "Stalled", "Times that something made no progress for long."),
    ("numTroubles", "Trouble", "Things that did not work and did not stop the job."),
)


def _counted(job: str, counts: Counts) -> Iterator[Family]:
    def by(name: str, label: str, text: str, values: Mapping[str, int] | Mapping[Partition, int]) -> Family:
        return _counter(
            _JOB + name, text, *((labelled(job_id=job, **{label: value}), count) for value, count in values.items())
        )

    of_job = labelled(job_id=job)
    for name, event, text in _EVENTS:
        yield _counter(_JOB + name, text, (of_job, counts.events[event]))
    yield by("numberOfFailedCheckpoints", "reason", "Epochs that were abandoned.", counts.abandoned)
    yield by("numFailures", "cause", "Attempts that failed, by what ended them.", counts.failures)
    yield by("numFaultsInjected", "kind", "Faults that somebody asked for.", counts.faults)
    yield by("numProcessesDied", "partition", "Processes that died, by the partition that they had.", counts.died)
    for what, times in counts.epochs.items():
        name, samples = f"checkpoint{what.capitalize()}Ms", histogram({"job_id": job}, times.cumulative(), times.total)
        yield Family(_JOB + name, "histogram", f"The {what} of complete epochs, in ms.", samples)
    yield Family(
        _JOB + "recoveryMs",
        "histogram",
        "From the moment a failure was detected until a phase of its recovery was over, in ms.",
        [
            sample
            for phase, times in counts.phases.items()
            for sample in histogram({"job_id": job, "phase": phase}, times.cumulative(), times.total)
        ],
    )
    for name, text, value in (
        ("checkpointedBytes", "Bytes of state that complete epochs have stored.", counts.state_bytes),
        ("persistedInFlightBytes", "Bytes in flight that they have stored.", counts.channel_bytes),
        ("removedFiles", "Files of epochs that nothing needs any more, which were deleted.", counts.removed_files),
        ("orphanedFiles", "Files uploaded in vain, which were deleted.", counts.orphans),
        ("orphanedBytes", "The bytes of these.", counts.orphan_bytes),
    ):
        yield _counter(_JOB + name, text, (of_job, value))


# --- partitions and their stages -------------------------------------------------------------------------------------


_OF_PARTITIONS: Final[tuple[tuple[str, str, Callable[[Figures], float]], ...]] = (
    ("memoryBytes", "Memory of the partition's process.", lambda one: one.memory_bytes),
    ("sourceLagMs", "How far its paced sources are behind their schedule.", lambda one: one.lag_ms),
    ("longestTurnMs", "The longest that its thread took for one turn.", lambda one: one.longest_gap_ms),
    ("runningMs", "For how long it has been in this attempt.", lambda one: one.running_ms),
)
_OF_EPOCHS: Final[tuple[tuple[str, str, Callable[[PartitionCost], float]], ...]] = (
    ("Duration", "From its trigger until the partition's part was durable, in ms.", lambda one: one.since_trigger_ms),
    ("AlignmentMs", "The longest alignment of its stages, in ms.", lambda one: one.alignment_ms),
    ("SyncMs", "How long its cut took, in which nothing else was done, in ms.", lambda one: one.sync_ms),
    ("AsyncMs", "From its cut until all was durable, in ms.", lambda one: one.async_ms),
    ("Size", "Bytes stored for it.", lambda one: one.state_bytes + one.channel_bytes),
)


def _of_partitions(status: RunStatus) -> Iterator[Family]:
    of_partition = [(labelled(job_id=status.job, partition=one), figures) for one, figures in status.figures.items()]
    for name, text, figure_of in _OF_PARTITIONS:
        yield _gauge(_PARTITION + name, text, *((labels, figure_of(figures)) for labels, figures in of_partition))
    newest = status.epochs[-1].partitions if status.epochs else ()
    of_cost = [(labelled(job_id=status.job, partition=cost.partition), cost) for cost in newest]
    for name, text, cost_of in _OF_EPOCHS:
        told = f"Of the last complete epoch. {text}"
        yield _gauge(f"{_PARTITION}lastCheckpoint{name}", told, *((labels, cost_of(cost)) for labels, cost in of_cost))
    yield _gauge(
        _TASK + "stateBytes",
        "Bytes of an operator's state that the last complete epoch names.",
        *(
            (labelled(job_id=status.job, uid=uid, partition=partition), size)
            for epoch in status.epochs[-1:]
            for uid, state in epoch.states.items()
            for partition, size in state.items()
        ),
    )


_DONE: Final[tuple[tuple[str, str, Callable[[StageWork], float]], ...]] = (
    ("numRecordsIn", "Rows that came in; rows that were processed again count again.", lambda one: one.rows_in),
    ("numRecordsOut", "Rows that went out, in the same way.", lambda one: one.rows_out),
    ("numLateRecordsDropped", "Rows that were too late, dropped or given to a side output.", lambda one: one.late_rows),
    ("numRecordsInErrors", "Lines or records that did not fit and were left out.", lambda one: one.bad_rows),
    ("accumulateBusyTimeMs", "For how long it worked.", lambda one: one.busy_ms),
    ("accumulateBackPressuredTimeMs", "For how long it could not, as an output was full.", lambda one: one.blocked_ms),
    ("accumulateIdleTimeMs", "For how long it had nothing to do.", lambda one: one.idle_ms),
)
_NOW: Final[tuple[tuple[str, str, Callable[[StageFigures], float | None]], ...]] = (
    ("inputQueueSize", "Bytes that wait to be processed.", lambda one: one.queued_bytes),
    ("heldBackChannels", "Channels that an alignment holds back.", lambda one: one.held_back),
    ("currentOutputWatermark", "Its event time, in ms since 1970.", lambda one: _event_time(one)),
)


def _of_tasks(status: RunStatus, now: float) -> Iterator[Family]:
    def of_task(uid: str, partition: Partition) -> str:
        return labelled(job_id=status.job, uid=uid, partition=partition)

    work = [(of_task(uid, one), work) for one, stages in status.work.items() for uid, work in stages.items()]
    for name, text, work_of in _DONE:
        yield _counter(_TASK + name, text, *((labels, work_of(work)) for labels, work in work))
    yield _counter(
        _TASK + "numBytesOut",
        "Bytes of rows that went out to another stage: as encoded, or within a process as they are in memory.",
        *(
            (labelled(job_id=status.job, uid=uid, partition=one, to=to), size)
            for one, stages in status.work.items()
            for uid, done in stages.items()
            for to, size in done.bytes_out.items()
        ),
    )
    found = [
        (of_task(uid, at), stage) for at, figures in status.figures.items() for uid, stage in figures.stages.items()
    ]
    for name, text, figure_of in _NOW:
        yield _gauge(_TASK + name, text, *((labels, figure_of(stage)) for labels, stage in found))
    yield _gauge(
        _TASK + "watermarkLag", "How far its event time is behind the clock, in ms.",
        *((labels, now * 1000 - at) for labels, stage in found if (at := _event_time(stage)) is not None),
    )  # fmt: skip


def _event_time(stage: StageFigures) -> int | None:
    at = stage.watermark
    return None if at is None or at.timestamp == LATEST else at.timestamp


_OF_COMMITS: Final[tuple[tuple[str, str, Callable[[SinkFigures], float]], ...]] = (
    ("numCommits", "Transactions that a sink has committed.", lambda one: one.commits),
    ("commitTimeMs", "From the first try of each until the target had it, all together.", lambda one: one.commit_ms),
    ("numCommitsPutOff", "Tries of commits that are to be made again.", lambda one: one.put_off),
)
_OF_CALLS: Final[tuple[tuple[str, str, Callable[[StoreCalls], float]], ...]] = (
    ("calls", "Calls to the store.", lambda one: one.calls),
    ("errors", "Calls that failed, or had no answer.", lambda one: one.errors),
    ("callTimeMs", "How long they took, all together.", lambda one: one.ms),
)


def _of_sinks(status: RunStatus) -> Iterator[Family]:
    commits = [
        (labelled(job_id=status.job, uid=uid, partition=partition), figures)
        for partition, sinks in status.commits.items()
        for uid, figures in sinks.items()
    ]
    for name, text, figure_of in _OF_COMMITS:
        yield _counter(_SINK + name, text, *((labels, figure_of(figures)) for labels, figures in commits))
    yield _gauge(
        _SINK + "pendingCommits",
        "Transactions of complete epochs that are not committed yet.",
        *((labels, figures.pending) for labels, figures in commits),
    )


def _of_the_store(status: RunStatus, driver: Mapping[str, StoreCalls]) -> Iterator[Family]:
    """Give the calls of each partition's processes, and those of the driver, whose `partition` is empty."""
    calls = [
        (labelled(job_id=status.job, partition=partition, call=kind), done)
        for partition, kinds in (*status.store_calls.items(), ("", driver))
        for kind, done in kinds.items()
    ]
    for name, text, figure_of in _OF_CALLS:
        yield _counter(_STORE + name, text, *((labels, figure_of(done)) for labels, done in calls))


_OF_STANDBYS: Final[tuple[tuple[str, str, Callable[[Followed], float | None]], ...]] = (
    ("epoch", "The epoch that a standby has ready.", lambda one: _number(one.has)),
    ("memoryBytes", "Memory of its process.", lambda one: one.memory_bytes),
    ("downloadedBytes", "Bytes that it has downloaded since it stood by.", lambda one: one.downloaded_bytes),
)


def _of_standbys(status: RunStatus) -> Iterator[Family]:
    said = [(labelled(job_id=status.job, worker=worker), followed) for worker, followed in status.standbys.items()]
    for name, text, figure_of in _OF_STANDBYS:
        yield _gauge(_STANDBY + name, text, *((labels, figure_of(followed)) for labels, followed in said))


def _number(epoch: Epoch | None) -> int | None:
    return None if epoch is None or epoch == NO_EPOCH else epoch.number
