"""The canonical form: state as Arrow tables or Parquet files, one per declared state, for people and for a new life.

Invariant: what is exported from any backend at any parallelism and imported into another is equal state; a file
that is there under its name is whole; and what is written today stays readable.

    write_parquet(state, folder)                            # or a `StateReader`, of an epoch
    import_tables(read_parquet(folder), other_state)        # open, empty; then an ordinary snapshot
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as parquet

from statebackend import means
from statebackend.canonical.exporting import StateExport
from statebackend.canonical.importing import StateTable
from statebackend.canonical.schema import DamagedTable, form_of
from statebackend.canonical.source import StateSource, source_of
from statebackend.keyed_state import KeyedState
from statebackend.snapshots.local_files import local_disk

_SUFFIX: Final = ".parquet"


class HasSource(Protocol):
    """A state that is read as a whole: a `StateReader`."""

    @property
    def source(self) -> StateSource:
        """Return its states."""


def export(state: KeyedState | HasSource) -> Iterator[StateTable]:
    """Yield the tables of all states, each to be gone through before the next; expired entries still there, too.

    An open state is exported as it is, cut or not, and must not be used meanwhile.
    """
    source = source_of(state) if isinstance(state, KeyedState) else state.source
    for spec in source.schema.states:
        table = StateExport(source, spec)
        yield StateTable(spec.name, f"the table of {spec.name!r}", table.schema, table.batches())


def write_parquet(state: KeyedState | HasSource, folder: Path) -> tuple[Path, ...]:
    """Export into the folder, which is made if absent: `<state>.parquet` each, replacing what was there.

    After an error or a crash inside, some files are there, each of them whole, and maybe one whose name begins with a
    dot. Partitions need folders of their own.
    """
    with local_disk(f"make the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    return tuple([_write(table, folder) for table in export(state)])


def read_parquet(*folders: Path) -> Iterator[StateTable]:
    """Yield the tables in these folders, as `import_tables` takes them; `CanonicalError` for a file that is none."""
    for folder in folders:
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            if not path.name.startswith("."):
                yield _read(path)


def _write(table: StateTable, folder: Path) -> Path:
    target = folder / f"{quote(table.name, safe=' ')}{_SUFFIX}"
    unfinished = folder / f".{means.token_hex(8)}{_SUFFIX}"
    try:
        with local_disk(f"write {target}"):
            with parquet.ParquetWriter(
                unfinished, table.schema, compression="zstd", write_page_checksum=True
            ) as writer:
                for batch in table.batches:
                    writer.write_batch(batch)
            unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _read(path: Path) -> StateTable:
    try:
        file = parquet.ParquetFile(path, page_checksum_verification=True)
        schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise DamagedTable(f"{path} is no whole Parquet file: {error}; export it anew") from error
    name = form_of(schema, str(path)).spec.name
    return StateTable(name, str(path), schema, _batches(file))


def _batches(file: parquet.ParquetFile) -> Iterator[pa.RecordBatch]:
    with file:
        yield from file.iter_batches()
