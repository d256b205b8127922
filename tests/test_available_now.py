"""Runs that read what is there now and then end, and results that come when input has ended: each once."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recovery
from recovery.driver.attempts.requests import EndKind
from recovery.driver.settings.options import in_their_places
from snapshot import (
    ABORT,
    EOF,
    PAUSE,
    Files,
    Generate,
    InvalidProgram,
    Kafka,
    Program,
    Stream,
    ToDriver,
    ToSQLite,
    Tumbling,
)
from snapshot.connectors.memory.collection import Collection as Rows
from snapshot.connectors.memory.collection import Item
from snapshot.cut.frames import EARLIEST, Watermark
from snapshot.cut.watermarks import Watermarks
from snapshot.host.partition.source_run import SourceRun
from snapshot.host.protocol.messages import Deploy
from snapshot.program.source import Available
from snapshot.tree.frozen_json import JsonLike
from statebackend import means
from statebackend.ids import Attempt, Partition, Uid
from tests.program_parts import Nothing
from tests.scripted_workers import ScriptedCluster
from tests.test_driver_runs import completed
from tests.test_driver_runs import start as start_scripted
from tests.test_watermarks import A, B, at, idle

NUMBERS = pa.schema({"k": pa.string(), "n": pa.int64()})
VISITS = pa.schema({"at": pa.int64(), "user": pa.string()})
PATIENCE = 120.0


def run(folder: Path, of: Program, **options: Any) -> tuple[recovery.Run, list[dict[str, object]]]:
    """Run it to its end; what it has given."""
    chosen: dict[str, Any] = {"every": "50ms", "progress": False, "available_now": True, **options}
    started = recovery.run(of, checkpoints=folder / "tree", local=folder / "local", **in_their_places(chosen))
    end = started.wait(PATIENCE)
    assert end is not None
    assert end.kind is EndKind.FINISHED
    return started, [dict(row) for row in started.rows("out")]


def words(folder: Path) -> Program:
    lines = Stream.read(Files(str(folder), "text"), uid="lines")
    each = lines.flat_map(lambda row: [(word,) for word in row.line.split()], schema={"word": str})
    return each.key_by("word").count(uid="total", per="end").write(ToDriver(), uid="out")


def counts(rows: list[dict[str, object]]) -> list[tuple[object, object]]:
    return sorted((row["word"], row["count"]) for row in rows)


# --- jobs


def test_the_end_of_a_with_block_waits_until_all_that_is_available_was_read(tmp_path: Path) -> None:
    rows = Rows([(str(number % 3), number) for number in range(5_000)], NUMBERS)
    program = Stream.read(rows, uid="in").write(ToSQLite(str(tmp_path / "db"), "t", key="n", create=True), uid="t")
    with recovery.run(
        program, checkpoints=tmp_path / "tree", local=tmp_path / "local", available_now=True, progress=False
    ) as started:
        pass
    assert started.status().state is recovery.RunState.FINISHED
    with closing(sqlite3.connect(tmp_path / "db")) as database:
        assert database.execute("SELECT count(*) FROM t").fetchone() == (5_000,)


def test_a_count_over_finished_files_gives_each_word_once_and_the_next_run_what_is_new(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = tmp_path / "lines"
    files.mkdir()
    for name in ("first", "second"):
        (files / name).write_text("to be or not to be\nthat is the question\n" * 500)
    _, rows = run(tmp_path, words(files), parallelism=2)
    whole = [("be", 2000), ("is", 1000), ("not", 1000), ("or", 1000), ("question", 1000), ("that", 1000), ("the", 1000)]
    assert counts(rows) == [*whole, ("to", 2000)]
    (files / "third").write_text("to sleep")
    _, rows = run(tmp_path, words(files), parallelism=1)
    assert counts(rows) == [("sleep", 1), ("to", 2001)]
    assert "nothing new" not in caplog.text
    third, rows = run(tmp_path, words(files), parallelism=2)
    assert rows == []
    end = third.wait()
    assert end is not None
    assert end.nothing_since is not None
    assert f"there was nothing new to read since epoch {end.nothing_since}" in caplog.text


def test_windows_stay_open_from_run_to_run_and_close_when_input_ends(tmp_path: Path) -> None:
    rows: list[Item] = [(1_000, "a"), (2_000, "a"), EOF(), (3_000, "a"), (20_000, "a"), EOF(), (21_000, "a")]
    visits = Stream.read(Rows(rows, VISITS), uid="visits").with_event_time("at").key_by("user")
    program = visits.window(Tumbling("5s")).count(uid="count").write(ToDriver(), uid="out")
    found = [[row["count"] for row in run(tmp_path, program)[1]] for _ in range(2)]
    assert found == [[], [3]], "the first window ends when the second run has come to 20 s"
    ended = run(tmp_path, program, available_now=False)[1]
    assert [row["count"] for row in ended] == [2]


def test_each_result_comes_once_also_if_the_run_fails_behind_some_epochs(tmp_path: Path) -> None:
    rows: list[Item] = [("a", 1), PAUSE(0.3), ("b", 2), ABORT(), ("a", 4), PAUSE(0.3), EOF(), ("b", 8)]
    numbers = Stream.read(Rows(rows, NUMBERS), uid="numbers").key_by("k")
    program = numbers.sum("n", uid="sums", per="end").write(ToDriver(), uid="out")
    first, sums = run(tmp_path, program)
    assert first.status().restarts == 1
    assert sorted((str(row["k"]), row["n"]) for row in sums) == [("a", 5), ("b", 2)]
    assert [(row["k"], row["n"]) for row in run(tmp_path, program)[1]] == [("b", 10)]


def test_a_source_without_an_end_is_read_as_far_as_it_is_now_and_no_row_twice(tmp_path: Path) -> None:
    source = Generate(lambda rows: {"n": rows}, pa.schema({"n": pa.int64()}), rate=2_000)
    program = Stream.read(source, uid="numbers").write(ToDriver(), uid="out")
    found: list[object] = []
    for _ in range(2):
        found += [row["n"] for row in run(tmp_path, program)[1]]
    assert sorted(found) == list(range(len(found)))  # type: ignore[type-var]
    assert len(found) > 100


def test_rows_that_are_late_are_counted_also_at_a_side_and_in_a_short_run(tmp_path: Path) -> None:
    rows: list[Item] = [(20_000, "a"), PAUSE(0.1), (1_000, "a")]
    visits = Stream.read(Rows(rows, VISITS), uid="visits").with_event_time("at").key_by("user")
    counted = visits.window(Tumbling("5s"), late=True).count(uid="count")
    late = counted.side("late").write(ToDriver(), uid="late")
    started, found = run(tmp_path, counted.write(ToDriver(), uid="out") + late, status_interval="1h")
    assert found == []
    assert started.status().late_rows == {"visits": 0, "count": 1}
    assert started.status().rows_in == {"visits": 2, "count": 2}
    assert [row["at"] for row in started.rows("late")] == [1_000]


# --- what is refused and told


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (Generate(lambda rows: {"n": rows}, NUMBERS), "in: a generator without count and rate makes rows for ever"),
        (Nothing(NUMBERS, bounded=False), "in: with available_now=True a source has to end, or to have methods"),
    ],
)
def test_a_source_that_cannot_say_what_there_is_now_is_refused_before_there_is_a_job(
    tmp_path: Path, source: Any, complaint: str
) -> None:
    program = Stream.read(source, uid="in").write(ToDriver(), uid="out")
    with pytest.raises(InvalidProgram, match=complaint):
        start_scripted(tmp_path, ScriptedCluster(), program, available_now=True)
    assert list(tmp_path.iterdir()) == []


def test_kafkas_partitions_that_end_for_good_are_refused() -> None:
    kafka = Kafka("broker:9092", "clicks")
    assert kafka.unavailable() == ()
    assert "leave it out" in Kafka("broker:9092", "clicks", stop="latest").unavailable()[0]


def test_results_that_would_never_come_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbers = Stream.read(Rows([("a", 1), EOF()], NUMBERS), uid="numbers").key_by("k")
    program = numbers.sum("n", uid="sums", per="end").write(ToDriver(), uid="out")
    start_scripted(tmp_path, ScriptedCluster(), program).cancel()
    assert "sums gives its results when all input has ended, and numbers does not end" in caplog.text
    caplog.clear()
    start_scripted(tmp_path, ScriptedCluster(), program, available_now=True).cancel()
    assert "does not end" not in caplog.text


# --- sources


@dataclass(frozen=True)
class Growing(Nothing):
    """A source that has another split with each look."""

    found: list[str] = field(default_factory=list)

    def discover(self, parallelism: int) -> Sequence[str]:
        self.found.append(str(len(self.found)))
        return self.found

    def unavailable(self) -> Sequence[str]:
        return ()

    def available(self, known: Collection[str], reading: Mapping[str, JsonLike]) -> Available:
        return Available(ends={split: f"the end of {split}" for split in reading})


@pytest.mark.parametrize("on_demand", [False, True])
def test_after_the_start_no_more_is_looked_for_and_partitions_know_how_far_to_read(
    tmp_path: Path, on_demand: bool
) -> None:
    source = Growing(NUMBERS, bounded=False, on_demand=on_demand, discover_every=0.001)
    program = Stream.read(source, uid="numbers").write(ToDriver(), uid="out")
    with start_scripted(tmp_path, cluster := ScriptedCluster(), program, available_now=True) as started:
        completed(cluster, 3)
        started.stop()
    assert source.found == ["0"]
    for deploy in cluster.heard(Deploy):
        assert deploy.time_goes_on
        assert deploy.roles[Uid("numbers")].ends == {"0": "the end of 0"}


def test_files_that_are_new_are_those_that_the_job_never_had(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    for source in (Files(str(tmp_path), "text"), Files(str(tmp_path), "text", grows="1h")):
        assert source.available({"a", "gone"}, {"a": None}) == Available(("b", "c"))
    assert Files(str(tmp_path / "nothing"), "text").available({"a"}, {}) == Available()


def test_a_collection_ends_at_the_next_of_its_ends() -> None:
    source = Rows([("a", 1), ("b", 2), EOF(), ("c", 3), EOF(), ("d", 4)], NUMBERS)
    ends = [source.available({"0"}, {"0": position}).ends for position in (None, 1, 2, 3, 4, 5, 6)]
    assert ends == [{"0": 2}, {"0": 2}, {"0": 4}, {"0": 4}, {}, {}, {}]
    paused = Rows([("a", 1), PAUSE(1), EOF(), ("b", 2)], NUMBERS)
    assert paused.available({"0"}, {"0": 1}).ends == {}, "no position is behind the pause alone"


def test_rows_of_a_generator_are_there_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Generate(lambda rows: {"n": rows}, pa.schema({"n": pa.int64()}), rate=10)
    monkeypatch.setattr(means, "wall", lambda: 1000.25)
    names = ["0 of 2 from 1000000000", "1 of 2 from 1000000000", "0 of 1 from 2000000000"]
    assert source.available(names, dict.fromkeys(names)).ends == dict(zip(names, (2, 1, 0), strict=True))
    assert Generate(source.function, source.schema, count=3).available(["0 of 1"], {"0 of 1": None}) == Available()


def test_a_split_that_was_read_as_far_as_there_is_keeps_its_position() -> None:
    source = Rows([("a", 1), ("b", 2), EOF(), ("c", 3)], NUMBERS)
    ends: dict[str, JsonLike] = {"0": 2}
    read = SourceRun(Uid("in"), source, Partition(0), Attempt(1), {}, 10, lambda: None, ends)
    read.assign(["0"], last=True)
    found = read.read(10)
    assert found is not None
    assert found[1].num_rows == 2
    assert read.read(10) is None
    assert read.ended
    again = SourceRun(
        Uid("in"),
        source,
        Partition(0),
        Attempt(2),
        {at.split: at.position for at in read.positions()},
        10,
        lambda: None,
    )
    again.assign([], last=True)
    found = again.read(10)
    assert found is not None
    assert found[1].column("n").to_pylist() == [3]


# --- event time


def test_an_input_that_rests_holds_nobody_back_and_does_not_end_event_time() -> None:
    watermarks = Watermarks([A, B])
    assert watermarks.advance(A, at(5)) is None
    assert watermarks.rest(B) == at(5)
    assert watermarks.advance(A, at(8)) == at(8)
    assert watermarks.rest(A) == idle(8)
    assert Watermarks([A]).rest(A) == Watermark(EARLIEST, idle=True)
