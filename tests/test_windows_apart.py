"""Windows and sessions that are cut when partitions have come to different times, and go on at another parallelism."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.cut.frames import LATEST
from snapshot.operators.operator import KeyedOperator
from snapshot.operators.windows.kinds import Session, Sliding, Tumbling
from snapshot.testing.operators import OperatorHarness
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType
from tests import test_windows_aggregate as aligned
from tests import test_windows_rows as by_rows
from tests import test_windows_session as sessions
from tests.window_models import GROUPS, AlignedModel, Emitted, Step, Timed, WindowModel, steps

KEYS = [None, "a", "b", "c"]
BEGIN = 60
"""By then every key has given a result in each of the tests."""


def owner(key: str | None) -> int:
    column = key_column(pa.array([key], pa.string()), KeyType.of(str))
    return int(column.groups(GROUPS)[0]) * 2 // GROUPS


class Apart:
    """Two models, each with the keys of one of two partitions."""

    def __init__(self, models: Sequence[WindowModel]) -> None:
        self.models = models

    def rows(self, batch: Sequence[Timed]) -> list[Emitted]:
        emitted: list[Emitted] = []
        for number, model in enumerate(self.models):
            model.late.clear()
            emitted += model.rows([one for one in batch if owner(one[0][0]) == number])
        return emitted

    def watermark(self, time: int) -> list[Emitted]:
        return [one for model in self.models for one in model.watermark(time)]

    @property
    def late(self) -> list[tuple[str | None, int | None]]:
        return [row for model in self.models for row in model.late]


def advance(harness: OperatorHarness, times: Sequence[int]) -> None:
    """Let partitions come to different times; restored together they are at the first."""
    for member, time in zip(harness._members, times, strict=True):
        member.operator.watermark(time)
    harness._watermark = min(times)


def check(
    operator: KeyedOperator, model: Apart, batch: list[Timed], ahead: list[int], work: Sequence[Step], sizes: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        harness = OperatorHarness(operator, Path(folder), parallelism=2, max_parallelism=GROUPS)
        try:
            first = [((key, 1), 0) for key in KEYS]
            model.rows(first)
            harness.rows([row for row, _ in first], [time for _, time in first])
            model.watermark(BEGIN)
            harness.watermark(BEGIN)
            now = BEGIN + min(ahead)
            opening = [(row, BEGIN + time) for row, time in batch]
            model.rows(opening)
            harness.rows([row for row, _ in opening], [time for _, time in opening])
            for one, more in zip(model.models, ahead, strict=True):
                one.watermark(BEGIN + more)
            advance(harness, [BEGIN + more for more in ahead])
            for step in [None, *work, None, LATEST]:
                harness.clear()
                if step is None:
                    snapshot = harness.cut()
                    harness.close()
                    size = sizes.pop() if sizes else 1
                    harness = OperatorHarness(
                        operator, Path(folder), parallelism=size, max_parallelism=GROUPS, snapshot=snapshot
                    )
                    continue
                side: list[tuple[object, ...]] = []
                if isinstance(step, int):
                    now = min(now + step, LATEST)
                    expected = model.watermark(now)
                    harness.watermark(now)
                else:
                    some = [(row, now + time) for row, time in step]
                    expected = model.rows(some)
                    harness.rows([row for row, _ in some], [time for _, time in some])
                    side = list(model.late)
                found = zip(map(tuple, harness.emitted()), harness.emitted_times(), strict=True)
                assert sorted(found, key=repr) == sorted(expected, key=repr)
                assert sorted(map(tuple, harness.emitted("late")), key=repr) == sorted(side, key=repr)
        finally:
            harness.close()


rows = st.tuples(st.tuples(st.sampled_from(KEYS), st.integers(-5, 5)), st.integers(-15, 25))
batches = st.lists(rows, min_size=3, max_size=12)
apart = st.lists(st.integers(0, 30), min_size=2, max_size=2)
sizes = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5)


@settings(max_examples=settings().max_examples // 8)
@given(
    kind=st.sampled_from([Tumbling("10ms"), Tumbling("7ms", "2ms"), Sliding("10ms", "4ms")]),
    lateness=st.sampled_from([0, 5, 20]),
    batch=batches,
    ahead=apart,
    work=steps,
    sizes=sizes,
)
def test_windows_go_on_where_each_key_group_was(
    kind: Tumbling | Sliding, lateness: int, batch: list[Timed], ahead: list[int], work: list[Step], sizes: list[int]
) -> None:
    model = Apart([AlignedModel(kind, lateness), AlignedModel(kind, lateness)])
    check(aligned.operator(kind, lateness, late=True), model, batch, ahead, work, sizes)


@settings(max_examples=settings().max_examples // 8)
@given(gap=st.integers(1, 9), lateness=st.sampled_from([0, 5, 20]), batch=batches, ahead=apart, work=steps, sizes=sizes)
def test_sessions_go_on_where_each_key_group_was(
    gap: int, lateness: int, batch: list[Timed], ahead: list[int], work: list[Step], sizes: list[int]
) -> None:
    model = Apart([sessions.SessionModel(gap, lateness, sessions.statistics) for _ in range(2)])
    check(sessions.aggregate(Session(f"{gap}ms"), lateness, late=True), model, batch, ahead, work, sizes)


ALL: list[Timed] = [((key, number), time) for number, time in enumerate((5, 12, 18)) for key in KEYS]
LATE: list[Step] = [
    [((key, 7), time) for time in (-12, 4, 14, 29) for key in KEYS],
    8,
    None,
    [((key, 9), time) for time in (-20, 1, 6, 15) for key in KEYS],
    20,
]


def listed(values: list[int | None]) -> tuple[object, ...]:
    return (str(values),)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("lateness", [0, 12, 60])
@pytest.mark.parametrize("ahead", [[25, 0], [3, 28]])
@pytest.mark.parametrize(
    ("operator", "model"),
    [
        (
            lambda late: aligned.operator(Tumbling("10ms"), late, True),
            lambda late: AlignedModel(Tumbling("10ms"), late),
        ),
        (
            lambda late: aligned.operator(Sliding("10ms", "4ms"), late, True),
            lambda late: AlignedModel(Sliding("10ms", "4ms"), late),
        ),
        (
            lambda late: by_rows.reducing(Tumbling("10ms"), late, True),
            lambda late: by_rows.Reduced(Tumbling("10ms"), late, by_rows.subtracted_all),
        ),
        (
            lambda late: by_rows.processing(Tumbling("10ms"), late, True),
            lambda late: AlignedModel(Tumbling("10ms"), late, listed),
        ),
        (
            lambda late: sessions.aggregate(Session("6ms"), late, True),
            lambda late: sessions.SessionModel(6, late, sessions.statistics),
        ),
    ],
    ids=["tumbling", "sliding", "reduce", "process", "sessions"],
)
def test_no_result_is_given_twice_or_lost_when_one_of_two_partitions_was_ahead(
    operator: Callable[[int], KeyedOperator],
    model: Callable[[int], WindowModel],
    ahead: list[int],
    lateness: int,
    size: int,
) -> None:
    check(operator(lateness), Apart([model(lateness), model(lateness)]), ALL, ahead, LATE, [2, size])
