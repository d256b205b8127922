"""Spans of time as people write them: "5s", "250ms", "1 second", or a `timedelta`.

Invariant: a span is a whole number of milliseconds and not negative, and has a unit: others are refused where
they are written.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Final, Literal, TypeAlias

from statebackend.errors import OptionError

Duration: TypeAlias = str | dt.timedelta | Literal[0]
"""A text such as "5s" or "1 second", or Python's own. A number has no unit, and only 0 needs none."""

_NAMES: Final = {
    1: ("ms", "msec", "msecs", "millisecond", "milliseconds"),
    1_000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hr", "hrs", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_UNITS: Final = {name: size for size, names in _NAMES.items() for name in names}
_TEXT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*")


class NotADuration(OptionError, ValueError):
    """Something that is no span of time; the message says what would be one, and for which option it was given."""

    def __init__(self, given: object, why: str = "", advice: str = "", option: str = "") -> None:
        reason = f": {why}" if why else ""
        advice = advice or "write '250ms', '5s', '1m', '2h', '1d' or a timedelta"
        named = f"{option}: " if option else ""
        super().__init__(f"{named}{given!r} is no duration{reason}; {advice}")


def milliseconds(duration: Duration, option: str = "") -> int:
    """Return a duration in milliseconds.

    `NotADuration`, which names the `option`, if it is negative, not a whole number of milliseconds, without a unit, or
    no duration at all.
    """
    if isinstance(duration, str):
        exact = _of_text(duration, option)
    elif isinstance(duration, dt.timedelta):
        exact = Decimal(duration // dt.timedelta(microseconds=1)) / 1000
    elif type(duration) in (int, float):
        exact = _of_number(duration, option)
    else:
        raise NotADuration(duration, option=option)
    if exact < 0:
        raise NotADuration(duration, "it is negative", option=option)
    if exact != int(exact):
        raise NotADuration(duration, "it is not a whole number of milliseconds", option=option)
    return int(exact)


def in_words(duration: int) -> str:
    """Write milliseconds in the largest unit that divides them evenly, such as `5 s`; zero as `0 ms`."""
    for unit in ("d", "h", "min", "s"):
        if duration and duration % _UNITS[unit] == 0:
            return f"{duration // _UNITS[unit]} {unit}"
    return f"{duration} ms"


def _of_text(text: str, option: str) -> Decimal:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise NotADuration(text, option=option)
    number, unit = match.groups()
    if not unit:
        return _of_number(Decimal(number), option, text)
    if unit not in _UNITS:
        raise NotADuration(text, f"there is no unit {unit!r}", option=option)
    return Decimal(number) * _UNITS[unit]


def _of_number(number: float | Decimal, option: str, written: object = None) -> Decimal:
    """Refuse any number but zero: Python programmers would mean seconds by it, and others milliseconds."""
    if number == 0:
        return Decimal(0)
    advice = f"say '{number}s' or '{number}ms'" if number > 0 and Decimal(number).is_finite() else ""
    raise NotADuration(number if written is None else written, "a number has no unit", advice, option)
