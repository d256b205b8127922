"""A game's points by player: a job that runs until it is stopped, for a tour with the `recovery` command.

For a reader who knows Flink or Spark: `Points` is a keyed process function, and `total` its declared value state, which
the command can show, edit and rescale by the name of its operator, `points`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import recovery
from snapshot import Generate, KeyedProcess, ProcessContext, Program, Row, Stream, ToFiles, ValueState

GAMES = pa.schema([("player", pa.string()), ("points", pa.int64())])
PLAYERS = np.array(["ann", "bob", "eve", "ian", "joe", "kim", "liz", "max", "pat", "zoe"])


def games(indices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Mapping[str, Any]:
    """Who has played, and what it has brought."""
    return {"player": PLAYERS[indices * 7 % len(PLAYERS)], "points": indices * indices % 7}


class Points(KeyedProcess):
    """All points that a player has made."""

    output: ClassVar = {"player": str, "total": int}
    total = ValueState(int, default=0)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        total = self.total.get() + event.points
        self.total.set(total)
        ctx.emit((ctx.key, total))


def program(output: str = "points-output") -> Program:
    played = Stream.read(Generate(games, GAMES, rate=1_000), uid="games")
    return played.key_by("player").process(Points, uid="points").write(ToFiles(output, "jsonl"), uid="totals")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.points",
        description=__doc__,
        epilog="example: python -m examples.points --checkpoints points, until Ctrl-C; a tour is in recovery/README.md",
    )
    parser.add_argument("--checkpoints", default="points", metavar="URI", help="of the job (%(default)s)")
    parser.add_argument("--output", default="points-output", metavar="URI", help="of its files (%(default)s)")
    parser.add_argument("--parallelism", type=int, default=2, metavar="N", help="so many partitions (%(default)s)")
    given = parser.parse_args(arguments)
    run = recovery.run(
        program(given.output), checkpoints=given.checkpoints, job="points", parallelism=given.parallelism
    )
    try:
        run.wait()
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
