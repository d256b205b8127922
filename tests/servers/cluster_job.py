"""Jobs on a Spark session, one after the other; what happens in them, and what came of it, is printed as JSON.

python -m tests.servers.cluster_job '{"master": "spark://...", ...}'
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import recovery
from snapshot import PAUSE, Collection, Stream
from tests.test_running_locally import KEYS, NUMBERS, counted


@dataclass(frozen=True, slots=True)
class Jobs:
    """What to run; every job has as many rows, but the one that is interrupted: that stops where it is."""

    master: str
    folder: str
    host: str = "127.0.0.1"
    parallelisms: tuple[int, ...] = (2,)
    rows: int = 150
    pause: float = 0.04
    standbys: int = 0
    settings: tuple[tuple[str, str], ...] = ()


def main(arguments: list[str]) -> int:
    from pyspark.sql import SparkSession

    given = json.loads(arguments[0])
    jobs = Jobs(**given)
    builder = SparkSession.builder.master(jobs.master).config("spark.driver.host", jobs.host)
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.executor.memory": "600m",
    }
    for name, value in {**quiet, **recovery.spark_settings(), **dict(jobs.settings)}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows: list[Any] = []
    for number in range(jobs.rows):
        rows += [(f"k{number % KEYS}", 1), PAUSE(jobs.pause)]
    for parallelism in jobs.parallelisms:
        folder = Path(jobs.folder) / str(parallelism)
        run = recovery.run(
            counted(Stream.read(Collection(rows, NUMBERS, splits=1), uid="numbers")),
            spark,
            checkpoints=folder / "tree",
            every="200ms",
            parallelism=parallelism,
            scheme=recovery.Passive(standbys=jobs.standbys),
            events="/dev/stdout",
            progress=False,
        )
        interrupted = False
        try:
            run.wait()
        except KeyboardInterrupt:
            interrupted = True
        seen = Counter((str(row["k"]), int(str(row["n"]))) for row in run.rows("out"))
        count = seen.total() if interrupted else jobs.rows  # as the source is read in order, all rows up to some one
        truth = Counter((f"k{number % KEYS}", number // KEYS + 1) for number in range(count))
        said = {"parallelism": parallelism, "lost": (truth - seen).total(), "twice": (seen - truth).total()}
        print(json.dumps({"event": "Outcome", **said}), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
