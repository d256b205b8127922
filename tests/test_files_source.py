"""Files are read once and exactly, from any position; what is missing, changed or does not fit is named."""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import example, given
from hypothesis import strategies as st

from snapshot.connectors.files import readers as file_readers
from snapshot.connectors.files.formats import EXTENSIONS, WrittenFormat, encoded
from snapshot.connectors.files.source import FileFormat, Files
from snapshot.connectors.files.stored import SourceChanged, UnreadableFile, UnreadableRow
from snapshot.program.source import Batch, Source, SourceError, SourceVanished, SplitContext, WrongPosition
from snapshot.testing.sources import CHECKS, read_through
from statebackend.ids import Attempt, Partition

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])
FORMATS: tuple[WrittenFormat, ...] = ("parquet", "jsonl", "csv")


def table(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"n": numbers, "name": [f"name {n}" for n in numbers]}, SCHEMA)


def folder_of(root: Path, format: WrittenFormat, files: int = 3, rows: int = 20) -> Files:
    """A folder with a few files, the rows numbered through."""
    for number in range(files):
        data = encoded(format, table(number * rows, rows)).to_pybytes()
        (root / f"part-{number}.{EXTENSIONS[format]}").write_bytes(data)
    return Files(str(root), format, SCHEMA)


def numbers(source: Files) -> list[object]:
    return [row["n"] for split in source.discover(1) for row in read_through(source, split).rows]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in so small pieces that every test has many."""
    monkeypatch.setattr(file_readers, "_BLOCK", 40)
    monkeypatch.setattr(file_readers, "_PARQUET_ROWS", 3)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("check", CHECKS)
def test_a_folder_passes_the_kit(
    check: Callable[[Source], None], format: WrittenFormat, small: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if small:
        request.getfixturevalue("small_blocks")
    check(folder_of(tmp_path, format))


@pytest.mark.parametrize("check", CHECKS)
def test_row_groups_pass_the_kit(check: Callable[[Source], None], tmp_path: Path, small_blocks: None) -> None:
    pa.parquet.write_table(table(0, 50), tmp_path / "a.parquet", row_group_size=11)
    check(Files(str(tmp_path / "a.parquet"), "parquet", SCHEMA))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.bz2"])
@pytest.mark.parametrize("check", CHECKS)
def test_compressed_text_passes_the_kit(
    check: Callable[[Source], None], name: str, tmp_path: Path, small_blocks: None
) -> None:
    data = "".join(f"line {n}\n" for n in range(50)).encode()
    packed = {"a.txt": data, "a.txt.gz": gzip.compress(data), "a.txt.bz2": bz2.compress(data)}
    (tmp_path / name).write_bytes(packed[name])
    check(Files(str(tmp_path), "text"))


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_sink_writes_is_read_back_as_it_was(format: WrittenFormat, tmp_path: Path) -> None:
    columns = {
        "flag": pa.array([True, None, False]),
        "x": pa.array([1.5, None, -2.0]),
        "text": pa.array(['a "quoted", é', "", None]),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), None, datetime(1969, 1, 1, tzinfo=UTC)]).cast(
            pa.timestamp("ms", "UTC")
        ),
        "local": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678901), None, None], pa.timestamp("us")),
        "day": pa.array([date(2026, 1, 2), None, date(1, 1, 1)]),
    }
    written = pa.table(columns)
    (tmp_path / f"a.{format}").write_bytes(encoded(format, written).to_pybytes())
    source = Files(str(tmp_path), format, written.schema)
    assert source.check() == []
    assert read_through(source, source.discover(1)[0]).rows == written.to_pylist()


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n\r\ufeff", codec="utf-8"), max_size=12), max_size=30),
    block=st.integers(1, 20),
    ends=st.booleans(),
    mark=st.booleans(),
)
def test_every_line_of_a_text_is_a_row(lines: list[str], block: int, ends: bool, mark: bool) -> None:
    files = fsspec.filesystem("memory")
    text = "\n".join(lines) + "\n" * (ends and bool(lines))
    files.pipe_file("/text/a.txt", b"\xef\xbb\xbf" * mark + text.encode())
    expected = text.removesuffix("\n").split("\n") if text else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_readers, "_BLOCK", block)
        through = read_through(Files("memory://text", "text"), "a.txt", most=2)
        assert [row["line"] for row in through.rows] == expected
        for number, batch in enumerate(through.batches):
            rest = read_through(Files("memory://text", "text"), "a.txt", batch.position)
            assert len(rest.rows) == sum(later.rows.num_rows for later in through.batches[number + 1 :])
            assert rest.rows == through.rows[len(through.rows) - len(rest.rows) :]


def test_lines_may_end_as_on_windows_and_the_last_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\nthree")
    assert [row["line"] for row in read_through(Files(str(tmp_path), "text"), "a.txt").rows] == ["one", "", "three"]
    (tmp_path / "a.csv").write_bytes(b"name,n\r\none,1\r\n\r\ntwo,2")
    assert read_through(Files(str(tmp_path), "csv", SCHEMA), "a.csv").rows == [
        {"n": 1, "name": "one"},
        {"n": 2, "name": "two"},
    ]


@pytest.mark.parametrize(
    ("format", "data"),
    [
        ("jsonl", b""),
        ("jsonl", b"\n \n"),
        ("csv", b"name,n\n"),
        ("csv", b"name,n"),
        ("csv", b"n,name\n\n\n"),
        ("text", b""),
    ],
)
def test_a_file_without_rows_has_none(format: FileFormat, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    source = Files(str(tmp_path), "text") if format == "text" else Files(str(tmp_path), format, SCHEMA)
    through = read_through(source, "a")
    assert (through.rows, through.exhausted) == ([], True)


def test_columns_are_found_by_name_and_others_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"more,name,n\nx,one,1\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"more": [1], "name": "one", "n": 1}\n{"n": 2}\n')
    pa.parquet.write_table(
        pa.table({"more": [1], "name": ["one"], "n": pa.array([1], pa.int8())}), tmp_path / "c.parquet"
    )
    one = {"n": 1, "name": "one"}
    assert read_through(Files(str(tmp_path), "csv", SCHEMA), "a.csv").rows == [one]
    assert read_through(Files(str(tmp_path), "jsonl", SCHEMA), "b.jsonl").rows == [one, {"n": 2, "name": None}]
    assert read_through(Files(str(tmp_path), "parquet", SCHEMA), "c.parquet").rows == [one]


@pytest.mark.parametrize(
    ("format", "data", "message"),
    [
        ("jsonl", b'{"n": 1}\n\n{"n": "x"}\n', r"line 3: .* It is: \{.n.: .x.\}"),
        ("jsonl", b'{"n": 1}\n{"n": 2} {"n": 3}\n', "line 2: .* it has 2 rows"),
        ("jsonl", b'{"n": 1}\n{"n": 2', "line 2: "),
        ("jsonl", b"{}\n[1]\n", "line 2: "),
        ("jsonl", b'{"n": 1} {"n": 2}\n{"n":\n3}\n', "line 1: .* it has 2 rows"),
        ("jsonl", b'{"n": 1}\n{"name": "\xff"}\n', "line 2: .*utf-8"),
        ("csv", b"n,name\n1,a\n\nx,b\n", "line 4: .* It is: x,b"),
        ("csv", b"n,name\n1,a\n2\n", "line 3: .* Expected 2 columns, got 1"),
        ("csv", b'n,name\n1,a\n2,"b\nc"\n', "line 3: "),
        ("csv", b"n,name\n1,\xff\n", "line 2: .* UTF8"),
        ("text", b"good\n\nb\xff\n", "line 3: .*utf-8"),
    ],
)
@pytest.mark.parametrize("block", [1, 1 << 20])
def test_a_row_that_does_not_fit_is_named_by_file_and_line(
    format: FileFormat, data: bytes, message: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_readers, "_BLOCK", block)
    (tmp_path / "bad").write_bytes(data)
    source = Files(str(tmp_path), "text") if format == "text" else Files(str(tmp_path), format, SCHEMA)
    with pytest.raises(UnreadableRow, match=f"source kit, file bad.*{message}"):
        read_through(source, "bad")


@pytest.mark.parametrize(
    ("ddl", "value", "message"),
    [
        (
            "n bigint, at timestamp",
            "2026-01-01T04:36:00",
            r"'at' .* no time zone; .* timestamp_ntz, or pa.timestamp\('us'\)",
        ),
        ("n bigint, at timestamp_ntz", "2026-01-01T04:36:00Z", r"'at' .* a time zone; .* pa.timestamp\('us', 'UTC'\)"),
    ],
)
def test_a_time_of_csv_that_has_or_lacks_a_zone_is_refused_with_the_type_to_declare(
    ddl: str, value: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_text(f"unread,n,at\nx,1,{value}\n")
    with pytest.raises(UnreadableRow, match=f"file bad, line 2: .*column {message}") as raised:
        read_through(Files(str(tmp_path), "csv", ddl), "bad")
    assert "assume_timezone" not in str(raised.value)


def test_json_lines_take_times_with_and_without_a_zone_as_utc(tmp_path: Path) -> None:
    times = ["2026-01-01T04:36:00", "2026-01-01T04:36:00Z", "2026-01-01T06:36:00+02:00"]
    (tmp_path / "good").write_text("".join(f'{{"at": "{time}"}}\n' for time in times))
    for ddl in ("at timestamp", "at timestamp_ntz"):
        rows = read_through(Files(str(tmp_path), "jsonl", ddl), "good").rows
        assert [str(row["at"])[:19] for row in rows] == ["2026-01-01 04:36:00"] * 3


GOOD = {"jsonl": [b'{"n": 7}', b' {"n": null, "name": "b"} '], "csv": [b"7,a", b',"b"']}
BLANK = {"jsonl": b" ", "csv": b"\r"}
BAD = {
    "jsonl": [b'{"n": "x"}', b'{"n": 1} {"n": 2}', b"[1]", b'{"n":', b"3}", b'{"name": "\xff"}'],
    "csv": [b"x,a", b"2", b'3,"b', b'c",4', b"4,\xff"],
}


@given(
    format=st.sampled_from(["jsonl", "csv"]),
    drawn=st.lists(st.tuples(st.sampled_from(["good", "blank", "bad"]), st.integers(0, 5)), max_size=30),
    block=st.sampled_from([1, 20, 60, 1 << 20]),
    most=st.integers(1, 7),
    ends=st.booleans(),
)
@example(
    format="jsonl",
    drawn=[("bad", 0), ("good", 0), ("good", 1), ("bad", 1), ("good", 0)],
    block=1 << 20,
    most=1,
    ends=True,
)
def test_lines_that_do_not_fit_may_be_left_out_and_each_is_counted_once_from_every_position(
    format: FileFormat, drawn: list[tuple[str, int]], block: int, most: int, ends: bool
) -> None:
    choices = {"good": GOOD[format], "blank": [BLANK[format]], "bad": BAD[format]}
    lines = [choices[kind][number % len(choices[kind])] for kind, number in drawn]
    numbers = [row % 2 for kind, row in drawn if kind == "good"]
    files = fsspec.filesystem("memory")
    header = b"n,name\n" if format == "csv" else b""
    files.pipe_file("/bad/a", header + b"\n".join(lines) + b"\n" * (ends and bool(lines)))
    source = Files("memory://bad", format, SCHEMA, on_bad="skip")
    assert source.check() == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_readers, "_BLOCK", block)
        through = read_through(source, "a", most=most)
        assert [row["n"] for row in through.rows] == [(7, None)[number] for number in numbers]
        left_out = [batch.bad for batch in through.batches]
        assert sum(left_out) == sum(kind == "bad" for kind, _ in drawn)
        assert all(bool(batch.bad) == bool(batch.why) for batch in through.batches)
        for number, batch in enumerate(through.batches, 1):
            rest = read_through(source, "a", batch.position, most=most)
            assert rest.rows == [row for later in through.batches[number:] for row in later.rows.to_pylist()]
            assert sum(later.bad for later in rest.batches) == sum(left_out[number:])


def test_the_last_line_that_was_left_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"n,name\n1,a\nx,b\n2,c\n\n3\n")
    through = read_through(Files(str(tmp_path), "csv", SCHEMA, on_bad="skip"), "a.csv")
    assert [row["n"] for row in through.rows] == [1, 2]
    [batch] = through.batches
    assert batch.bad == 2
    assert batch.why.startswith("source kit, file a.csv, line 6: the line does not fit the schema: ")
    assert batch.why.endswith("It is: 3")


@pytest.mark.parametrize("format", FORMATS)
def test_a_null_that_the_schema_does_not_allow_is_named(format: WrittenFormat, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(encoded(format, pa.table({"n": [1, None]})).to_pybytes())
    source = Files(str(tmp_path), format, pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    with pytest.raises(UnreadableRow, match=r"(line [23]|row group 0, row 1): .*(must not be|was) null"):
        read_through(source, "a")


def test_a_value_of_parquet_that_does_not_fit_is_named_by_its_row(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"n": ["1", "2", "x", "4"], "name": ["a"] * 4}), tmp_path / "a", row_group_size=2)
    with pytest.raises(UnreadableRow, match=r"file a, row group 1, row 0: .*'x'"):
        read_through(Files(str(tmp_path), "parquet", SCHEMA), "a")


@pytest.mark.parametrize(
    ("format", "data", "message"),
    [
        ("parquet", b"PAR1 no", "file bad: it is no Parquet file"),
        ("csv", b"n;name\n1;a\n", "the first line has no column n, name; it names n;name"),
        ("csv", b"", "the first line has no column n, name"),
    ],
)
def test_a_file_of_another_format_is_named(format: FileFormat, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(UnreadableFile, match=message):
        read_through(Files(str(tmp_path), format, SCHEMA), "bad")


def test_a_compressed_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(os.urandom(5000).hex().encode())[:-2000])
    with pytest.raises(UnreadableFile, match=r"file a\.gz: .* cut off"):
        read_through(Files(str(tmp_path), "text"), "a.gz")


def begun(source: Files, split: str) -> Batch:
    reader = source.open(SplitContext("kit", split, None, Partition(0), Attempt(1)))
    reading = reader.read(5)
    reader.close()
    assert isinstance(reading, Batch)
    return reading


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_was_changed_is_not_read_on(format: WrittenFormat, tmp_path: Path) -> None:
    source = folder_of(tmp_path, format, files=1)
    [split] = source.discover(1)
    path = tmp_path / split
    position = begun(source, split).position
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 10**9))
    with pytest.raises(SourceChanged, match="it was written again"):
        read_through(source, split, position)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert len(read_through(source, split, position).rows) == 15
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(SourceChanged, match=r"it had .* bytes and has .* Put the file back"):
        read_through(source, split, position)


@pytest.fixture
def hadoop(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What files in memory say of themselves: as those of HDFS do, that are read by WebHDFS."""
    said: dict[str, object] = {"type": "file", "modificationTime": 1_700_000_000_123}
    monkeypatch.setattr(MemoryFileSystem, "info", lambda files, path: {**said, "size": files.store[path].size})
    return said


def test_a_file_of_hadoop_that_was_replaced_by_one_of_its_size_is_not_read_on(hadoop: dict[str, object]) -> None:
    source = Files("memory://hadoop", "jsonl", SCHEMA)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/hadoop/a", encoded("jsonl", table(10, 20)).to_pybytes())
    position = begun(source, "a").position
    assert len(read_through(source, "a", position).rows) == 15
    memory.pipe_file("/hadoop/a", encoded("jsonl", table(50, 20)).to_pybytes())
    hadoop["modificationTime"] = 1_700_000_000_124
    with pytest.raises(SourceChanged, match="it was written again"):
        read_through(source, "a", position)


def test_a_position_that_says_nothing_of_a_version_is_one_in_any_file_of_that_size(hadoop: dict[str, object]) -> None:
    source = Files("memory://hadoop", "jsonl", SCHEMA)
    fsspec.filesystem("memory").pipe_file("/hadoop/a", encoded("jsonl", table(0, 20)).to_pybytes())
    position = begun(source, "a").position
    assert isinstance(position, Mapping)
    assert len(read_through(source, "a", {**position, "version": ""}).rows) == 15
    with pytest.raises(SourceChanged, match="it had"):
        read_through(source, "a", {**position, "version": "", "size": 1})


def test_a_file_that_grows_while_it_is_read_is_not_taken_as_finished(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "jsonl", files=1)
    [split] = source.discover(1)
    reader = source.open(SplitContext("kit", split, None, Partition(0), Attempt(1)))
    with (tmp_path / split).open("ab") as file:
        file.write(b'{"n": 20}\n')
    assert isinstance(reader.read(1000), Batch)
    with pytest.raises(SourceChanged, match="must appear as a whole"):
        reader.read(1000)
    reader.close()


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_has_vanished_is_named(format: WrittenFormat, tmp_path: Path) -> None:
    source = folder_of(tmp_path, format, files=1)
    [split] = source.discover(1)
    position = begun(source, split).position
    (tmp_path / split).unlink()
    with pytest.raises(SourceVanished, match=f"source kit, file {split}: .* Put the file back"):
        read_through(source, split, position)


def test_hidden_and_unfinished_names_are_ignored(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "csv", files=1)
    for name in (".part.csv", "_SUCCESS", ".staged/part.csv", "_temporary/0/part.csv", "day=1/part.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")
    assert source.discover(1) == ["day=1/part.csv", "part-0.csv"]


def test_a_single_file_and_a_pattern_name_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    folder_of(tmp_path / "in", "csv")
    (tmp_path / "in" / "notes.txt").write_text("x")
    one = Files(str(tmp_path / "in" / "part-1.csv"), "csv", SCHEMA)
    assert numbers(one) == list(range(20, 40))
    some = Files(f"{tmp_path}/i*/part-[02].csv", "csv", SCHEMA)
    assert some.discover(1) == ["in/part-0.csv", "in/part-2.csv"]
    assert numbers(some) == [*range(20), *range(40, 60)]
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/files/a.csv", b"n,name\n1,x\n")
    assert numbers(Files("memory://files", "csv", SCHEMA)) == [1]
    assert numbers(Files("memory://files/a.csv", "csv", SCHEMA)) == [1]


@pytest.mark.parametrize(
    "split",
    ["../secret.csv", "a/../../secret.csv", "", "/secret.csv", "a//b.csv", ".hidden.csv", "_x/a.csv", "a\0.csv"],
)
@pytest.mark.parametrize("uri", ["in", "in/*.csv", "in/part-0.csv"])
def test_a_split_that_leads_out_of_the_folder_or_was_not_listed_is_refused_and_not_read(
    split: str, uri: str, tmp_path: Path
) -> None:
    (tmp_path / "in" / "_x").mkdir(parents=True)
    source = folder_of(tmp_path / "in", "csv", files=1)
    for name in ("secret.csv", "in/.hidden.csv", "in/_x/a.csv"):
        (tmp_path / name).write_bytes((tmp_path / "in" / "part-0.csv").read_bytes())
    source = Files(str(tmp_path / uri), "csv", SCHEMA)
    with pytest.raises(
        WrongPosition, match=r"names no file below .* that this source would have found; .* put it back"
    ):
        read_through(source, split)


def test_files_that_appear_later_are_found(tmp_path: Path) -> None:
    source = Files(str(tmp_path / "later"), "csv", SCHEMA, grows="250ms")
    assert (source.bounded, source.discover_every, source.discover(2)) == (False, 0.25, [])
    (tmp_path / "later").mkdir()
    assert source.discover(2) == []
    folder_of(tmp_path / "later", "csv", files=2)
    assert source.discover(2) == ["part-0.csv", "part-1.csv"]


def test_a_folder_without_files_is_an_error_unless_it_grows(tmp_path: Path) -> None:
    for uri in (tmp_path, tmp_path / "none", tmp_path / "*.csv"):
        with pytest.raises(SourceVanished, match=r"there is no file at .* grows="):
            Files(str(uri), "csv", SCHEMA).discover(1)
    with pytest.raises(SourceError, match="cannot be reached"):
        Files("nosuch://bucket/x", "csv", SCHEMA).discover(1)


def test_a_position_of_something_else_is_refused(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "csv", files=1)
    for position in (17, {"offset": "x"}):
        with pytest.raises(SourceError):
            read_through(source, "part-0.csv", position)


def test_a_relative_path_is_the_same_for_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Files("in", "text") == Files(f"file://{tmp_path}/in", "text")


def test_mistakes_are_found_by_check() -> None:
    nested = pa.schema([("tags", pa.list_(pa.string()))])
    assert "known are parquet" in Files("x", "orc", SCHEMA).check()[0]  # type: ignore[arg-type]
    assert "one column, of strings" in Files("x", "text", SCHEMA).check()[0]
    assert "need a schema" in Files("x", "csv").check()[0]
    assert "'tags'" in Files("x", "csv", nested).check()[0]
    assert "Parquet has none" in Files("x", "parquet", SCHEMA, on_bad="skip").check()[0]
    assert "on_bad is 'drop'" in Files("x", "csv", SCHEMA, on_bad="drop").check()[0]  # type: ignore[arg-type]
    assert Files("x", "jsonl", nested).check() == Files("x", "text").check() == []


def test_a_csv_with_a_single_column_keeps_its_nulls(tmp_path: Path) -> None:
    rows = pa.table({"n": [None, 1, None, None, 2, None]})
    (tmp_path / "a.csv").write_bytes(encoded("csv", rows).to_pybytes())
    assert read_through(Files(str(tmp_path), "csv", rows.schema), "a.csv").rows == rows.to_pylist()
