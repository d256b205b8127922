"""The aggregations that a table can keep per key: counts, sums, extremes and others, updated a batch at a time.

Invariant: an aggregation is a value without state of its own; all that it knows of a key is in the key's place
of the accumulator columns. A null is skipped, as in SQL, and a key that has seen no other value has a null as its
result (a count has 0).

Users' own aggregations are subclasses of `Aggregation`; the built-in ones are examples of it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, Protocol, Self, cast, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.tables.values.accumulators import OBJECTS, Accumulator, AggregationError, Column, ValueForm, form_of

Slots = NDArray[np.int64]
Accumulators = Mapping[str, NDArray[np.generic]]
"""The columns of one aggregation, by the names that it declared. A key's place in them is its slot."""


class SumOverflow(AggregationError):
    """A sum of integers that does not fit into 64 bits. The batch may be applied in part: return to the last epoch."""


class Aggregation(ABC):
    """A fold of a column's values into accumulators.

        class Longest(Aggregation):  # the length of the longest text
            name = "longest"
            accumulators = {"length": Accumulator.of("int64")}

            def update(self, accumulators, slots, values):
                np.maximum.at(accumulators["length"], slots, [len(text or "") for text in values.to_pylist()])

            def result(self, accumulators, slots):
                return pa.array(accumulators["length"][slots])

    In a program, `.aggregate(uid="texts", longest=Longest("text"))`. Sessions need a method `merge`, see `Merging`.
    `name` with `version` says what the accumulators mean: a change of that needs another version, so that an older
    snapshot is refused instead of misread.
    """

    _of_column: ClassVar[bool] = False
    """True if it makes no sense without one."""

    def __init__(self, column: str | None = None) -> None:
        kind = type(self).__name__
        if column is None and self._of_column:
            raise AggregationError(f"{kind} needs the name of a column, such as {kind}('ms')")
        if not isinstance(cast("object", column), str | None):
            raise AggregationError(
                f"{kind} takes the name of a column, such as {kind}('ms'), not {column!r}; the type is the column's"
            )
        self.column: Final = column
        """The name of the column that it is over; None if it only counts rows."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), self.column))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.column is None else repr(self.column)})"

    name: str
    """The name of the operation, and its type: `sum(int)`."""
    version: int = 1
    """Raised whenever the accumulators' meaning changes."""
    accumulators: Mapping[str, Accumulator]
    """Its columns; the same for as long as the version is."""

    def over(self, type: pa.DataType | None, /) -> Aggregation:
        """Return the same for a column of this type, None without one; `AggregationError` if it takes no such values.

        What does the same for all types returns itself.
        """
        del type
        return self

    @abstractmethod
    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None, /) -> None:
        """Fold the values in, in their order: value i belongs to the key with slot i. A slot may occur repeatedly.

        `values` is None if it is over no column. Nulls are to be skipped.
        """

    @abstractmethod
    def result(self, accumulators: Accumulators, slots: Slots, /) -> pa.Array:
        """Return the results of these keys, of the same type each time, also for no key at all."""


@runtime_checkable
class Merging(Protocol):
    """An aggregation whose accumulators can be merged, as windows of sessions need it."""

    def merge(self, accumulators: Accumulators, into: Slots, others: Slots) -> None:
        """Merge into slot `into[i]` what slot `others[i]` has seen, as if that came after its own values.

        No slot comes twice in either of the two.
        """


class Count(Aggregation):
    """The number of a key's rows, or with a column of its values that are not null: `Count()`. Wraps at 2**63."""

    name = "count"
    accumulators = MappingProxyType({"count": Accumulator.of(np.int64)})

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        """Count the values, or without a column the rows."""
        if values is not None and values.null_count:
            slots = slots[_valid(values)]
        np.add.at(accumulators["count"], slots, 1)

    def running(self, accumulators: Accumulators, slot: int, values: pa.Array | None, count: int) -> pa.Array:
        """Return the number after each value of one key. See `rounds.Running`."""
        total = accumulators["count"]
        after = total[slot] + _seen_of(values, count)
        total[slot] = after[-1]
        return pa.array(after)

    def merge(self, accumulators: Accumulators, into: Slots, others: Slots) -> None:
        """Add the counts of the other slots."""
        count = accumulators["count"]
        count[into] = np.add(count[into], count[others])

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        """Return 64-bit integers, none of them null."""
        return pa.array(accumulators["count"][slots])


class _OfValues(Aggregation):
    """The base of aggregations that keep one value: the column, its type as far as known, and one way through values.

    They are declared without the type, which `over` brings before anything else is asked.
    """

    _form: ValueForm

    _of_column = True

    if TYPE_CHECKING:

        def __init__(self, column: str) -> None: ...

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("name", "accumulators", "_form"):
            raise AggregationError(f"{self!r} does not know the type of its column yet; ask what over(type) returns")
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def over(self, type: pa.DataType | None) -> Self:
        """Return the same for a column of this type."""
        bound, form = copy.copy(self), form_of(_column_of(self, type), repr(self))
        bound._takes(form)
        bound._form, initial = form, bound._initial(form)
        value = Accumulator.of(form.kept) if initial is None else Accumulator.of(form.kept, initial)
        bound.name = f"{self.__class__.__name__.lower()}({form.name})"
        bound.accumulators = {"value": value, "seen": Accumulator.of(np.uint8)}
        return bound

    def _takes(self, form: ValueForm) -> None:
        """Raise `AggregationError` if it cannot be over such values."""

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        """Fold the values in; `AggregationError` if they are not of the column's kind."""
        slots, found = _without_nulls(self, self._form, slots, values)
        with _QUIET():
            self._fold(accumulators["value"], accumulators["seen"], slots, found)

    def running(self, accumulators: Accumulators, slot: int, values: pa.Array | None, count: int) -> pa.Array:
        """Return the value after each value of one key. See `rounds.Running`."""
        _, found = _without_nulls(self, self._form, np.zeros(count, dtype=np.int64), values)
        value, seen = accumulators["value"], accumulators["seen"]
        known, read = bool(seen[slot]), _seen_of(values, count)
        with _QUIET():
            after = np.concatenate((value[slot : slot + 1], self._after_each(value[slot], known, found)))
        value[slot], seen[slot] = after[-1], known or len(found) > 0
        return self._form.out(after[read], (read == 0) & (not known))

    def merge(self, accumulators: Accumulators, into: Slots, others: Slots) -> None:
        """Fold in what the others have come to, each as one value."""
        value, seen = accumulators["value"], accumulators["seen"]
        some = seen[others] != 0
        with _QUIET():
            self._fold(value, seen, into[some], value[others[some]])

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        """Return values of the column's type, integers and floats of 64 bits; null for a key that has seen no value."""
        return self._form.out(accumulators["value"][slots], accumulators["seen"][slots] == 0)

    def _initial(self, form: ValueForm) -> int | float | None:
        """Return what a key begins with if that matters."""
        del form
        return None

    @abstractmethod
    def _fold(self, value: Column, seen: Column, slots: Slots, found: Column) -> None:
        """Fold values without nulls in."""

    @abstractmethod
    def _after_each(self, value: np.generic, known: bool, found: Column) -> Column:
        """Return what a key has come to after each of these values, none of them null; it had `value` if `known`."""


class Sum(_OfValues):
    """The sum of a column of numbers: `Sum("ms")`.

    The sum of integers is exact, and `SumOverflow` says when it leaves 64 bits. A NaN among floats makes it NaN.
    """

    def _takes(self, form: ValueForm) -> None:
        _refuse_no_number(self, form)

    def _fold(self, value: Column, seen: Column, slots: Slots, found: Column) -> None:
        if value.dtype.kind == "i" and _may_overflow(value, slots, found):
            _refuse_overflow(self, value, slots, found)
        np.add.at(value, slots, found)
        seen[slots] = 1

    def _after_each(self, value: np.generic, known: bool, found: Column) -> Column:
        del known
        if found.dtype.kind == "i":
            _refuse_overflow_on_the_way(self, int(value), found)
        return _accumulated(np.add, value, found)


class _Extreme(_OfValues):
    """The base of the least and the greatest value."""

    _fold_two: np.ufunc

    def _fold(self, value: Column, seen: Column, slots: Slots, found: Column) -> None:
        if value.dtype == OBJECTS:
            # Nothing that a key could begin with is greater than every text.
            _begin_with_the_first(value, seen, slots, found)
        self._fold_two.at(value, slots, found)
        seen[slots] = 1

    def _after_each(self, value: np.generic, known: bool, found: Column) -> Column:
        if not known and len(found):
            value = found[0]
        return _accumulated(self._fold_two, value, found)


class Min(_Extreme):
    """The least value of a column of any type with an order: `Min("at")`.

    NaN is greater than every number, as in Spark: the result is NaN only if all values are.
    """

    _fold_two = np.fmin

    def _initial(self, form: ValueForm) -> int | float | None:
        return None if form.kept in (str, bytes) else _LARGEST if form.kept is np.int64 else float("nan")


class Max(_Extreme):
    """The greatest value of a column of any type with an order: `Max("at")`.

    NaN is greater than every number, as in Spark: the result is NaN if one value is.
    """

    _fold_two = np.maximum

    def _initial(self, form: ValueForm) -> int | float | None:
        return None if form.kept in (str, bytes) else -_LARGEST - 1 if form.kept is np.int64 else float("-inf")


class First(_OfValues):
    """The value of a column that came first, NaN like any other: `First("page")`."""

    def _fold(self, value: Column, seen: Column, slots: Slots, found: Column) -> None:
        _begin_with_the_first(value, seen, slots, found)
        seen[slots] = 1

    def _after_each(self, value: np.generic, known: bool, found: Column) -> Column:
        return np.full(len(found), value if known or not len(found) else found[0], dtype=found.dtype)


class Last(_OfValues):
    """The value of a column that came last, NaN like any other: `Last("page")`."""

    def _fold(self, value: Column, seen: Column, slots: Slots, found: Column) -> None:
        value[slots] = found
        seen[slots] = 1

    def _after_each(self, value: np.generic, known: bool, found: Column) -> Column:
        del value, known
        return found


class Mean(Aggregation):
    """The mean of a column of numbers, as a float: `Mean("ms")`.

    The mean of integers is exact as long as their sum stays below 2**53; a NaN makes it NaN.
    """

    name = "mean"
    accumulators = MappingProxyType({"sum": Accumulator.of(np.float64), "count": Accumulator.of(np.int64)})

    _of_column = True

    if TYPE_CHECKING:

        def __init__(self, column: str) -> None: ...

    def over(self, type: pa.DataType | None) -> Self:
        """Return itself, as it takes all numbers alike."""
        _refuse_no_number(self, form_of(_column_of(self, type), repr(self)))
        return self

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        """Fold the values in; `AggregationError` if they are no numbers."""
        slots, numbers = _without_nulls(self, _FLOATS, slots, values)
        with _QUIET():
            np.add.at(accumulators["sum"], slots, numbers)
        np.add.at(accumulators["count"], slots, 1)

    def running(self, accumulators: Accumulators, slot: int, values: pa.Array | None, count: int) -> pa.Array:
        """Return the mean after each value of one key. See `rounds.Running`."""
        _, numbers = _without_nulls(self, _FLOATS, np.zeros(count, dtype=np.int64), values)
        total, number = accumulators["sum"], accumulators["count"]
        read = _seen_of(values, count)
        with _QUIET():
            sums = np.concatenate((total[slot : slot + 1], _accumulated(np.add, total[slot], numbers)))
        counts = number[slot] + read
        total[slot], number[slot] = sums[-1], counts[-1]
        return pa.array(sums[read] / np.maximum(counts, 1), mask=counts == 0)

    def merge(self, accumulators: Accumulators, into: Slots, others: Slots) -> None:
        """Add the sums and the counts of the other slots."""
        total, number = accumulators["sum"], accumulators["count"]
        with _QUIET():
            total[into] = np.add(total[into], total[others])
        number[into] = np.add(number[into], number[others])

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        """Return 64-bit floats; null for a key that has seen no value."""
        count = accumulators["count"][slots].astype(np.float64)
        none = count == 0
        return pa.array(accumulators["sum"][slots].astype(np.float64) / np.where(none, 1.0, count), mask=none)


_LARGEST = 2**63 - 1

_QUIET = partial(np.errstate, invalid="ignore", over="ignore")
"""Infinities and NaN are results like any other."""


_FLOATS = form_of(pa.float64(), "Mean")


def _column_of(aggregation: Aggregation, type: pa.DataType | None) -> pa.DataType:
    if type is None:
        raise AggregationError(f"{aggregation!r} needs the type of its column")
    return type


def _refuse_no_number(aggregation: Aggregation, form: ValueForm) -> None:
    if form.name not in ("int", "float"):
        raise AggregationError(
            f"{aggregation!r} is over integers or floats, and its column is of {form.type}; cast it before"
        )


def _begin_with_the_first(value: Column, seen: Column, slots: Slots, found: Column) -> None:
    """Give each slot that has seen no value the first of its values."""
    fresh = seen[slots] == 0
    # Of several values for a slot numpy keeps the last one: reversed, that is the first.
    value[slots[fresh][::-1]] = found[fresh][::-1]


def _without_nulls(
    aggregation: Aggregation, form: ValueForm, slots: Slots, values: pa.Array | None
) -> tuple[Slots, Column]:
    """Return the values as accumulators have them, and their slots, without the nulls."""
    if values is None:
        raise AggregationError(f"{aggregation!r} needs its column, and none is given")
    if values.null_count:
        slots, values = slots[_valid(values)], values.drop_null()
    return slots, form.into(values, aggregation.name)


def _valid(values: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _seen_of(values: pa.Array | None, count: int) -> NDArray[np.int64]:
    """Count how many of the values up to and including each are not null; without values all rows count."""
    if values is None or not values.null_count:
        return np.arange(1, count + 1)
    return np.cumsum(_valid(values), dtype=np.int64)


def _accumulated(fold: np.ufunc, value: np.generic, found: Column) -> Column:
    """Return the value with one more of those found folded in each time, in their order."""
    result: Column = fold.accumulate(np.concatenate((np.array([value], dtype=found.dtype), found)))
    return result[1:]


def _refuse_overflow_on_the_way(sum: Sum, value: int, numbers: Column) -> None:
    """Refuse numbers of which one brings the sum out of 64 bits, even if a later one would bring it back."""
    if not len(numbers) or abs(value) + len(numbers) * max(int(numbers.max()), -int(numbers.min())) <= _LARGEST:
        return
    for total in accumulate(numbers.tolist(), initial=value):
        if not -_LARGEST - 1 <= total <= _LARGEST:
            raise _overflow(sum, str(total))


def _may_overflow(value: Column, slots: Slots, numbers: Column) -> bool:
    """True if a bound that is quick to find does not rule out that a sum leaves 64 bits."""
    if not len(slots):
        return False
    so_far = value[slots]
    largest = max(int(so_far.max()), -int(so_far.min()))
    return largest + len(slots) * max(int(numbers.max()), -int(numbers.min())) > _LARGEST


def _refuse_overflow(sum: Sum, value: Column, slots: Slots, numbers: Column) -> None:
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
        raise _overflow(sum, f"about {worst}")


def _overflow(sum: Sum, reached: str) -> SumOverflow:
    return SumOverflow(f"{sum!r} of integers reaches {reached}, beyond 64 bits; have the column as float64")
