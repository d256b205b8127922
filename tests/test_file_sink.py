"""Files appear as a whole when their epoch is complete, whoever is killed at whichever step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot import Files, ToDelta
from snapshot.connectors.files.folder import open_folder
from snapshot.connectors.files.formats import Unsayable, WrittenFormat, encoded, refuse_unsayable
from snapshot.connectors.files.listed_folder import committed_files
from snapshot.connectors.files.names import file_name, transaction_of
from snapshot.connectors.files.sink import ToFiles
from snapshot.epochs.transaction_events import CommitOutcome, transaction_id
from snapshot.ids import JobId
from snapshot.operators.rows import Rows
from snapshot.program.sink import SinkError
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, DONE, SinkBench, SinkEnvironment, SinkTrial, attempt, write
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from statebackend.stores.fsspec_store import has_password, open_store
from statebackend.stores.store import UnsuitableStore
from tests import file_sink_worker
from tests.file_sink_worker import STEPS
from tests.survey import wait_for_pieces, watched

FORMATS: tuple[WrittenFormat, ...] = ("parquet", "jsonl", "csv")


def readable(uri: str) -> Sequence[str]:
    """The rows in a folder, as somebody reads them who knows nothing of transactions."""
    files, root = fsspec.core.url_to_fs(uri)
    files.invalidate_cache()
    found = None
    while found is None:
        with suppress(RuntimeError):  # fsspec's memory was written to by another thread while it was listed
            found = files.glob(f"{root}/part-*")
    return [row for path in found for row in rows_in(f"{files.unstrip_protocol(path)}")]


def readable_by_list(uri: str) -> Sequence[str]:
    """The rows in files that are said to be committed."""
    return [row for file in committed_files(uri) for row in rows_in(file)]


def rows_in(uri: str) -> list[str]:
    with fsspec.open(uri, "rb") as file:
        match uri.rpartition(".")[2]:
            case "parquet":
                return list(pa.parquet.read_table(file).column("row").to_pylist())
            case "csv":
                return list(pa.csv.read_csv(file).column("row").to_pylist())
            case "jsonl":
                return [json.loads(line)["row"] for line in file]
            case other:
                raise AssertionError(other)


def trial(
    uri: str,
    format: WrittenFormat = "parquet",
    roll_bytes: int = 64 << 20,
    listed: bool = False,
    bad: str = "",
    roll_every: str = "0s",
) -> SinkTrial:
    def visible(_: SinkEnvironment) -> Sequence[str]:
        if listed:
            assert readable(uri) == []
        return readable_by_list(uri) if listed else readable(uri)

    def clear() -> None:
        wait_for_pieces()
        files, root = fsspec.core.url_to_fs(uri)
        if files.exists(root):
            files.rm(root, recursive=True)

    def pending(job: JobId) -> int:
        """How many transactions of a job are staged."""
        held = open_folder(uri, listed).leftovers(lambda name: transaction_of(name) is not None)
        return len({made for file in held if (made := transaction_of(file.name)) and made.startswith(f"{job}/")})

    bad_sinks = [ToFiles(bad, format, listed=listed)] if bad else []
    sink = ToFiles(uri, format, roll_bytes, listed, roll_every=roll_every)
    return SinkTrial(sink, visible, clear, pending=pending, bad=bad_sinks)


TestToFilesMachine = sink_machine(trial("memory://machine")).TestCase
TestToFilesRollingMachine = sink_machine(trial("memory://rolling", "jsonl", roll_bytes=1)).TestCase
TestToFilesHoldingMachine = sink_machine(trial("memory://holding", "jsonl", 1200, roll_every="1d")).TestCase
TestListedFilesMachine = sink_machine(trial("memory://listed", "csv", roll_bytes=1, listed=True)).TestCase
TestListedFilesMachine.settings = settings(max_examples=30)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("check", CHECKS)
def test_a_local_folder_passes_the_kit(
    check: Callable[[SinkTrial], None], format: WrittenFormat, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    check(watched(trial(str(tmp_path / "out"), format, bad=str(tmp_path / "file" / "out")), tmp_path / "out"))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_list_of_committed_files_passes_the_kit(
    check: Callable[[SinkTrial], None], kind: str, tmp_path: Path
) -> None:
    check(watched(trial(f"{kind}://{tmp_path}/listed", roll_bytes=1, listed=True), tmp_path / "listed"))


@pytest.mark.parametrize("check", CHECKS)
def test_files_that_roll_with_each_batch_pass_the_kit(check: Callable[[SinkTrial], None], tmp_path: Path) -> None:
    check(watched(trial(f"file://{tmp_path}/out", roll_bytes=1), tmp_path / "out"))


@given(
    job=st.text(),
    uid=st.text(),
    number=st.integers(0, 10**6),
    nonce=st.sampled_from(["", "01234567" * 2, "a" * 16]),
)
def test_the_transaction_can_be_read_from_a_files_name(job: str, uid: str, number: int, nonce: str) -> None:
    made_by = Incarnation(Generation(3), Attempt(4))
    try:
        transaction = transaction_id(JobId(job), Uid(uid), made_by, Partition(5), 6)
        transaction.encode()
    except UnicodeEncodeError:
        return
    name = file_name(transaction, number, "parquet", nonce)
    assert name.isascii()
    assert "/" not in name
    assert transaction_of(name) == transaction


@given(st.text(alphabet="part-aZ~.0159fe%", max_size=40))
def test_only_names_that_the_sink_makes_are_taken_for_its_own(name: str) -> None:
    transaction = transaction_of(f"part-{name}.csv")
    if transaction is not None:
        number = int(name.rpartition("-")[2])
        assert file_name(transaction, number, "csv") == f"part-{name}.csv"


def test_recovery_touches_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    bench = SinkBench(trial(str(tmp_path)))
    bench.prepared()
    [own] = (tmp_path / ".staged").iterdir()
    others = [
        "notes.txt",
        "part-0.parquet",
        own.name.upper(),
        f"{own.name}.bak",
        file_name(transaction_id(bench.job, Uid("other"), attempt(1), Partition(0), 0), 0, "parquet"),
        file_name(transaction_id(JobId("other"), bench.uid, attempt(1), Partition(0), 0), 0, "parquet"),
        file_name(transaction_id(bench.job, bench.uid, attempt(2), Partition(0), 0), 0, "parquet"),
        file_name(transaction_id(bench.job, bench.uid, attempt(2), Partition(0), 0), 0, "parquet", "0123456789abcdef"),
    ]
    for name in others:
        (tmp_path / ".staged" / name).write_bytes(b"somebody's")
    bench.recover(2)
    assert sorted(path.name for path in (tmp_path / ".staged").iterdir()) == sorted(others)


def test_recovery_of_a_folder_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    SinkBench(trial(str(tmp_path / "none"))).recover(2)
    SinkBench(trial("memory://nowhere")).recover(2)
    assert not (tmp_path / "none").exists()


def test_a_transaction_larger_than_roll_bytes_becomes_several_files(tmp_path: Path) -> None:
    bench = SinkBench(trial(str(tmp_path), roll_bytes=1000))
    writer, transaction, rows = bench.writer(), bench.name(), bench.rows(100)
    writer.begin(transaction)
    for first in range(0, 100, 10):
        write(writer, rows[first : first + 10])
    payload = writer.seal().prepare()
    assert payload is not None
    bench.settle(transaction, payload)
    bench.expect(rows, "all files appear")
    assert len(list(tmp_path.glob("part-*"))) > 2


def test_a_commit_that_ended_between_two_files_is_finished_by_the_next(tmp_path: Path) -> None:
    bench = SinkBench(trial(str(tmp_path), roll_bytes=1))
    transaction, payload, rows = bench.prepared()
    first, _ = sorted((tmp_path / ".staged").iterdir())
    first.rename(tmp_path / first.name)
    assert bench.settle(transaction, payload).outcome is CommitOutcome.COMMITTED
    bench.expect(rows, "all files appear")


def test_a_password_in_a_uri_is_refused_and_not_repeated() -> None:
    sink = ToFiles("ftp://me:open-sesame@host/out", listed=True)
    schema = pa.schema([("row", pa.string())])
    for said in (
        sink.check(schema),
        ToFiles("webhdfs://me:open-sesame@host:9870/out").check(schema),
        ToDelta("s3://me:open-sesame@bucket/out").check(schema),
        Files("ftp://me:open-sesame@host/in", "csv", schema).check(),
    ):
        assert "://***@" in said[0]
        assert "give storage_options={" in said[0]
        assert "open-sesame" not in " ".join(said)
    with pytest.raises(UnsuitableStore, match=r"s3://\*\*\*@bucket/tree has a password in it") as error:
        open_store("s3://me:open-sesame@bucket/tree")
    assert "open-sesame" not in str(error.value)
    for uri in ("webhdfs://me@host:9870/a@b:c", "github://org:repo@main/x", "file:///a:b@c", "/a:b@c"):
        assert not has_password(uri)


def test_a_commit_without_its_files_fails_with_a_reason(tmp_path: Path) -> None:
    bench = SinkBench(trial(str(tmp_path)))
    transaction, payload, _ = bench.prepared()
    for path in (tmp_path / ".staged").iterdir():
        path.unlink()
    answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert "neither staged nor visible" in answer.reason
    assert transaction in answer.reason


def test_a_commit_that_the_file_system_refuses_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SinkBench(trial(str(tmp_path)))
    transaction, payload, rows = bench.prepared()

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "read-only" in answer.reason
    bench.settle(transaction, payload)
    bench.expect(rows, "the next try commits")


def test_a_prepare_that_failed_is_tried_again_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SinkBench(trial(str(tmp_path), roll_bytes=1))
    writer, transaction, rows = bench.writer(), bench.name(), bench.rows(2)
    writer.begin(transaction)

    def full(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        write(writer, rows[:1])
        write(writer, rows[1:])
        sealed = writer.seal()
        with pytest.raises(OSError, match="the disk is full"):
            sealed.prepare()
    payload = sealed.prepare()
    assert payload is not None
    bench.settle(transaction, payload)
    bench.expect(rows, "no row is lost")


def test_a_disk_that_stays_full_fails_the_attempt_before_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SinkBench(trial(str(tmp_path), roll_bytes=1))
    writer = bench.writer()
    writer.begin(bench.name())

    def full(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", full)
    first, second, third = bench.rows(3)
    write(writer, [first])
    write(writer, [second])
    with pytest.raises(SinkError, match="sink the/sink: its rows could not be stored: the disk is full"):
        write(writer, [third])


def test_all_folders_that_are_made_for_a_staged_file_survive_a_crash_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.add(f"{Path(f'/proc/self/fd/{handle}').readlink()}")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    SinkBench(trial(str(tmp_path / "a" / "b" / "c"))).prepared()
    made = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c", tmp_path / "a" / "b" / "c" / ".staged"]
    assert {str(folder.parent) for folder in made} <= synced
    assert str(made[-1]) in synced


def test_a_relative_folder_is_the_same_for_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ToFiles("out") == ToFiles(f"file://{tmp_path}/out")
    assert ToFiles("out").check(pa.schema([])) == []


def test_what_cannot_be_written_is_found_by_check() -> None:
    fields = {"n": pa.int64(), "at": pa.timestamp("us"), "tags": pa.list_(pa.string()), "raw": pa.binary()}
    schema = pa.schema(list(fields.items()))
    assert ToFiles("memory://x").check(schema) == []
    [problem] = ToFiles("memory://x", "jsonl").check(schema)
    assert "'raw' of binary" in problem
    assert len(ToFiles("memory://x", "csv").check(schema)) == 2
    [problem] = ToFiles("memory://x", "orc").check(schema)  # type: ignore[arg-type]
    assert "known are parquet, jsonl, csv" in problem
    [problem] = ToFiles("ftp://host/x").check(schema)
    assert "ftp:// has no rename in one step" in problem
    assert ToFiles("ftp://host/x", listed=True).check(schema) == []
    [problem] = ToFiles("nosuch://x", listed=True).check(schema)
    assert "fsspec knows no nosuch://" in problem
    assert "roll_bytes is 0" in ToFiles("memory://x", roll_bytes=0).check(schema)[0]


def test_names_too_long_for_a_file_are_refused(tmp_path: Path) -> None:
    writer = SinkBench(trial(str(tmp_path))).writer()
    with pytest.raises(SinkError, match="shorter names"):
        writer.begin(transaction_id(JobId("j" * 250), Uid("u"), attempt(1), Partition(0), 0))


def test_json_lines_hold_times_and_nested_values() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    table = pa.table(
        {
            "at": pa.array([at], pa.timestamp("ms", "UTC")),
            "x": [float("-0.0")],
            "tags": [["é", None]],
            "place": pa.array([{"lat": 1.5, "lon": None}]),
        }
    )
    line = json.loads(encoded("jsonl", table).to_pybytes())
    assert line == {
        "at": "2026-01-02 03:04:05.678Z",
        "x": -0.0,
        "tags": ["é", None],
        "place": {"lat": 1.5, "lon": None},
    }


_NAN, _INF = float("nan"), float("inf")
_FAR = pa.array([0, 2**63 - 1], pa.int64())


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, _NAN]),
        pa.array([1.0, -_INF], pa.float32()),
        pa.array([{"lat": 1.5}, {"lat": _INF}]),
        pa.array([[1.0, None], [0.0, _NAN]]),
        pa.array([[{"x": [1.0]}], [{"x": [_INF]}]]),
        pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1.0, 2.0, _NAN]), mask=pa.array([True, False])),
    ],
    ids=["nan", "infinity", "in a struct", "in a list", "deep", "after a null list that has values"],
)
def test_a_number_that_json_does_not_have_is_refused_where_it_comes_and_never_written_as_null(
    tmp_path: Path, column: pa.Array
) -> None:
    batch = pa.record_batch({"user": ["ann", "bob"], "x": column})
    writer = SinkBench(trial(str(tmp_path), "jsonl")).writer()
    writer.begin(transaction_id(JobId("j"), Uid("u"), attempt(1), Partition(0), 0))
    writer.write(Rows(batch.slice(0, 1)))
    with pytest.raises(SinkError, match=r"NaN or infinity, and the column 'x' has one; the row is \{'user': 'bob'"):
        writer.write(Rows(batch))
    with pytest.raises(Unsayable):
        encoded("jsonl", pa.Table.from_batches([batch]))
    writer.close()
    refuse_unsayable("parquet", batch)


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("s")])
@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_a_time_that_text_cannot_say_is_refused(kind: pa.DataType, format: WrittenFormat) -> None:
    batch = pa.record_batch({"user": ["ann", "bob"], "at": _FAR.cast(kind)})
    with pytest.raises(Unsayable, match=r"the time 9223372036854775807 in the column 'at'.* years 1 to 9999.*'bob'"):
        refuse_unsayable(format, batch)
    refuse_unsayable(format, batch.slice(0, 1))
    refuse_unsayable("parquet", batch)


def test_the_first_and_the_last_day_that_text_can_say_are_written() -> None:
    ends = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999000), None]
    for kind in (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"), pa.date32(), pa.date64()):
        values = [None] if kind == pa.timestamp("ns") else ends
        batch = pa.record_batch({"at": pa.array(values, kind)})
        lines = encoded("jsonl", pa.Table.from_batches([batch])).to_pybytes().decode()
        assert len(lines.splitlines()) == len(values)
        assert "out of range" not in lines


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each step, in which a process was killed before it."""
    root = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.file_sink_worker", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert list(map(int, done.stdout.split())) == [-signal.SIGKILL] * STEPS + [0], done.stderr
    return root


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_a_process_killed_at_any_step_loses_and_repeats_nothing(step: int, killed: Path) -> None:
    folder = killed / str(step)
    prepared = file_sink_worker.read_journal(folder)
    sink = file_sink_worker.sink(folder)
    sink.recover(file_sink_worker.JOB, file_sink_worker.UID, attempt(2), {name for name, _ in prepared})
    left = {transaction_of(path.name) for path in (folder / "out" / ".staged").glob("*")}
    assert left <= {name for name, _ in prepared}
    writer = sink.open(file_sink_worker.context(SinkEnvironment(), 2))
    for transaction, payload in prepared:
        for _ in range(2):
            assert writer.commit(transaction, payload).outcome in DONE
    expected = [row for transaction, _ in prepared for row in file_sink_worker.rows_of(transaction)]
    assert sorted(readable(str(folder / "out"))) == sorted(expected)
