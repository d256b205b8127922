"""Every seeded protocol error is found by the search, which knows nothing of it and has no schedule of its own."""

from __future__ import annotations

import pytest

from snapshot.testing.search import search
from tests.seeded.error import ERRORS, SeededError
from tests.seeded.seeds import SIZE


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.sentence)
def test_the_search_finds_it_when(error: SeededError, monkeypatch: pytest.MonkeyPatch, search_factor: int) -> None:
    """In CI it begins where it finds the error soon, and else as it does for errors of which nothing is known."""
    error.switch_on(monkeypatch)
    seed = error.seed if search_factor == 1 else 0
    found = search(error.world, histories=2_000, size=SIZE, seed=seed, shrink=False)
    assert found is not None, f"2,000 histories do not show that {error.sentence}"
    print(f"{error.sentence}: {found.violation}")
