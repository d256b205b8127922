"""W1: running count and sum of each key, by the built-in aggregation and row by row in Python, beside PySpark's own.

Invariant: sources make the records in the partitions' own processes, and a sink there drops what comes out;
state is in RocksDB, with more memory than it needs; a figure is what the keyed stage took in its steady state, and each
round measures all programs once, those with epochs every second and those without them by turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from snapshot import KeyedProcess, ProcessContext, Program, Stream
from snapshot.operators.row_class import Row
from statebackend import Count, Sum, ValueState
from tests.bench import spark_peers
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.measured_sinks import Drop
from tests.bench.running_job import EVERY_SECOND, NO_EPOCHS, Steady, running, session
from tests.bench.workload_input import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKLOAD: Final = "W1"
STAGE: Final = "totals"
_FILLED: Final = 2
"""With so many records for each key, seven of eight keys are known."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many keys, and how long each measure takes. Without `spark` the partitions are processes."""

    keys: tuple[int, int]
    """The second is that of the comparisons."""
    seconds: float
    peer_seconds: float
    rounds: int
    spark: bool


FULL = Sizes((100_000, 1_000_000), 4.0, 10.0, RUNS, spark=True)
SMALL = Sizes((500, 1_000), 0.2, 0.0, 1, spark=False)


class Totals(KeyedProcess):
    """Count and sum, one record at a time."""

    output: ClassVar = {"key": int, "count": int, "sum": float}
    totals = ValueState(tuple[int, float], default=(0, 0.0))

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        """One update for each record."""
        key, value = event
        count, total = self.totals.get()
        totals = count + 1, total + value
        self.totals.set(totals)
        ctx.emit((key, *totals))


@dataclass(frozen=True, slots=True)
class Measure:
    """A program, and how often there is an epoch."""

    name: str
    keys: int
    every: str = EVERY_SECOND

    @property
    def program(self) -> Program:
        """What runs."""
        keyed = Stream.read(records(self.keys), uid="records").key_by("key")
        if self.name == "row_by_row":
            return keyed.process(Totals, uid=STAGE).write(Drop(), uid="out")
        outputs = {"count": Count(), "sum": Sum("value")}
        per_batch = self.name.endswith("batch")
        totals = keyed.aggregate(uid=STAGE, per="batch" if per_batch else "record", **outputs)
        return totals.write(Drop(), uid="out")

    def run(self, spark: SparkSession | None, seconds: float) -> Steady:
        """What the job does once most keys are known."""
        progress(f"W1: {self.name}, {self.keys} keys, epochs {_said(self.every)}")
        with running(self.program, spark, self.every) as job:
            job.until_rows(STAGE, _FILLED * self.keys)
            return job.steady(STAGE, seconds)


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """All figures of the workload."""
    with session() if sizes.spark else nullcontext() as spark:
        few, many = sizes.keys
        yield from _rounds([Measure(name, few) for name in PROGRAMS], spark, sizes.seconds, 1)
        compared = [Measure(name, many) for name in PROGRAMS]
        yield from _rounds([*compared, Measure(PER_RECORD, many, NO_EPOCHS)], spark, sizes.seconds, sizes.rounds)
        if spark is not None:
            yield from _peers(spark, sizes)


PER_RECORD: Final = "builtin_per_record"
PROGRAMS: Final = (PER_RECORD, "builtin_per_batch", "row_by_row")


def _rounds(measures: Sequence[Measure], spark: SparkSession | None, seconds: float, rounds: int) -> Iterator[Figure]:
    found: dict[Measure, list[Steady]] = {measure: [] for measure in measures}
    for _ in range(rounds):
        for measure, runs in found.items():
            runs.append(measure.run(spark, seconds))
    for measure, runs in found.items():
        rates = [run.rows_per_s for run in runs]
        cpu = sum(run.cpu_s for run in runs)
        yield figure(WORKLOAD, _name(measure), "rows/s", rates, cpu)
        yield figure(WORKLOAD, f"{_name(measure)}_per_cpu", "rows/cpu-s", [
            run.rows_per_s * seconds / run.cpu_s for run in runs
        ], cpu)  # fmt: skip
    yield from _cost(found)


def _cost(found: dict[Measure, list[Steady]]) -> Iterator[Figure]:
    """What epochs take of the throughput, and of what is done in a second of CPU time."""
    for without in found:
        if without.every != NO_EPOCHS:
            continue
        pairs = list(zip(found[Measure(without.name, without.keys)], found[without], strict=True))
        costs = [100 * (1 - on.rows_per_s / off.rows_per_s) for on, off in pairs]
        per_cpu = [100 * (1 - on.rows_per_s / on.cpu_s / (off.rows_per_s / off.cpu_s)) for on, off in pairs]
        cpu = sum(on.cpu_s + off.cpu_s for on, off in pairs)
        yield figure(WORKLOAD, "epoch_cost_pct", "%", costs, cpu)
        yield figure(WORKLOAD, "epoch_cost_cpu_pct", "%", per_cpu, cpu)


def _name(measure: Measure) -> str:
    kind, _, per = measure.name.partition("_per_")
    size = _short(measure.keys)
    name = f"{kind}_{size}_per_{per}" if per else f"{kind}_{size}"
    return name if measure.every == EVERY_SECOND else f"{name}_without_epochs"


def _peers(spark: SparkSession, sizes: Sizes) -> Iterator[Figure]:
    """Spark's own, with micro-batches of about a second."""
    for keys in sizes.keys:
        progress(f"W1: Spark's own groupBy and transformWithState, {keys} keys")
        grouped = spark_peers.grouped(spark_peers.records(spark, keys, 300_000))
        yield _peer(f"spark_group_by_{_short(keys)}", spark_peers.throughput(grouped, "update", sizes.peer_seconds))
        by_row = spark_peers.row_by_row(spark_peers.records(spark, keys, 5_000)).drop("timestamp")
        yield _peer(
            f"spark_transform_with_state_{_short(keys)}",
            spark_peers.throughput(by_row, "update", sizes.peer_seconds),
        )


def _peer(name: str, measured: spark_peers.Measured) -> Figure:
    return figure(WORKLOAD, name, "rows/s", [measured.rows_per_s], measured.cpu_s)


def _short(number: int) -> str:
    return f"{number // 1_000_000}m" if number >= 1_000_000 else f"{number / 1_000:g}k"


def _said(every: str) -> str:
    return "every second" if every == EVERY_SECOND else "off"
