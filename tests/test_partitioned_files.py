"""Files in folders of their rows' values: named as Spark names them, each row once, the columns found again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snapshot.connectors.files.folder import open_folder
from snapshot.connectors.files.formats import WrittenFormat
from snapshot.connectors.files.hive_folders import NO_VALUE, divided, folders_of, is_folder, too_long
from snapshot.connectors.files.listed_folder import committed_files
from snapshot.connectors.files.names import transaction_of
from snapshot.connectors.files.sink import ToFiles
from snapshot.ids import JobId
from snapshot.operators.rows import Rows
from snapshot.program.sink import SinkContext, SinkError, SinkWriter
from snapshot.testing.sinks import CHECKS, SinkBench, SinkEnvironment, SinkTrial, attempt, settled, some
from statebackend.ids import Partition
from tests.survey import watched

DAYS = ["2026-01-01", "2026-01-02"]


class _Dated(ToFiles):
    """Writes the kit's texts with a day beside each, by which they are divided."""

    def check(self, schema: pa.Schema) -> Sequence[str]:
        return super().check(schema.append(pa.field("day", pa.string())))

    def open(self, context: SinkContext) -> _DatedWriter:
        return _DatedWriter(super().open(context))


class _DatedWriter:
    def __init__(self, writer: SinkWriter) -> None:
        self.begin, self.seal, self.commit, self.close = writer.begin, writer.seal, writer.commit, writer.close
        self._write = writer.write

    def write(self, rows: Rows) -> None:
        texts = rows.batch["row"].to_pylist()
        days = pa.array([DAYS[len(text) % 2] if text[-1] != "0" else None for text in texts], pa.string())
        self._write(Rows(rows.batch.append_column("day", days)))


def visible(uri: str, listed: bool) -> list[str]:
    files, root = fsspec.core.url_to_fs(uri)
    files.invalidate_cache()
    found = committed_files(uri) if listed else [str(path) for path in files.glob(f"{root}/day=*/part-*")]
    assert all("/day=" in path for path in found)
    rows = []
    for path in found:
        with fsspec.open(path if listed else files.unstrip_protocol(path), "rb") as file:
            lines = [json.loads(line) for line in file]
            assert all(line.keys() == {"row"} for line in lines)
            rows += [line["row"] for line in lines]
    return rows


def trial(uri: str, listed: bool = False, roll_bytes: int = 64 << 20) -> SinkTrial:
    def pending(job: JobId) -> int:
        held = open_folder(uri, listed).leftovers(lambda name: transaction_of(name) is not None)
        return len({made for file in held if (made := transaction_of(file.name)) and made.startswith(f"{job}/")})

    sink = _Dated(uri, "jsonl", roll_bytes, listed, "day")
    return SinkTrial(sink, lambda _: visible(uri, listed), pending=pending)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("kind", ["local", "remote", "listed", "rolling"])
def test_files_in_folders_pass_the_kit(check: Callable[[SinkTrial], None], kind: str, tmp_path: Path) -> None:
    uri = f"memory://{tmp_path}/out" if kind in ("remote", "listed") else str(tmp_path / "out")
    check(watched(trial(uri, kind == "listed", 1 if kind == "rolling" else 64 << 20), tmp_path / "out"))


def written(uri: str, rows: pa.Table, format: WrittenFormat = "parquet", **options: object) -> ToFiles:
    """Write rows as a job does, in one epoch."""
    sink = ToFiles(uri, format, **options)  # type: ignore[arg-type]
    assert sink.check(rows.schema) == []
    environment = SinkEnvironment()
    bench = SinkBench(SinkTrial(sink, lambda _: []))
    context = SinkContext(bench.job, bench.uid, rows.schema, attempt(1), Partition(0), environment, environment.deliver)
    writer, transaction = sink.open(context), bench.name()
    writer.begin(transaction)
    for batch in rows.to_batches():
        writer.write(Rows(batch))
    settled(writer, transaction, some(writer.seal().prepare(), transaction))
    return sink


EVERYTHING = "".join(map(chr, range(1, 128)))
ESCAPED = (
    "%01%02%03%04%05%06%07%08%09%0A%0B%0C%0D%0E%0F%10%11%12%13%14%15%16%17%18%19%1A%1B%1C%1D%1E%1F !%22%23$%25&%27()%2A"
    "+,-.%2F0123456789%3A;<%3D>%3F@ABCDEFGHIJKLMNOPQRSTUVWXYZ%5B%5C%5D%5E_`abcdefghijklmnopqrstuvwxyz%7B|}~%7F"
)
"""As Spark 4.3 names the folder of these letters."""


def test_folders_are_named_as_spark_names_them() -> None:
    texts = pa.array([EVERYTHING, "", None, "é ü/x", " lead ", "..", "%41"])
    assert [name.removeprefix("s=") for name in folders_of("s", texts)] == [
        ESCAPED, NO_VALUE, NO_VALUE, "é ü%2Fx", " lead ", "..", "%2541"
    ]  # fmt: skip
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    times = pa.array([at, at.replace(microsecond=0), None], pa.timestamp("us", "Europe/Berlin"))
    assert folders_of("t", times) == ["t=2026-01-02 03%3A04%3A05.678", "t=2026-01-02 03%3A04%3A05", f"t={NO_VALUE}"]
    assert folders_of("a=b", pa.array([date(2026, 1, 2)])) == ["a%3Db=2026-01-02"]
    assert folders_of("b", pa.array([True, False])) == ["b=true", "b=false"]
    assert folders_of("e", pa.array([Decimal("1.50"), Decimal("0.00")])) == ["e=1.50", "e=0.00"]
    assert folders_of("f", pa.array([Decimal("1E-7")], pa.decimal128(12, 10))) == ["f=0.0000001000"]


@given(st.lists(st.tuples(st.sampled_from("ab") | st.none(), st.integers(0, 2), st.integers())))
def test_each_row_is_in_the_folder_of_its_values_and_keeps_its_place(rows: list[tuple[str | None, int, int]]) -> None:
    table = pa.table(
        {
            "s": pa.array([s for s, _, _ in rows], pa.string()),
            "n": pa.array([n for _, n, _ in rows], pa.int64()),
            "x": pa.array([str(x) for _, _, x in rows], pa.string()),
        }
    )
    expected: dict[str, list[str]] = {}
    for s, n, x in rows:
        expected.setdefault(f"s={s or NO_VALUE}/n={n}", []).append(str(x))
    found = {folder: part.column("x").to_pylist() for folder, part in divided(table, ["s", "n"])}
    assert found == expected
    assert list(found) == list(expected)


def test_pyarrow_reads_the_columns_back(tmp_path: Path) -> None:
    rows = pa.table(
        {"n": [1, 2, 3, 4], "user": ["a/b", "ü=\0", None, "a/b"], "day": [date(2026, 1, n) for n in (1, 1, 2, 2)]}
    )
    written(str(tmp_path / "out"), rows, partition_by=("day", "user"))
    assert {str(path.parent.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("day=*/*/part-*")} == {
        "day=2026-01-01/user=a%2Fb", "day=2026-01-01/user=ü%3D%00",
        f"day=2026-01-02/user={NO_VALUE}", "day=2026-01-02/user=a%2Fb",
    }  # fmt: skip
    kinds = pa.dataset.partitioning(pa.schema({"day": pa.date32(), "user": pa.string()}), flavor="hive")
    read = pa.dataset.dataset(str(tmp_path / "out"), partitioning=kinds).to_table()
    assert read.column_names == ["n", "day", "user"]
    assert sorted(read.to_pylist(), key=lambda row: row["n"]) == rows.select(["n", "day", "user"]).to_pylist()


def test_a_list_names_files_whose_folders_say_the_values(tmp_path: Path) -> None:
    rows = pa.table({"n": [1, 2], "day": DAYS})
    sink = written(f"file://{tmp_path}/listed", rows, listed=True, partition_by="day")
    assert [path.split("/")[-2] for path in committed_files(sink.uri)] == [f"day={day}" for day in DAYS]


def test_what_cannot_name_folders_is_found_by_check() -> None:
    schema = pa.schema({"n": pa.int64(), "x": pa.float64(), "raw": pa.binary()})

    def check(*columns: str) -> Sequence[str]:
        return ToFiles("memory://x", partition_by=columns).check(schema)

    assert check("n") == []
    assert ToFiles("memory://x", partition_by="n") == ToFiles("memory://x", partition_by=("n",))
    assert ToFiles("memory://x", "csv", partition_by="n").check(pa.schema({"n": pa.int64(), "m": pa.int64()})) == []
    assert "partition_by: there is no column 'day'" in check("day")[0]
    assert "names a column twice" in check("n", "n")[0]
    assert "at least one has to be left" in check("n", "x", "raw")[0]
    assert "'x' of double cannot name folders" in check("x")[0]


def test_more_folders_than_anybody_wants_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapshot.connectors.files.writer.MOST_FOLDERS", 3)
    rows = pa.table({"n": range(4), "user": list("abcd")})
    with pytest.raises(SinkError, match="more than 3 folders by user; partition by columns with fewer values"):
        written(str(tmp_path), rows, partition_by="user")


@given(st.text() | st.text(min_size=60, max_size=90) | st.text("ab", min_size=240, max_size=260))
@example("\0")
def test_each_value_names_a_folder_that_a_commit_takes_or_is_said_to_be_too_long(value: str) -> None:
    try:
        values = pa.array([value, "", None])
        name = folders_of("user", values)[0]
    except UnicodeEncodeError:
        return
    assert bool(too_long("user", values)) == (len(name.encode()) > 255) != is_folder(name)


def test_a_value_that_is_too_long_fails_the_attempt_and_is_named(tmp_path: Path) -> None:
    rows = pa.table({"n": [1], "user": ["x" * 300]})
    with pytest.raises(SinkError, match=r"sink the/sink: no folder can have a name as long as user=xxx"):
        written(str(tmp_path), rows, partition_by="user")
