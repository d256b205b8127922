"""The record of one run: what became of it, its figures, and its rows, as one Parquet file.

Invariant: a file is there as a whole or not at all; what is read from it is what was written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recovery.comparison.outages import Moments, Outage, Percentiles, Sightings
from recovery.comparison.rows import Difference, Identities
from statebackend.errors import JobError

_KEY: Final = b"epochcut.comparison"


class Outcome(Enum):
    """The outcome of a run."""

    MEASURED = "measured"
    REFUSED = "refused"
    """The scheme does not take this program, or these options."""
    FAILED = "failed"
    """The job failed, or a row was lost, came twice or was wrong: its figures count for nothing."""
    NO_FAULT = "no fault"
    """A fault could not be brought about, or not in time, however often that was tried."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was brought about."""

    order: str
    at: int
    """Microseconds since 1970."""
    since_complete_ms: float | None
    """The time since an epoch was complete; None if none was yet."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The use of the machine by a run."""

    steady_cpu: float
    """Seconds of processor time in a second, before the first fault: of all processes of the job, the driver too."""
    cpu_s_per_million: float
    """Seconds of processor time for a million rows of the sources, over the whole run, start and recovery included."""
    memory_bytes: int
    """The memory of all processes before the first fault; what they share counts once."""
    loopback_bytes: int
    """Bytes over the loopback before the first fault, those of other programs too, in a second."""
    stored_bytes: int
    """Bytes of state and of rows in flight that epochs wrote to the store, in the whole run."""
    others_cpu: float
    """Seconds of processor time of everything else on the machine in a second: what disturbed the run."""


@dataclass(frozen=True, slots=True)
class Record:
    """One run. Figures are None where they are not known, and in runs that were not measured."""

    scheme: str
    repeat: int
    outcome: Outcome
    why: str = ""
    tries: int = 1
    rate: float = 0.0
    began: int = 0
    """The time for which the first row was scheduled, in microseconds since 1970."""
    ended: int = 0
    """The time at which the sources had given all rows."""
    struck: tuple[Struck, ...] = ()
    steady: Percentiles | None = None
    """Before the first fault."""
    outage: Outage | None = None
    throughput: float = 0.0
    """Rows per second that were seen before the first fault."""
    cost: Cost | None = None
    difference: Difference | None = None
    """None if rows cannot be compared."""
    restarts: int = 0
    masked: int = 0
    """Losses that nothing rolled back for."""
    redundant_s: float | None = None
    """From the last fault until each replica that was lost had been replaced; None if not all were."""
    disturbed: bool = False
    """True if other programs took more of the machine than a comparison allows."""

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{self.repeat:02d}-{self.scheme}.parquet"


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """All rows that came, in any order: when they were scheduled and seen, and a number that tells them apart."""

    scheduled: Moments = field(default_factory=lambda: np.zeros(0, np.int64))
    """0 for rows of outputs that are not timed."""
    came: Moments = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: Identities = field(default_factory=lambda: np.zeros(0, np.uint64))

    @property
    def sightings(self) -> Sightings:
        """Return the first sighting of each row that is timed."""
        timed = self.scheduled > 0
        pairs = np.stack([self.rows[timed], self.scheduled[timed].view(np.uint64)], axis=1)
        which = np.ascontiguousarray(pairs).view([("row", np.uint64), ("at", np.uint64)]).ravel()
        return Sightings.of(self.scheduled[timed], self.came[timed], which)


class UnreadableRun(JobError):
    """The file of a run cannot be read; the message names it."""


def write(folder: Path, record: Record, seen: Seen) -> None:
    """Write the file of a run."""
    table = pa.table({"scheduled_us": seen.scheduled, "seen_us": seen.came, "row": seen.rows})
    data = {**asdict(record), "outcome": record.outcome.value}
    file = folder / record.name
    part = file.with_suffix(".part")
    pq.write_table(table.replace_schema_metadata({_KEY: json.dumps(data).encode()}), part)
    part.replace(file)


def read(file: Path) -> Record:
    """Read the record of a file."""
    try:
        data = json.loads((pq.read_schema(file).metadata or {})[_KEY])
        return _record(data)
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise UnreadableRun(
            f"{file} is not the file of a run: {error}; delete it, and the run is done again"
        ) from error


def read_rows(file: Path) -> Seen:
    """Read the rows of a file."""
    table = pq.read_table(file)
    return Seen(*(table[name].to_numpy() for name in ("scheduled_us", "seen_us", "row")))


def read_all(folder: Path) -> Sequence[Record]:
    """Read all records in a folder, in the order of their names."""
    return [read(file) for file in sorted(folder.glob("*-*.parquet"))]


def _record(data: dict[str, Any]) -> Record:
    unknown = data.keys() - {one.name for one in fields(Record)}
    if unknown:
        raise ValueError(f"it has {', '.join(sorted(unknown))}, which this version does not know")
    parts = {"steady": Percentiles, "outage": Outage, "cost": Cost, "difference": Difference}
    made = {name: kind(**data[name]) for name, kind in parts.items() if data.get(name) is not None}
    struck = tuple(Struck(**one) for one in data.get("struck", ()))
    return Record(**{**data, **made, "struck": struck, "outcome": Outcome(data["outcome"])})
