"""The process of a job's driver, as a test starts it, kills it and starts it again.

Invariant: what happens in the job is written to the standard output as it happens, a line of JSON for each
event; the process ends with 0 exactly if the job has ended well.

    python -m tests.jobs.driver SETTINGS      as JSON, see `Settings`
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.parquet as pq

import recovery
from recovery import Acks, Active, FailureRate, LocalProcesses, MicroBatches, Passive, Synchronous, Tls
from recovery.schemes.scheme import Scheme
from snapshot.host.faults.crash_points import VARIABLE, crashing
from snapshot.program.sink import Sink
from tests.jobs.catalogue import JOBS
from tests.jobs.job import OUT, Scale, SinkKind, sink_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Mode = Literal["aligned", "unaligned", "alignment_timeout"]
SchemeName = Literal["passive", "rounds", "synchronous", "batches", "acks"]
"""In rounds input is taken as with replicas."""
_MANY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a job is run; all of it in `folder`."""

    folder: str
    job: str
    rows: int = 24_000
    rate: float = 4_000.0
    sink: SinkKind = "jsonl"
    given: str = ""
    """The sink itself, if it is to be another one: pickled, in base64."""
    parallelism: int = 2
    standbys: int = 0
    mode: Mode = "aligned"
    scheme: SchemeName = "passive"
    every: str = "200ms"
    """From epoch to epoch."""
    lost_after: str = "30s"
    batch_rows: int = 16_384
    channel_buffer: int = 2 << 20
    input_buffer: int = 16 << 20
    spark: str = ""
    """The master of a cluster whose tasks the processes are; without one they are the driver's own."""
    tls: tuple[str, ...] = ()
    """The certificate, the key and the authorities."""
    crash: str = ""
    """Where this process kills itself; see `snapshot.host.faults.crash_points`."""

    @property
    def gate(self) -> Path:
        """The file that lets the job come to its end."""
        return Path(self.folder) / "gate"

    @property
    def output(self) -> Path:
        return Path(self.folder) / "output"

    @property
    def local(self) -> Path:
        """Where the processes keep their files, and the driver its address."""
        return Path(self.folder) / "local"

    @property
    def delivered(self) -> Path:
        """Where the rows are that the driver itself was given, when the job has ended."""
        return Path(self.folder) / "delivered.parquet"


def scheme_of(settings: Settings) -> Scheme:
    """The scheme that is asked for, with restarts as often as anything happens."""
    standbys, restarts = settings.standbys, FailureRate(_MANY, "1s")
    match settings.scheme:
        case "passive":
            return Passive(standbys, restarts=restarts)
        case "rounds":
            return Active(fallback=Passive(standbys, restarts=restarts))
        case "synchronous":
            return Synchronous(standbys, restarts=restarts)
        case "batches":
            return MicroBatches(standbys, restarts=restarts)
        case "acks":
            return Acks(standbys, restarts=restarts, timeout="5s")


def start(settings: Settings, spark: SparkSession | None = None) -> recovery.Run:
    folder = Path(settings.folder)
    scale = Scale(settings.rows, settings.rate, str(settings.gate))
    given = settings.given
    sink: Sink = pickle.loads(b64decode(given)) if given else sink_of(settings.sink, str(settings.output))
    program = JOBS[settings.job].program(scale, sink)
    return recovery.run(
        program,
        spark,
        checkpoints=folder / "tree",
        job="kills",
        every=settings.every,
        parallelism=settings.parallelism,
        scheme=scheme_of(settings),
        mode="unaligned" if settings.mode == "unaligned" else "aligned",
        alignment_timeout="10ms" if settings.mode == "alignment_timeout" else None,
        launcher=None if spark else LocalProcesses(),
        local=settings.local,
        events="/dev/stdout",
        advanced={
            "lost_after": settings.lost_after,
            "compact_after": 20,
            "linger": "1ms",
            "batch_rows": settings.batch_rows,
            "channel_buffer": settings.channel_buffer,
            "input_buffer": settings.input_buffer,
        },
        retain=2,
        tls=Tls(*settings.tls) if settings.tls else None,
        progress=False,
    )


def session(master: str) -> SparkSession:
    """A session that says nothing, with executors of a third of a worker's memory."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        **recovery.spark_settings(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(arguments: list[str]) -> int:
    settings = Settings(**json.loads(arguments[0]))
    with crashing({VARIABLE: settings.crash}):
        run = start(settings, session(settings.spark) if settings.spark else None)
        delivers = settings.sink in ("driver", "plain")
        batches = list(run.batches(OUT)) if delivers else []
        end = run.wait()
        if delivers and batches:
            pq.write_table(pa.Table.from_batches(batches), settings.delivered)
    return 0 if end is not None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
