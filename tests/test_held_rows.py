"""Rows wait for larger files over epochs, deaths and changes of the program, and are in one file each in the end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot import ToFiles, committed_files
from snapshot.connectors.files import sink as file_sink
from snapshot.connectors.files.held_rows import rows_of, to_merge, with_rows
from snapshot.connectors.files.writer import FileWriter
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.program.sink import SinkError
from snapshot.testing.sinks import CHECKS, SCHEMA, SinkBench, SinkEnvironment, SinkTrial, settled, write
from snapshot.tree.frozen_json import Json
from snapshot.tree.manifest import CommitPayload
from statebackend.durations import NotADuration
from tests.files_of_a_day import Day
from tests.test_file_sink import readable, trial


class Clock:
    """Sets itself on by so much whenever it is read."""

    def __init__(self, steps_ms: int = 0) -> None:
        self.now, self.steps = 1_000_000, steps_ms

    def __call__(self) -> int:
        self.now += self.steps
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(file_sink, "now_ms", clock)
    return clock


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("listed", [False, True])
def test_files_whose_time_has_come_pass_the_kit(check: object, listed: bool, tmp_path: Path, clock: Clock) -> None:
    clock.steps = 60_001
    check(trial(f"file://{tmp_path}/out", "jsonl", listed=listed, roll_every="1m"))  # type: ignore[operator]


class Bench:
    """Attempts of one partition, whose every transaction is of a complete epoch."""

    def __init__(self, sink: ToFiles) -> None:
        self.sink = sink
        self.bench = SinkBench(SinkTrial(sink, lambda _: readable(sink.uri)))
        self.held: list[CommitPayload] = []
        self.start()

    def start(self, sink: ToFiles | None = None) -> None:
        self.bench._trial = SinkTrial(sink or self.sink, lambda _: readable(self.sink.uri))
        writer = self.bench.writer()
        assert isinstance(writer, FileWriter)
        if self.held:
            writer.take_over(self.held)
        self.writer, self.open = writer, self.bench.name()
        writer.begin(self.open)

    def epoch(self, rows: Sequence[str] = ()) -> CommitPayload | None:
        """Write rows and commit what there is to commit."""
        write(self.writer, list(rows))
        sealed, transaction, self.open = self.writer.seal(), self.open, self.bench.name()
        payload = sealed.prepare()
        self.writer.begin(self.open)
        self.held = [payload] if payload is not None and payload.held else []
        if payload is not None and not payload.held:
            settled(self.writer, transaction, payload)
        return payload

    def files(self) -> list[str]:
        return sorted(readable(self.sink.uri))


def test_rows_are_seen_when_the_oldest_has_waited_long_enough_or_all_take_so_much(tmp_path: Path, clock: Clock) -> None:
    job = Bench(ToFiles(str(tmp_path), roll_bytes=10_000, roll_every="1m"))
    job.epoch(["a"])
    clock.now += 59_999
    job.epoch(["b"])
    assert job.files() == []
    clock.now += 1
    job.epoch()
    assert job.files() == ["a", "b"]
    assert job.epoch() is None, "nothing waits"
    clock.now += 120_000
    job.epoch(["c"])
    assert job.files() == ["a", "b"], "what is new waits anew"
    job.epoch(["x" * 6_000])
    job.epoch(["y" * 6_000])
    assert len(job.files()) == 5
    assert len(list(tmp_path.glob("part-*"))) == 2


def test_what_waits_outlives_attempts_and_waits_no_longer_for_that(tmp_path: Path, clock: Clock) -> None:
    job = Bench(ToFiles(str(tmp_path), roll_every="1m"))
    for row in "abc":
        job.epoch([row])
        clock.now += 15_000
        job.start()
    job.epoch(["d"])
    assert job.files() == []
    clock.now += 15_000
    job.start()
    job.epoch()
    assert job.files() == ["a", "b", "c", "d"]
    assert len(list(tmp_path.glob("part-*"))) == 1


def test_a_transaction_without_rows_carries_on_what_waits(tmp_path: Path, clock: Clock) -> None:
    job = Bench(ToFiles(str(tmp_path), roll_every="1m"))
    first = job.epoch(["a"])
    assert first is not None
    assert (first.held, len(first.staged)) == (True, 1)
    assert job.epoch() == first
    assert job.writer.commit(job.bench.name(), first).outcome is CommitOutcome.FAILED
    assert job.files() == []


def test_when_the_input_has_ended_nothing_waits(tmp_path: Path, clock: Clock) -> None:
    job = Bench(ToFiles(str(tmp_path), roll_every="1m"))
    job.epoch(["a"])
    job.writer.no_more_rows()
    job.epoch()
    assert job.files() == ["a"]


def test_what_several_partitions_held_back_becomes_one_file(tmp_path: Path, clock: Clock) -> None:
    jobs = [Bench(ToFiles(str(tmp_path), roll_every="1m")) for _ in range(3)]
    for number, job in enumerate(jobs):
        job.epoch([f"row {number}"])
        jobs[0].bench.environment.stored.update(job.bench.environment.stored)
    jobs[0].held = [payload for job in jobs for payload in job.held]
    jobs[0].start()
    clock.now += 60_000
    jobs[0].epoch()
    assert jobs[0].files() == ["row 0", "row 1", "row 2"]


def test_rows_that_wait_for_another_place_go_there_if_that_is_allowed_by_name_and_else_the_start_is_refused(
    tmp_path: Path, clock: Clock
) -> None:
    job = Bench(ToFiles(str(tmp_path / "old"), "jsonl", roll_every="1m"))
    job.epoch(["a"])
    place = f"file://{tmp_path}/old"
    with pytest.raises(SinkError, match=rf"were held back are for {place}, .*accept_places=\['{place}'\]"):
        job.start(ToFiles(f"file://{tmp_path}/new", "csv", listed=True, roll_every="1m"))
    job.bench.accept_places = frozenset([place])
    job.start(ToFiles(f"file://{tmp_path}/new", "csv", listed=True, roll_every="1m"))
    payload = job.epoch(["b"])
    assert payload is not None
    assert not payload.held, "what is for another place is not held back longer"
    assert job.files() == ["a"]
    assert [Path(path).suffix for path in committed_files(f"file://{tmp_path}/new")] == [".csv"]
    job.start(ToFiles(str(tmp_path / "old"), "jsonl"))
    job.epoch(["c"])
    assert job.files() == ["a", "c"]


def test_rows_that_another_sink_held_back_are_refused(tmp_path: Path) -> None:
    writer = Bench(ToFiles(str(tmp_path))).writer
    with pytest.raises(
        SinkError, match=r"were prepared by ToDelta, and their sink is ToFiles by now, .* or drain the job with it"
    ):
        writer.take_over([CommitPayload(Json.of({"sink": "ToDelta", "held": []}), held=True)])


def test_an_age_that_is_none_is_refused() -> None:
    assert ToFiles("out", roll_every="10m") == ToFiles("out", roll_every=dt.timedelta(minutes=10))
    with pytest.raises(NotADuration):
        ToFiles("out", roll_every="soon")


def batches(numbers: Sequence[int]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"row": [str(number) for number in numbers]}, SCHEMA)]


@given(st.lists(st.integers(1, 3), max_size=200))
def test_pieces_stay_few_and_hold_every_row_in_its_place(counts: list[int]) -> None:
    environment, pieces, expected = SinkEnvironment(), (), list[str]()
    for count in counts:
        rows = batches(range(len(expected), len(expected) + count))
        expected += rows[0].column("row").to_pylist()
        pieces = with_rows(pieces, rows, rows[0].nbytes, environment)  # type: ignore[assignment]
    assert [row for batch in rows_of(pieces, environment) for row in batch.column("row").to_pylist()] == expected
    assert len(pieces) <= 7 * 3


def test_a_row_is_written_once_for_each_eightfold_of_epochs() -> None:
    pieces: list[int] = []
    written = 0
    for _ in range(4096):
        merged = to_merge(pieces)
        size = 1 + sum(pieces[len(pieces) - merged :])
        pieces = [*pieces[: len(pieces) - merged], size]
        written += size
    assert pieces == [4096]
    assert written <= 4096 * 5


def test_a_file_each_ten_minutes_is_exact_whenever_the_process_dies(tmp_path: Path) -> None:
    day = Day(tmp_path / "out", rows_per_second=20, roll_every="10m", kills=30, seed=1)
    day.run(1800)
    assert day.deaths > 20
    assert day.lost_and_twice(1800) == (0, 0)
    assert len(day.sizes()) <= 5
    assert day.latest <= 602_000, "rows wait as long as they may, whoever dies"
    assert day.most_pieces <= 7 * 4
