"""What a table can keep per key: counts, sums, extremes and the like, updated a batch at a time.

What always holds: an aggregation is a value without state of its own; all that it knows of a key is in the key's place
of the accumulator columns. A null is skipped, as in SQL, and a key that has seen no other value has a null as its
result (a count has 0).

Users' own aggregations implement `Aggregation`; the built-in ones are examples of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

Slots = NDArray[np.int64]
Accumulators = Mapping[str, NDArray[np.generic]]
"""The columns of one aggregation, by the names that it declared. A key's place in them is its slot."""

Number = type[int] | type[float]
"""`int` for 64-bit integers, `float` for 64-bit floats: how a column of numbers is declared."""

_ARROW_TYPES: Final[Mapping[object, pa.DataType]] = {int: pa.int64(), float: pa.float64()}


class AggregationError(ValueError):
    """An aggregation that is declared or fed with what it cannot handle; the message says what to do instead."""


class SumOverflow(AggregationError):
    """A sum of integers that does not fit into 64 bits. The batch may be applied in part: return to the last epoch."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A column of integers or floats, and what a key begins with in it."""

    dtype: np.dtype[np.generic]
    initial: int | float = 0

    @classmethod
    def of(cls, dtype: DTypeLike, initial: int | float = 0) -> Accumulator:
        """The accumulator with this numpy type; `AggregationError` unless it is one of integers or floats."""
        found = np.dtype(dtype)
        if found.kind not in "iuf" or found.itemsize > 8:
            raise AggregationError(f"an accumulator of {found} cannot be kept; use integers or floats up to 64 bits")
        return cls(np.dtype(found.type), initial)


class Aggregation(Protocol):
    """How the values of a column are folded into accumulators.

    `name` with `version` says what the accumulators mean: whoever changes that changes the version, so that an older
    snapshot is refused instead of misread.
    """

    @property
    def name(self) -> str:
        """What it does, and with which type: `sum(int)`."""

    @property
    def version(self) -> int:
        """Raised whenever the accumulators' meaning changes."""

    @property
    def accumulators(self) -> Mapping[str, Accumulator]:
        """Its columns; the same for as long as the version is."""

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        """Fold the values in, in their order: value i belongs to the key with slot i. A slot may occur repeatedly.

        `values` is None if the table has no input column for it. Nulls are to be skipped.
        """

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        """The results of these keys, of the same type each time, also for no key at all."""


@runtime_checkable
class Merging(Protocol):
    """An aggregation whose accumulators can be merged, as windows of sessions need it."""

    def merge(self, accumulators: Accumulators, into: Slots, others: Slots) -> None:
        """Slot `into[i]` has seen, behind its own values, also those that slot `others[i]` has seen.

        No slot comes twice, in whichever of the two.
        """


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows a key has, or of an input column how many values that are not null. Wraps at 2**63."""

    @property
    def name(self) -> str:
        """Of what the accumulators mean."""
        return "count"

    @property
    def version(self) -> int:
        """Of what the accumulators mean."""
        return 1

    @property
    def accumulators(self) -> Mapping[str, Accumulator]:
        """The number so far."""
        return {"count": Accumulator.of(np.int64)}

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        """Count the values, or without a column the rows."""
        if values is not None and values.null_count:
            slots = slots[_valid(values)]
        np.add.at(accumulators["count"], slots, 1)

    def running(self, accumulators: Accumulators, slot: int, values: pa.Array | None, count: int) -> pa.Array:
        """The number after each value of one key. See `turns.Running`."""
        total = accumulators["count"]
        after = total[slot] + _seen_of(values, count)
        total[slot] = after[-1]
        return pa.array(after)

    def merge(self, accumulators: Accumulators, into: Slots, others: Slots) -> None:
        """See `Merging`."""
        count = accumulators["count"]
        count[into] = np.add(count[into], count[others])

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        """64-bit integers, none of them null."""
        return pa.array(accumulators["count"][slots])


class _OfNumbers(ABC):
    """What aggregations over a column of declared numbers share: the declaration, and the check of what comes in."""

    __slots__ = ("number",)

    def __init__(self, number: Number) -> None:
        if number not in _ARROW_TYPES:
            raise AggregationError(
                f"{type(self).__name__} is over int or float, not {number!r}; a Reducing or Aggregating state keeps "
                "any other type"
            )
        self.number: Final[Number] = number

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.number is self.number

    def __hash__(self) -> int:
        return hash((type(self), self.number))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.number.__name__})"

    @property
    def name(self) -> str:
        """What it does, and over which numbers."""
        return f"{type(self).__name__.lower()}({self.number.__name__})"

    @property
    def version(self) -> int:
        """Of what the accumulators mean."""
        return 1

    @property
    def accumulators(self) -> Mapping[str, Accumulator]:
        """The value so far, and whether there is one."""
        dtype = np.int64 if self.number is int else np.float64
        return {"value": Accumulator.of(dtype, self._initial()), "seen": Accumulator.of(np.uint8)}

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        """Fold the values in; `AggregationError` if they are not of the declared kind."""
        slots, numbers = _numbers(self, self.number, slots, values)
        with _QUIET():
            self._fold(accumulators["value"], accumulators["seen"], slots, numbers)

    def running(self, accumulators: Accumulators, slot: int, values: pa.Array | None, count: int) -> pa.Array:
        """The value after each value of one key. See `turns.Running`."""
        _, numbers = _numbers(self, self.number, np.zeros(count, dtype=np.int64), values)
        value, seen = accumulators["value"], accumulators["seen"]
        known, read = bool(seen[slot]), _seen_of(values, count)
        with _QUIET():
            after = np.concatenate((value[slot : slot + 1], self._after_each(value[slot], known, numbers)))
        value[slot], seen[slot] = after[-1], known or len(numbers) > 0
        return pa.array(after[read], mask=(read == 0) & (not known))

    def merge(self, accumulators: Accumulators, into: Slots, others: Slots) -> None:
        """See `Merging`: what the others have come to is folded in as one value is."""
        value, seen = accumulators["value"], accumulators["seen"]
        some = seen[others] != 0
        with _QUIET():
            self._fold(value, seen, into[some], value[others[some]])

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        """64-bit integers or floats, as declared; null for a key that has seen no value."""
        return pa.array(accumulators["value"][slots], mask=accumulators["seen"][slots] == 0)

    def _initial(self) -> int | float:
        return 0

    @abstractmethod
    def _fold(
        self, value: NDArray[np.generic], seen: NDArray[np.generic], slots: Slots, numbers: NDArray[np.generic]
    ) -> None:
        """Fold numbers without nulls in."""

    @abstractmethod
    def _after_each(self, value: np.generic, known: bool, numbers: NDArray[np.generic]) -> NDArray[np.generic]:
        """What a key has come to after each of these numbers, of which none is null; it had `value` if `known`."""


class Sum(_OfNumbers):
    """The sum. Of integers it is exact, and `SumOverflow` says when it leaves 64 bits. Of floats a NaN makes it NaN."""

    __slots__ = ()

    def _fold(
        self, value: NDArray[np.generic], seen: NDArray[np.generic], slots: Slots, numbers: NDArray[np.generic]
    ) -> None:
        if self.number is int and _may_overflow(value, slots, numbers):
            _refuse_overflow(value, slots, numbers)
        np.add.at(value, slots, numbers)
        seen[slots] = 1

    def _after_each(self, value: np.generic, known: bool, numbers: NDArray[np.generic]) -> NDArray[np.generic]:
        del known
        if self.number is int:
            _refuse_overflow_on_the_way(int(value), numbers)
        return _accumulated(np.add, value, numbers)


class Min(_OfNumbers):
    """The least value. NaN is greater than every number, as in Spark: the result is NaN only if all values are."""

    __slots__ = ()

    def _initial(self) -> int | float:
        return _LARGEST if self.number is int else float("nan")

    def _fold(
        self, value: NDArray[np.generic], seen: NDArray[np.generic], slots: Slots, numbers: NDArray[np.generic]
    ) -> None:
        np.fmin.at(value, slots, numbers)
        seen[slots] = 1

    def _after_each(self, value: np.generic, known: bool, numbers: NDArray[np.generic]) -> NDArray[np.generic]:
        del known
        return _accumulated(np.fmin, value, numbers)


class Max(_OfNumbers):
    """The greatest value. NaN is greater than every number, as in Spark: the result is NaN if one value is."""

    __slots__ = ()

    def _initial(self) -> int | float:
        return -_LARGEST - 1 if self.number is int else float("-inf")

    def _fold(
        self, value: NDArray[np.generic], seen: NDArray[np.generic], slots: Slots, numbers: NDArray[np.generic]
    ) -> None:
        np.maximum.at(value, slots, numbers)
        seen[slots] = 1

    def _after_each(self, value: np.generic, known: bool, numbers: NDArray[np.generic]) -> NDArray[np.generic]:
        del known
        return _accumulated(np.maximum, value, numbers)


class First(_OfNumbers):
    """The value that came first, NaN like any other."""

    __slots__ = ()

    def _fold(
        self, value: NDArray[np.generic], seen: NDArray[np.generic], slots: Slots, numbers: NDArray[np.generic]
    ) -> None:
        fresh = seen[slots] == 0
        # Of several values for a slot numpy keeps the last one: reversed, that is the first.
        slots = slots[fresh][::-1]
        value[slots] = numbers[fresh][::-1]
        seen[slots] = 1

    def _after_each(self, value: np.generic, known: bool, numbers: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.full(len(numbers), value if known or not len(numbers) else numbers[0], dtype=numbers.dtype)


class Last(_OfNumbers):
    """The value that came last, NaN like any other."""

    __slots__ = ()

    def _fold(
        self, value: NDArray[np.generic], seen: NDArray[np.generic], slots: Slots, numbers: NDArray[np.generic]
    ) -> None:
        value[slots] = numbers
        seen[slots] = 1

    def _after_each(self, value: np.generic, known: bool, numbers: NDArray[np.generic]) -> NDArray[np.generic]:
        del value, known
        return numbers


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean, as a float. Of integers it is exact as long as their sum stays below 2**53; a NaN makes it NaN."""

    @property
    def name(self) -> str:
        """Of what the accumulators mean."""
        return "mean"

    @property
    def version(self) -> int:
        """Of what the accumulators mean."""
        return 1

    @property
    def accumulators(self) -> Mapping[str, Accumulator]:
        """The sum and the number so far."""
        return {"sum": Accumulator.of(np.float64), "count": Accumulator.of(np.int64)}

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        """Fold the values in; `AggregationError` if they are no numbers."""
        slots, numbers = _numbers(self, float, slots, values)
        with _QUIET():
            np.add.at(accumulators["sum"], slots, numbers)
        np.add.at(accumulators["count"], slots, 1)

    def running(self, accumulators: Accumulators, slot: int, values: pa.Array | None, count: int) -> pa.Array:
        """The mean after each value of one key. See `turns.Running`."""
        _, numbers = _numbers(self, float, np.zeros(count, dtype=np.int64), values)
        total, number = accumulators["sum"], accumulators["count"]
        read = _seen_of(values, count)
        with _QUIET():
            sums = np.concatenate((total[slot : slot + 1], _accumulated(np.add, total[slot], numbers)))
        counts = number[slot] + read
        total[slot], number[slot] = sums[-1], counts[-1]
        return pa.array(sums[read] / np.maximum(counts, 1), mask=counts == 0)

    def merge(self, accumulators: Accumulators, into: Slots, others: Slots) -> None:
        """See `Merging`."""
        total, number = accumulators["sum"], accumulators["count"]
        with _QUIET():
            total[into] = np.add(total[into], total[others])
        number[into] = np.add(number[into], number[others])

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        """64-bit floats; null for a key that has seen no value."""
        count = accumulators["count"][slots].astype(np.float64)
        none = count == 0
        return pa.array(accumulators["sum"][slots].astype(np.float64) / np.where(none, 1.0, count), mask=none)


_LARGEST = 2**63 - 1

_QUIET = partial(np.errstate, invalid="ignore", over="ignore")
"""Infinities and NaN are results like any other."""


def _numbers(
    aggregation: Aggregation, number: Number, slots: Slots, values: pa.Array | None
) -> tuple[Slots, NDArray[np.generic]]:
    """The values as numpy numbers, and their slots, without the nulls."""
    if values is None:
        raise AggregationError(f"{aggregation.name} needs an input column, and the table names none for it")
    if values.null_count:
        slots, values = slots[_valid(values)], values.drop_null()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    wanted = _ARROW_TYPES[number]
    if values.type != wanted:
        integers = pa.types.is_integer(values.type)
        if not integers and (number is int or not pa.types.is_floating(values.type)):
            raise AggregationError(f"{aggregation.name} cannot take a column of {values.type}; cast it to {wanted}")
        try:
            values = pc.cast(values, wanted, safe=number is int)
        except pa.ArrowInvalid as error:
            raise AggregationError(f"{aggregation.name} cannot take a value of this batch: {error}") from error
    return slots, values.to_numpy()


def _valid(values: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _seen_of(values: pa.Array | None, count: int) -> NDArray[np.int64]:
    """How many of the values up to and including each are not null; without values all rows count."""
    if values is None or not values.null_count:
        return np.arange(1, count + 1)
    return np.cumsum(_valid(values), dtype=np.int64)


def _accumulated(fold: np.ufunc, value: np.generic, numbers: NDArray[np.generic]) -> NDArray[np.generic]:
    """The value with one more of the numbers folded in each time, in their order."""
    result: NDArray[np.generic] = fold.accumulate(np.concatenate((np.array([value], dtype=numbers.dtype), numbers)))
    return result[1:]


def _refuse_overflow_on_the_way(value: int, numbers: NDArray[np.generic]) -> None:
    """Refuse numbers of which one brings the sum out of 64 bits, even if a later one would bring it back."""
    if not len(numbers) or abs(value) + len(numbers) * max(int(numbers.max()), -int(numbers.min())) <= _LARGEST:
        return
    for total in accumulate(numbers.tolist(), initial=value):
        if not -_LARGEST - 1 <= total <= _LARGEST:
            raise SumOverflow(f"a sum of integers reaches {total}, beyond 64 bits; declare Sum(float) instead")


def _may_overflow(value: NDArray[np.generic], slots: Slots, numbers: NDArray[np.generic]) -> bool:
    """Whether a bound that is quick to find fails to rule out that a sum leaves 64 bits."""
    if not len(slots):
        return False
    so_far = value[slots]
    largest = max(int(so_far.max()), -int(so_far.min()))
    return largest + len(slots) * max(int(numbers.max()), -int(numbers.min())) > _LARGEST


def _refuse_overflow(value: NDArray[np.generic], slots: Slots, numbers: NDArray[np.generic]) -> None:
    """Refuse what leaves 64 bits: add the halves by themselves, where nothing overflows."""
    touched, places = np.unique(slots, return_inverse=True)
    so_far, added = value[touched].astype(np.int64), numbers.astype(np.int64)
    low, high = so_far & 0xFFFFFFFF, so_far >> 32
    np.add.at(low, places, added & 0xFFFFFFFF)
    np.add.at(high, places, added >> 32)
    high += low >> 32
    beyond = (high < -(1 << 31)) | (high >= 1 << 31)
    if beyond.any():
        worst = int(high[beyond][0]) << 32
        raise SumOverflow(f"a sum of integers reaches about {worst}, beyond 64 bits; declare Sum(float) instead")
