"""A partition that is far slower than the source: memory stays bounded, epochs complete, and no row is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshot.host.protocol.options import HostOptions
from tests.jobs.driver import Mode, Settings
from tests.jobs.running_job import RunningJob
from tests.jobs.skewed import ROW_BYTES

ROWS = 50_000
EPOCHS = 8
MEBIBYTE = 1 << 20
LIMIT = 160 * MEBIBYTE
"""What no process may take more than it took when it began. All rows together are more than four times as much, and are
made long before the slow partition is done with them.

Counted for two partitions and the default options, in MB: rows that are read at once 2, and what becomes of them by key
2; to be sent 2 channels with a buffer of 1 and a batch of 1, thus 4; received 4, and while a marker that overtakes is
awaited 16, with a batch of 1 on each channel; on their way to the function 3. That is 19, or 31 with unaligned epochs,
of which two may be in flight: their data may be processed before they are stored, so it counts once for each, thus 44
more, and 8 that are being encoded: 83. Allocators keep about as much as is in use.
"""


def peak_of(pid: int) -> int:
    """The most memory that a process has had at any time, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


DEFAULTS = HostOptions()


def growth_of(folder: Path, mode: Mode) -> tuple[RunningJob, int]:
    """The job, run to its end, and by how much its greediest process has grown while the source was held up."""
    settings = Settings(
        folder=str(folder),
        job="skewed",
        rows=ROWS,
        rate=1e9,
        sink="parquet",
        mode=mode,
        every="300ms",
        batch_rows=DEFAULTS.batch_rows,
        channel_buffer=DEFAULTS.channel_buffer,
        input_buffer=DEFAULTS.input_buffer,
    )
    with RunningJob(settings) as job:
        job.start()
        job.wait_for_kind("Running")
        workers = dict(job.course.workers)
        before = {worker: peak_of(pid) for worker, pid in workers.items()}
        for _ in range(EPOCHS):
            job.wait_for_kind("EpochCompleted")
        growth = max(peak_of(pid) - before[worker] for worker, pid in workers.items())
        compared = job.finish()
    assert compared.rows >= ROWS
    assert compared.exact, compared.examples
    return job, growth


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_a_slow_partition_costs_neither_memory_nor_rows_nor_epochs(tmp_path: Path, mode: Mode) -> None:
    assert ROWS * ROW_BYTES > 4 * LIMIT
    job, growth = growth_of(tmp_path, mode)
    assert growth < LIMIT, f"{growth / MEBIBYTE:.0f} MB"
    assert [event["event"] for event in job.events if event["event"] in ("AttemptFailed", "WorkerLost")] == []
    given_up = {event["reason"] for event in job.events if event["event"] == "EpochAbandoned"}
    assert given_up <= {"a later epoch was complete first"}
