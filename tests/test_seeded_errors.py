"""Every seeded protocol error is found by the search, which knows nothing of it and has no schedule of its own."""

from __future__ import annotations

import pytest

import tests.seeded.commit
import tests.seeded.cut
import tests.seeded.state
import tests.seeded.storage  # noqa: F401  (importing fills the table)
from snapshot.testing.search import search
from tests.seeded.error import ERRORS, SeededError


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.sentence)
def test_the_search_finds_it_when(error: SeededError, monkeypatch: pytest.MonkeyPatch) -> None:
    error.switch_on(monkeypatch)
    found = search(error.world, histories=2_000, size=400, shrink=False)
    assert found is not None, f"2,000 histories do not show that {error.sentence}"
    print(f"{error.sentence}: {found.violation}")
