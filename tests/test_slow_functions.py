"""Functions of the user that are slow, with all options as they are by default: epochs do not wait for them."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

import pytest

from tests.bench.slow import MODES, Mode, Sizes, due_timers, due_windows, epochs_of, hot_key

SIZES = Sizes(seconds=5.0, row=0.0012, timer=0.02, timers=500)
"""The timers fire for five seconds, and of the rows as many could be under way as take half a minute."""
LIMIT = 2.0
"""Seconds, on a machine that has much else to do."""


@pytest.mark.parametrize("mode", MODES)
def test_an_epoch_does_not_wait_for_all_the_rows_of_a_slow_key(mode: Mode) -> None:
    took = [epoch.since_trigger_ms / 1000 for epoch in epochs_of(hot_key(SIZES), mode, SIZES.seconds, 1_000)]
    assert len(took) >= 3
    assert median(took) < LIMIT


@pytest.mark.parametrize("mode", MODES)
def test_an_epoch_does_not_wait_for_all_the_timers_that_are_due(mode: Mode) -> None:
    at = [epoch.at for epoch in epochs_of(due_timers(SIZES), mode, 4.0, SIZES.timers + 500)]
    assert len(at) >= 3
    assert max(after - before for before, after in pairwise(at)) < LIMIT


def test_an_epoch_does_not_wait_for_all_the_keys_of_a_window_that_is_over() -> None:
    at = [epoch.at for epoch in epochs_of(due_windows(SIZES), "unaligned", 4.0, 0)]
    assert len(at) >= 3
    assert max(after - before for before, after in pairwise(at)) < LIMIT
