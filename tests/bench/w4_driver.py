"""The driver of W4's job as a process of its own, which is there to be killed.

Invariant: started again with the same folder, it goes on with the same job.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import recovery
from tests.bench.measured_sinks import Stopwatch
from tests.bench.running_job import PARALLELISM, STATE_MEMORY, context
from tests.bench.w4 import Sizes, program


def main(folder: Path, sizes: Sizes) -> None:
    """Run the job until somebody interrupts it."""
    with context() if sizes.spark else nullcontext() as spark:
        run = recovery.run(
            program(sizes, Stopwatch(str(folder / "seen"))),
            spark,
            checkpoints=folder / "checkpoints",
            every=sizes.every,
            parallelism=PARALLELISM,
            local=folder / "local",
            state_memory=STATE_MEMORY,
            progress=False,
        )
        with suppress(KeyboardInterrupt):
            run.wait()


if __name__ == "__main__":
    keys, rate, kills, pause, every, spark = sys.argv[2:]
    main(Path(sys.argv[1]), Sizes(int(keys), int(rate), int(kills), float(pause), every, spark == "True"))
