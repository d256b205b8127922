"""Options that contradict each other or cannot be meant are refused with a sentence that says what to change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from snapshot.cut.frames import MarkerMode
from snapshot.epochs.coordinator_options import ContradictingOptions, CoordinatorOptions


def test_the_defaults_agree_with_each_other() -> None:
    options = CoordinatorOptions()
    assert options.mode is MarkerMode.ALIGNED
    assert options.tolerated_failures is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(CoordinatorOptions, interval=0), "interval is 0; it must be at least 1"),
        (partial(CoordinatorOptions, timeout=0), "timeout is 0; it must be at least 1"),
        (partial(CoordinatorOptions, min_pause=-1), "min_pause is -1; it must be at least 0"),
        (partial(CoordinatorOptions, max_in_flight=0), "max_in_flight is 0; it must be at least 1"),
        (partial(CoordinatorOptions, retain=0), "retain is 0; it must be at least 1"),
        (partial(CoordinatorOptions, tolerated_failures=-1), "tolerated_failures is -1; it cannot be negative"),
        (
            partial(CoordinatorOptions, min_pause=5, max_in_flight=2),
            "min_pause is 5 ms and max_in_flight 2.*set max_in_flight to 1",
        ),
        (partial(CoordinatorOptions, alignment_timeout=-1), "alignment_timeout is -1 ms; it must be at least 0"),
        (partial(CoordinatorOptions, alignment_timeout=100, timeout=100), "shorter than the epoch's timeout of 100 ms"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(make: Callable[[], CoordinatorOptions], message: str) -> None:
    with pytest.raises(ContradictingOptions, match=message):
        make()


@pytest.mark.parametrize("mode", [MarkerMode.UNALIGNED, MarkerMode.AT_LEAST_ONCE])
def test_only_an_aligned_job_has_an_alignment_timeout(mode: MarkerMode) -> None:
    with pytest.raises(ContradictingOptions, match=f"in mode {mode.value} nothing is aligned"):
        CoordinatorOptions(mode=mode, alignment_timeout=0)


@pytest.mark.parametrize(
    "make",
    [
        partial(CoordinatorOptions, interval=1, timeout=1, retain=1, max_in_flight=1),
        partial(CoordinatorOptions, tolerated_failures=0),
        partial(CoordinatorOptions, min_pause=5, max_in_flight=1),
        partial(CoordinatorOptions, alignment_timeout=0),
        partial(CoordinatorOptions, alignment_timeout=99, timeout=100),
    ],
)
def test_a_value_at_the_limit_is_taken(make: partial[CoordinatorOptions]) -> None:
    options = make()
    assert {name: getattr(options, name) for name in make.keywords} == make.keywords
