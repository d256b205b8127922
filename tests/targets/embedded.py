"""Targets that need no server, read by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from snapshot import ToFiles
from tests.jobs.numbered import SCHEMA
from tests.targets.plain_files import PlainFiles
from tests.targets.target import Target


@contextmanager
def files(folder: Path) -> Iterator[Target]:
    """Parquet files."""
    target = folder / "files"

    def rows() -> pa.Table:
        tables = [pq.read_table(file) for file in target.glob("part-*")]
        return pa.concat_tables([SCHEMA.empty_table(), *tables])

    yield Target(ToFiles(str(target)), PlainFiles(str(target)), rows)
