"""Words are counted per minute: the lines come from files, the counts go to files, each count exactly once.

For a reader who knows Flink or Spark: `with_event_time` is the watermark strategy (here the column `at`, in order),
`Tumbling` the window assigner, and each `uid` the name by which state, positions and output are found again. To read
what is new each day, give `recovery.run` the option `available_now=True`: it leaves the last minute open for the next.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

import recovery
from snapshot import Files, Program, Stream, ToFiles, Tumbling

LINE = pa.schema([("at", pa.timestamp("ms")), ("line", pa.string())])
OPENING = datetime(2026, 1, 1, 12, tzinfo=UTC)
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]


def program(lines: str, counts: str) -> Program:
    return (
        Stream.read(Files(lines, "jsonl", LINE), uid="lines")
        .with_event_time("at")
        .flat_map(lambda row: [(word,) for word in row.line.split()], schema={"word": str})
        .key_by("word")
        .window(Tumbling("1m"))
        .count(uid="per-minute")
        .write(ToFiles(counts, "jsonl"), uid="counts")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.word_count",
        description=__doc__,
        epilog="example: python -m examples.word_count --keep /tmp/words, and look at what is in the folder",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the lines that are counted (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files here; it must be empty")
    given = parser.parse_args(arguments)
    if given.keep is not None and given.keep.exists() and any(given.keep.iterdir()):
        parser.error(f"{given.keep} is not empty; choose a new folder")
    with TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        write_lines(folder / "lines", random.Random(given.seed))
        words = program(str(folder / "lines"), str(folder / "counts"))
        with recovery.run(words, checkpoints=folder / "checkpoints", job="words", local=Path(scratch) / "local") as run:
            run.wait()
        expected, found = truth(folder / "lines"), written(folder / "counts")
    lost, twice = (expected - found).total(), (found - expected).total()
    print(f"{expected.total():,} counts expected, {found.total():,} in files: {lost} lost, {twice} twice or wrong")
    return 1 if lost or twice else 0


def write_lines(folder: Path, chance: random.Random) -> None:
    """Two hours of lines, a file for each ten minutes."""
    folder.mkdir(parents=True)
    for file in range(12):
        seconds = sorted(chance.choices(range(600), k=400))
        lines = (
            {
                "at": (OPENING + timedelta(minutes=10 * file, seconds=second)).isoformat(),
                "line": " ".join(chance.choices(WORDS, k=5)),
            }
            for second in seconds
        )
        (folder / f"{file:02}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def truth(folder: Path) -> Counter[tuple[str, str, int]]:
    """The words of each minute, counted by hand."""
    lines = (json.loads(text) for file in folder.iterdir() for text in file.read_text().splitlines())
    counts = Counter((word, line["at"][:16].replace("T", " ")) for line in lines for word in line["line"].split())
    return Counter((word, minute, count) for (word, minute), count in counts.items())


def written(folder: Path) -> Counter[tuple[str, str, int]]:
    """What the job has written. Readers need not know of epochs: a file that is there is whole, and stays."""
    rows = (json.loads(text) for file in folder.glob("part-*") for text in file.read_text().splitlines())
    return Counter((row["word"], row["window_start"][:16], row["count"]) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
