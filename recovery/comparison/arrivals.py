"""The rows of a job's outputs as they come to this process, with the time at which each came.

Invariant: a batch is timed when this process has it, whatever scheme the job runs under.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import pyarrow as pa

from recovery.comparison.outages import Moments
from recovery.comparison.prepared import Output, Prepared
from recovery.comparison.record import Seen
from recovery.comparison.rows import Identities, identities
from recovery.running import Run
from statebackend.errors import EpochcutError


class Arrivals:
    """Takes the rows of all outputs of a job, each output in a thread, until the job is over."""

    def __init__(self, job: Run, prepared: Prepared) -> None:
        self._prepared = prepared
        self._outputs = {uid: _OfOutput(job, uid) for uid in prepared.outputs}
        for thread in self._outputs.values():
            thread.start()

    def began(self) -> float | None:
        """Return the earliest scheduled time of the first batches, in seconds since 1970; None if none has come."""
        firsts = [
            int(times.min()) / 1e6
            for uid, output in self._prepared.outputs.items()
            for _, batch in self._outputs[uid].batches[:1]
            if len(times := scheduled(batch, output)) and times.max() > 0
        ]
        return min(firsts, default=None)

    def newest_latency_ms(self) -> float:
        """Return the longest latency of the outputs' newest batches: the median of each one's rows."""
        found = [
            (at - float(np.median(due))) / 1e3
            for uid, output in self._prepared.outputs.items()
            for at, batch in self._outputs[uid].batches[-1:]
            if len(due := scheduled(batch, output)) and due.max() > 0
        ]
        return max(found, default=0.0)

    def wait(self) -> None:
        """Wait until the job is over and its last rows have come."""
        for thread in self._outputs.values():
            thread.join()

    def all(self) -> tuple[Seen, Mapping[str, Identities]]:
        """Return all rows that have come, together and by output."""
        outputs, moments = self._prepared.outputs, self._prepared.moments
        batches = {uid: [batch for _, batch in self._outputs[uid].batches] for uid in outputs}
        rows = {uid: identities(uid, batches[uid], moments) for uid in outputs}
        due = [scheduled(batch, output) for uid, output in outputs.items() for batch in batches[uid]]
        came = [np.full(batch.num_rows, at, np.int64) for uid in outputs for at, batch in self._outputs[uid].batches]
        if not came:
            return Seen(), rows
        return Seen(np.concatenate(due), np.concatenate(came), np.concatenate(list(rows.values()))), rows


class _OfOutput(threading.Thread):
    def __init__(self, job: Run, uid: str) -> None:
        super().__init__(name=f"rows of {uid}", daemon=True)
        self._job, self._uid = job, uid
        self.batches: list[tuple[int, pa.RecordBatch]] = []

    def run(self) -> None:
        with suppress(EpochcutError):  # the job itself is asked how it ended
            for batch in self._job.batches(self._uid):
                self.batches.append((time.time_ns() // 1_000, batch))


def scheduled(batch: pa.RecordBatch, output: Output) -> Moments:
    """Return the time for which each row was scheduled, in microseconds since 1970; 0 where that is not known."""
    if output.created is None:
        return np.zeros(batch.num_rows, np.int64)
    column = batch.column(output.created)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return np.asarray(column.cast(pa.int64()).fill_null(0))
