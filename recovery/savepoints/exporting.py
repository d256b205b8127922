"""Keyed state of an epoch as files of its canonical tables: Parquet, Arrow or JSON lines, one per state.

Invariant: the folder is there as a whole or not at all, and nothing that was there is replaced; one partition
is open at a time, and of its tables one batch is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from recovery.offline.job_tree import JobTree
from recovery.offline.new_tree import TargetExists
from recovery.offline.reading import EpochReading, read_epoch
from recovery.savepoints.inspecting import StateRows
from statebackend.ids import Epoch, Uid
from statebackend.snapshots.local_files import local_disk

Write = Callable[[pa.RecordBatch], None]


def _nobody(_rows: int) -> None:
    """Wants to know how far it has come."""


class TableFormat(Enum):
    """In which form tables are written. Parquet and Arrow files can be taken into state again."""

    PARQUET = "parquet"
    ARROW = "arrow"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """A file that was written. A state has a second one if a partition declared it otherwise, in an older version."""

    state: str
    path: Path
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Exported:
    """The exported tables; empty for a dry run. `read` are the bytes of the epoch's files."""

    uid: Uid
    epoch: Epoch
    states: tuple[str, ...]
    tables: tuple[ExportedTable, ...]
    read: int


def export(
    tree: JobTree,
    epoch: str,
    uid: str,
    into: Path,
    form: TableFormat = TableFormat.PARQUET,
    state: str | None = None,
    *,
    dry_run: bool = False,
    on_rows: Callable[[int], object] = _nobody,
) -> Exported:
    """Write the tables of all states of an operator, or of one, into a new folder. Expired entries are in them, too.

    Raises `TargetExists`, `NoSuchState`, what reading raises, and `LocalDiskError`. After an error nothing is left; a
    crash leaves a folder beside the target whose name begins with a dot. `on_rows` is told how many more are written.
    """
    with read_epoch(tree, epoch, pin=not dry_run) as reading:
        return _exported(reading, uid, into, form, state, dry_run=dry_run, on_rows=on_rows)


def _exported(
    reading: EpochReading,
    uid: str,
    into: Path,
    form: TableFormat,
    state: str | None,
    *,
    dry_run: bool,
    on_rows: Callable[[int], object],
) -> Exported:
    operator = reading.operator(uid)
    names = [spec.name for spec in operator.declared().states] if state is None else [operator.state(state).name]
    if into.exists():
        raise TargetExists(f"{into} is there already; export into a new folder")
    if dry_run:
        return Exported(operator.uid, reading.epoch, tuple(names), (), sum(file.size for file in operator.files))
    with _new_folder(into) as folder:
        writing = _Writing(folder, form)
        with writing:
            for files in operator.parts:
                if not files.files:
                    continue
                with operator.opened(files) as reader:
                    for name in filter(reader.has, names):
                        with local_disk(f"write into {into}"):
                            writing.take(name, reader.batches(name, expired=True), on_rows)
    tables = tuple(
        ExportedTable(one.state, into / one.path.name, one.rows, (into / one.path.name).stat().st_size)
        for one in writing.tables.values()
    )
    return Exported(operator.uid, reading.epoch, tuple(names), tables, reading.read.bytes)


@dataclass(slots=True)
class _Table:
    state: str
    path: Path
    write: Write
    closing: AbstractContextManager[Write]
    rows: int = 0


class _Writing:
    """The files that are being written: of each state one, as long as its tables look the same in all partitions."""

    def __init__(self, folder: Path, form: TableFormat) -> None:
        self._folder, self._form = folder, form
        self.tables: dict[tuple[str, bytes], _Table] = {}

    def take(self, state: str, batches: pa.RecordBatchReader, on_rows: Callable[[int], object]) -> None:
        """Append these rows to the table of the state."""
        key = state, batches.schema.serialize().to_pybytes()
        table = self.tables.get(key)
        if table is None:
            table = self.tables[key] = self._begun(state, batches.schema)
        for batch in batches:
            table.write(batch)
            table.rows += len(batch)
            on_rows(len(batch))

    def _begun(self, state: str, schema: pa.Schema) -> _Table:
        count = sum(name == state for name, _ in self.tables)
        again = f".{count + 1}" if count else ""
        path = self._folder / f"{quote(state, safe=' ')}{again}.{self._form.value}"
        closing = _WRITERS[self._form](path, schema, state)
        return _Table(state, path, closing.__enter__(), closing)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        for table in self.tables.values():
            table.closing.__exit__(None, None, None)


@contextmanager
def _parquet(path: Path, schema: pa.Schema, _state: str) -> Iterator[Write]:
    with parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        yield writer.write_batch


@contextmanager
def _arrow(path: Path, schema: pa.Schema, _state: str) -> Iterator[Write]:
    options = ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, schema, options=options) as writer:
        yield writer.write_batch


@contextmanager
def _jsonl(path: Path, _schema: pa.Schema, state: str) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as lines:

        def write(batch: pa.RecordBatch) -> None:
            lines.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in StateRows(state, batch).in_json())

        yield write


_WRITERS: Final[dict[TableFormat, Callable[[Path, pa.Schema, str], AbstractContextManager[Write]]]] = {
    TableFormat.PARQUET: _parquet,
    TableFormat.ARROW: _arrow,
    TableFormat.JSONL: _jsonl,
}


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder that becomes the target when the block ends well, and is removed otherwise."""
    unfinished = target.absolute().parent / f".{target.name}-{token_hex(8)}"
    try:
        with local_disk(f"make {target}"):
            unfinished.mkdir(parents=True)
        yield unfinished
        with local_disk(f"make {target}"):
            try:
                unfinished.rename(target)
            except OSError as error:
                if target.exists():
                    raise TargetExists(f"{target} is there already; export into a new folder") from error
                raise
    finally:
        rmtree(unfinished, ignore_errors=True)
