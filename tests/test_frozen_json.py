"""What is nested so deep that Python reads it in one place and not in another is refused where it comes in."""

from __future__ import annotations

import pytest

from snapshot.tree.frozen_json import Json, NotJson


@pytest.mark.parametrize("text", ["[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101])
def test_what_is_nested_more_than_a_hundred_deep_is_refused(text: str) -> None:
    with pytest.raises(NotJson, match="is nested more than 100 deep"):
        Json(text)


@pytest.mark.parametrize(
    "text", ["[" * 100 + "]" * 100, '{"a":' * 100 + "1" + "}" * 100, f"[{','.join(['[]'] * 500)}]"]
)
def test_what_is_less_deep_is_taken_however_wide_it_is(text: str) -> None:
    assert Json.of(Json(text).value()).text == text
