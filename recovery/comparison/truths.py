"""The rows that should come, as files: those of two runs without faults, if the two agree.

Invariant: an output whose rows differ from run to run is not compared with either of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recovery.comparison.prepared import Prepared
from recovery.comparison.rows import Identities, Truth

RUNS: Final = 2
"""The runs without faults that say which rows should come."""
_DIFFERS: Final = b"differs"
_KNOWN: Final = b"known"
"""The outputs of which they are known, one in a line."""


_NONE: Final = np.zeros(0, np.uint64)


def is_there(folder: Path, rate: float) -> bool:
    """True if the rows at this rate are known."""
    return _file(folder, rate).exists()


def truth_of(folder: Path, prepared: Prepared, run: Callable[[int], Mapping[str, Identities]]) -> Truth | None:
    """Return the rows that should come of this program; None if the runs differ in all outputs.

    If they are not known yet, `run` does the run of each number, and returns its rows.
    """
    file = _file(folder, prepared.rate)
    if not file.exists():
        _write(file, *Truth.of_two(run(1), run(2)))
    table = pq.read_table(file)
    outputs, rows = np.asarray(table["output"].to_pylist(), object), table["row"].to_numpy()
    known = table.schema.metadata[_KNOWN].decode().split("\n")
    return Truth({uid: rows[outputs == uid] for uid in prepared.outputs if uid in known}) if known != [""] else None


def why_rows_differ(folder: Path) -> str:
    """Return which outputs differ between two runs without faults, and in how much; empty if none does."""
    found = [pq.read_schema(file).metadata[_DIFFERS].decode() for file in sorted(folder.glob("truth-*.parquet"))]
    return next((differs for differs in found if differs), "")


def _write(file: Path, truth: Truth, differs: str) -> None:
    names = [uid for uid, rows in truth.rows.items() for _ in range(len(rows))]
    table = pa.table({"output": pa.array(names, pa.string()), "row": np.concatenate([*truth.rows.values(), _NONE])})
    part = file.with_suffix(".part")
    said = {_DIFFERS: differs.encode(), _KNOWN: "\n".join(truth.rows).encode()}
    pq.write_table(table.replace_schema_metadata(said), part)
    part.replace(file)


def _file(folder: Path, rate: float) -> Path:
    return folder / f"truth-{rate:g}.parquet"
