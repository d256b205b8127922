"""The rows that should come, as files: those of two runs without faults, if the two agree.

Invariant: a program whose rows differ from run to run is not compared with either of them.
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


def is_there(folder: Path, rate: float) -> bool:
    """True if the rows at this rate are known."""
    return _file(folder, rate).exists()


def truth_of(folder: Path, prepared: Prepared, run: Callable[[int], Mapping[str, Identities]]) -> Truth | None:
    """Return the rows that should come of this program; None if runs differ from each other.

    If they are not known yet, `run` does the run of each number, and returns its rows.
    """
    file = _file(folder, prepared.rate)
    if not file.exists():
        found = [Truth(run(number)) for number in range(1, RUNS + 1)]
        _, differs = found[0].judge(found[1].rows, list(found[1].rows))
        _write(file, found[0], differs)
    table = pq.read_table(file)
    if table.schema.metadata[_DIFFERS]:
        return None
    outputs = np.asarray(table["output"].to_pylist(), object)
    rows = table["row"].to_numpy()
    return Truth({uid: rows[outputs == uid] for uid in prepared.outputs})


def why_rows_differ(folder: Path) -> str:
    """Return what differs between two runs without faults; empty if nothing does."""
    found = [pq.read_schema(file).metadata[_DIFFERS].decode() for file in sorted(folder.glob("truth-*.parquet"))]
    return next((differs for differs in found if differs), "")


def _write(file: Path, truth: Truth, differs: str) -> None:
    names = [uid for uid, rows in truth.rows.items() for _ in range(len(rows))]
    table = pa.table({"output": pa.array(names, pa.string()), "row": np.concatenate(list(truth.rows.values()))})
    part = file.with_suffix(".part")
    pq.write_table(table.replace_schema_metadata({_DIFFERS: differs.encode()}), part)
    part.replace(file)


def _file(folder: Path, rate: float) -> Path:
    return folder / f"truth-{rate:g}.parquet"
