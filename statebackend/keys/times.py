"""Dates and timestamps as keys.

Invariant: a time that is finer than the declared unit, or has a zone where none is declared, is refused.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np
import pyarrow as pa

from statebackend.keys.types import KeyType

TimeUnit = Literal["s", "ms", "us", "ns"]
"""In what timestamps count."""

_DAY: Final = dt.date(1970, 1, 1)
_NAIVE: Final = dt.datetime(1970, 1, 1)
_ZONED: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ATTOSECONDS: Final = {
    "as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18,
    "m": 60 * 10**18, "h": 3600 * 10**18, "D": 86400 * 10**18, "W": 7 * 86400 * 10**18,
}  # fmt: skip
"""The lengths of the units of numpy's times, those of constant length."""


class _Time(KeyType):
    """The times of numpy, since 1970-01-01T00:00."""

    __slots__ = ()

    def _attoseconds(self, key: np.datetime64) -> int:
        if np.isnat(key):
            self._refuse(key, "it is not a time")
        unit, step = np.datetime_data(key.dtype)
        if unit in {"Y", "M"}:
            key, unit, step = key.astype("datetime64[D]"), "D", 1
        return int(key.astype(np.int64)) * step * _ATTOSECONDS[unit]


@dataclass(frozen=True, slots=True)
class DateKey(_Time):
    """Days since 1970-01-01: 8 bytes."""

    tag: ClassVar[int] = 7

    def _name(self) -> str:
        return "date"

    def _arrow(self) -> pa.DataType:
        return pa.date32()

    def _width(self) -> int:
        return 8

    def _bytes_of(self, key: object) -> bytes:
        if isinstance(key, np.datetime64):
            days, rest = divmod(self._attoseconds(key), _ATTOSECONDS["D"])
            if rest or not -1 << 31 <= days < 1 << 31:
                self._refuse(key, "it is no whole day in 32 bits")
        elif isinstance(key, dt.date) and not isinstance(key, dt.datetime):
            days = (key - _DAY).days
        else:
            self._refuse(key, "it is no date")
        return days.to_bytes(8, "little", signed=True)

    def _key_of(self, canonical: bytes) -> dt.date | np.datetime64:
        days = int.from_bytes(canonical, "little", signed=True)
        try:
            return _DAY + dt.timedelta(days=days)
        except OverflowError:
            return np.datetime64(days, "D")


@dataclass(frozen=True, slots=True)
class TimestampKey(_Time):
    """Times in a unit since 1970-01-01T00:00: 8 bytes. If zoned, since that moment in UTC."""

    unit: TimeUnit
    tag: ClassVar[int] = 8
    zoned: ClassVar[bool] = False

    def _name(self) -> str:
        return f"timestamp[{self.unit}{', UTC' if self.zoned else ''}]"

    def _arrow(self) -> pa.DataType:
        return pa.timestamp(self.unit, "UTC" if self.zoned else None)

    def _width(self) -> int:
        return 8

    def _bytes_of(self, key: object) -> bytes:
        if isinstance(key, np.datetime64):
            since = self._attoseconds(key)
        elif isinstance(key, dt.datetime):
            if (key.utcoffset() is not None) != self.zoned:
                self._refuse(key, "it has no zone" if self.zoned else "it has a zone")
            passed = key - _ZONED if self.zoned else key - _NAIVE
            since = passed // dt.timedelta(microseconds=1) * _ATTOSECONDS["us"]
            # pandas has times that claim to be datetimes and are finer.
            since += getattr(key, "nanosecond", 0) * _ATTOSECONDS["ns"]
        else:
            self._refuse(key, "it is no datetime")
        value, rest = divmod(since, _ATTOSECONDS[self.unit])
        if rest or not -1 << 63 <= value < 1 << 63:
            self._refuse(key, "it is not exact in this unit, in 64 bits")
        return value.to_bytes(8, "little", signed=True)

    def _key_of(self, canonical: bytes) -> dt.datetime | np.datetime64:
        value = int.from_bytes(canonical, "little", signed=True)
        micros, finer = divmod(value * _ATTOSECONDS[self.unit], _ATTOSECONDS["us"])
        try:
            if not finer:
                return (_ZONED if self.zoned else _NAIVE) + dt.timedelta(microseconds=micros)
        except OverflowError:
            pass
        return np.datetime64(value, self.unit)


@dataclass(frozen=True, slots=True)
class ZonedTimestampKey(TimestampKey):
    """Instants: the zone in which one is given does not matter."""

    tag: ClassVar[int] = 9
    zoned: ClassVar[bool] = True
