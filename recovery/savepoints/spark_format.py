"""Keyed state of an epoch as a Spark DataFrame: `spark.read.format("epochcut")`, one Spark partition per range of keys.

Invariant: all tasks read the same epoch, chosen when the query is planned; a task fetches only the files of its
own key groups. Filters that say which keys are wanted leave the others' files unread; Spark applies them all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualNullSafe, EqualTo, Filter, In, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from recovery.offline.job_tree import NEWEST, JobTree, open_tree
from recovery.offline.reading import EpochReading, OperatorStates, read_epoch
from snapshot.structured.spark_types import of_spark, with_types
from statebackend.canonical.schema import KEY, KEY_GROUP
from statebackend.errors import OptionError
from statebackend.files import FileSet
from statebackend.ids import KeyGroup, Partition
from statebackend.keygroups import KeyGroupRange, key_group_of, range_of
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType, WrongKeyType
from statebackend.states.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NEEDED: Final = ("checkpoints", "uid", "state")


class WrongOption(OptionError, ValueError):
    """An option of the format that is missing, or makes no sense; the message says which."""


class StateSource(DataSource):  # type: ignore[misc]  # Spark has no types that mypy is told of
    """The format `epochcut`. See `recovery.register`."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format(...)` takes."""
        return "epochcut"

    def schema(self) -> StructType:
        """Return the columns of the state's canonical table, with Spark's types."""
        options = _checked(self.options)
        with _read(open_tree(options["checkpoints"]), options["epoch"]) as reading:
            return from_arrow_schema(of_spark(_arrow(reading, options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the state's rows."""
        del schema
        return StateRowsReader(_checked(self.options))


@dataclass
class _Range(InputPartition):  # type: ignore[misc]
    """The part that a task reads: files of an epoch."""

    epoch: str
    files: FileSet


class StateRowsReader(DataSourceReader):  # type: ignore[misc]
    """Plain data, as Spark sends it to other processes; `groups` are those that filters leave, None for all."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self.groups: set[int] | None = None

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 (Spark's name)
        """Note which key groups can have rows; Spark is left to apply every filter itself."""
        with _read(open_tree(self._options["checkpoints"]), self._options["epoch"]) as reading:
            schema = reading.operator(self._options["uid"]).declared()
        self.groups = wanted_groups(filters, schema)
        return filters

    def partitions(self) -> Sequence[_Range]:
        """Return one partition for each range of key groups, or for each group that filters leave."""
        with _read(open_tree(self._options["checkpoints"]), self._options["epoch"]) as reading:
            operator = reading.operator(self._options["uid"])
            most = operator.declared().max_parallelism
            if self.groups is not None:
                parts = [operator.files_of_group(KeyGroup(group)) for group in sorted(self.groups) if 0 <= group < most]
            else:
                parts = _parts(operator, most, self._options["partitions"])
            epoch = str(reading.epoch)
        return [_Range(epoch, part) for part in parts if part.files] or [
            _Range(epoch, FileSet(KeyGroupRange.of_all(most)))
        ]

    def read(self, partition: _Range) -> Iterator[pa.RecordBatch]:
        """Read the rows of a range, in an executor."""
        if not partition.files.files:
            return
        with _read(open_tree(self._options["checkpoints"]), partition.epoch) as reading:
            operator = reading.operator(self._options["uid"])
            with operator.opened(partition.files) as reader:
                if not reader.has(self._options["state"]):
                    return
                for batch in reader.batches(self._options["state"], expired=True):
                    yield with_types(batch, of_spark(batch.schema))


def wanted_groups(filters: Sequence[Filter], schema: Schema) -> set[int] | None:
    """Return the key groups whose rows can pass all filters, None if that may be any."""
    found: set[int] | None = None
    fields: dict[str, object] = {}
    for one in filters:
        match one:
            case EqualTo(attribute=(name,), value=value) | EqualNullSafe(attribute=(name,), value=value):
                found = _both(found, _groups_of(name, [value], schema))
            case In(attribute=(name,), value=values):
                found = _both(found, _groups_of(name, list(values), schema))
            case EqualTo(attribute=(name, field), value=value) if name == KEY:
                fields[field] = value
            case _:
                pass
    arrow = schema.key_type.arrow
    if fields and pa.types.is_struct(arrow) and {field.name for field in arrow} == fields.keys():
        found = _both(found, _groups_of(KEY, [fields], schema))
    return found


def _both(one: set[int] | None, other: set[int] | None) -> set[int] | None:
    return other if one is None else one if other is None else one & other


def _groups_of(name: str, values: Sequence[Any], schema: Schema) -> set[int] | None:
    if name == KEY_GROUP:
        return {int(value) for value in values if value is not None}
    if name != KEY:
        return None
    with suppress(WrongKeyType, pa.ArrowException, TypeError, ValueError):
        return {_group(value, schema.key_type, schema.max_parallelism) for value in values}
    return None


def _group(value: object, key_type: KeyType, max_parallelism: int) -> int:
    keys = key_column(pa.array([value], type=key_type.arrow), key_type)
    return key_group_of(key_type.hash_of(keys.key(0)), max_parallelism)


def _parts(operator: OperatorStates, most: int, partitions: str) -> list[FileSet]:
    if not partitions:
        return list(operator.parts)
    if not partitions.isdecimal() or not 1 <= int(partitions) <= most:
        raise WrongOption(f"epochcut: {partitions!r} partitions are out of bounds: 1 to {most}, one for each key group")
    count = int(partitions)
    return [operator.files_of(range_of(Partition(index), count, most)) for index in range(count)]


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    missing = [name for name in _NEEDED if not options.get(name)]
    if missing:
        raise WrongOption(f"epochcut needs the option{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}")
    return {name: options[name] for name in _NEEDED} | {
        "epoch": options.get("epoch") or NEWEST,
        "partitions": options.get("partitions") or "",
    }


def _read(tree: JobTree, which: str) -> AbstractContextManager[EpochReading]:
    return read_epoch(tree, which, pin=False)


def _arrow(reading: EpochReading, options: Mapping[str, str]) -> pa.Schema:
    return reading.operator(options["uid"]).form(options["state"]).arrow
