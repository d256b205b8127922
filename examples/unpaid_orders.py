"""Orders that are not paid within a quarter of an hour: declared state and timers, one set for each order.

For a reader who knows Flink or Spark: a `KeyedProcess` is a KeyedProcessFunction, or a StatefulProcessor of
transformWithState. State is declared as attributes of the class, and is always that of the key of the current call.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import recovery
from snapshot import Generate, KeyedProcess, ProcessContext, Program, Row, Stream, ToDriver, ValueState

PATIENCE = 15 * 60_000
STEP = 250
"""Milliseconds of event time from one event to the next."""
NEVER = 2**62
EVENT = pa.schema([("order", pa.int64()), ("what", pa.string()), ("cents", pa.int64()), ("at", pa.int64())])


class Unpaid(KeyedProcess):
    """Gives out an order, and what it is worth, when it could have been paid and was not.

    An order and its payment come from different splits of the source, so either may be seen first. Event time decides,
    and not the order in which they come: the timer fires when all events before it have been seen.
    """

    output: ClassVar = {"order": int, "cents": int, "due": int}
    cents = ValueState(int, default=0)
    due = ValueState(int, default=NEVER)
    paid = ValueState(int, default=NEVER)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        if event.what == "placed":
            self.cents.set(event.cents)
            self.due.set(event.at + PATIENCE)
        else:
            self.paid.set(event.at)
        ctx.timer(event.at + PATIENCE)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        if at == self.due.get() and self.paid.get() >= at:
            ctx.emit((ctx.key, self.cents.get(), at))
        if self.paid.get() == NEVER or at == self.paid.get() + PATIENCE:  # nothing can come any more
            self.cents.clear()
            self.due.clear()
            self.paid.clear()


def program(events: int) -> Program:
    source = Generate(shop, EVENT, count=events)
    return (
        Stream.read(source, uid="shop")
        .with_event_time("at")
        .key_by("order")
        .process(Unpaid, uid="unpaid")
        .write(ToDriver(), uid="reminders")
    )


def shop(numbers: NDArray[np.int64]) -> dict[str, pa.Array]:
    """Events by their numbers: what the source calls."""
    events = [event(number) for number in numbers.tolist()]
    return {name: pa.array(values) for name, values in zip(EVENT.names, zip(*events, strict=True), strict=True)}


def event(number: int) -> tuple[int, str, int, int]:
    """Every even event is an order; an odd one pays an order: soon, too late, or one that is paid already."""
    if number % 2 == 0:
        return number, "placed", 100 + number * 37 % 9_900, number * STEP
    back = 1 + 2 * (number * 7 % 2_801)
    return max(0, number - back), "paid", 0, number * STEP


def truth(events: int) -> Iterator[tuple[int, int, int]]:
    """The orders that were not paid in time, computed without a stream: each order's last payment counts."""
    every = [event(number) for number in range(events)]
    paid = {order: at for order, what, _, at in every if what == "paid"}
    for order, what, cents, at in every:
        if what == "placed" and paid.get(order, NEVER) >= at + PATIENCE:
            yield order, cents, at + PATIENCE


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.unpaid_orders",
        description=__doc__,
        epilog="example: python -m examples.unpaid_orders --events 5000",
    )
    parser.add_argument("--events", type=int, default=40_000, help="orders and payments (%(default)s)")
    events = parser.parse_args(arguments).events
    with (
        TemporaryDirectory() as scratch,
        recovery.run(
            program(events), checkpoints=Path(scratch) / "checkpoints", job="orders", local=Path(scratch) / "local"
        ) as run,
    ):
        found: Counter[tuple[object, ...]] = Counter(
            (row["order"], row["cents"], row["due"]) for row in run.rows("reminders")
        )
    expected: Counter[tuple[object, ...]] = Counter(truth(events))
    lost, twice = (expected - found).total(), (found - expected).total()
    print(f"{expected.total():,} unpaid orders expected, {found.total():,} seen: {lost} lost, {twice} twice or wrong")
    return 1 if lost or twice else 0


if __name__ == "__main__":
    sys.exit(main())
