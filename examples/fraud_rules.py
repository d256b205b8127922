"""Payments are watched by rules that come while the job runs: a stream by account, and a control stream.

A rule says how much of a kind an account may pay within a time, and from when on. Every partition gets all rules. For
a reader who knows Flink: this is the broadcast state pattern, made exact by event time: a payment is judged when the
watermark of both streams has passed it, so that all rules are there that hold for it, however fast either stream comes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import recovery
from snapshot import (
    Broadcast,
    Collection,
    Generate,
    KeyedBroadcastProcess,
    MapState,
    ProcessContext,
    Program,
    Row,
    Stream,
    ToDriver,
)

ACCOUNTS, KINDS = 150, ("card", "transfer", "cash")
MINUTE, HOUR = 60_000, 3_600_000
STEP = 2_000
"""Milliseconds of event time from one payment to the next."""
LONGEST = HOUR
"""No rule looks further back."""
PAYMENT = pa.schema(
    [("payment", pa.int64()), ("account", pa.int64()), ("kind", pa.string()), ("cents", pa.int64()), ("at", pa.int64())]
)
RULE = pa.schema(
    [("rule", pa.string()), ("since", pa.int64()), ("kind", pa.string()), ("within", pa.int64()), ("most", pa.int64())]
)
RULES = (
    ("cards", 0, "card", 10 * MINUTE, 55_000),
    ("moves", 0, "transfer", HOUR, 110_000),
    ("cards", HOUR, "card", 10 * MINUTE, 40_000),
    ("purse", 2 * HOUR, "cash", 30 * MINUTE, 75_000),
    ("moves", 3 * HOUR, "transfer", HOUR, 100_000_000),
)
"""A later rule of a name takes the place of the earlier one, from its time on."""


class Limit(NamedTuple):
    """What a rule says."""

    kind: str
    within: int
    most: int


class Watch(KeyedBroadcastProcess):
    """Gives an alarm for each payment with which an account has paid more than a rule allows."""

    output: ClassVar = {"account": int, "payment": int, "rule": str, "paid": int}
    rules = Broadcast(tuple[str, int], tuple[str, int, int])
    """By name and beginning; so it does not matter in which order rules come."""
    recent = MapState(tuple[int, int], tuple[str, int])
    """The account's payments, by time and number: those to be judged, and those that may count."""

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.recent.put((event.at, event.payment), (event.kind, event.cents))
        ctx.timer(event.at + 1)

    def on_broadcast(self, event: Row, ctx: ProcessContext) -> None:  # noqa: ARG002
        self.rules.put((event.rule, event.since), (event.kind, event.within, event.most))

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        judged_at = at - 1
        limits = in_force(self.rules, judged_at)
        recent = sorted(self.recent.items())
        for (paid_at, payment), (kind, _) in recent:
            if paid_at == judged_at:
                for rule, paid in broken(limits, recent, (paid_at, payment), kind):
                    ctx.emit((ctx.key, payment, rule, paid))
            elif paid_at <= judged_at - LONGEST:
                self.recent.remove((paid_at, payment))


def in_force(rules: Mapping[tuple[str, int], tuple[str, int, int]], at: int) -> dict[str, Limit]:
    """By name, the newest rule that holds at a time."""
    held = sorted((since, name, limit) for (name, since), limit in rules.items() if since <= at)
    return {name: Limit(*limit) for _, name, limit in held}


def broken(
    limits: Mapping[str, Limit],
    payments: Sequence[tuple[tuple[int, int], tuple[str, int]]],
    judged: tuple[int, int],
    kind: str,
) -> Iterator[tuple[str, int]]:
    """The rules that a payment breaks, and how much was paid with it."""
    for name, limit in limits.items():
        if limit.kind == kind:
            paid = sum(
                cents
                for key, (paid_as, cents) in payments
                if paid_as == kind and judged[0] - limit.within < key[0] and key <= judged
            )
            if paid > limit.most:
                yield name, paid


def program(count: int) -> Program:
    payments = Stream.read(Generate(paying, PAYMENT, count=count), uid="payments").with_event_time("at")
    rules = Stream.read(Collection(RULES, RULE), uid="rules").with_event_time("since")
    watched = payments.key_by("account").connect(rules.broadcast()).process(Watch, uid="watch")
    return watched.write(ToDriver(), uid="alarms")


def paying(numbers: NDArray[np.int64]) -> dict[str, pa.Array]:
    """Payments by their numbers: what the source calls."""
    payments = [payment(number) for number in numbers.tolist()]
    return {name: pa.array(values) for name, values in zip(PAYMENT.names, zip(*payments, strict=True), strict=True)}


def payment(number: int) -> tuple[int, int, str, int, int]:
    mixed = number * 2_654_435_761 % 2**32
    return number, mixed % ACCOUNTS, KINDS[mixed // ACCOUNTS % 3], 100 + mixed // 1_000 % 40_000, number * STEP


def truth(count: int) -> Iterator[tuple[int, int, str, int]]:
    """The alarms, computed without a stream."""
    rules = {(name, since): (kind, within, most) for name, since, kind, within, most in RULES}
    accounts = defaultdict(list)
    for number in range(count):
        _, account, kind, cents, at = payment(number)
        accounts[account].append(((at, number), (kind, cents)))
    for account, payments in accounts.items():
        for place, ((at, number), (kind, _)) in enumerate(payments):
            before = [each for each in payments[max(0, place - 200) : place + 1] if each[0][0] > at - LONGEST]
            for rule, paid in broken(in_force(rules, at), before, (at, number), kind):
                yield account, number, rule, paid


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.fraud_rules",
        description=__doc__,
        epilog="example: python -m examples.fraud_rules --payments 5000",
    )
    parser.add_argument("--payments", type=int, default=9_000, help="how many are made (%(default)s)")
    count = parser.parse_args(arguments).payments
    with (
        TemporaryDirectory() as scratch,
        recovery.run(
            program(count), checkpoints=Path(scratch) / "checkpoints", job="fraud", local=Path(scratch) / "local"
        ) as run,
    ):
        found: Counter[tuple[object, ...]] = Counter(
            (row["account"], row["payment"], row["rule"], row["paid"]) for row in run.rows("alarms")
        )
    expected: Counter[tuple[object, ...]] = Counter(truth(count))
    by_rule = Counter(str(rule) for _, _, rule, _ in expected.elements())
    print(", ".join(f"{many} alarms by {rule!r}" for rule, many in sorted(by_rule.items())))
    lost, twice = (expected - found).total(), (found - expected).total()
    print(f"{expected.total():,} alarms expected, {found.total():,} seen: {lost} lost, {twice} twice or wrong")
    return 1 if lost or twice else 0


if __name__ == "__main__":
    sys.exit(main())
