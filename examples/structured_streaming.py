"""An ordinary query of Structured Streaming writes files exactly once, though its driver is killed again and again.

For a reader who knows Spark: nothing but `register` and the name in `format` is new. The query counts through Spark's
rate source; each time it is started again it goes on from its checkpoint, with the batch that was under way. In the
end each number has to be in the files once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from snapshot.structured import register

ROOT = Path(__file__).parent.parent
ROWS_PER_SECOND = 500
PATIENCE = 300.0
"""Seconds until a query that writes nothing is given up."""


def run_query(folder: Path) -> None:
    """The whole of it, as somebody's program may have it."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    numbers = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
    query = (
        numbers.select("value")
        .writeStream.format("epochcut.files")
        .option("format", "jsonl")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start(str(folder / "numbers"))
    )
    query.awaitTermination()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.structured_streaming",
        description=__doc__,
        epilog="example: python -m examples.structured_streaming --kills 5 --keep /tmp/numbers",
    )
    parser.add_argument("--kills", type=int, default=3, help="how often (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep files and checkpoint here; it must be empty")
    parser.add_argument("--query", type=Path, metavar="FOLDER", help="run the query alone, until it is killed")
    given = parser.parse_args(arguments)
    if given.query is not None:
        run_query(given.query)
        return 0
    if given.keep is not None and given.keep.exists() and any(given.keep.iterdir()):
        parser.error(f"{given.keep} is not empty; choose a new folder")
    with TemporaryDirectory() as scratch:
        folder = (given.keep or Path(scratch)).absolute()
        chance = Random(given.seed)
        for _ in range(given.kills):
            run_and_kill(folder, chance.uniform(0, 2))
        found = written(folder)
    expected = set(range(max(found, default=-1) + 1))
    lost, twice = len(expected - found.keys()), found.total() - len(found)
    print(f"{given.kills} drivers killed; {found.total():,} numbers in files: {lost} lost, {twice} twice")
    return 1 if lost or twice or not found else 0


def run_and_kill(folder: Path, after: float) -> None:
    """Run the query until it has written something new, and a while more; then kill it, with the JVM and all."""
    before, give_up = written(folder).total(), time.monotonic() + PATIENCE
    command = [sys.executable, "-m", "examples.structured_streaming", "--query", str(folder)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            while written(folder).total() == before and process.poll() is None and time.monotonic() < give_up:
                time.sleep(0.1)
            time.sleep(after)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    if written(folder).total() == before:
        raise SystemExit("the query has written nothing; run it alone with --query to see why")


def written(folder: Path) -> Counter[int]:
    """What a reader sees. It need not know of batches: a file that is there is whole, and stays."""
    lines = (line for file in (folder / "numbers").glob("part-*") for line in file.read_text().splitlines())
    return Counter(json.loads(line)["value"] for line in lines)


if __name__ == "__main__":
    sys.exit(main())
