"""The parts of a driver that decide or remember one thing each."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import fields, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import recovery
from recovery import events as log
from recovery.driver.attempts.recovery_clock import RecoveryClock
from recovery.driver.attempts.requests import End, Endings, EndKind, SavepointRequests
from recovery.driver.report.deliveries import Deliveries
from recovery.driver.report.event_log import EventLog, line_of
from recovery.driver.report.progress import ProgressLine
from recovery.driver.report.progress import line_of as progress_of
from recovery.driver.report.status import RunState, RunStatus, StatusBoard
from recovery.driver.settings.options import (
    PARAMETERS,
    Advanced,
    Options,
    RunOptions,
    UnknownOption,
    check_names,
    in_their_places,
    options_of,
)
from recovery.driver.tree.address import home_of
from recovery.driver.tree.identity import Birth, Wanted, WrongJob, bear, bytes_of, find_birth, wanted_birth
from recovery.schemes.passive import Passive
from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator_options import ContradictingOptions, CoordinatorOptions
from snapshot.host.protocol.executor import lasting_folder
from snapshot.host.protocol.messages import Delivery
from snapshot.host.protocol.options import Following, HostOptions
from snapshot.ids import JobId, Member, TransactionId
from snapshot.journal.state import NO_OUTPUT, EpochRecord, EpochState, JournalState
from snapshot.replication.positions import Position
from statebackend.durations import NotADuration
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.local_store import LocalStore
from tests.scripted_workers import SCHEMA, arrow_stream

ATTEMPT = Incarnation(Generation(1), Attempt(1))
OUT = Uid("out")


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def test_a_status_says_on_which_executor_a_process_is_while_it_is_there() -> None:
    board = StatusBoard("job", 1, "Passive")
    board.event(log.WorkerJoined(at=0.0, worker="w", slot=0, pid=1, address="h:1", executor="host:77"))
    board.event(log.WorkerJoined(at=0.0, worker="v", slot=1, pid=2, address="h:2"))
    assert board.show().executors == {"w": "host:77"}
    board.event(log.WorkerLost(at=0.0, worker="w", partition=None, reason="gone"))
    assert board.show().executors == {}


@pytest.mark.parametrize("kind", ["warm", "files", "open"])
def test_what_standbys_have_ready_may_be_said_as_a_word(kind: str) -> None:
    assert Passive(following=kind).ready is Following(kind)
    assert Passive(following=Following(kind)).ready is Following(kind)


def test_a_word_that_says_nothing_about_standbys_is_refused() -> None:
    with pytest.raises(ValueError, match="'hot'; standbys can follow in these ways: 'warm', 'files', 'open'"):
        Passive(following="hot")


# --- how a job ends


def state(number: int, *, committed: bool) -> JournalState:
    how = EpochState.COMMITTED if committed else EpochState.COMPLETE
    record = EpochRecord(epoch(number), "m", "sha256:00", has_committables=True, output=NO_OUTPUT, state=how)
    return JournalState(epochs=(record,))


def test_a_job_has_ended_when_an_epoch_from_behind_the_end_of_all_input_is_committed() -> None:
    endings = Endings()
    assert not endings.triggered(epoch(1), savepoint=False, asked_by=events.Ticked(1))
    request = endings.all_ended()
    assert request == events.EpochRequested(last=True)
    assert not endings.triggered(epoch(2), savepoint=False, asked_by=request)
    assert endings.reached(state(1, committed=True)) is None
    assert endings.reached(state(2, committed=False)) is None
    assert endings.reached(state(2, committed=True)) == End(EndKind.FINISHED, epoch(2), savepoint=False)


def test_an_epoch_that_was_due_when_all_input_had_ended_is_not_the_last_one() -> None:
    endings = Endings()
    request = endings.all_ended()
    endings.triggered(epoch(1), savepoint=False, asked_by=events.Ticked(1))
    endings.triggered(epoch(2), savepoint=False, asked_by=request)
    assert endings.reached(state(1, committed=True)) is None, "the next one is complete, and its output not committed"
    assert not endings.given_up(epoch(1))
    assert endings.given_up(epoch(2))
    assert endings.wanted() == request


def test_the_end_of_input_counts_for_its_attempt_only() -> None:
    endings = Endings()
    endings.triggered(epoch(1), savepoint=False, asked_by=endings.all_ended())
    endings.attempt_over()
    assert endings.wanted() is None
    assert endings.reached(state(1, committed=True)) is None


def test_sources_pause_behind_the_epoch_that_was_asked_for_and_behind_no_other() -> None:
    endings = Endings()
    request = endings.stop(savepoint=True)
    assert not endings.triggered(epoch(1), savepoint=False, asked_by=events.Ticked(1))
    assert endings.wanted() == request
    assert endings.triggered(epoch(2), savepoint=True, asked_by=request)
    assert endings.wanted() is None
    assert endings.reached(state(2, committed=True)) == End(EndKind.STOPPED, epoch(2), savepoint=True)


def test_a_last_epoch_that_was_given_up_is_asked_for_again() -> None:
    endings = Endings()
    request = endings.stop(savepoint=False)
    endings.triggered(epoch(1), savepoint=False, asked_by=request)
    assert endings.given_up(epoch(1))
    assert not endings.given_up(epoch(7))
    assert endings.wanted() == request


def test_a_savepoint_is_for_all_who_waited_for_it_and_is_tried_again_if_it_was_given_up() -> None:
    wishes, answers = SavepointRequests(), list[Epoch | Exception]()
    wishes.add(answers.append)
    wishes.add(answers.append)
    wishes.triggered(epoch(1))
    wishes.taken(epoch(7))
    wishes.given_up(epoch(1))
    assert wishes.waiting
    wishes.triggered(epoch(2))
    wishes.taken(epoch(2))
    wishes.taken(epoch(2))
    assert answers == [epoch(2), epoch(2)]


def test_a_savepoint_that_is_wished_for_when_the_job_is_over_is_refused_at_once() -> None:
    wishes, early, late, error = SavepointRequests(), list[object](), list[object](), RuntimeError("over")
    wishes.add(early.append)
    wishes.end(error)
    wishes.add(late.append)
    assert early == late == [error]
    assert not wishes.waiting


# --- rows for the driver


def delivery(transaction: str | None, *rows: str) -> Delivery:
    name = None if transaction is None else TransactionId(transaction)
    return Delivery(ATTEMPT, Partition(0), OUT, name, arrow_stream(pa.table({"row": list(rows)}, schema=SCHEMA)))


def taken(deliveries: Deliveries) -> list[str]:
    deliveries.end()
    return [row["row"] for batch in deliveries.batches(OUT) for row in batch.to_pylist()]


def test_rows_of_a_transaction_count_once_and_rows_without_one_always() -> None:
    deliveries = Deliveries()
    for one in (delivery("a", "1", "2"), delivery("a", "1", "2"), delivery(None, "3"), delivery(None, "3")):
        deliveries.add(one)
    assert deliveries.rows == 4
    assert taken(deliveries) == ["1", "2", "3", "3"]


def copy(epoch: int, first: int, *rows: str, attempt: Incarnation = ATTEMPT) -> Delivery:
    return replace(delivery(None, *rows), at=Position(Epoch(Generation(1), epoch), first), incarnation=attempt)


def test_of_rows_that_each_member_brings_the_first_copy_counts_however_they_are_cut() -> None:
    deliveries, again = Deliveries(), Incarnation(ATTEMPT.generation, Attempt(ATTEMPT.attempt + 1))
    deliveries.add(copy(1, 0, "a", "b"))
    deliveries.add(copy(1, 0, "a", "b", "c"))
    deliveries.add(copy(1, 2, "c"))
    deliveries.add(copy(2, 0, "d"))
    deliveries.add(copy(1, 3, "x"))
    deliveries.add(copy(2, 0, "d", "e"))
    deliveries.add(copy(1, 0, "a", attempt=again))
    assert deliveries.rows == 6
    assert taken(deliveries) == ["a", "b", "c", "d", "e", "a"]


def test_a_transaction_that_the_newest_epoch_names_is_remembered_though_it_is_committed() -> None:
    deliveries = Deliveries()
    deliveries.add(delivery("a", "1"))
    deliveries.completed([TransactionId("a"), TransactionId("b")])
    deliveries.add(delivery("a", "1"))
    deliveries.completed([TransactionId("c")])
    assert deliveries._seen == set()
    assert taken(deliveries) == ["1"]


def test_a_reader_waits_for_rows_and_ends_with_the_job() -> None:
    deliveries, rows = Deliveries(), list[str]()
    reader = threading.Thread(target=lambda: rows.extend(b.to_pylist()[0]["row"] for b in deliveries.batches(OUT)))
    reader.start()
    deliveries.add(delivery(None, "1"))
    deliveries.end()
    reader.join(10)
    assert rows == ["1"]


# --- the marks of a recovery


def test_the_marks_are_measured_from_the_first_failure_and_those_of_a_second_try_count() -> None:
    clock = RecoveryClock()
    clock.lag(0, Partition(0), 250.0)
    clock.detected(1000)
    clock.decided(1001)
    clock.restarted(1002, 2)
    clock.detected(1100)
    clock.decided(1101)
    clock.restarted(1110, 2)
    clock.restored(1135, 20.0)
    clock.restored(1135, 15.0)
    clock.opened(1140)
    clock.first_output(1150)
    clock.first_output(1160)
    clock.lag(1170, Partition(0), 240.0)
    clock.lag(1180, Partition(1), 900.0)
    assert clock.over(1180) is None
    clock.lag(1200, Partition(1), 99.0)
    assert clock.over(1200) == log.Marks(
        decided=101, restarted=110, downloaded=130, opened=140, first_output=150, caught_up=200
    )
    assert not clock.running
    assert clock.over(1200, finally_=True) is None


def test_a_recovery_that_did_not_come_to_its_end_tells_the_marks_that_it_has() -> None:
    clock = RecoveryClock()
    assert clock.over(4, finally_=True) is None
    clock.detected(5)
    clock.decided(7)
    assert clock.over(7) is None
    assert clock.over(7, finally_=True) == log.Marks(decided=2)


def test_output_of_a_partition_that_is_open_before_the_others_comes_first_and_catching_up_comes_after_all() -> None:
    clock = RecoveryClock()
    clock.detected(1000)
    clock.decided(1001)
    clock.restarted(1010, 2)
    clock.restored(1015, 9.0)
    clock.first_output(1020)
    clock.lag(1021, Partition(0), 0.0)
    clock.lag(1021, Partition(1), 0.0)
    clock.restored(1030, 8.0)
    clock.opened(1030)
    assert clock.over(1030) is None
    clock.lag(1040, Partition(0), 0.0)
    clock.lag(1041, Partition(1), 0.0)
    assert clock.over(1041) == log.Marks(
        decided=1, restarted=10, downloaded=18, opened=30, first_output=20, caught_up=41
    )


def test_files_are_not_there_later_than_the_partition_that_has_them() -> None:
    clock = RecoveryClock()
    clock.detected(1000)
    clock.decided(1001)
    clock.restarted(1010, 1)
    clock.restored(1014, 5.0)
    clock.opened(1014)
    assert clock.over(1014, finally_=True) == log.Marks(decided=1, restarted=10, downloaded=14, opened=14)


def test_a_recovery_of_a_job_that_has_no_output_to_give_is_over_some_time_after_it_has_caught_up() -> None:
    clock = RecoveryClock()
    clock.detected(1000)
    clock.decided(1001)
    clock.restarted(1010, 1)
    clock.restored(1020, 5.0)
    clock.opened(1020)
    clock.lag(1030, Partition(0), 0.0)
    assert clock.over(11_029) is None
    assert clock.over(11_030) == log.Marks(decided=1, restarted=10, downloaded=15, opened=20, caught_up=30)
    clock.detected(50_000)
    clock.decided(50_002)
    assert clock.over(50_002, finally_=True) == log.Marks(decided=2), "another failure is timed from itself"


# --- the log, the line


def test_a_listener_that_is_taken_back_while_it_raises_harms_nothing(tmp_path: Path) -> None:
    events_log = EventLog(tmp_path / "events.jsonl")
    heard: list[object] = []

    def listener(_: object) -> None:
        enough()
        raise ZeroDivisionError

    enough = events_log.listen(listener)
    events_log.listen(heard.append)
    for _ in range(2):
        events_log.add(log.Stopped(at=0.0, savepoint=None))
    assert len(heard) == 2


def test_an_event_is_a_line_of_json_with_its_time_and_name(tmp_path: Path) -> None:
    event = log.Deployed(
        at=1_700_000_000.25, incarnation=ATTEMPT, epoch=epoch(3), workers=("a",), members=(Member(Partition(1)),)
    )
    expected = {
        "time": "2023-11-14T22:13:20.250Z",
        "event": "Deployed",
        "incarnation": "1.1",
        "epoch": "3-1",
        "workers": ["a"],
        "members": ["1.0"],
        "primaries": [],
    }
    assert json.loads(line_of(event)) == expected
    heard: list[log.AnyEvent] = []
    events_log = EventLog(tmp_path / "folder" / "events.jsonl")
    events_log.listen(heard.append)
    events_log.add(event)
    events_log.close()
    events_log.add(event)
    assert (tmp_path / "folder" / "events.jsonl").read_text() == line_of(event)
    assert heard == [event, event] == list(events_log.events)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_that_is_written_anew() -> None:
    screen, status = Screen(), RunStatus("clicks", RunState.RUNNING, 2, roles={"a": Member(Partition(0)), "b": None})
    line = ProgressLine(screen)
    line.show(status)
    line.show(status)
    line.end(RunStatus("clicks", RunState.FAILED, 2))
    assert screen.getvalue() == "\rclicks: running | 1/2 partitions\rclicks: failed | 0/2 partitions \n"


def test_where_nobody_looks_nothing_is_written() -> None:
    file = io.StringIO()
    for line in (ProgressLine(file), ProgressLine(None)):
        line.show(RunStatus("clicks", RunState.RUNNING, 2))
        line.end(RunStatus("clicks", RunState.RUNNING, 2))
    assert file.getvalue() == ""


class BrokenScreen(Screen):
    """Its reader has gone."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise BrokenPipeError(32, "Broken pipe")


def test_a_terminal_that_takes_nothing_more_is_given_up() -> None:
    broken, closed = BrokenScreen(), Screen()
    closed.close()
    status = RunStatus("clicks", RunState.RUNNING, 2)
    for screen in (broken, closed):
        line = ProgressLine(screen, always=True)
        line.show(status)
        line.end(status)
        line.end(status)
    assert broken.tries == 1


def test_nobody_looks_at_a_closed_terminal() -> None:
    class Closed(Screen):
        def isatty(self) -> bool:
            raise ValueError("I/O operation on closed file")

    screen = Closed()
    ProgressLine(screen).show(RunStatus("clicks", RunState.RUNNING, 2))
    assert screen.getvalue() == ""


def test_the_line_has_the_newest_epoch_the_rate_and_the_restarts() -> None:
    done = log.EpochCompleted(
        at=0, epoch=epoch(17), savepoint=False, since_trigger_ms=12.3, alignment_ms=0, sync_ms=0, async_ms=0,
        state_bytes=0, channel_bytes=0,
    )  # fmt: skip
    status = RunStatus("clicks", RunState.RECOVERING, 2, epochs=(done,), restarts=3)
    assert progress_of(status, 1_234_567.0) == (
        "clicks: recovering | 0/2 partitions | epoch 17-1 in 12 ms | 1.2M rows/s | 3 restarts"
    )


# --- the birth of a job


def wanted(store: LocalStore, name: str | None = None, most: int | None = None, parallelism: int = 2) -> Wanted:
    return wanted_birth(store, "the place", name, most, parallelism)


def born(store: LocalStore, name: str, most: int | None = None) -> Birth:
    birth = wanted(store, name, most).birth
    bear(store, birth, "the place")
    return birth


def test_a_job_is_born_once_and_keeps_its_name_and_key_groups(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    clicks = born(store, "clicks", 64)
    assert clicks.job.startswith("clicks-")
    assert wanted(store, "clicks", 64) == wanted(store) == Wanted(clicks, is_new=False)
    assert born(LocalStore(tmp_path / "other"), "clicks", 64).job != clicks.job


def test_a_job_that_is_only_wanted_is_not_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert wanted(store, "clicks").is_new
    assert not store.list()


def test_of_two_that_begin_a_job_the_second_is_refused_and_starts_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    second = wanted(store, "orders").birth
    clicks = born(store, "clicks")
    with pytest.raises(WrongJob, match="another start has just begun a job at the place; start again"):
        bear(store, second, "the place")
    assert wanted(store).birth == clicks


def test_what_contradicts_the_birth_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    born(store, "clicks")
    with pytest.raises(WrongJob, match="at the place are those of job 'clicks', not of 'orders'; say job='clicks'"):
        wanted(store, "orders")
    with pytest.raises(
        WrongJob, match=r"max_parallelism is 64.* was born with 128: .*; leave the option out, or begin"
    ):
        wanted(store, None, 64)
    with pytest.raises(WrongJob, match=r"parallelism is 129, .* born with max_parallelism 128.* in an empty place"):
        wanted(store, parallelism=129)
    with pytest.raises(WrongJob, match="no name of a job"):
        wanted(store, "a b")


@pytest.mark.parametrize(
    ("parallelism", "most", "complaint"),
    [
        (129, None, "choose 1 to 128, or give a max_parallelism of at least 129"),
        (0, None, "choose 1 to 128$"),
        (5, 4, "choose 1 to 4, or give a max_parallelism of at least 5"),
        (1, 0, "max_parallelism is 0; 1 to 32768 are possible"),
        (1, 32769, "max_parallelism is 32769; 1 to 32768"),
    ],
)
def test_a_parallelism_that_a_new_job_cannot_have_is_refused_before_there_is_one(
    tmp_path: Path, parallelism: int, most: int | None, complaint: str
) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(ContradictingOptions, match=complaint):
        wanted(store, "clicks", most, parallelism)
    assert not store.list()


def test_where_a_tree_is_being_made_no_other_job_is_born(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    mark = "unfinished/0000000001-1.json"
    clicks = wanted(store, "clicks").birth
    store.write(mark, b"{}")
    for refused in (lambda: wanted(store, "clicks"), lambda: bear(store, clicks, "")):
        with pytest.raises(WrongJob, match="or was interrupted, as unfinished/ shows; wait for it or do it again"):
            refused()
    assert [info.path for info in store.list()] == [mark]
    store.delete(mark)
    bear(store, clicks, "")
    store.write(mark, b"{}")
    assert wanted(store, "clicks").birth == clicks, "the job is there, and only the mark is left"


def job_bytes(name: str, job: str, groups: int) -> bytes:
    return bytes_of(Birth(name, JobId(job), groups))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"x", "is damaged"),
        (b"{}", "is not one"),
        (b'{"format":"epochcut.job","version":2}', "version 2; a newer program wrote it"),
        (b"[" * 100_000, "is damaged: maximum recursion depth"),
        (job_bytes("clicks", "/etc/cron.d", 128), "is damaged: job '/etc/cron.d' cannot be named 'clicks'"),
        (job_bytes("clicks", "../clicks-01234567", 128), "cannot be named 'clicks'"),
        (job_bytes("clicks", "clicks-0123456", 128), "cannot be named 'clicks'"),
        (job_bytes("clicks", "other-01234567", 128), "cannot be named 'clicks'"),
        (job_bytes("a/b", "a/b-01234567", 128), "cannot be named 'a/b'"),
        (
            job_bytes("clicks", "clicks-01234567", 0),
            r"no job has 0 key groups \(max_parallelism\); there are 1 to 32768",
        ),
        (job_bytes("clicks", "clicks-01234567", 32769), "no job has 32769 key groups"),
        (job_bytes("clicks", "clicks-01234567", True), "no job has True key groups"),
    ],
)
def test_a_birth_that_cannot_be_read_or_that_no_job_ever_had_is_refused(
    tmp_path: Path, data: bytes, complaint: str
) -> None:
    store = LocalStore(tmp_path)
    store.write("job.json", data)
    with pytest.raises(WrongJob, match=complaint):
        wanted(store)
    with pytest.raises(WrongJob, match=complaint):
        find_birth(store, "here")


@pytest.mark.parametrize("job", ["", "..", "/etc/cron.d", "a/../b-01234567", "clicks", "clicks-01234567/x"])
def test_no_folder_is_named_after_what_is_no_id_of_a_job(job: str) -> None:
    with pytest.raises(WrongJob, match="is no id of a job"):
        home_of(JobId(job))
    assert home_of(JobId("clicks-01234567")).name == "clicks-01234567"


def test_a_job_is_not_born_with_more_key_groups_than_there_can_be(tmp_path: Path) -> None:
    with pytest.raises(ContradictingOptions, match="max_parallelism is 32769; 1 to 32768 are possible"):
        wanted(LocalStore(tmp_path), "clicks", 32769)
    assert LocalStore(tmp_path).list() == ()


# --- options


def test_an_unknown_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownOption, match=r"no option 'retian'; did you mean 'retain'\?"):
        check_names({"retian": 3})
    with pytest.raises(UnknownOption, match=r"'evry'; did you mean 'every'.\nthere is no option 'zzz'\nThere are: "):
        check_names({"evry": "1s", "zzz": 1})


def test_an_option_that_run_has_by_name_is_known_as_well() -> None:
    named = [one.name for one in signature(recovery.run).parameters.values() if one.kind is Parameter.KEYWORD_ONLY]
    assert list(PARAMETERS) == named


def test_every_option_has_a_place_in_the_frozen_type_and_the_other_way_round() -> None:
    parts = {"coordinator", "host"}
    of_epochs = {field.name for field in fields(CoordinatorOptions)} - {"interval", "mode", "rhythm"}  # of `run` itself
    of_hosts = {field.name for field in fields(HostOptions)}
    frozen = {field.name for field in fields(Options)} - parts | of_epochs | of_hosts
    public, advanced = set(RunOptions.__annotations__) - {"advanced"}, set(Advanced.__annotations__)
    assert frozen == public | advanced
    assert not public & advanced


def test_an_advanced_option_among_the_others_is_refused_with_its_place_and_the_other_way_round() -> None:
    with pytest.raises(
        UnknownOption, match=r"heartbeat is an advanced option; give it as advanced=\{'heartbeat': ...\}"
    ):
        check_names({"heartbeat": "1s"})
    with pytest.raises(UnknownOption, match=r"retain is no advanced option; give it as retain=..."):
        check_names({"advanced": {"retain": 1}})
    with pytest.raises(UnknownOption, match=r"advanced: there is no option 'lingr'; did you mean 'linger'\?"):
        check_names({"advanced": {"lingr": 1}})
    with pytest.raises(UnknownOption, match="advanced is 5; give a dict"):
        check_names({"advanced": 5})
    assert in_their_places({"retain": 2, "linger": "1ms"}) == {"retain": 2, "advanced": {"linger": "1ms"}}


def test_what_is_left_out_is_as_the_texts_say() -> None:
    assert options_of("1s", "aligned", {}) == Options()


def test_times_may_be_written_as_people_say_them() -> None:
    given: RunOptions = {
        "alignment_timeout": None,
        "give_up_after": None,
        "local": "folder",
        "advanced": {
            "timeout": "1m",
            "min_pause": 0,
            "linger": "3ms",
            "heartbeat": "100ms",
            "stop_timeout": "1500ms",
            "lost_after": "1500ms",
        },
    }
    made = options_of("2s", "unaligned", given)
    epochs = made.coordinator
    assert (epochs.interval, epochs.timeout, epochs.mode.value) == (2000, 60_000, "unaligned")
    assert (made.host.linger, made.host.heartbeat) == (3, 100)
    assert (made.stop_timeout, made.give_up_after, made.lost_after, made.local) == (1500, None, 1500, Path("folder"))


@pytest.mark.parametrize("name", ["timeout", "heartbeat", "lost_after", "start_timeout", "interrupt_timeout"])
def test_a_time_that_cannot_be_none_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(NotADuration, match=rf"^{name}: None is no duration"):
        options_of("1s", "aligned", cast("RunOptions", in_their_places({name: None})))


def test_an_empty_path_is_no_path_and_not_the_folder_in_which_the_driver_runs() -> None:
    made = options_of("1s", "aligned", {"local": "", "events": "", "advanced": {"trace": ""}})
    assert (made.local, made.events, made.trace) == (None, None, None)


def test_no_process_can_be_lost_for_one_beat_that_is_late() -> None:
    with pytest.raises(ContradictingOptions, match=r"lost_after is 299 ms.* 100 ms it must be at least 300"):
        options_of("1s", "aligned", {"advanced": {"heartbeat": "100ms", "lost_after": "299ms"}})
    assert options_of("1s", "aligned", {"advanced": {"heartbeat": "100ms", "lost_after": "300ms"}}).lost_after == 300


def test_options_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(NotADuration):
        options_of("soon", "aligned", {})
    with pytest.raises(ContradictingOptions):
        options_of("1s", "aligned", {"retain": 0})
    with pytest.raises(ValueError, match="sideways"):
        options_of("1s", "sideways", {})


# --- slots of Spark


class Conf:
    def __init__(self, **settings: str) -> None:
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}

    def get(self, name: str, default: str) -> str:
        return self.settings.get(name, default)


class Java:
    """The Java side of a context that was not stopped."""

    def sc(self) -> Java:
        return self

    def isStopped(self) -> bool:
        return False


class Session:
    """What of a Spark session is asked before anything starts."""

    def __init__(self, cores: int = 0, **settings: str) -> None:
        self.conf = Conf(**settings)
        self.sparkContext = self
        self.defaultParallelism = cores
        self._jsc = Java()

    def getConf(self) -> Conf:
        return self.conf


def tasks(cores: int = 0, **settings: str) -> recovery.SparkTasks:
    session: Any = Session(cores, **{"spark_python_daemon_module": "snapshot.host.spark_daemon", **settings})
    return recovery.SparkTasks(session)


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"spark_master": "local"}, 1),
        ({"spark_master": "local[3]"}, 3),
        ({"spark_master": "local[3,1000]"}, 3),
        ({"spark_master": "local[*]", "cores": 5}, 5),
        ({"spark_master": "local[2]", "spark_task_cpus": "0.1"}, 20),
        ({"spark_master": "local-cluster[2,3,1024]"}, 6),
        ({"spark_master": "local-cluster[2,3,1024]", "spark_task_cpus": "2"}, 2),
    ],
)
def test_too_few_slots_are_refused_before_anything_starts(settings: dict[str, Any], slots: int) -> None:
    assert list(tasks(**settings).check(slots)) == []
    with pytest.raises(recovery.CannotLaunch, match=rf"needs {slots + 1} task slots .* has {slots};"):
        tasks(**settings).check(slots + 1)


def test_a_local_session_is_told_how_to_get_more_slots() -> None:
    with pytest.raises(recovery.CannotLaunch, match=r"start the session with master\('local\[9\]'\) or more"):
        tasks(spark_master="local[2]").check(9)


def test_a_setting_that_kills_long_tasks_is_refused() -> None:
    with pytest.raises(recovery.CannotLaunch, match="killOnIdleTimeout is on, and would kill"):
        tasks(spark_master="local[2]", spark_python_worker_killOnIdleTimeout="true").check(1)


def test_what_is_unwise_is_said() -> None:
    (said,) = tasks(spark_master="local[2]", spark_speculation="true").check(1)
    assert said.startswith("spark.speculation is on")


def test_a_session_that_starts_processes_slowly_is_told_which_setting_is_missing() -> None:
    (said,) = tasks(spark_master="local[2]", spark_python_daemon_module="pyspark.daemon").check(1)
    assert "spark.python.daemon.module=snapshot.host.spark_daemon; see recovery.spark_settings()" in said


def test_a_session_with_the_settings_that_are_recommended_is_told_nothing() -> None:
    settings = {name.replace(".", "_"): value for name, value in recovery.spark_settings().items()}
    assert list(tasks(0, **settings, spark_master="local[2]").check(2)) == []


def test_executors_are_not_warmed_up_for_a_job_that_is_over_though_a_process_of_it_comes_late() -> None:
    spark, before = tasks(spark_master="spark://h:7077"), set(threading.enumerate())
    spark.release()
    spark.appeared(1, "late")
    assert set(threading.enumerate()) <= before


def test_a_job_goes_on_though_there_is_no_thread_that_warms_executors_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    spark = tasks(spark_master="spark://h:7077")
    monkeypatch.setattr(threading.Thread, "start", start)
    spark.appeared(1, "first")
    spark.release()


def test_the_address_of_the_driver_is_the_one_that_executors_see() -> None:
    assert tasks(spark_master="spark://h:7077", spark_driver_host="10.0.0.1").host == "10.0.0.1"
    assert tasks(spark_master="local[2]", spark_driver_host="10.0.0.1").host == "127.0.0.1"


@pytest.mark.parametrize(
    ("master", "local"),
    [("spark://h:7077", "epochcut"), ("yarn", "epochcut"), ("k8s://h:443", None), ("local[2]", None)],
)
def test_state_is_below_the_lasting_folder_of_a_cluster_that_has_one(master: str, local: str | None) -> None:
    assert tasks(spark_master=master).local == local


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"SPARK_EXECUTOR_DIRS": "/a:/b"}, "/a"),
        ({"CONTAINER_ID": "container_1_0001_01_000002", "LOCAL_DIRS": "/a,/b"}, "/a"),
        ({"LOCAL_DIRS": "/not/of/yarn"}, None),
        ({}, None),
    ],
)
def test_the_lasting_folder_of_an_executor_is_what_its_cluster_says(
    environment: dict[str, str], folder: str | None
) -> None:
    assert lasting_folder(environment) == folder
