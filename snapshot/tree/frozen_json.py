"""A JSON value that cannot change any more: what a source or sink gives into a cut stays as it was at the cut.

Invariant: equal values have equal text, on every platform, so they are compared, hashed and stored as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from statebackend.errors import StoreError

JsonLike: TypeAlias = "bool | int | float | str | Sequence[JsonLike] | Mapping[str, JsonLike] | None"


_DEEPEST: Final = 100
"""Python reads what is nested deeper at one depth of calls, and fails at another."""


class NotJson(StoreError, ValueError):
    """A value that JSON cannot give back as it was."""


@dataclass(frozen=True, slots=True, order=True)
class Json:
    """One value as its canonical text. Use `of` to make one."""

    text: str

    def __post_init__(self) -> None:
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise NotJson(f"{self.text[:80]!r} is not JSON ({error})") from error
        if _canonical(value) != self.text:
            raise NotJson(f"{self.text[:80]!r} is not canonical JSON; `Json.of` makes it so")
        if self.text.count("[") + self.text.count("{") > _DEEPEST and _is_deeper(value, _DEEPEST):
            raise NotJson(f"{self.text[:80]!r} is nested more than {_DEEPEST} deep")

    @classmethod
    def of(cls, value: JsonLike) -> Json:
        """Take a value as it is now; `NotJson` if it holds anything but JSON, such as NaN or a key that is no text."""
        _check_keys(value)
        return cls(_canonical(value))

    def value(self) -> JsonLike:
        """Return a fresh copy, with lists and dicts."""
        value: JsonLike = json.loads(self.text)
        return value


def _canonical(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(f"a value cannot be written as JSON: {error}") from error


def _is_deeper(value: Any, most: int) -> bool:
    """True if there are more than so many lists and objects within each other."""
    level = [value]
    for _ in range(most):
        within = (item for one in level for item in (one.values() if isinstance(one, dict) else one))
        level = [item for item in within if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _check_keys(value: object) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotJson(f"the key {key!r} of a JSON object is no text")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


NULL = Json("null")
