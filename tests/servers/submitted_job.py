"""A program as it is submitted to a cluster: it counts to files, and tells in a file what happens in it.

Invariant: it has no word for what happens when it is started a second time.

spark-submit ... tests/servers/submitted_job.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark import SparkContext

import recovery
from snapshot import PAUSE, Collection, Stream, ToFiles
from tests.test_running_locally import KEYS, NUMBERS

ROWS = 100
PAUSED = 0.04
"""Seconds before each row."""


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    rows: list[Any] = []
    for number in range(ROWS):
        rows += [(f"k{number % KEYS}", 1), PAUSE(PAUSED)]
    counts = Stream.read(Collection(rows, NUMBERS, splits=1), uid="numbers").key_by("k").sum("n", uid="count")
    recovery.run(
        counts.write(ToFiles(str(folder / "out"), "jsonl"), uid="out"),
        SparkContext.getOrCreate(),
        checkpoints=folder / "tree",
        every="200ms",
        events=folder / "events.jsonl",
        progress=False,
    ).wait()
    return 0


def lost_and_twice(folder: Path) -> tuple[int, int]:
    """How many rows of its output are missing, and how many are there too often."""
    lines = (line for file in (folder / "out").glob("part-*") for line in file.read_text().splitlines())
    seen = Counter((row["k"], row["n"]) for row in map(json.loads, lines))
    truth = Counter((f"k{number % KEYS}", number // KEYS + 1) for number in range(ROWS))
    return (truth - seen).total(), (seen - truth).total()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
