"""Every seeded protocol error is found by the search, which knows nothing of it and has no schedule of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.seeded import seeds
from tests.seeded.error import ERRORS, SeededError
from tests.seeded.seeds import found, noted


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.sentence)
def test_the_search_finds_it_when(error: SeededError, monkeypatch: pytest.MonkeyPatch, search_factor: int) -> None:
    """In CI it begins where it finds the error soon, and else as it does for errors of which nothing is known."""
    example = found(error, monkeypatch, histories=2_000, seed=error.seed if search_factor == 1 else 0)
    assert example is not None, f"2,000 histories do not show that {error.sentence}"
    print(f"{error.sentence}: {example.violation}")


def test_a_seed_is_noted_where_its_error_is_entered() -> None:
    text = '@in_the_job("one (of two)", seed=3)\ndef _(): ...\n@in_the_job("one (of two), and more")\n'
    noted_one = '@in_the_job("one (of two)", seed=12)\ndef _(): ...\n@in_the_job("one (of two), and more")\n'
    assert noted(text, "one (of two)", 12) == noted_one
    assert noted(noted_one, "one (of two)", 0) == noted_one.replace(", seed=12", "")
    for error in ERRORS:
        files = [path.read_text() for path in Path(seeds.__file__).parent.glob("*.py")]
        assert sum(noted(file, error.sentence, error.seed + 1) != file for file in files) == 1
        assert all(noted(file, error.sentence, error.seed) == file for file in files)
