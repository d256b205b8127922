import numpy as np
import pyarrow as pa

import recovery
from snapshot import Generate, Stream, ToFiles

PLAYED = pa.schema({"player": pa.string(), "points": pa.int64()})


def games(numbers):
    return {"player": np.array(["ann", "bob", "eve"])[numbers % 3], "points": numbers % 7}


totals = (
    Stream.read(Generate(games, PLAYED, rate=5_000), uid="games")
    .key_by("player")
    .sum("points", uid="points")
    .write(ToFiles("totals", "jsonl"), uid="out")
)

with recovery.run(totals, checkpoints="checkpoints", every="200ms", parallelism=2) as run:
    savepoint = run.savepoint()  # an epoch that is kept until it is disposed of
    status = run.status()
    print(status.state.value, status.parallelism, status.complete == savepoint)
    run.stop()  # after one more epoch, with all its output committed

run = recovery.run(totals, checkpoints="checkpoints", parallelism=3)
run.savepoint()
print(run.status().generation)
run.drain()  # the sources end where they are, windows and timers with them
