"""Spans of time as people write them: "5s", "250ms", or a number of milliseconds.

What always holds: a span is a whole number of milliseconds and not negative; others are refused where they are written.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Final, TypeAlias

Duration: TypeAlias = "str | int | float | dt.timedelta"
"""A text such as "5s", a number of milliseconds, or Python's own."""

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")


class NotADuration(ValueError):
    """Something that is no span of time; the message says what would be one."""

    def __init__(self, given: object, why: str = "") -> None:
        reason = f": {why}" if why else ""
        super().__init__(
            f"{given!r} is no duration{reason}; write '250ms', '5s', '1m', '2h', '1d' or a number of milliseconds"
        )


def milliseconds(duration: Duration) -> int:
    """How many milliseconds it is; `NotADuration` for what is negative, not whole or no duration at all."""
    if isinstance(duration, str):
        exact = _of_text(duration)
    elif isinstance(duration, dt.timedelta):
        exact = Decimal(duration // dt.timedelta(microseconds=1)) / 1000
    elif type(duration) in (int, float):
        exact = Decimal(duration)
    else:
        raise NotADuration(duration)
    if not exact.is_finite() or exact < 0:
        raise NotADuration(duration, "it is negative or endless")
    if exact != int(exact):
        raise NotADuration(duration, "it is not a whole number of milliseconds")
    return int(exact)


def in_words(duration: int) -> str:
    """Milliseconds in the largest unit in which they are whole, such as `5 s`."""
    for unit in ("d", "h", "min", "s"):
        if duration and duration % _UNITS[unit] == 0:
            return f"{duration // _UNITS[unit]} {unit}"
    return f"{duration} ms"


def _of_text(text: str) -> Decimal:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise NotADuration(text)
    number, unit = match.groups()
    if unit not in _UNITS:
        raise NotADuration(text, f"there is no unit {unit!r}")
    return Decimal(number) * _UNITS[unit]
