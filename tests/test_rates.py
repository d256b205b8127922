"""Rows per second from totals."""

from __future__ import annotations

from recovery.driver.report.status import Rate, Rates
from snapshot.host.protocol.messages import StageFigures
from statebackend.ids import Partition, Uid

COUNT = Uid("count")


def totals(rows_in: int, rows_out: int = 0) -> dict[Uid, StageFigures]:
    return {COUNT: StageFigures(rows_in, rows_out, None, 0, 0, 0.0)}


def test_rates_of_partitions_add_up() -> None:
    rates = Rates()
    for partition in (Partition(0), Partition(1)):
        rates.told(0.0, partition, totals(0))
        rates.told(2.0, partition, totals(200, 20))
    assert rates.now() == {COUNT: Rate(200.0, 20.0)}


def test_a_rate_is_over_the_last_five_seconds() -> None:
    rates = Rates()
    for second in range(20):
        rates.told(float(second), Partition(0), totals(min(second, 10) * 100))
    assert rates.now() == {COUNT: Rate(0.0, 0.0)}


def test_a_partition_that_begins_anew_has_no_rate_yet() -> None:
    rates = Rates()
    rates.told(0.0, Partition(0), totals(0))
    rates.told(1.0, Partition(0), totals(100))
    rates.begin_anew()
    rates.told(2.0, Partition(0), totals(0))
    assert rates.now() == {COUNT: Rate(0.0, 0.0)}
