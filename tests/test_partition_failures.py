"""What is told of an exception: with the user's code first, and the row that led to it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from snapshot.connectors.files.stored import UnreadableFile, UnreadableRow
from snapshot.host.partition.failures import kind_of, traceback_of
from snapshot.host.protocol.messages import FailureKind
from snapshot.operators.operator import TakingBatches
from snapshot.operators.row_class import Row, WrongRow
from snapshot.operators.rows import Rows
from snapshot.operators.transforms import FilterBatches, FlatMapRows, MapBatches, MapRows
from snapshot.program.sink import SinkError, UnusableOutput, UnwritableRow
from snapshot.program.source import SourceError, SourceVanished, WrongPosition
from statebackend.entries import BrokenEntry

NUMBERS = pa.schema([("n", pa.int64())])


def rows(*numbers: int) -> Rows:
    return Rows(pa.record_batch([pa.array(numbers, pa.int64())], schema=NUMBERS), None)


def divided(row: Row) -> tuple[int]:
    return (10 // row.n,)


def test_a_traceback_begins_with_the_users_line() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        MapRows(divided, NUMBERS, NUMBERS).open()(rows(1, 0))
    caught.value.__traceback__ = caught.value.__traceback__ and caught.value.__traceback__.tb_next
    told = traceback_of(caught.value).splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert "test_partition_failures.py" in told[1]
    assert "in divided" in told[1]
    assert told[-2].startswith("ZeroDivisionError: ")
    assert told[-1] == "in map(divided), for the row Row(n=0)"


def test_an_error_of_ours_has_no_lines_of_ours() -> None:
    with pytest.raises(WrongRow) as caught:
        MapRows(lambda row: (row.n, row.n), NUMBERS, NUMBERS).open()(rows(7))
    assert caught.value.__traceback__ is not None
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    told = traceback_of(caught.value)
    assert "Traceback" not in told.replace("Traceback (most recent call last):", "", 1)
    assert "transforms.py" not in told
    assert "has 2 values, and the output has 1 columns" in told


def test_a_record_that_is_not_as_declared_is_the_programs_fault_and_a_source_that_is_away_is_not() -> None:
    assert kind_of(UnreadableRow("line 3")) is kind_of(UnreadableFile("no Parquet")) is FailureKind.PROGRAM
    assert kind_of(SourceVanished("it is away")) is kind_of(SourceError("no broker answers")) is FailureKind.RESOURCE


def test_any_other_error_is_told_whole() -> None:
    with pytest.raises(ValueError, match="literal") as caught:
        np.int64("no number")
    assert "test_partition_failures.py" in traceback_of(caught.value)


@pytest.mark.parametrize(
    ("step", "row"),
    [
        (MapRows(lambda row: (row.n,) if row.n != 7 else ("seven",), NUMBERS, NUMBERS), 7),
        (MapRows(lambda row: (row.n,) if row.n != 8 else (8, 8), NUMBERS, NUMBERS), 8),
        (FlatMapRows(lambda row: [(1,)] * row.n if row.n != 9 else [(1,), (2, 3)], NUMBERS, NUMBERS), 9),
    ],
)
def test_a_result_that_does_not_fit_names_the_row_that_led_to_it(step: MapRows | FlatMapRows, row: int) -> None:
    with pytest.raises(WrongRow) as caught:
        step.open()(rows(0, 7, 8, 9, 1))
    assert caught.value.__notes__[-1].endswith(f"for the row Row(n={row})")


def test_steps_of_whole_batches_say_so_and_steps_of_rows_do_not() -> None:
    of_batches = (MapBatches(lambda batch: batch, NUMBERS, NUMBERS), FilterBatches(lambda batch: batch["n"], NUMBERS))
    assert all(isinstance(step, TakingBatches) for step in of_batches)
    assert not isinstance(MapRows(divided, NUMBERS, NUMBERS), TakingBatches)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnusableOutput("held back for another place"), FailureKind.UNUSABLE),
        (WrongPosition("of no split"), FailureKind.UNUSABLE),
        (BrokenEntry("cut short"), FailureKind.UNUSABLE),
        (SinkError("the disk is full"), FailureKind.RESOURCE),
        (UnwritableRow("its key is null"), FailureKind.PROGRAM),
        (SourceError("no answer"), FailureKind.RESOURCE),
        (ValueError("a mistake"), FailureKind.PROGRAM),
    ],
    ids=str,
)
def test_what_an_epoch_has_and_nobody_can_use_is_not_tried_again(error: Exception, kind: FailureKind) -> None:
    assert kind_of(error) is kind
