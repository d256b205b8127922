"""Every error that is planted in the product is found by the search, which knows nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted import seeds
from tests.planted.error import ERRORS, PlantedError
from tests.planted.seeds import BUDGET, noted, shown_by


@pytest.mark.timeout(0)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.sentence)
def test_the_search_finds_it_when(error: PlantedError, monkeypatch: pytest.MonkeyPatch, search_factor: int) -> None:
    """In CI it begins at the history that is noted, and else at the first, as it does for errors that none knows.

    A change of the product makes other histories of the same schedules; then it finds the error in a later one.
    """
    first = error.shown_by if search_factor == 1 else 0
    numbers = range(first, first + BUDGET)
    found = shown_by(error, monkeypatch, numbers)
    assert found is not None, f"no history of {numbers} shows that {error.sentence}"
    print(f"history {found.number} shows that {error.sentence}: {found.violation}")


def test_a_history_is_noted_where_its_error_is_entered() -> None:
    text = '@planted("one (of two)", shown_by=3)\ndef _(): ...\n@seldom("one (of two), and more")\n'
    noted_one = '@planted("one (of two)", shown_by=12)\ndef _(): ...\n@seldom("one (of two), and more")\n'
    assert noted(text, "one (of two)", 12) == noted_one
    assert noted(noted_one, "one (of two)", 0) == noted_one.replace(", shown_by=12", "")
    assert noted(noted_one, "one (of two), and more", 5) == noted_one.replace("seldom", "planted").replace(
        'more")', 'more", shown_by=5)'
    )
    assert (
        noted(text, "one (of two)", None)
        == '@seldom("one (of two)")\ndef _(): ...\n@seldom("one (of two), and more")\n'
    )
    files = [path.read_text() for path in Path(seeds.__file__).parent.glob("*.py")]
    for error in ERRORS:
        assert sum(noted(file, error.sentence, error.shown_by + 1) != file for file in files) == 1
    assert all(error.shown_by < BUDGET for error in ERRORS)
