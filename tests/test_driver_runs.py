"""A driver with processes that only speak: what it tells them, what it writes, and how it ends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recovery
from recovery.driver.attempts.requests import Cancelled, EndKind
from recovery.driver.settings.options import in_their_places
from recovery.driver.tree.owned import FencedOff
from recovery.events import (
    AnyEvent,
    AttemptFailed,
    EpochAbandoned,
    EpochCommitted,
    EpochCompleted,
    EpochTriggered,
    PeerRefused,
    Recovered,
    Stopped,
    Trouble,
    WorkerLost,
)
from recovery.offline.job_tree import open_tree
from recovery.savepoints.rescaling import rescale
from snapshot import EOF, Collection, Program, Stream, ToDriver
from snapshot.cut.pauses import Then
from snapshot.epochs.trace import replay
from snapshot.host.partition.failures import text_of
from snapshot.host.protocol.messages import (
    AllEnded,
    AssignSplits,
    BeatEvery,
    CannotCommit,
    CommitPutOff,
    Declining,
    Deploy,
    Drain,
    EpochIsOver,
    Failed,
    FailureKind,
    Figures,
    FirstOutput,
    HasCommitted,
    Leave,
    StageFigures,
    StandDown,
    TriggerEpoch,
)
from snapshot.journal.state import JournalState
from snapshot.journal.store import StoredJournal
from snapshot.tree.frozen_json import NULL, Json
from statebackend.backends.backend import DamagedFile
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.local_store import LocalStore
from tests.certificates import Authority
from tests.scripted_workers import OUT, PATIENCE, SOURCE, ScriptedCluster

NUMBERS = pa.schema({"k": pa.string(), "n": pa.int64()})
FIRST = Incarnation(Generation(1), Attempt(1))
SECOND = Incarnation(Generation(1), Attempt(2))


def program(source: str = "numbers", count: str = "count") -> Program:
    numbers = Stream.read(Collection([("a", 1), ("b", 2), EOF()], NUMBERS, splits=2), uid=source)
    return numbers.key_by("k").sum("n", uid=count).write(ToDriver(), uid="out")


def start(folder: Path, cluster: ScriptedCluster, of: Program | None = None, **options: Any) -> recovery.Run:
    chosen: dict[str, Any] = {"every": "20ms", "parallelism": 2, "progress": False, "job": "numbers", **options}
    return recovery.run(
        of or program(),
        checkpoints=folder / "tree",
        launcher=cluster,
        local=folder / "local",
        **in_their_places(chosen),
    )


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    yield cluster
    cluster.stop(0)


def journal(folder: Path) -> JournalState:
    return StoredJournal(LocalStore(folder / "tree")).read()


def completed(cluster: ScriptedCluster, count: int = 1) -> Epoch:
    """Wait until both partitions have heard of so many complete epochs; the newest of them."""
    said = cluster.await_heard(EpochIsOver, 2 * count, lambda one: one.complete)
    return max(one.epoch for one in said)


def of_kind(run: recovery.Run, kind: type) -> list[Any]:
    return [event for event in run.events if isinstance(event, kind)]


# --- a run without trouble


def test_every_partition_gets_its_role_its_splits_and_markers_and_hears_of_complete_epochs(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    with start(tmp_path, cluster) as run:
        completed(cluster, 2)
    deploys = cluster.heard(Deploy)
    assert {deploy.partition for deploy in deploys} == {0, 1}
    assert {deploy.incarnation for deploy in deploys} == {FIRST}
    assert all(deploy.epoch is None and deploy.roles.keys() == {SOURCE, OUT, "count"} for deploy in deploys)
    assert all(deploy.roles[Uid("count")].state is not None for deploy in deploys)
    assigned = cluster.heard(AssignSplits)
    assert sorted(split for one in assigned for split in one.splits) == sorted(program_splits())
    assert all(one.last for one in assigned)
    for worker in cluster.workers:
        kinds = [type(message) for message in worker.received]
        assert kinds[:4] == [BeatEvery, Deploy, AssignSplits, TriggerEpoch]
        assert kinds[-1] is Leave
    assert [type(event) for event in run.events][-1] is Stopped


def program_splits() -> list[str]:
    return list(Collection([("a", 1)], NUMBERS, splits=2).discover(2))


def test_output_of_complete_epochs_comes_once_and_in_order_of_each_partition(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 3)
    run.stop()
    rows = [str(row["row"]) for row in run.rows("out")]
    assert len(rows) == len(set(rows)) >= 6
    for partition in "01":
        own = [int(row.split("-")[0]) for row in rows if row.endswith(f"/{partition}")]
        assert own == list(range(1, len(own) + 1)), "no epoch is left out"


def test_old_epochs_and_their_files_go_and_the_journal_is_kept_short(tmp_path: Path, cluster: ScriptedCluster) -> None:
    with start(tmp_path, cluster, compact_after=10, retain=2) as run:
        cluster.wait_for(lambda: True if len(of_kind(run, EpochCommitted)) > 24 else None)
    state = journal(tmp_path)
    assert 2 <= len(state.retained) < 12
    manifests = list((tmp_path / "tree" / "epochs").rglob("manifest.json"))
    assert len(manifests) < 16
    assert len(list((tmp_path / "tree" / "journal").iterdir())) < state.number


def test_the_status_and_the_events_tell_what_happened(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    newest = completed(cluster, 2)
    status = run.status()
    assert status.state is recovery.RunState.RUNNING
    assert status.generation == 1
    assert sorted(status.workers.values(), key=str) == [0, 1]
    assert status.complete is not None
    assert status.complete >= newest
    run.stop()
    assert run.status().state is recovery.RunState.STOPPED
    epoch = of_kind(run, EpochCompleted)[0]
    assert (epoch.alignment_ms, epoch.sync_ms, epoch.async_ms) == (1.0, 2.0, 3.0)
    assert (epoch.state_bytes, epoch.channel_bytes) == (20, 10)
    assert [cost.partition for cost in epoch.partitions] == [0, 1]
    assert all(0 < cost.since_trigger_ms <= epoch.since_trigger_ms for cost in epoch.partitions)
    assert {cost.alignment_ms + cost.sync_ms + cost.async_ms for cost in epoch.partitions} == {6.0}
    lines = [json.loads(line) for line in run.events_file.read_text().splitlines()]
    assert [line["event"] for line in lines] == [type(event).__name__ for event in run.events]
    assert lines[-1] == {"time": lines[-1]["time"], "event": "Stopped", "savepoint": None, "cancelled": False}


def test_a_recorded_trace_replays_through_a_fresh_coordinator(tmp_path: Path, cluster: ScriptedCluster) -> None:
    trace = tmp_path / "trace.jsonl"
    run = start(tmp_path, cluster, trace=trace)
    completed(cluster, 2)
    cluster.worker_of(0).die()
    cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == SECOND)
    run.stop(savepoint=True)
    with trace.open() as lines:
        assert replay(lines) > 20


@pytest.mark.parametrize(
    ("host", "encrypted", "warned"),
    [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("127.0.0.1", False, False)],
    ids=["network", "network with tls", "this machine"],
)
def test_who_runs_over_a_network_without_tls_is_warned_at_the_start(
    tmp_path: Path,
    cluster: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    host: str,
    encrypted: bool,
    warned: bool,
) -> None:
    monkeypatch.setattr(ScriptedCluster, "host", property(lambda _: host))
    run = start(tmp_path, cluster, tls=Authority(tmp_path / "tls").issue() if encrypted else None)
    run.cancel()
    troubles = [f"{trouble.what}: {trouble.reason}" for trouble in of_kind(run, Trouble)]
    assert len(troubles) == warned
    for trouble in troubles:
        assert "passwords in the program" in trouble
        assert "give tls=recovery.Tls(" in trouble
    assert [record.levelname for record in caplog.records if "not encrypted" in record.message] == ["WARNING"] * warned


# --- failures


def test_when_a_process_is_lost_all_go_back_to_the_last_complete_epoch_and_the_others_keep_their_processes(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)
    survivor, victim = cluster.worker_of(0), cluster.worker_of(1)
    victim.die()
    deploys = cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == SECOND)
    assert {deploy.epoch for deploy in deploys} == {deploys[0].epoch} != {None}
    assert [m.partition for m in survivor.received if isinstance(m, Deploy)] == [0, 0]
    positions = {split: at for deploy in deploys for split, at in deploy.roles[SOURCE].positions.items()}
    assert positions == dict.fromkeys(program_splits(), Json.of(0))
    run.stop()
    assert len(of_kind(run, WorkerLost)) == 1
    assert run.status().restarts == 1
    rows = [row["row"] for row in run.rows("out")]
    assert len(rows) == len(set(rows)), "what the roll-back commits again counts once"


def test_a_partition_is_told_how_many_rows_it_let_others_have_under_way_before(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    """Else the others wait for its state to be opened, with their output."""
    run = start(tmp_path, cluster)
    completed(cluster, 1)
    for partition, window in ((0, 900), (1, 70), (1, 0)):  # 0: it is not known yet
        figures = StageFigures(1, 1, None, 0, 0, 0.0, window=window)
        cluster.worker_of(partition).say(Figures(FIRST, Partition(partition), {SOURCE: figures}, 0, 5.0, 0.0))
    cluster.wait_for(lambda: True if len(run.status().figures) == 2 else None)
    cluster.worker_of(1).die()
    deploys = cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == SECOND)
    run.cancel()
    assert {deploy.partition: deploy.windows for deploy in deploys} == {0: {SOURCE: 900}, 1: {SOURCE: 70}}


def test_a_recovery_is_reported_in_its_seven_phases(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)
    cluster.worker_of(1).die()
    cluster.await_heard(TriggerEpoch, 2, lambda trigger: trigger.incarnation == SECOND)
    for partition in (0, 1):
        cluster.worker_of(partition).say(FirstOutput(SECOND, Partition(partition)))
        cluster.worker_of(partition).say(Figures(SECOND, Partition(partition), {}, 0, 5.0, 0.0))
    cluster.wait_for(lambda: True if of_kind(run, Recovered) else None)
    (recovered,) = of_kind(run, Recovered)
    run.stop()
    marks = recovered.marks
    times = [marks.detected, marks.decided, marks.restarted, marks.downloaded, marks.opened, marks.first_output]
    assert times == sorted(times)
    assert marks.first_output <= marks.caught_up
    assert recovered.epoch is not None
    assert recovered.epoch_age_ms > 0
    assert run.status().recoveries == (recovered,)


def test_a_process_that_shows_no_sign_of_life_is_lost(tmp_path: Path, cluster: ScriptedCluster) -> None:
    cluster.habits.acknowledge = cluster.habits.commit = False
    run = start(tmp_path, cluster, heartbeat="50ms", lost_after="300ms", every="1h")
    cluster.await_heard(AssignSplits, 2)
    cluster.worker_of(1).fall_silent()
    cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == SECOND)
    run.cancel()
    (lost,) = of_kind(run, WorkerLost)
    assert lost.partition == 1
    assert "no sign of life" in lost.reason


def test_a_partition_whose_processes_fall_silent_again_and_again_ends_the_job_with_what_is_suspected(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    scheme = recovery.Passive(poisoned_after=1)
    run = start(tmp_path, cluster, heartbeat="50ms", lost_after="300ms", every="1h", scheme=scheme)
    cluster.await_heard(AssignSplits, 2)
    cluster.worker_of(1).fall_silent()
    with pytest.raises(recovery.JobFailed, match=r"no sign of life.*a function keeps the interpreter to itself"):
        run.wait(PATIENCE)


def test_a_standby_takes_over_at_once(tmp_path: Path) -> None:
    cluster = ScriptedCluster(relaunch=False)
    run = start(tmp_path, cluster, scheme=recovery.Passive(standbys=1))
    completed(cluster, 1)
    cluster.wait_for(lambda: True if len(run.status().workers) == 3 else None)
    cluster.worker_of(1).die()
    cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == SECOND)
    run.stop()
    assert len(cluster.workers) == 3


def test_what_a_partition_of_an_older_attempt_says_changes_nothing(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)
    survivor = cluster.worker_of(0)
    cluster.worker_of(1).die()
    cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == SECOND)
    survivor.say(Failed(FIRST, Partition(0), FailureKind.CHANNEL, "late"))
    survivor.say(AllEnded(FIRST, Partition(0)))
    survivor.say(HasCommitted(FIRST, Partition(0), Epoch(Generation(1), 999)))
    cluster.await_heard(EpochIsOver, 2, lambda over: over.incarnation == SECOND and over.complete)
    run.stop()
    assert run.status().restarts == 1


def test_the_users_own_traceback_is_in_the_error_of_a_job_that_fails_again_and_again(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    cluster.habits.acknowledge = False
    run = start(tmp_path, cluster, scheme=recovery.Passive(poisoned_after=2))
    for attempt in (1, 2):
        incarnation = Incarnation(Generation(1), Attempt(attempt))
        cluster.await_heard(TriggerEpoch, 2, lambda trigger, now=incarnation: trigger.incarnation == now)  # type: ignore[misc]
        text = "Traceback (most recent call last):\n  ...\nValueError: seven"
        failed = Failed(incarnation, Partition(1), FailureKind.PROGRAM, "ValueError: seven", Uid("count"), text)
        cluster.worker_of(1).say(failed)
    with pytest.raises(recovery.JobFailed, match=r"(?s)partition 1: count: ValueError: seven .*Traceback") as error:
        run.wait(PATIENCE)
    assert "failed 2 times in a row" in str(error.value)
    assert error.value.traceback == text
    assert [event.then[:7] for event in of_kind(run, AttemptFailed)] == ["restart", "give up"]
    assert run.status().state is recovery.RunState.FAILED
    assert cluster.heard(Leave)


def test_a_failure_that_a_restart_cannot_cure_ends_the_job_at_once(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    cluster.await_heard(AssignSplits, 2)
    cluster.worker_of(0).say(Failed(FIRST, Partition(0), FailureKind.UNUSABLE, "state 'total' has another type"))
    with pytest.raises(recovery.JobFailed, match="state 'total' has another type"):
        run.wait(PATIENCE)
    assert run.status().restarts == 1


def test_a_damaged_file_that_the_epoch_does_not_name_ends_the_job(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    cluster.await_heard(AssignSplits, 2)
    text = text_of(DamagedFile("shared/1-0-0-1.sst (delta of epoch 1-1) is damaged"))
    cluster.worker_of(0).say(Failed(FIRST, Partition(0), FailureKind.UNUSABLE, text, Uid("count")))
    with pytest.raises(recovery.JobFailed, match=r"shared/1-0-0-1\.sst .* is damaged"):
        run.wait(PATIENCE)


def test_a_job_that_is_given_up_waits_a_moment_for_the_cause_of_a_broken_channel(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster, scheme=recovery.Passive(restarts=recovery.NoRestart()))
    cluster.await_heard(AssignSplits, 2)
    cluster.worker_of(0).say(Failed(FIRST, Partition(0), FailureKind.CHANNEL, "the peer closed it"))
    cluster.worker_of(1).say(Failed(FIRST, Partition(1), FailureKind.PROGRAM, "KeyError: 1", Uid("count"), "own trace"))
    with pytest.raises(recovery.JobFailed, match=r"KeyError: 1(?s:.*)own trace"):
        run.wait(PATIENCE)


FORGED = "channel rows/0->count/1: ForgedFrame: it was changed on the network; turn on tls"


def test_a_job_that_is_given_up_for_a_forged_frame_says_so_whichever_end_of_the_channel_is_heard_first(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster, scheme=recovery.Passive(restarts=recovery.NoRestart()))
    cluster.await_heard(AssignSplits, 2)
    process = cluster.worker_of(0)  # one for both, so that the order is certain
    process.say(Failed(FIRST, Partition(0), FailureKind.CHANNEL, "the receiver closed it"))
    process.say(Failed(FIRST, Partition(1), FailureKind.FORGED, FORGED))
    with pytest.raises(recovery.JobFailed, match=f"partition 1: {FORGED}"):
        run.wait(PATIENCE)
    assert FORGED in run.status().failure


def test_a_job_that_goes_on_after_a_forged_frame_tells_of_it_whichever_end_of_the_channel_is_heard_first(
    tmp_path: Path, cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.habits.acknowledge = False
    run = start(tmp_path, cluster)
    cluster.await_heard(TriggerEpoch, 2)
    told = cluster.worker_of(0), cluster.worker_of(1)
    told[0].say(Failed(FIRST, Partition(0), FailureKind.CHANNEL, "the receiver closed it"))
    cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == SECOND)
    told[1].say(Failed(FIRST, Partition(1), FailureKind.FORGED, FORGED))
    told[1].say(Failed(SECOND, Partition(1), FailureKind.FORGED, FORGED))
    third = Incarnation(Generation(1), Attempt(3))
    cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == third)
    status = run.status()
    assert status.trouble == f"the network: partition 1: {FORGED}"
    assert status.failure == FORGED
    assert status.restarts == 2
    run.cancel()
    said = [(record.name, record.levelname) for record in caplog.records if FORGED in record.getMessage()]
    assert said == [("epochcut.job", "WARNING")] * 2


def test_an_epoch_that_a_partition_declines_is_given_up_and_the_next_one_completes(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    cluster.habits.acknowledge = False
    run = start(tmp_path, cluster, max_in_flight=1)
    (first, _) = cluster.await_heard(TriggerEpoch, 2)[:2]
    cluster.worker_of(1).say(Declining(FIRST, Partition(1), first.marker.epoch, "the disk is full"))
    cluster.await_heard(EpochIsOver, 2, lambda over: not over.complete and over.epoch == first.marker.epoch)
    cluster.habits.acknowledge = True
    completed(cluster, 1)
    run.stop()
    assert "the disk is full" in of_kind(run, EpochAbandoned)[0].detail


def test_a_commit_that_a_target_refuses_for_good_stops_the_job_and_keeps_what_is_prepared(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    cluster.habits.commit = False
    run = start(tmp_path, cluster)
    epoch = completed(cluster, 1)
    cluster.worker_of(0).say(CannotCommit(FIRST, Partition(0), epoch, OUT, "no such table"))
    with pytest.raises(recovery.JobFailed, match=r"cannot commit epoch .*: out: no such table"):
        run.wait(PATIENCE)
    assert all(record.awaits_commit for record in journal(tmp_path).usable)


def test_why_a_commit_is_put_off_is_among_the_events(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)
    cluster.worker_of(1).say(CommitPutOff(FIRST, Partition(1), OUT, "the server is down"))
    [trouble] = cluster.wait_for(lambda: of_kind(run, Trouble) or None)
    assert trouble.what == "committing output of out in partition 1, which is tried again"
    assert trouble.reason == "the server is down"
    run.cancel()


def test_a_stranger_at_the_drivers_port_is_turned_away_and_the_job_goes_on(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster)
    assert cluster.driver is not None
    with socket.create_connection((cluster.driver.host, cluster.driver.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        cluster.wait_for(lambda: True if of_kind(run, PeerRefused) else None)
    newest = max(over.epoch for over in cluster.heard(EpochIsOver)) if cluster.heard(EpochIsOver) else None
    cluster.await_heard(EpochIsOver, 2, lambda over: newest is None or over.epoch > newest)
    run.stop()
    assert "does not speak our protocol" in of_kind(run, PeerRefused)[0].reason


# --- another start


def test_a_job_that_is_started_again_goes_on_from_its_last_complete_epoch(tmp_path: Path) -> None:
    first = ScriptedCluster()
    run = start(tmp_path, first)
    completed(first, 2)
    run.cancel()
    newest = journal(tmp_path).usable[-1].epoch
    second = ScriptedCluster()
    run = start(tmp_path, second, parallelism=3)
    deploys = second.await_heard(Deploy, 3)
    assert {deploy.epoch for deploy in deploys} == {newest}
    assert {deploy.incarnation for deploy in deploys} == {Incarnation(Generation(2), Attempt(1))}
    assert sorted(split for deploy in deploys for split in deploy.roles[SOURCE].positions) == sorted(program_splits())
    assert completed(second, 1) > newest
    run.stop()
    assert run.status().generation == 2
    assert run.job == deploys[0].job


def test_what_an_ended_driver_left_uncommitted_is_committed_by_the_next(tmp_path: Path) -> None:
    first = ScriptedCluster(commit=False)
    run = start(tmp_path, first)
    epoch = completed(first, 1)
    run.cancel()
    assert list(run.rows("out")) == []
    left = [record.epoch for record in journal(tmp_path).usable if record.awaits_commit]
    assert epoch in left
    second = ScriptedCluster(acknowledge=False)
    run = start(tmp_path, second)
    second.wait_for(lambda: True if of_kind(run, EpochCommitted) else None)
    run.cancel()
    assert not any(record.awaits_commit for record in journal(tmp_path).usable)
    rows = [str(row["row"]) for row in run.rows("out")]
    assert sorted(rows) == sorted(f"{epoch}/{partition}" for epoch in left for partition in (0, 1))


def start_behind_uncommitted_output(folder: Path, *, remade: bool = False) -> tuple[recovery.Run, ScriptedCluster]:
    """Until output of other partitions is all that epochs wait for."""
    first = ScriptedCluster(commit=False)
    run = start(folder, first)
    completed(first, 1)
    run.cancel()
    if remade:
        rescale(open_tree(str(folder / "tree")), "newest", 3)
    second = ScriptedCluster(commit=False)
    seen: list[type] = []
    told = threading.Event()
    run = start(folder, second, parallelism=3)

    def heard(event: AnyEvent) -> None:
        seen.append(type(event))
        if isinstance(event, EpochTriggered | Trouble):
            told.set()

    run.listen(heard)
    for event in run.events:
        heard(event)
    assert told.wait(PATIENCE)
    assert Trouble in seen
    assert EpochTriggered not in seen
    return run, second


def commit(cluster: ScriptedCluster) -> None:
    """All three say that they have committed what they were restored with."""
    for partition in (0, 1, 2):
        worker = cluster.worker_of(partition)
        assert worker.deploy is not None
        assert worker.deploy.epoch is not None
        worker.say(HasCommitted(worker.deploy.incarnation, worker.deploy.partition, worker.deploy.epoch))


@pytest.mark.parametrize("remade", [False, True])
def test_output_of_other_partitions_is_committed_before_an_epoch_is_taken(tmp_path: Path, remade: bool) -> None:
    run, cluster = start_behind_uncommitted_output(tmp_path, remade=remade)
    left = [record.epoch for record in journal(tmp_path).usable if record.awaits_commit]
    commit(cluster)
    assert completed(cluster, 1) > left[-1]
    run.cancel()


def test_a_drain_that_is_wished_for_while_output_of_other_partitions_is_committed_follows_that(tmp_path: Path) -> None:
    run, cluster = start_behind_uncommitted_output(tmp_path)
    wished = threading.Event()
    run._driver.ask(lambda generation: generation.drain())
    run._driver.ask(lambda _: wished.set())
    assert wished.wait(PATIENCE)
    assert cluster.heard(Drain) == []
    cluster.habits.commit = True
    commit(cluster)
    end = run.wait(PATIENCE)
    assert end is not None
    assert end.kind is EndKind.FINISHED
    assert len(cluster.heard(Drain)) == 3


def test_a_driver_that_another_one_has_followed_stops(tmp_path: Path) -> None:
    first, second = ScriptedCluster(), ScriptedCluster()
    old = start(tmp_path, first)
    completed(first, 1)
    new = start(tmp_path, second, take_over=True)
    with pytest.raises(FencedOff, match="generation 2 has claimed the job"):
        old.wait(PATIENCE)
    completed(second, 1)
    new.stop()
    assert old.status().state is recovery.RunState.FAILED
    assert journal(tmp_path).generation == 2


def test_a_program_that_does_not_fit_is_refused_with_all_that_differs(tmp_path: Path) -> None:
    run = start(tmp_path, cluster := ScriptedCluster())
    completed(cluster, 1)
    run.stop()
    other = program(source="figures", count="total")
    with pytest.raises(recovery.ProgramDoesNotFit) as error:
        start(tmp_path, ScriptedCluster(), other).wait(PATIENCE)
    text = str(error.value)
    assert "removed: count, with keyed state" in text
    assert "removed: numbers, with the positions of a source" in text
    assert "added: figures (source)" in text
    assert "added: total (keyed operator)" in text


# --- ends


def test_a_stop_with_a_savepoint_pauses_the_sources_behind_it_and_ends_when_it_is_committed(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster, every="1h")
    cluster.await_heard(AssignSplits, 2)
    cluster.habits.commit = False
    run._driver.ask(lambda generation: generation.stop(savepoint=True))
    (trigger, _) = cluster.await_heard(TriggerEpoch, 2)
    assert trigger.then is Then.STOP
    assert trigger.marker.savepoint
    epoch = completed(cluster, 1)
    assert not cluster.heard(Leave), "it is not committed yet"
    for partition in (0, 1):
        cluster.worker_of(partition).say(HasCommitted(FIRST, Partition(partition), epoch))
    end = run.wait(PATIENCE)
    assert end is not None
    assert (end.kind, end.epoch, end.savepoint) == (EndKind.STOPPED, epoch, True)
    assert journal(tmp_path).pinned == {epoch}


def test_a_stop_is_tried_again_when_its_epoch_is_lost_with_the_attempt(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    cluster.habits.acknowledge = False
    run = start(tmp_path, cluster, every="1h")
    cluster.await_heard(AssignSplits, 2)
    run._driver.ask(lambda generation: generation.stop(savepoint=False))
    cluster.await_heard(TriggerEpoch, 2, lambda trigger: trigger.then is Then.STOP)
    cluster.habits.acknowledge = True
    cluster.worker_of(1).die()
    end = run.wait(PATIENCE)
    assert end is not None
    assert end.epoch == Epoch(Generation(1), 2)
    assert journal(tmp_path).pinned == frozenset()


def test_a_savepoint_is_pinned_and_the_job_runs_on(tmp_path: Path, cluster: ScriptedCluster) -> None:
    with start(tmp_path, cluster) as run:
        epoch = run.savepoint(PATIENCE)
        cluster.await_heard(EpochIsOver, 2, lambda over: over.complete and over.epoch > epoch)
        assert not cluster.heard(TriggerEpoch, lambda trigger: trigger.then is Then.STOP)
    state = journal(tmp_path)
    assert state.pinned == {epoch}
    assert epoch in [record.epoch for record in state.retained]


def test_who_waits_for_a_savepoint_hears_that_the_job_is_over(tmp_path: Path, cluster: ScriptedCluster) -> None:
    cluster.habits.acknowledge = False
    run = start(tmp_path, cluster, every="1h")
    cluster.await_heard(AssignSplits, 2)
    wished = run._driver.savepoint()
    cluster.await_heard(TriggerEpoch, 2)
    run.cancel()
    with pytest.raises(Cancelled):
        wished.result(PATIENCE)
    with pytest.raises(recovery.JobFailed, match="the job is over"):
        run.savepoint(PATIENCE)


def test_bounded_input_ends_in_a_last_epoch_that_is_committed(tmp_path: Path) -> None:
    cluster = ScriptedCluster(end=True)
    run = start(tmp_path, cluster, every="1h")
    end = run.wait(PATIENCE)
    assert end is not None
    assert end.kind is EndKind.FINISHED
    (record,) = journal(tmp_path).usable
    assert not record.awaits_commit
    assert len(list(run.rows("out"))) == 2
    again = start(tmp_path, second := ScriptedCluster(end=True), every="1h")
    assert again.wait(PATIENCE) is not None
    positions = [at for deploy in second.heard(Deploy) for at in deploy.roles[SOURCE].positions.values()]
    assert positions == [NULL, NULL]


def test_a_drain_lets_all_sources_end_and_then_the_job(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster, every="1h")
    cluster.await_heard(AssignSplits, 2)
    run.drain(PATIENCE)
    assert len(cluster.heard(Drain)) == 2
    assert run.status().state is recovery.RunState.FINISHED


def test_a_block_that_fails_cancels_the_job(tmp_path: Path, cluster: ScriptedCluster) -> None:
    with pytest.raises(ZeroDivisionError), start(tmp_path, cluster) as run:
        _ = 1 / 0
    assert run.status().state is recovery.RunState.STOPPED
    assert not cluster.heard(TriggerEpoch, lambda trigger: trigger.then is Then.STOP)


def test_a_job_without_enough_processes_says_how_many_have_come(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    cluster.start = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(recovery.JobFailed, match=r"only 0 of 2 processes have come in 0\.2 s"):
        start(tmp_path, cluster, start_timeout="200ms").wait(PATIENCE)


def test_wait_gives_up_after_its_time_and_the_job_runs_on(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    with pytest.raises(TimeoutError, match="is not over after"):
        run.wait(0.01)
    completed(cluster, 1)
    run.stop()


def test_a_process_without_a_role_is_told_to_stand_by(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    run = start(tmp_path, cluster, scheme=recovery.Passive(standbys=2))
    completed(cluster, 1)
    cluster.wait_for(lambda: True if len(run.status().workers) == 4 else None)
    cluster.worker_of(0).die()
    cluster.await_heard(StandDown, 1, lambda stand_down: stand_down.incarnation == SECOND)
    run.stop()
